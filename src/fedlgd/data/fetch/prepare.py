"""Published data sets into the data home: downloaded or taken from a folder, read, checked and written."""

import logging
import os
import shutil
import uuid
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Any, Literal

import numpy as np

from fedlgd.core.errors import DataError, did_you_mean
from fedlgd.core.files import locked
from fedlgd.core.meter import tick
from fedlgd.data.arrays import PARTS, Arrays, read_domain, refuse_without_space, saving, write_arrays
from fedlgd.data.fetch import readers
from fedlgd.data.fetch.download import DATASETS, GROUPS, Dataset, DownloadError, download, missing_bytes, wrong
from fedlgd.data.fetch.readers import reading_original
from fedlgd.data.published.partition import CIFAR10C_FOLDER, SEVERITIES

log = logging.getLogger(__name__)

State = Literal["prepared", "there", "by hand", "failed"]

CHUNK_BYTES = 1 << 20

CIFAR10C = "CIFAR-10-C.tar"
CIFAR10C_ARRAYS = (*SEVERITIES, "labels")
CIFAR10C_FILES = tuple(f"{name}.npy" for name in CIFAR10C_ARRAYS)
CIFAR10C_SHAPE = (50_000, 32, 32, 3)  # severities 1 to 5 in blocks of 10 000

RIM_ONE = "RIM-ONE_DL_images.zip"
RIM_ONE_PARTITION = "partitioned_randomly"
RIM_ONE_PARTS = {"training_set": "Training", "test_set": "Testing"}
RIM_ONE_CLASSES = ("glaucoma", "normal")

