"""Published data sets into the data home: downloaded or taken from a folder, read, checked, written whole."""

import difflib
import fcntl
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from fedlgd.core.errors import DataError
from fedlgd.data.download import DownloadError, download, missing_bytes, wrong
from fedlgd.data.originals import cifar, idx, libsvm, mat, pictures, retina
from fedlgd.data.prepared import PARTS, Arrays, read_domain, write_arrays
from fedlgd.data.sources import GROUPS, OPTIONAL, SOURCES, Source
from fedlgd.data.space import refuse_without_room, writing

log = logging.getLogger(__name__)

State = Literal["prepared", "there", "by hand", "failed"]

READERS: dict[str, Callable[[Path], Arrays]] = {
    "mnist": idx.read_mnist,
    "svhn": mat.read_svhn,
    "usps": libsvm.read_usps,
    "mnist_m": pictures.read_mnist_m,
    "synth_ganin": mat.read_synth,
    "synth_folder": pictures.read_synth_folder,
    "cifar10": cifar.read_cifar10,
}
UNPACKERS: dict[str, Callable[[Path, Path], None]] = {
    "cifar10c": cifar.unpack_cifar10c,
    "rim_one": retina.unpack_rim_one,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one data set. note: what to do, where something is left to do."""

    name: str
    state: State
    paths: tuple[str, ...]
    note: str = ""
    optional: bool = False

    @property
    def ready(self) -> bool:
        return self.state in ("prepared", "there")


def chosen(names: list[str]) -> list[Source]:
    """The data sets of these names; a group stands for all it holds."""
    found: dict[str, Source] = {}
    for name in names:
        if name not in GROUPS and name not in SOURCES:
            near = difflib.get_close_matches(name, [*GROUPS, *SOURCES], 1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise DataError(
                f"no data set is called {name!r}; {hint}there are the groups {', '.join(GROUPS)}, "
                f"and by themselves {', '.join(SOURCES)}"
            )
        found |= {source.name: source for source in GROUPS.get(name, (SOURCES.get(name),)) if source}
    return list(found.values())


def fetch(
    source: Source, home: Path, *, given: Path | None = None, again: bool = False, keep: bool = False
) -> Outcome:
    """Have the data set in `home`: from the folder `given`, else from the network. An error leaves no half."""
    outcome = partial(Outcome, name=source.name, paths=_paths(source, home))
    if not again and _there(source, home):
        return outcome(state="there")
    if not _readable(source) or not (given or source.files):
        return outcome(state="by hand", note=_by_hand(source, home))
    with _originals(source, home, given, keep) as folder:
        _prepare(source, folder, home)
    return outcome(state="prepared")


def attempt(source: Source, home: Path, *, named: bool, **how: Any) -> Outcome:
    """`fetch` with an error as an outcome, so that the next data set gets its turn."""
    try:
        outcome = fetch(source, home, **how)
    except DataError as error:
        outcome = Outcome(name=source.name, state="failed", paths=_paths(source, home), note=str(error))
    return replace(outcome, optional=source.name in OPTIONAL and not named)


def _paths(source: Source, home: Path) -> tuple[str, ...]:
    return tuple(str(home / made) for made in source.makes)


def _readable(source: Source) -> bool:
    return source.name in READERS or source.name in UNPACKERS


def _by_hand(source: Source, home: Path) -> str:
    """What a person has to do where a program cannot, with the command that goes on from there."""
    if not _readable(source):
        return f"{source.page}: {source.by_hand.format(home=home, site=source.name)}"
    return f"{source.by_hand or _files(source)}; then run: fedlgd data fetch {source.name} --from DIR"


def _files(source: Source) -> str:
    """Which files to get from the first mirror."""
    places = sorted({original.urls[0].rpartition("/")[0] for original in source.files})
    names = ", ".join(original.name for original in source.files)
    return f"get {names} from {' or '.join(places)} in some other way into a folder DIR"


def _there(source: Source, home: Path) -> bool:
    try:
        return all(_whole(home / made) for made in source.makes)
    except DataError as error:
        log.warning("%s; preparing it again", error)
        return False


def _whole(path: Path) -> bool:
    """Whether a prepared file or folder is there; an error if it is damaged."""
    if path.suffix == ".npz":
        return path.is_file() and bool(read_domain(path, _parts(path)))
    if path.name == cifar.FOLDER_C and path.is_dir():
        cifar.check_cifar10c(path)
        return True
    return all((path / part).is_dir() for part in retina.PART_OF.values())


def _parts(path: Path) -> tuple[str, ...]:
    return ("test",) if path.stem.endswith("_test") else PARTS


@contextmanager
def _originals(source: Source, home: Path, given: Path | None, keep: bool) -> Iterator[Path]:
    """The folder with the originals: the given one, or downloads that go once they have been read."""
    if given:
        refuse_without_room(home, source.room, source.name)
        yield _checked(source, given)
        return
    folder = home / "originals" / source.name
    coming = sum(missing_bytes(original, folder) for original in source.files)
    refuse_without_room(home, coming + source.room, source.name)
    with _alone(folder):
        _download(source, folder, home)
        yield folder
        if not keep:
            shutil.rmtree(folder)


def _checked(source: Source, given: Path) -> Path:
    """The folder itself, or the one in it named like the data set; files with a published hash must have it."""
    folder = given / source.name if (given / source.name).is_dir() else given
    for original in source.files:
        path = folder / original.name
        if path.is_file() and (difference := wrong(path, original)):
            raise DataError(f"{path} is not the published file: {difference}; download it again")
    return folder


def _download(source: Source, folder: Path, home: Path) -> None:
    try:
        for original in source.files:
            download(original, folder)
    except DownloadError as error:
        raise DataError(
            f"{error}. Try again later to go on, or without a network: {_by_hand(source, home)}"
        ) from error


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One process at a time downloads to a folder; the lock ends with the process."""
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT)
    try:
        _take(handle, folder)
        try:
            yield
        finally:
            _tidy(folder)
    finally:
        os.close(handle)


def _tidy(folder: Path) -> None:
    """Leave no lock, and no folder that holds nothing else."""
    with suppress(OSError):
        (folder / ".lock").unlink()
        folder.rmdir()
    with suppress(OSError):
        folder.parent.rmdir()


def _take(handle: int, folder: Path) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise DataError(f"another process is downloading to {folder}; wait for it") from error


def _prepare(source: Source, folder: Path, home: Path) -> None:
    if source.name in UNPACKERS:
        UNPACKERS[source.name](folder, home)
        return
    arrays = READERS[source.name](folder)
    counts = (len(arrays["train_y"]), len(arrays["test_y"]))
    if counts not in source.counts:
        published = " or ".join(f"{train} and {test}" for train, test in source.counts)
        raise DataError(
            f"{source.name} in {folder} has {counts[0]} training and {counts[1]} test images; "
            f"published are {published}: something is missing, download it again"
        )
    for path in (home / made for made in source.makes):
        with writing(path):
            write_arrays(path, {key: arrays[key] for part in _parts(path) for key in (f"{part}_x", f"{part}_y")})
