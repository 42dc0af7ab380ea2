"""Convert messages and states to flat tensors and plain values, and back, for counting, storing and sending.

The name of a leaf is its path with "/" between the parts, e.g. "virtual/images" or "params/head.weight".
"""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from torch import Tensor

from fedlgd.core.types import Params

T = TypeVar("T")


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
        hints = get_type_hints(kind)
        parts = {name: _build(hints[name], _join(path, name), tensors, plain.get(name)) for name in hints}
        return kind(**parts)  # type: ignore[operator]
    if isinstance(plain, Mapping):
        of = get_args(kind)[1]
        return {k: _build(of, _join(path, k), tensors, v) for k, v in plain.items()}
    return tuple(plain) if get_origin(kind) is tuple else plain


def _join(path: str, name: str) -> str:
    """Escape a slash in a name as ~1 and a tilde as ~0, so that paths are unique."""
    name = name.replace("~", "~0").replace("/", "~1")
    return f"{path}/{name}" if path else name
