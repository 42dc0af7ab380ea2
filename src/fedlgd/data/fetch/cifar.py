"""Readers of CIFAR-10, binary version, and of CIFAR-10-C, twenty .npy files in a tar."""

import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO

import numpy as np

from fedlgd.core.errors import DataError
from fedlgd.core.meter import tick
from fedlgd.data.arrays import Arrays, both_parts
from fedlgd.data.fetch.sources import Images, copy_member, labels_of, missing, paired, reading, replacing
from fedlgd.data.published.cifar10c import SEVERITIES

ARCHIVE = "cifar-10-binary.tar.gz"
BATCHES = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
TEST = "test_batch.bin"
RECORD = 1 + 3 * 32 * 32  # bytes: a label, then 1024 red, 1024 green and 1024 blue pixels
LARGEST = 10_000 * RECORD

ARCHIVE_C = "CIFAR-10-C.tar"
FOLDER_C = "CIFAR-10-C"
LABELS = "labels"
NAMES_C = (*SEVERITIES, LABELS)
SHAPE_C = (50_000, 32, 32, 3)  # severities 1 to 5 in blocks of 10 000


def _members(archive: tarfile.TarFile, names: tuple[str, ...]) -> Iterator[tuple[str, int, IO[bytes]]]:
    """Name, size and content of the regular files with one of these names, in any folder."""
    for member in archive:
        name = PurePosixPath(member.name).name
        if member.isfile() and name in names and (stream := archive.extractfile(member)):
            yield name, member.size, stream


def read_cifar10(folder: Path) -> Arrays:
    """The five training batches and the test batch as (n, 32, 32, 3)."""
    path, batches = folder / ARCHIVE, {}
    with reading(path), tarfile.open(path) as archive:
        for name, _, stream in _members(archive, (*BATCHES, TEST)):
            batches[name] = _batch(stream.read(LARGEST + 1), f"{path}: {name}")
    if lost := {*BATCHES, TEST} - batches.keys():
        raise missing(path, ", ".join(sorted(lost)))
    x, y = (np.concatenate([batches[name][i] for name in BATCHES]) for i in (0, 1))
    return both_parts((x, y), batches[TEST])


def _batch(content: bytes, where: str) -> Images:
    if not content or len(content) % RECORD or len(content) > LARGEST:
        raise DataError(f"{where} is not a sequence of 1 to 10000 records of {RECORD} bytes; download it again")
    records = np.frombuffer(content, np.uint8).reshape(-1, RECORD)
    return paired(where, records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), records[:, 0])


def unpack_cifar10c(folder: Path, home: Path) -> None:
    """Each known .npy of the archive as a file of its own, so that it can be mapped; all of them or none."""
    path, done = folder / ARCHIVE_C, 0
    with replacing(home / FOLDER_C) as target:
        with reading(path), tarfile.open(path) as archive:
            for name, size, stream in _members(archive, tuple(f"{name}.npy" for name in NAMES_C)):
                copy_member(stream, target / name, size)
                done += size
                tick("unpacking CIFAR-10-C", done, path.stat().st_size)
        check_cifar10c(target)


def check_cifar10c(folder: Path) -> None:
    """Refuse a folder without the twenty arrays of CIFAR-10-C; they are mapped, not read."""
    for name in NAMES_C:
        path = folder / f"{name}.npy"
        with reading(path):
            array = np.load(path, mmap_mode="r", allow_pickle=False)
        if name == LABELS and array.shape == SHAPE_C[:1]:
            labels_of(path, array)
        elif array.shape != SHAPE_C or array.dtype != np.uint8:
            raise DataError(
                f"{path} is {array.dtype} of shape {array.shape}; expected uint8 of shape {SHAPE_C}; "
                "download it again"
            )
