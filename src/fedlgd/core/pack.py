"""Messages and states as flat tensors plus plain values, and back: what is counted, stored and sent.

A leaf's name is its path with "/" between the parts, e.g. "virtual/images" or "params/head.weight".
"""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from torch import Tensor

from fedlgd.core.types import Params

T = TypeVar("T")

ADDED = {"added": True}
"""Metadata of a field that files of an earlier version lack: they are read with its default."""


def pack(message: Any) -> tuple[Params, dict[str, Any]]:
    """(tensors by path, the rest as plain values)."""
    tensors: Params = {}
    return tensors, _strip(message, "", tensors)


def unpack(kind: type[T], tensors: Mapping[str, Tensor], plain: Mapping[str, Any]) -> T:
    """The message that `pack` took apart."""
    value: T = _build(kind, "", tensors, plain)
    return value


def holds(kind: type, plain: Mapping[str, Any]) -> bool:
    """Are these the fields of this dataclass, but for some that were added later?"""
    missing = get_type_hints(kind).keys() ^ plain.keys()
    return missing <= {f.name for f in fields(kind) if "added" in f.metadata}


def nbytes(message: Any) -> int:
    """Bytes of all tensors in a message: what it costs to send."""
    return sum(t.numel() * t.element_size() for t in pack(message)[0].values())


def same(a: Any, b: Any) -> bool:
    """Are two messages made of the very same tensors and equal values?"""
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
        hints = get_type_hints(kind)
        parts = {name: _build(hints[name], _join(path, name), tensors, plain[name]) for name in plain}
        return kind(**parts)  # type: ignore[operator]
    if isinstance(plain, Mapping):
        of = get_args(kind)[1]
        return {k: _build(of, _join(path, k), tensors, v) for k, v in plain.items()}
    return tuple(plain) if get_origin(kind) is tuple else plain


def _join(path: str, name: str) -> str:
    """A slash inside a name is written ~1 and a tilde ~0, so that no two leaves share a path."""
    name = name.replace("~", "~0").replace("/", "~1")
    return f"{path}/{name}" if path else name
