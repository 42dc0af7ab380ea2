"""MATLAB version 5 files with X (h, w, 3, n) and y (n, 1): SVHN, and Ganin's SynthDigits.

Read here, numbers only, as scipy's reader of them brings the interpreter down on some damaged files.
"""

import math
import struct
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedlgd.core.errors import DataError
from fedlgd.data.originals.reading import Images, missing, paired, reading
from fedlgd.data.prepared import Arrays

HEADER = 128
VERSION = b"\x00\x01IM"  # version 5, little-endian, at the end of the header
MATRIX, COMPRESSED = 14, 15
STORED = {1: "i1", 2: "u1", 3: "<i2", 4: "<u2", 5: "<i4", 6: "<u4", 7: "<f4", 9: "<f8", 12: "<i8", 13: "<u8"}
CLASSES = ("nothing", "cell", "struct", "object", "char", "sparse", "double", "single", "int8", "uint8")
NUMBERS = range(6, 16)
BYTES = 9
LARGEST = 1 << 32  # bytes of a variable: three times SynthDigits
GANIN = ("synth_train_32x32.mat", "synth_test_32x32.mat")


def read_svhn(folder: Path) -> Arrays:
    """The cropped digits, without the extra part; their label 10 means the digit 0."""
    return _arrays(*(_file(folder / f"{part}_32x32.mat") for part in ("train", "test")))


def read_synth(folder: Path) -> Arrays:
    """Ganin's two files, as such or inside SynthDigits.zip."""
    if all((folder / name).is_file() for name in GANIN):
        return _arrays(*(_file(folder / name) for name in GANIN))
    archive = folder / "SynthDigits.zip"
    if not archive.is_file():
        raise missing(folder, f"SynthDigits.zip, nor {' and '.join(GANIN)}")
    return _arrays(*(_inside(archive, name) for name in GANIN))


def _arrays(train: Images, test: Images) -> Arrays:
    return {"train_x": train[0], "train_y": train[1], "test_x": test[0], "test_y": test[1]}


def _file(path: Path) -> Images:
    with reading(path), path.open("rb") as file:
        return read_mat(file, path)


def _inside(archive: Path, name: str) -> Images:
    with reading(archive), zipfile.ZipFile(archive) as members, members.open(name) as file:
        return read_mat(file, archive / name)


def read_mat(file: IO[bytes], path: Path) -> Images:
    """X as (n, h, w, 3), a view, and y with label 10 as 0."""
    found = {variable.name: variable for variable in variables(file)}
    for name in ("X", "y"):
        if name not in found:
            raise missing(path, f"variable {name}")
    x, y = (found[name].numbers() for name in ("X", "y"))
    if found["X"].kind != BYTES or x.dtype != np.uint8 or x.ndim != 4 or x.shape[2] != 3:
        raise DataError(f"{path}: X is {x.dtype} of shape {x.shape}; digits are uint8 of shape (h, w, 3, n)")
    return paired(path, x.transpose(3, 0, 1, 2), np.where(y == 10, 0, y).reshape(-1))


class Variable(NamedTuple):
    """A variable of the file: its class, shape and stored values."""

    name: str
    kind: int
    shape: tuple[int, ...]
    values: NDArray[Any] | None

    def numbers(self) -> NDArray[Any]:
        """The values in their shape, the first index running fastest."""
        if self.values is None or len(self.values) != math.prod(self.shape):
            kind = CLASSES[self.kind] if self.kind < len(CLASSES) else "no plain array"
            raise ValueError(f"{self.name} is {kind} of shape {self.shape}, not as many numbers")
        return self.values.reshape(self.shape, order="F")


def variables(file: IO[bytes]) -> Iterator[Variable]:
    """The variables of the file, one after another."""
    if file.read(HEADER)[-len(VERSION) :] != VERSION:
        raise ValueError("not a MATLAB file of version 5")
    while tag := file.read(8):
        kind, content = _whole(tag, file)
        if kind == COMPRESSED:
            content = _inflated(content)
            kind = struct.unpack_from("<I", content)[0]
            content = content[8:]
        if kind == MATRIX:
            yield _variable(content)


def _whole(tag: bytes, file: IO[bytes]) -> tuple[int, memoryview]:
    kind, size = struct.unpack("<II", tag)
    content = file.read(size) if size < LARGEST else b""
    if len(content) != size:
        raise ValueError(f"it ends early: {size} bytes announced, {len(content)} there")
    return kind, memoryview(content)


def _inflated(content: memoryview) -> memoryview:
    inflate = zlib.decompressobj()
    inflated = inflate.decompress(content, LARGEST)
    if not inflate.eof:
        raise ValueError("a compressed variable ends early or is too large")
    return memoryview(inflated)


def _variable(content: memoryview) -> Variable:
    """Flags, shape, name and values, each an element of its own."""
    _, flags, at = _element(content, 0)
    kind = flags[0]
    _, shape, at = _element(content, at)
    _, name, at = _element(content, at)
    stored, values, at = _element(content, at) if kind in NUMBERS else (0, content[:0], at)
    numbers = np.frombuffer(values, STORED[stored]) if stored in STORED else None
    return Variable(bytes(name).decode("ascii"), kind, tuple(np.frombuffer(shape, "<i4").tolist()), numbers)


def _element(content: memoryview, at: int) -> tuple[int, memoryview, int]:
    """Type and bytes of the element at `at`, and where the next begins; four bytes or fewer stand in the tag."""
    kind, size = struct.unpack_from("<II", content, at)
    begin, following = at + 8, at + 8 + (size + 7) // 8 * 8
    if kind >> 16:
        kind, size, begin, following = kind & 0xFFFF, kind >> 16, at + 4, at + 8
    if begin + size > len(content):
        raise ValueError("an element is larger than its variable")
    return kind, content[begin : begin + size], following
