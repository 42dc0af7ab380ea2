"""MNIST's own format, IDX: two zero bytes, a type, the number of dimensions, each of them, then the bytes."""

import gzip
import math
import struct
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np

from fedlgd.core.errors import DataError
from fedlgd.data.originals.reading import Images, paired, reading
from fedlgd.data.prepared import Arrays, Pixels

BYTES = 8  # the type code of unsigned bytes
LARGEST = 1 << 30


def read_mnist(folder: Path) -> Arrays:
    """The four files of MNIST as (n, 28, 28)."""
    (train_x, train_y), (test_x, test_y) = _part(folder, "train"), _part(folder, "t10k")
    return {"train_x": train_x, "train_y": train_y, "test_x": test_x, "test_y": test_y}


def _part(folder: Path, part: str) -> Images:
    x = read_idx(folder / f"{part}-images-idx3-ubyte.gz", 3)
    return paired(f"{folder}/{part}-*", x, read_idx(folder / f"{part}-labels-idx1-ubyte.gz", 1))


def read_idx(path: Path, dimensions: int) -> Pixels:
    with reading(path), gzip.open(path) as file:
        zero, kind, count = struct.unpack(">HBB", file.read(4))
        if (zero, kind, count) != (0, BYTES, dimensions):
            raise DataError(f"{path} is not an IDX file of bytes in {dimensions} dimensions; download it again")
        shape = struct.unpack(f">{count}I", file.read(4 * count))
        return np.frombuffer(_exactly(cast(BinaryIO, file), math.prod(shape), path), np.uint8).reshape(shape)


def _exactly(file: BinaryIO, size: int, path: Path) -> bytes:
    content = file.read(size + 1) if size <= LARGEST else b""
    if len(content) != size:
        raise DataError(f"{path} announces {size} bytes but does not hold just these; download it again")
    return content
