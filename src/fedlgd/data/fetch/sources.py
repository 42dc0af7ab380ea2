"""The published data sets of `sources.toml`: their files, their terms, and what they are prepared into.

Also what the readers of original files share: errors for damaged files, folders written completely or not at all.
"""

import contextlib
import os
import shutil
import struct
import tarfile
import tomllib
import uuid
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from fedlgd.core.errors import DataError, FedlgdError
from fedlgd.core.files import locked
from fedlgd.core.text import plural
from fedlgd.data.arrays import Pixels, saving

Images = tuple[Pixels, Pixels]

CHUNK = 1 << 20
DAMAGE = (
    *(OSError, EOFError, ValueError, TypeError, IndexError, KeyError, OverflowError, NotImplementedError),
    *(struct.error, zlib.error, tarfile.TarError, zipfile.BadZipFile),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Original:
    """One file as its authors publish it. hash: "md5:..." or "sha256:...", "" if unknown; size 0: unknown."""

    name: str
    urls: tuple[str, ...] = ()
    hash: str = ""
    size: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One data set: its terms, its files, the prepared files below the data home, and their total size (`room`).

    counts: the numbers of training and test images of each published release. by_hand: how to get it manually.
    optional: whether its group is complete without it.
    """

    name: str
    group: str = ""
    optional: bool = False
    what: str
    terms: str
    page: str
    files: tuple[Original, ...] = ()
    makes: tuple[str, ...]
    room: int = 0
    counts: tuple[tuple[int, int], ...] = ()
    by_hand: str = ""


SOURCES: dict[str, Source] = {
    source["name"]: msgspec.convert(source, Source)
    for source in tomllib.loads(Path(__file__).with_name("sources.toml").read_text(encoding="utf-8"))["source"]
}
GROUPS = {
    group: tuple(source for source in SOURCES.values() if source.group == group)
    for group in ("digits", "cifar10c", "retina")
}


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Any exception that a damaged file causes becomes a `DataError` that names the file."""
    try:
        yield
    except FedlgdError:
        raise
    except FileNotFoundError as error:
        raise missing(path.parent, path.name) from error
    except DAMAGE as error:
        raise DataError(f"{path} is damaged or not the expected file ({error}); download it again") from error


def missing(folder: Path, what: str) -> DataError:
    return DataError(f"{folder} has no {what}")


def paired(where: object, x: NDArray[Any], y: NDArray[Any]) -> Images:
    """Images and one label from 0 to 9 per image."""
    if len(x) != len(y):
        raise DataError(f"{where} has {plural(len(x), 'image')} but {plural(len(y), 'label')}; download it again")
    return x, labels_of(where, y)


def labels_of(where: object, y: NDArray[Any]) -> Pixels:
    if len(y) and not (y.min() >= 0 and y.max() <= 9 and np.array_equal(y, np.floor(y))):
        raise DataError(
            f"{where} has labels from {y.min()} to {y.max()}; expected integers from 0 to 9; download it again"
        )
    return y.astype(np.uint8)


@contextlib.contextmanager
def replacing(folder: Path) -> Iterator[Path]:
    """A temporary folder to fill, renamed to `folder` at the end; after an error the old folder is unchanged.

    One process at a time does this, so temporary folders that are there already are of killed processes.
    """
    beside = folder.with_name(f".{folder.name}.{uuid.uuid4().hex}")
    with saving(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = folder.with_name(f".{folder.name}.lock")
        lock.touch()
    with locked(lock, DataError(f"another process is preparing {folder}; wait until it has finished")):
        for stale in folder.parent.glob(f".{folder.name}.*/"):
            shutil.rmtree(stale, ignore_errors=True)
        with saving(folder):
            beside.mkdir()
        try:
            yield from _filled(beside, folder)
        finally:
            lock.unlink(missing_ok=True)


def _filled(beside: Path, folder: Path) -> Iterator[Path]:
    try:
        yield beside
        if folder.exists():
            old = beside.with_name(f"{beside.name}.old")
            folder.rename(old)
            beside.rename(folder)
            shutil.rmtree(old)
        else:
            beside.rename(folder)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def copy_member(stream: IO[bytes], target: Path, size: int) -> None:
    """Copy exactly `size` bytes of an archive to a new file and fsync it."""
    left = size
    with saving(target), target.open("xb") as file:
        while left and (chunk := stream.read(min(left, CHUNK))):
            left -= file.write(chunk)
        file.flush()
        os.fsync(file.fileno())
    if left:
        raise DataError(f"{target.name} ends {left} bytes early in its archive; download it again")
