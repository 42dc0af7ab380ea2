"""Published data sets into the data home: downloaded or taken from a folder, read, checked and written."""

import logging
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from fedlgd.core.errors import DataError, did_you_mean
from fedlgd.core.files import locked
from fedlgd.data.arrays import PARTS, Arrays, read_domain, refuse_without_space, saving, write_arrays
from fedlgd.data.fetch import cifar, digits, pictures
from fedlgd.data.fetch.download import DownloadError, download, missing_bytes, wrong
from fedlgd.data.fetch.sources import GROUPS, SOURCES, Source

log = logging.getLogger(__name__)

State = Literal["prepared", "there", "by hand", "failed"]

READERS: dict[str, Callable[[Path], Arrays]] = {
    "mnist": digits.read_mnist,
    "svhn": digits.read_svhn,
    "usps": digits.read_usps,
    "mnist_m": pictures.read_mnist_m,
    "synth_ganin": digits.read_synth,
    "synth_folder": pictures.read_synth_folder,
    "cifar10": cifar.read_cifar10,
}
UNPACKERS: dict[str, Callable[[Path, Path], None]] = {
    "cifar10c": cifar.unpack_cifar10c,
    "rim_one": pictures.unpack_rim_one,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result for one data set. note: what the user has to do, if anything."""

    name: str
    state: State
    paths: tuple[str, ...]
    note: str = ""
    optional: bool = False

    @property
    def ready(self) -> bool:
        return self.state in ("prepared", "there")


def chosen(names: list[str]) -> list[Source]:
    """The data sets of these names; a group stands for all its members."""
    found: dict[str, Source] = {}
    for name in names:
        if name not in GROUPS and name not in SOURCES:
            hint = did_you_mean(name, [*GROUPS, *SOURCES]) or ";"
            raise DataError(
                f"no data set is called {name!r}{hint} available are the groups {', '.join(GROUPS)} "
                f"and the data sets {', '.join(SOURCES)}"
            )
        found |= {source.name: source for source in GROUPS.get(name, (SOURCES.get(name),)) if source}
    return list(found.values())


def attempt(source: Source, home: Path, *, named: bool, **how: Any) -> Outcome:
    """`fetch` with an error as an outcome, so that the next data set is still fetched."""
    try:
        outcome = fetch(source, home, **how)
    except DataError as error:
        outcome = Outcome(name=source.name, state="failed", paths=_paths(source, home), note=str(error))
    return replace(outcome, optional=source.optional and not named)


def fetch(
    source: Source, home: Path, *, given: Path | None = None, again: bool = False, keep: bool = False
) -> Outcome:
    """Prepare the data set in `home`, from the folder `given` or from the network; completely or not at all."""
    outcome = partial(Outcome, name=source.name, paths=_paths(source, home))
    if not again and _is_there(source, home):
        return outcome(state="there")
    has_reader = source.name in READERS or source.name in UNPACKERS
    if not has_reader:
        return outcome(state="by hand", note=f"{source.page}: {source.by_hand.format(home=home, site=source.name)}")
    if not (given or source.files):
        return outcome(state="by hand", note=_by_hand(source))
    with _originals(source, home, given, keep) as folder:
        if source.name in UNPACKERS:
            UNPACKERS[source.name](folder, home)
        else:
            _prepare(source, folder, home)
    return outcome(state="prepared")


def _paths(source: Source, home: Path) -> tuple[str, ...]:
    return tuple(str(home / made) for made in source.makes)


def _by_hand(source: Source) -> str:
    """How to get the original files without this program, and the command that continues from there."""
    places = sorted({original.urls[0].rpartition("/")[0] for original in source.files})
    names = ", ".join(original.name for original in source.files)
    how = source.by_hand or f"get {names} from {' or '.join(places)} in another way and put them into a folder DIR"
    return f"{how}; then run: fedlgd data fetch {source.name} --from DIR"


def _is_there(source: Source, home: Path) -> bool:
    """Whether everything the data set is prepared into is there and undamaged."""
    try:
        for path in (home / made for made in source.makes):
            if not path.exists():
                return False
            if path.suffix == ".npz":
                read_domain(path, _parts(path))
            elif path.name == cifar.FOLDER_C:
                cifar.check_cifar10c(path)
            elif not all((path / part).is_dir() for part in pictures.RIM_ONE_PARTS.values()):
                return False
    except DataError as error:
        log.warning("%s; it is prepared again", error)
        return False
    return True


def _parts(path: Path) -> tuple[str, ...]:
    return ("test",) if path.stem.endswith("_test") else PARTS


@contextmanager
def _originals(source: Source, home: Path, given: Path | None, keep: bool) -> Iterator[Path]:
    """The folder with the original files: the given one, or downloads that are removed after use."""
    if given:
        refuse_without_space(home, source.room, source.name)
        yield _checked(source, given)
        return
    folder = home / "originals" / source.name
    coming = sum(missing_bytes(original, folder) for original in source.files)
    refuse_without_space(home, coming + source.room, source.name)
    with _alone(folder):
        try:
            for original in source.files:
                download(original, folder)
        except DownloadError as error:
            way_out = f"Re-run the same command later to resume, or without a network: {_by_hand(source)}"
            raise DataError(f"{error}. {way_out}") from error
        yield folder
        if not keep:
            shutil.rmtree(folder)


def _checked(source: Source, given: Path) -> Path:
    """The given folder, or the one in it named like the data set; files with a published hash must match it."""
    folder = given / source.name if (given / source.name).is_dir() else given
    for original in source.files:
        path = folder / original.name
        if path.is_file() and (difference := wrong(path, original)):
            raise DataError(f"{path} is not the published file: {difference}; download it again")
    return folder


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One process at a time downloads to a folder. The lock, and the folder if empty, are removed at the end."""
    lock = folder / ".lock"
    with saving(folder):
        folder.mkdir(parents=True, exist_ok=True)
        lock.touch()
    with locked(lock, DataError(f"another process is downloading to {folder}; wait until it has finished")):
        try:
            yield
        finally:
            with suppress(OSError):
                lock.unlink()
                folder.rmdir()
            with suppress(OSError):
                folder.parent.rmdir()


def _prepare(source: Source, folder: Path, home: Path) -> None:
    """Read the original files, check the number of images, and write the prepared files."""
    arrays = READERS[source.name](folder)
    counts = (len(arrays["train_y"]), len(arrays["test_y"]))
    if counts not in source.counts:
        published = " or ".join(f"{train} and {test}" for train, test in source.counts)
        raise DataError(
            f"{source.name} in {folder} has {counts[0]} training and {counts[1]} test images; "
            f"the published numbers are {published}; download it again"
        )
    for path in (home / made for made in source.makes):
        with saving(path):
            write_arrays(path, {key: arrays[key] for part in _parts(path) for key in (f"{part}_x", f"{part}_y")})
