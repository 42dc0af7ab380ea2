"""Readers of digit sets: MNIST (IDX), USPS (LIBSVM text), SVHN and Ganin's SynthDigits (MATLAB version 5).

The MATLAB reader is our own and reads plain numbers only: scipy's crashes the interpreter on some damaged files.
"""

import bz2
import gzip
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
from fedlgd.data.arrays import Arrays, Pixels, both_parts
from fedlgd.data.fetch.sources import Images, labels_of, missing, paired, reading

IDX_BYTES = 8  # IDX type code of unsigned bytes
IDX_LARGEST = 1 << 30

USPS_SIDE = 16
USPS_LARGEST = 1 << 27  # bytes of text: several times the training file

GANIN = ("synth_train_32x32.mat", "synth_test_32x32.mat")
MAT_HEADER = 128
MAT_VERSION = b"\x00\x01IM"  # version 5, little-endian, at the end of the header
MATRIX, COMPRESSED = 14, 15
STORED = {1: "i1", 2: "u1", 3: "<i2", 4: "<u2", 5: "<i4", 6: "<u4", 7: "<f4", 9: "<f8", 12: "<i8", 13: "<u8"}
CLASSES = ("nothing", "cell", "struct", "object", "char", "sparse", "double", "single", "int8", "uint8")
NUMBERS = range(6, 16)
UINT8 = 9
MAT_LARGEST = 1 << 32  # bytes of a variable: three times SynthDigits


def read_mnist(folder: Path) -> Arrays:
    """The four files of MNIST as (n, 28, 28)."""

    def part(name: str) -> Images:
        x = read_idx(folder / f"{name}-images-idx3-ubyte.gz", 3)
        return paired(f"{folder}/{name}-*", x, read_idx(folder / f"{name}-labels-idx1-ubyte.gz", 1))

    return both_parts(part("train"), part("t10k"))


def read_idx(path: Path, dimensions: int) -> Pixels:
    """IDX: two zero bytes, a type, the number of dimensions, each dimension, then the values."""
    with reading(path), gzip.open(path) as file:
        zero, kind, count = struct.unpack(">HBB", file.read(4))
        if (zero, kind, count) != (0, IDX_BYTES, dimensions):
            raise DataError(f"{path} is not an IDX file of bytes in {dimensions} dimensions; download it again")
        shape = struct.unpack(f">{count}I", file.read(4 * count))
        size = math.prod(shape)
        content = file.read(size + 1) if size <= IDX_LARGEST else b""
        if len(content) != size:
            raise DataError(f"{path} announces {size} bytes but has another number; download it again")
        return np.frombuffer(content, np.uint8).reshape(shape)


def read_usps(folder: Path) -> Arrays:
    """Both files as (n, 16, 16); a value v becomes floor(255 (v + 1) / 2), as in torchvision."""
    return both_parts(read_libsvm(folder / "usps.bz2"), read_libsvm(folder / "usps.t.bz2"))


def read_libsvm(path: Path) -> Images:
    """One line per image, `label index:value ...`, labels 1 to 10, values in [-1, 1]."""
    with reading(path), bz2.open(path) as file:
        rows = [_libsvm_row(line) for line in file.read(USPS_LARGEST).splitlines() if line.strip()]
    if not rows:
        raise DataError(f"{path} has no images; download it again")
    labels, values = np.array([label for label, _ in rows]), np.stack([value for _, value in rows])
    if not np.abs(values).max() <= 1:
        raise DataError(f"{path} has values outside [-1, 1]; download it again")
    return ((values + 1) / 2 * 255).astype(np.uint8).reshape(-1, USPS_SIDE, USPS_SIDE), labels_of(path, labels - 1)


def _libsvm_row(line: bytes) -> tuple[int, NDArray[np.float32]]:
    """Label and values; the value of an absent index is 0."""
    label, *pairs = line.split()
    values = np.zeros(USPS_SIDE**2, np.float32)
    for pair in pairs:
        index, value = pair.split(b":")
        if int(index) < 1:
            raise ValueError(f"index {int(index)}; the first is 1")
        values[int(index) - 1] = float(value)
    return int(label), values


def read_svhn(folder: Path) -> Arrays:
    """The cropped digits without the extra part; label 10 is the digit 0."""
    return both_parts(*(_mat_file(folder / f"{part}_32x32.mat") for part in ("train", "test")))


