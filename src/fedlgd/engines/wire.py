"""Messages and states as flat tensors with plain values, as bytes, and in files; all bit for bit, without pickle.

The name of a tensor is its path with "/" between the parts, e.g. "virtual/images" or "params/head.weight". Bytes
are in the format safetensors; its header has the plain values and a digest of the content.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass, replace
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, contiguous_format, empty, uint8

from fedlgd.core.files import digest, reading, write_atomic, writing
from fedlgd.core.types import Hello, Params, Update
from fedlgd.rundir.records import SentPart

T = TypeVar("T")

_TENSOR = empty(0)  # stands for every tensor while the types of the plain values are checked


def pack(message: Any) -> tuple[Params, dict[str, Any]]:
    """Tensors by path, and the other values as plain values."""
    tensors: Params = {}
    return tensors, _strip(message, "", tensors)


def unpack(kind: type[T], tensors: Mapping[str, Tensor], plain: Mapping[str, Any]) -> T:
    """The inverse of `pack`."""
    value: T = _build(kind, "", tensors, plain)
    return value


def nbytes(message: Any) -> int:
    """The size of a message: bytes of all its tensors."""
    return sum(t.numel() * t.element_size() for t in pack(message)[0].values())


def sizes(message: Hello | Update) -> dict[str, int]:
    """The bytes of everything that a method put into a message, by its whole path: `params/head.weight`.

    The paths of a `Hello` begin with `hello/`. Left out are the name of the site and the weight of an update.
    """
    prefix = "hello/" if isinstance(message, Hello) else ""
    tensors, plain = pack(message)
    values = {path: value for path, value in _leaves(plain, "") if path not in ("site", "weight")}
    numbers = {
        path: 8 if isinstance(value, int | float) else len(json.dumps(value)) for path, value in values.items()
    }
    found = {path: t.numel() * t.element_size() for path, t in tensors.items()} | numbers
    return {prefix + path: size for path, size in found.items()}


def _leaves(plain: Any, path: str) -> Iterator[tuple[str, Any]]:
    """The plain values by path, without those that stand for tensors."""
    if isinstance(plain, Mapping):
        for name, value in plain.items():
            yield from _leaves(value, _join(path, name))
    elif plain is not None:
        yield path, plain


def sent_tensors(message: Hello | Update) -> dict[str, Params]:
    """The tensors that a message has under each path, by name; a metric is a number and has none."""
    prefix = "hello/" if isinstance(message, Hello) else ""
    parts: dict[str, Params] = {}
    for path, tensor in pack(message)[0].items():
        words = path.split("/")
        depth = 2 if words[0] == "trees" else 1
        parts.setdefault(prefix + "/".join(words[:depth]), {})["/".join(words[depth:])] = tensor
    numbers = message.metrics if isinstance(message, Update) else {}
    return {**parts, **{f"metrics/{name}": {} for name in numbers}}


def add_sent(found: dict[str, SentPart], message: Hello | Update) -> None:
    """Add what a message has to what others had, by path: `params`, `trees/NAME`, `metrics/NAME` (8 bytes).

    The paths of a `Hello` begin with `hello/`.
    """
    for path, part in sent_tensors(message).items():
        tensors = [*part.values()]
        size = sum(t.numel() * t.element_size() for t in tensors) or 8
        form = f"{str(tensors[0].dtype).removeprefix('torch.')} {tuple(tensors[0].shape)}" if tensors else "number"
        before = found.get(path)
        found[path] = SentPart(
            tensors=len(tensors),
            form=form if len(tensors) < 2 else "",
            bytes=size + (before.bytes if before else 0),
            sites=1 + (before.sites if before else 0),
        )


def join_sent(exchanges: Iterable[Mapping[str, SentPart]]) -> dict[str, SentPart]:
    """What the sites sent in all exchanges of a round; a site that sent something twice counts once."""
    found: dict[str, SentPart] = {}
    for exchange in exchanges:
        for path, part in exchange.items():
            before = found.get(path, replace(part, bytes=0))
            found[path] = SentPart(
                tensors=max(before.tensors, part.tensors),
                form=part.form if before.form == part.form else "",
                bytes=before.bytes + part.bytes,
                sites=max(before.sites, part.sites),
            )
    return found


def has_undeclared(update: Update, sends: Mapping[str, str]) -> bool:
    """Whether the method declares no path for a part of this update."""
    parts = {"params": update.params, **{f"trees/{name}": tree for name, tree in update.trees.items()}}
    sent = [path for path, tree in parts.items() if tree] + [f"metrics/{name}" for name in update.metrics]
    known = [f"{path}/" for path in sends]
    return any(
        not any(f"{path}/".startswith(each) or each.startswith(f"{path}/") for each in known) for path in sent
    )


def same(a: Any, b: Any) -> bool:
    """Whether two messages have identical tensor objects and equal values."""
    (tensors_a, plain_a), (tensors_b, plain_b) = pack(a), pack(b)
    return (
        plain_a == plain_b
        and tensors_a.keys() == tensors_b.keys()
        and all(t is tensors_b[k] for k, t in tensors_a.items())
    )


def _strip(value: Any, path: str, tensors: Params) -> Any:
    if isinstance(value, Tensor):
        tensors[path] = value
        return None
    if is_dataclass(value):
        value = {f.name: getattr(value, f.name) for f in fields(value)}
    if isinstance(value, Mapping):
        return {k: _strip(v, _join(path, k), tensors) for k, v in value.items()}
    return value


def _build(kind: Any, path: str, tensors: Mapping[str, Tensor], plain: Any) -> Any:
    if get_origin(kind) in (Union, UnionType):
        kind = next(k for k in get_args(kind) if k is not NoneType)
        if plain is None and path not in tensors:
            return None
    if kind is Tensor:
        return tensors[path]
    if is_dataclass(kind):
        hints, needed = get_type_hints(kind), plain.keys() | set(_required(kind))
        parts = {n: _build(hints[n], _join(path, n), tensors, plain.get(n)) for n in hints if n in needed}
        return kind(**parts)  # type: ignore[operator]
    if isinstance(plain, Mapping):
        of = get_args(kind)[1]
        return {k: _build(of, _join(path, k), tensors, v) for k, v in plain.items()}
    return tuple(plain) if get_origin(kind) is tuple else plain


def _required(kind: Any) -> list[str]:
    """The fields without a default: others may be missing in a message of an earlier version."""
    found: tuple[Field[Any], ...] = fields(kind)
    return [f.name for f in found if f.default is MISSING and f.default_factory is MISSING]


def _join(path: str, name: str) -> str:
    """Escape a slash in a name as ~1 and a tilde as ~0, so that paths are unique."""
    name = name.replace("~", "~0").replace("/", "~1")
    return f"{path}/{name}" if path else name


def to_bytes(message: Any) -> bytes:
    """Encode a dataclass of tensors and plain values."""
    tensors, plain = pack(message)
    own = {name: t.detach().clone(memory_format=contiguous_format) for name, t in tensors.items()}
    text = json.dumps(plain)
    return bytes(save(own, {"plain": text, "digest": _digest(own, text)}))


def from_bytes(kind: type[T], content: bytes, strict: bool = False) -> T:
    """The inverse of `to_bytes`. Tensors are cloned, because torch aligns its memory for vector code.

    A field that is missing, because an earlier version did not have it, has its default.

    strict: also check the types of all plain values, for a message from another machine.
    """
    try:
        tensors = {name: t.clone() for name, t in load(content).items()}
    except SafetensorError as error:
        raise ValueError(str(error)) from error
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])["__metadata__"]
    if header["digest"] != _digest(tensors, header["plain"]):
        raise ValueError("its digest does not match its content")
    plain = json.loads(header["plain"])
    if not set(_required(kind)) <= plain.keys() <= get_type_hints(kind).keys():
        raise ValueError(f"it does not contain a message of type {kind.__name__}")
    if strict:
        msgspec.convert(plain, kind, dec_hook=lambda *_: _TENSOR)
    return unpack(kind, tensors, plain)


def write_message(path: Path, message: Any, private: bool = False) -> None:
    with writing(path):
        write_atomic(path, to_bytes(message), private)


def read_message(path: Path, kind: type[T]) -> T:
    with reading(path):
        return from_bytes(kind, path.read_bytes())


def _digest(tensors: Params, plain: str) -> str:
    parts: list[bytes | memoryview] = [plain.encode()]
    for name, t in sorted(tensors.items()):
        parts += [repr((name, tuple(t.shape), str(t.dtype))).encode(), t.reshape(-1).view(uint8).numpy().data]
    return digest(*parts)
