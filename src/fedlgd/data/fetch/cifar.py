"""CIFAR-10 in its "python version", six pickles in a tar, and CIFAR-10-C, twenty .npy files in a tar."""

import tarfile
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from fedlgd.core.errors import DataError
from fedlgd.core.meter import tick
from fedlgd.data.originals import plain_pickle
from fedlgd.data.originals.reading import Images, labels_of, missing, paired, reading
from fedlgd.data.originals.whole import made_whole, pour
from fedlgd.data.prepared import Arrays

ARCHIVE = "cifar-10-python.tar.gz"
BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))
TEST = "test_batch"

ARCHIVE_C = "CIFAR-10-C.tar"
FOLDER_C = "CIFAR-10-C"
LABELS = "labels"
CORRUPTIONS = (
    "brightness",
    "contrast",
    "defocus_blur",
    "elastic_transform",
    "fog",
    "frost",
    "gaussian_blur",
    "gaussian_noise",
    "glass_blur",
    "impulse_noise",
    "jpeg_compression",
    "motion_blur",
    "pixelate",
    "saturate",
    "shot_noise",
    "snow",
    "spatter",
    "speckle_noise",
    "zoom_blur",
)
SHAPE = (50_000, 32, 32, 3)  # severities 1 to 5 in blocks of 10 000


def read_cifar10(folder: Path) -> Arrays:
    """The five training batches and the test batch as (n, 32, 32, 3)."""
    path = folder / ARCHIVE
    with reading(path), tarfile.open(path) as archive:
        batches = {name: _batch(content, f"{path}: {name}") for name, content in _wanted(archive)}
    if lost := {*BATCHES, TEST} - batches.keys():
        raise missing(path, ", ".join(sorted(lost)))
    train_x, train_y = (np.concatenate([batches[name][i] for name in BATCHES]) for i in (0, 1))
    return {"train_x": train_x, "train_y": train_y, "test_x": batches[TEST][0], "test_y": batches[TEST][1]}


def _wanted(archive: tarfile.TarFile) -> Any:
    """The six batches; the rest of the archive is a page and a list of names."""
    for member in archive:
        name = PurePosixPath(member.name).name
        if member.isfile() and name in (*BATCHES, TEST) and (stream := archive.extractfile(member)):
            yield name, stream.read(plain_pickle.LARGEST + 1)


def _batch(content: bytes, where: str) -> Images:
    """Rows of 1024 red, 1024 green and 1024 blue bytes."""
    match plain_pickle.read_pickle(content, where):
        case {"data": np.ndarray() as rows, "labels": list(labels)} if rows.ndim == 2 and rows.shape[1] == 3072:
            if not all(type(label) is int for label in labels):
                raise DataError(f"{where} has labels that are not whole numbers; download it again")
            return paired(where, rows.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), np.array(labels))
    raise DataError(f"{where} has no rows of 3072 bytes with labels; download it again")


def unpack_cifar10c(folder: Path, home: Path) -> None:
    """Each known .npy of the archive as a file of its own, so that it can be mapped; all of them or none."""
    path, done = folder / ARCHIVE_C, 0
    with made_whole(home / FOLDER_C) as target:
        with reading(path), tarfile.open(path) as archive:
            for member in archive:
                name = PurePosixPath(member.name)
                known = member.isfile() and name.suffix == ".npy" and name.stem in (*CORRUPTIONS, LABELS)
                if known and (stream := archive.extractfile(member)):
                    pour(stream, target / name.name, member.size)
                    done += member.size
                    tick("unpacking CIFAR-10-C", done, path.stat().st_size)
        check_cifar10c(target)


def check_cifar10c(folder: Path) -> None:
    """Refuse a folder that is not the twenty arrays of CIFAR-10-C; they are mapped, not read."""
    for name in (*CORRUPTIONS, LABELS):
        path = folder / f"{name}.npy"
        with reading(path):
            array = np.load(path, mmap_mode="r", allow_pickle=False)
        if name == LABELS and array.shape == SHAPE[:1]:
            labels_of(path, array)
        elif array.shape != SHAPE or array.dtype != np.uint8:
            raise DataError(f"{path} is {array.dtype} of shape {array.shape}; it should be uint8 of shape {SHAPE}")
