"""Encode messages and states as bytes and decode them bit for bit, without pickle.

The format is safetensors; its header has the plain values and a digest of the content.
"""

import json
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

import msgspec
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import contiguous_format, empty, uint8

from fedlgd.core.files import digest, reading, write_atomic, writing
from fedlgd.core.pack import pack, unpack
from fedlgd.core.types import Params

T = TypeVar("T")

_TENSOR = empty(0)  # stands for every tensor while the types of the plain values are checked


def encode(message: Any) -> bytes:
    """Encode a dataclass of tensors and plain values."""
    tensors, plain = pack(message)
    own = {name: t.detach().clone(memory_format=contiguous_format) for name, t in tensors.items()}
    text = json.dumps(plain)
    return bytes(save(own, {"plain": text, "digest": _digest(own, text)}))


def decode(kind: type[T], content: bytes, strict: bool = False) -> T:
    """The inverse of `encode`. Tensors are cloned, because torch aligns its memory for vector code.

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
    if plain.keys() != get_type_hints(kind).keys():
        raise ValueError(f"it does not contain a message of type {kind.__name__}")
    if strict:
        msgspec.convert(plain, kind, dec_hook=lambda *_: _TENSOR)
    return unpack(kind, tensors, plain)


def write_message(path: Path, message: Any, private: bool = False) -> None:
    with writing(path):
        write_atomic(path, encode(message), private)


def read_message(path: Path, kind: type[T]) -> T:
    with reading(path):
        return decode(kind, path.read_bytes())


def _digest(tensors: Params, plain: str) -> str:
    parts: list[bytes | memoryview] = [plain.encode()]
    for name, t in sorted(tensors.items()):
        parts += [repr((name, tuple(t.shape), str(t.dtype))).encode(), t.reshape(-1).view(uint8).numpy().data]
    return digest(*parts)
