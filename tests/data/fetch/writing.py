"""Writers of the formats in which the data sets are published, small."""

import bz2
import gzip
import io
import struct
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy.io import savemat

Pixels = NDArray[np.uint8]


def bytes_of(*shape: int, seed: int = 0) -> Pixels:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def digits(n: int, seed: int = 0) -> Pixels:
    return np.random.default_rng(seed).integers(0, 10, n, dtype=np.uint8)


def idx(array: Pixels, kind: int = 8) -> bytes:
    head = struct.pack(f">HBB{array.ndim}I", 0, kind, array.ndim, *array.shape)
    return gzip.compress(head + array.tobytes(), mtime=0)


def mnist(folder: Path, train: int = 5, test: int = 3) -> dict[str, Pixels]:
    """The four files; returns what they hold."""
    folder.mkdir(parents=True, exist_ok=True)
    made = {"train_x": bytes_of(train, 28, 28), "train_y": digits(train)}
    made |= {"test_x": bytes_of(test, 28, 28, seed=1), "test_y": digits(test, seed=1)}
    for part, name in (("train", "train"), ("test", "t10k")):
        (folder / f"{name}-images-idx3-ubyte.gz").write_bytes(idx(made[f"{part}_x"]))
        (folder / f"{name}-labels-idx1-ubyte.gz").write_bytes(idx(made[f"{part}_y"]))
    return made


def libsvm(values: NDArray[np.float64], labels: Pixels) -> bytes:
    """Lines such as "7 1:-1 2:-0.631 ..."; labels count from 1."""
    rows = (
        " ".join([str(label), *(f"{i + 1}:{value:g}" for i, value in enumerate(row))]) + " \n"
        for label, row in zip(labels, values.reshape(len(values), -1), strict=True)
    )
    return bz2.compress("".join(rows).encode())


def mat(path: Path, x: Any, y: Any) -> None:
    """MATLAB version 5, compressed, like the originals."""
    savemat(path, {"X": x, "y": y}, do_compression=True)


def picture(pixels: Pixels, kind: str = "PNG") -> bytes:
    made = io.BytesIO()
    Image.fromarray(pixels).save(made, kind)
    return made.getvalue()


def tar(path: Path, members: Mapping[str, bytes], mode: Any = "w:gz") -> None:
    with tarfile.open(path, mode) as archive:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))


def npy(array: NDArray[Any]) -> bytes:
    made = io.BytesIO()
    np.save(made, array)
    return made.getvalue()


def cifar(path: Path, each: int = 3, **changed: bytes) -> dict[str, tuple[Pixels, Pixels]]:
    """cifar-10-binary.tar.gz with batches of `each` images; returns rows of pixels and labels by batch."""
    made: dict[str, tuple[Pixels, Pixels]] = {}
    for number, name in enumerate([*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]):
        made[name] = (bytes_of(each, 3072, seed=number), digits(each, seed=number))
    members = {name: np.column_stack([labels, rows]).tobytes() for name, (rows, labels) in made.items()} | changed
    tar(path, {f"cifar-10-batches-bin/{name}": content for name, content in members.items()})
    return made
