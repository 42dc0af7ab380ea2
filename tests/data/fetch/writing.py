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


def old_batch(rows: Pixels, labels: list[int]) -> bytes:
    """A batch of CIFAR-10 as Python 2 and numpy 1 pickled it: protocol 2, text and bytes alike as strings."""
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\nq\x10cnumpy\nndarray\nq\x11K\x00\x85q\x12U\x01bq\x13\x87q\x14Rq\x15"
        + b"(K\x01"
        + b"".join(map(_number, rows.shape))
        + (b"\x86" if rows.ndim == 2 else b"\x85")
        + b"q\x16cnumpy\ndtype\nq\x17U\x02u1q\x18K\x00K\x01\x87q\x19Rq\x1a"
        + b"(K\x03U\x01|q\x1bNNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89"
        + _text(rows.tobytes())
        + b"q\x1ctb"
    )
    names = b"".join(_text(f"leptodactylus_pentadactylus_s_{i:06d}.png".encode()) for i in range(len(labels)))
    return (
        b"\x80\x02}q\x01("
        + _text(b"batch_label") + b"q\x02" + _text(b"training batch 1 of 5") + b"q\x03"
        + _text(b"labels") + b"q\x04]q\x05(" + b"".join(map(_number, labels)) + b"e"
        + _text(b"data") + b"q\x06" + array
        + _text(b"filenames") + b"q\x07]q\x08(" + names + b"e"
        + b"u."
    )  # fmt: skip


def _number(value: int) -> bytes:
    return b"K" + bytes([value]) if value < 256 else b"M" + struct.pack("<H", value)


def _text(content: bytes) -> bytes:
    return (
        b"U" + bytes([len(content)]) if len(content) < 256 else b"T" + struct.pack("<I", len(content))
    ) + content


def cifar(path: Path, each: int = 3, **changed: bytes) -> dict[str, tuple[Pixels, list[int]]]:
    """cifar-10-python.tar.gz with batches of `each` images; returns rows and labels by batch."""
    made: dict[str, tuple[Pixels, list[int]]] = {}
    for number, name in enumerate([*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]):
        made[name] = (bytes_of(each, 3072, seed=number), digits(each, seed=number).tolist())
    members = {name: old_batch(*batch) for name, batch in made.items()} | changed
    tar(path, {f"cifar-10-batches-py/{name}": content for name, content in members.items()})
    return made