READERS: dict[str, Callable[[Path], Arrays]] = {
    "mnist": readers.read_mnist,
    "svhn": readers.read_svhn,
    "usps": readers.read_usps,
    "mnist_m": readers.read_mnist_m,
    "synth_ganin": readers.read_synth,
    "synth_folder": readers.read_synth_folder,
    "cifar10": readers.read_cifar10,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchOutcome:
    """The result for one data set. note: what the user has to do, if anything."""

    name: str
    state: State
    paths: tuple[str, ...]
    note: str = ""
    optional: bool = False

    @property
    def ready(self) -> bool:
        return self.state in ("prepared", "there")


def find_datasets(names: list[str]) -> list[Dataset]:
    """The data sets of these names; a group stands for all its members."""
    found: dict[str, Dataset] = {}
    for name in names:
        if name not in GROUPS and name not in DATASETS:
            hint = did_you_mean(name, [*GROUPS, *DATASETS]) or ";"
            raise DataError("unknown-data-set", name=name, hint=hint, groups=list(GROUPS), datasets=list(DATASETS))
        found |= {dataset.name: dataset for dataset in GROUPS.get(name, (DATASETS.get(name),)) if dataset}
    return list(found.values())


def attempt(dataset: Dataset, home: Path, *, named: bool, **how: Any) -> FetchOutcome:
    """`fetch` with an error as an outcome, so that the next data set is still fetched."""
    try:
        outcome = fetch(dataset, home, **how)
    except DataError as error:
        outcome = FetchOutcome(name=dataset.name, state="failed", paths=_paths(dataset, home), note=str(error))
    return replace(outcome, optional=dataset.optional and not named)


def fetch(
    dataset: Dataset, home: Path, *, given: Path | None = None, again: bool = False, keep: bool = False
) -> FetchOutcome:
    """Prepare the data set in `home`, from the folder `given` or from the network; completely or not at all."""
    outcome = partial(FetchOutcome, name=dataset.name, paths=_paths(dataset, home))
    if not again and _is_there(dataset, home):
        return outcome(state="there")
    if dataset.name not in READERS and dataset.name not in UNPACKERS:
        how = dataset.by_hand.format(home=home, site=dataset.name)
        return outcome(state="by hand", note=f"{dataset.page}: {how}")
    if not (given or dataset.files):
        return outcome(state="by hand", note=_by_hand(dataset))
    with _originals(dataset, home, given, keep) as folder:
        if dataset.name in UNPACKERS:
            UNPACKERS[dataset.name](folder, home)
        else:
            _prepare(dataset, folder, home)
    return outcome(state="prepared")


def _paths(dataset: Dataset, home: Path) -> tuple[str, ...]:
    return tuple(str(home / made) for made in dataset.makes)


def _by_hand(dataset: Dataset) -> str:
    """How to get the original files without this program, and the command that continues from there."""
    places = sorted({original.urls[0].rpartition("/")[0] for original in dataset.files})
    names = ", ".join(original.name for original in dataset.files)
    how = dataset.by_hand or f"get {names} from {' or '.join(places)} in another way and put them into a folder DIR"
    return f"{how}; then run: fedlgd data fetch {dataset.name} --from DIR"


def _is_there(dataset: Dataset, home: Path) -> bool:
    """Whether everything the data set is prepared into is there and undamaged."""
    try:
        for path in (home / made for made in dataset.makes):
            if not path.exists():
                return False
            if path.suffix == ".npz":
                read_domain(path, _parts(path))
            elif path.name == CIFAR10C_FOLDER:
                check_cifar10c(path)
            elif not all((path / part).is_dir() for part in RIM_ONE_PARTS.values()):
                return False
    except DataError as error:
        log.warning("%s; it is prepared again", error)
        return False
    return True


def _parts(path: Path) -> tuple[str, ...]:
    return ("test",) if path.stem.endswith("_test") else PARTS


@contextmanager
def _originals(dataset: Dataset, home: Path, given: Path | None, keep: bool) -> Iterator[Path]:
    """The folder with the original files: the given one, or downloads that are removed after use.

    In a given folder, one named like the data set is preferred, and files with a published hash must match it.
    """
    if given:
        refuse_without_space(home, dataset.room, dataset.name)
        folder = given / dataset.name if (given / dataset.name).is_dir() else given
        for original in dataset.files:
            path = folder / original.name
            if path.is_file() and (difference := wrong(path, original)):
                raise DataError("original-differs", path=path, difference=difference)
        yield folder
        return
    folder = home / "originals" / dataset.name
    coming = sum(missing_bytes(original, folder) for original in dataset.files)
    refuse_without_space(home, coming + dataset.room, dataset.name)
    with _alone(folder):
        try:
            for original in dataset.files:
                download(original, folder)
        except DownloadError as error:
            raise DataError("download-failed", error=error, by_hand=_by_hand(dataset)) from error
        yield folder
        if not keep:
            shutil.rmtree(folder)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One process at a time downloads to a folder. The lock, and the folder if empty, are removed at the end."""
    lock = folder / ".lock"
    with saving(folder):
        folder.mkdir(parents=True, exist_ok=True)
        lock.touch()
    with locked(lock, DataError("being-downloaded", folder=folder)):
        try:
            yield
        finally:
            with suppress(OSError):
                lock.unlink()
                folder.rmdir()
            with suppress(OSError):
                folder.parent.rmdir()


def _prepare(dataset: Dataset, folder: Path, home: Path) -> None:
    """Read the original files, check the number of images, and write the prepared files."""
    arrays = READERS[dataset.name](folder)
    counts = {part: len(arrays[f"{part}_y"]) for part in PARTS}
    if tuple(counts.values()) not in dataset.counts:
        published = " or ".join(f"{train} and {test}" for train, test in dataset.counts)
        raise DataError("unpublished-numbers", name=dataset.name, folder=folder, published=published, **counts)
    for path in (home / made for made in dataset.makes):
        with saving(path):
            write_arrays(path, {key: arrays[key] for part in _parts(path) for key in (f"{part}_x", f"{part}_y")})


def unpack_cifar10c(folder: Path, home: Path) -> None:
    """Each known .npy of the archive as a file of its own, so that it can be mapped; all of them or none."""
    path, done = folder / CIFAR10C, 0
    with replacing(home / CIFAR10C_FOLDER) as target:
        with reading_original(path):
            for place, size, stream in readers.tar_members(path, CIFAR10C_FILES):
                copy_member(stream, target / place.name, size)
                done += size
                tick("unpacking CIFAR-10-C", done, path.stat().st_size)
        check_cifar10c(target)


def check_cifar10c(folder: Path) -> None:
    """Refuse a folder without the twenty arrays of CIFAR-10-C; they are mapped, not read."""
    for name in CIFAR10C_ARRAYS:
        path = folder / f"{name}.npy"
        with reading_original(path):
            array = np.load(path, mmap_mode="r", allow_pickle=False)
        if name == "labels" and array.shape == CIFAR10C_SHAPE[:1]:
            readers.digit_labels(path, array)
        elif array.shape != CIFAR10C_SHAPE or array.dtype != np.uint8:
            found = {"dtype": array.dtype, "shape": array.shape, "expected": CIFAR10C_SHAPE}
            raise DataError("array-of-wrong-shape", path=path, way_out="download it again", **found)


def unpack_rim_one(given: Path, home: Path) -> None:
    """Its random partition as retina/rim_one/Training|Testing/glaucoma|normal, picture files unchanged."""
    path = given / RIM_ONE
    with replacing(home / "retina" / "rim_one") as target, reading_original(path), zipfile.ZipFile(path) as archive:
        folders = [f"{part}/{diagnosis}" for part in RIM_ONE_PARTS.values() for diagnosis in RIM_ONE_CLASSES]
        for folder in folders:
            (target / folder).mkdir(parents=True)
        for entry in archive.infolist():
            if place := _rim_one_place(PurePosixPath(entry.filename)):
                if entry.file_size > readers.MAX_PICTURE_BYTES:
                    raise DataError("picture-too-large", name=entry.filename)
                with archive.open(entry) as stream:
                    copy_member(stream, target / place, entry.file_size)
        for folder in folders:
            if not any((target / folder).iterdir()):
                raise DataError("rim-one-without-pictures", path=path, partition=RIM_ONE_PARTITION, folder=folder)


def _rim_one_place(name: PurePosixPath) -> str:
    """The target of a member, made of known words and its file name; "" if it is not a picture of the partition."""
    partition, part, diagnosis, picture = ("", "", "", "", *name.parts)[-4:]
    known = partition == RIM_ONE_PARTITION and part in RIM_ONE_PARTS and diagnosis in RIM_ONE_CLASSES
    if known and PurePosixPath(picture).suffix.lower() in readers.PICTURE_SUFFIXES and not picture.startswith("."):
        return f"{RIM_ONE_PARTS[part]}/{diagnosis}/{picture}"
    return ""


@contextmanager
def replacing(folder: Path) -> Iterator[Path]:
    """A temporary folder to fill, renamed to `folder` at the end; after an error the old folder is unchanged.

    One process at a time does this, so temporary folders that are there already are of killed processes.
    """
    beside = folder.with_name(f".{folder.name}.{uuid.uuid4().hex}")
    old = beside.with_name(f"{beside.name}.old")
    with saving(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = folder.with_name(f".{folder.name}.lock")
        lock.touch()
    with locked(lock, DataError("being-prepared", folder=folder)):
        for stale in folder.parent.glob(f".{folder.name}.*/"):
            shutil.rmtree(stale, ignore_errors=True)
        with saving(folder):
            beside.mkdir()
        try:
            yield beside
            if is_there := folder.exists():
                folder.rename(old)
            beside.rename(folder)
            if is_there:
                shutil.rmtree(old)
        finally:
            shutil.rmtree(beside, ignore_errors=True)
            lock.unlink(missing_ok=True)


def copy_member(stream: IO[bytes], target: Path, size: int) -> None:
    """Copy exactly `size` bytes of an archive to a new file and fsync it."""
    with saving(target), target.open("xb") as file:
        shutil.copyfileobj(stream, file, CHUNK_BYTES)
        left = size - file.tell()
        file.flush()
        os.fsync(file.fileno())
    if left:
        raise DataError("member-ends-early", name=target.name, left=left)


UNPACKERS: dict[str, Callable[[Path, Path], None]] = {"cifar10c": unpack_cifar10c, "rim_one": unpack_rim_one}
