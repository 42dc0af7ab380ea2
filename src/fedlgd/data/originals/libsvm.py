"""USPS as LIBSVM publishes it: a line an image, `label index:value ...`, labels 1 to 10, values in [-1, 1]."""

import bz2
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedlgd.core.errors import DataError
from fedlgd.data.originals.reading import Images, labels_of, reading
from fedlgd.data.prepared import Arrays

SIDE = 16
LARGEST = 1 << 27  # bytes of text: several times the training file


def read_usps(folder: Path) -> Arrays:
    """Both files as (n, 16, 16); a value v becomes the byte floor(255 (v + 1) / 2), as torchvision has it."""
    (train_x, train_y), (test_x, test_y) = read_libsvm(folder / "usps.bz2"), read_libsvm(folder / "usps.t.bz2")
    return {"train_x": train_x, "train_y": train_y, "test_x": test_x, "test_y": test_y}


def read_libsvm(path: Path) -> Images:
    with reading(path), bz2.open(path) as file:
        rows = [_row(line) for line in file.read(LARGEST).splitlines() if line.strip()]
    if not rows:
        raise DataError(f"{path} has no images; download it again")
    labels, values = np.array([label for label, _ in rows]), np.stack([value for _, value in rows])
    if not np.abs(values).max() <= 1:
        raise DataError(f"{path} has values outside [-1, 1]; download it again")
    return ((values + 1) / 2 * 255).astype(np.uint8).reshape(-1, SIDE, SIDE), labels_of(path, labels - 1)


def _row(line: bytes) -> tuple[int, NDArray[np.float32]]:
    """Label and values; an index that is not there has the value 0."""
    label, *pairs = line.split()
    values = np.zeros(SIDE**2, np.float32)
    for pair in pairs:
        index, value = pair.split(b":")
        if int(index) < 1:
            raise ValueError(f"index {int(index)}; the first is 1")
        values[int(index) - 1] = float(value)
    return int(label), values
