"""Messages as bytes for another process on this machine, and back to the same bits. Nothing is pickled."""

import json
from typing import Any, TypeVar

from safetensors.torch import load, save
from torch import contiguous_format

from fedlgd.core.pack import pack, unpack

T = TypeVar("T")


def encode(message: Any) -> bytes:
    """A dataclass of tensors and plain values."""
    tensors, plain = pack(message)
    own = {name: t.detach().clone(memory_format=contiguous_format) for name, t in tensors.items()}
    return bytes(save(own, {"plain": json.dumps(plain)}))


def decode(kind: type[T], content: bytes) -> T:
    """The message that `encode` took apart. Tensors are cloned: torch aligns its own memory for vector code."""
    tensors = {name: t.clone() for name, t in load(content).items()}
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    return unpack(kind, tensors, json.loads(header["__metadata__"]["plain"]))