def read_synth(folder: Path) -> Arrays:
    """Ganin's two files, unpacked or inside SynthDigits.zip."""
    if all((folder / name).is_file() for name in GANIN):
        return both_parts(*(_mat_file(folder / name) for name in GANIN))
    path = folder / "SynthDigits.zip"
    if not path.is_file():
        raise missing(folder, f"SynthDigits.zip, nor {' and '.join(GANIN)}")
    found = []
    with reading(path), zipfile.ZipFile(path) as archive:
        for name in GANIN:
            with archive.open(name) as file:
                found.append(read_mat(file, path / name))
    return both_parts(*found)


def _mat_file(path: Path) -> Images:
    with reading(path), path.open("rb") as file:
        return read_mat(file, path)


def read_mat(file: IO[bytes], path: Path) -> Images:
    """X (h, w, 3, n) as (n, h, w, 3), a view, and y (n, 1) with label 10 as 0."""
    found = {variable.name: variable for variable in variables(file)}
    for name in ("X", "y"):
        if name not in found:
            raise missing(path, f"variable {name}")
    x, y = (found[name].numbers() for name in ("X", "y"))
    if found["X"].kind != UINT8 or x.dtype != np.uint8 or x.ndim != 4 or x.shape[2] != 3:
        raise DataError(
            f"{path}: X is {x.dtype} of shape {x.shape}; expected uint8 of shape (h, w, 3, n); download it again"
        )
    return paired(path, x.transpose(3, 0, 1, 2), np.where(y == 10, 0, y).reshape(-1))


class Variable(NamedTuple):
    """A variable of a MATLAB file: its class, shape and stored values."""

    name: str
    kind: int
    shape: tuple[int, ...]
    values: NDArray[Any] | None

    def numbers(self) -> NDArray[Any]:
        """The values in their shape, the first index changing fastest."""
        if self.values is None or len(self.values) != math.prod(self.shape):
            kind = CLASSES[self.kind] if self.kind < len(CLASSES) else "an unknown class"
            raise ValueError(f"{self.name} is {kind} of shape {self.shape}, not as many numbers")
        return self.values.reshape(self.shape, order="F")


def variables(file: IO[bytes]) -> Iterator[Variable]:
    """The variables of a MATLAB file, one after another."""
    if file.read(MAT_HEADER)[-len(MAT_VERSION) :] != MAT_VERSION:
        raise ValueError("not a MATLAB file of version 5")
    while tag := file.read(8):
        kind, size = struct.unpack("<II", tag)
        content = memoryview(file.read(size) if size < MAT_LARGEST else b"")
        if len(content) != size:
            raise ValueError(f"it ends early: {size} bytes announced, {len(content)} found")
        if kind == COMPRESSED:
            content = _inflated(content)
            kind = struct.unpack_from("<I", content)[0]
            content = content[8:]
        if kind == MATRIX:
            yield _variable(content)


def _inflated(content: memoryview) -> memoryview:
    inflate = zlib.decompressobj()
    inflated = inflate.decompress(content, MAT_LARGEST)
    if not inflate.eof:
        raise ValueError("a compressed variable ends early or is too large")
    return memoryview(inflated)


def _variable(content: memoryview) -> Variable:
    """Flags, shape, name and values are four consecutive elements."""
    _, flags, at = _element(content, 0)
    kind = flags[0]
    _, shape, at = _element(content, at)
    _, name, at = _element(content, at)
    stored, values, at = _element(content, at) if kind in NUMBERS else (0, content[:0], at)
    numbers = np.frombuffer(values, STORED[stored]) if stored in STORED else None
    return Variable(bytes(name).decode("ascii"), kind, tuple(np.frombuffer(shape, "<i4").tolist()), numbers)


def _element(content: memoryview, at: int) -> tuple[int, memoryview, int]:
    """Type and bytes of the element at `at`, and where the next begins; up to four bytes are stored in the tag."""
    kind, size = struct.unpack_from("<II", content, at)
    begin, following = at + 8, at + 8 + (size + 7) // 8 * 8
    if kind >> 16:
        kind, size, begin, following = kind & 0xFFFF, kind >> 16, at + 4, at + 8
    if begin + size > len(content):
        raise ValueError("an element is larger than its variable")
    return kind, content[begin : begin + size], following
