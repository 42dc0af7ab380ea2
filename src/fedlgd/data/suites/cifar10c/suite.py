"""CIFAR10C: nineteen corruptions of the same photographs, each divided among three sites with label shift."""

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, Protocol, get_args

import numpy as np

from fedlgd.core.errors import DataError, SettingError, check
from fedlgd.core.meter import track
from fedlgd.core.rng import Stream
from fedlgd.core.types import Scale, Site
from fedlgd.data.corrupt.constants import SEVERITIES
from fedlgd.data.federation import Federation, federation
from fedlgd.data.home import data_home, domain, kept
from fedlgd.data.partition import dirichlet
from fedlgd.data.prepared import Arrays, Pixels, fingerprint, resized, site_of

NAME = "cifar10c"
RECIPE = 1  # goes up with every change to the images, so that an old file is never taken for a new one
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
PHOTOGRAPHS = "cifar10_test"
FOLDER = "CIFAR-10-C"
GET_OFFICIAL = "get it with: fedlgd data fetch cifar10c"
LEVELS = 5  # severities in an official file, one after the other
HELD_OUT = 10  # the last photograph of ten is never trained on, by any site: 9000-9999 of 10 000

Origin = Literal["made", "official"]
Scaling = Literal["none", "half"]
SCALES: dict[str, Scale] = {"none": Scale((0.0,) * 3, (1.0,) * 3), "half": Scale()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cifar10C:
    """Every corruption is a domain, divided among `parts` sites by Dir(alpha) over each class.

    source: "made" from the CIFAR-10 test photographs, or "official", the files of CIFAR-10-C. severity: 1 to
    5. train_photos, test_photos: photographs a corruption; those trained on are the first, those tested on
    come after number 9000, the same for all corruptions, so that no photograph is on both sides. The paper
    has 6 000 a corruption; less is made faster. min_per_class: training images of every class at every site.
    size: side of the images in pixels. scaling: "none" leaves pixels in 0..1, "half" is (x - 0.5) / 0.5.
    seed: of the corruptions and of the division.
    """

    source: Origin = "made"
    corruptions: tuple[str, ...] = tuple(SEVERITIES)
    severity: int = 3
    train_photos: int = 6000
    test_photos: int = 1000
    parts: int = 3
    alpha: float = 2.0
    min_per_class: int = 100
    size: Literal[28, 32] = 28
    scaling: Scaling = "none"
    seed: int = 0

    def __post_init__(self) -> None:
        for name, words in (("source", get_args(Origin)), ("scaling", get_args(Scaling)), ("size", (28, 32))):
            value = getattr(self, name)
            check(value in words, f"data.{name}", repr(value), f"there are: {', '.join(map(str, words))}")
        check(1 <= self.severity <= LEVELS, "data.severity", self.severity, f"use 1 (mild) to {LEVELS}")
        for name in ("train_photos", "test_photos", "parts"):
            check(getattr(self, name) >= 1, f"data.{name}", getattr(self, name), "use 1 or more")
        for name in self.corruptions:
            if name not in SEVERITIES:
                raise SettingError(f"data.corruptions has {name!r}; there are: {', '.join(SEVERITIES)}")
        once = len(set(self.corruptions)) == len(self.corruptions) > 0
        check(once, "data.corruptions", list(self.corruptions), "name at least one, and each once")

    def open(self) -> Federation:
        """The sites, mapped from the data home; made there on first use, corruption by corruption."""
        origin: Photographs = Made(self.seed) if self.source == "made" else Official()
        sites: list[Site] = []
        for i in track("cifar10c", len(self.corruptions)):
            sites += self._sites(origin, self.corruptions[i])
        return federation(NAME, sites, self._note(origin), self.min_per_class)

    def _sites(self, origin: "Photographs", name: str) -> list[Site]:
        """One corruption's sites: training images of their own, test images of all."""
        arrays = kept(self._key(origin, name), lambda: self._made(origin, name))
        bounds, note = arrays["bounds"].tolist(), origin.describe(name, self.severity)
        sites = []
        for i in range(self.parts):
            mine = slice(bounds[i], bounds[i + 1])
            own = arrays | {key: arrays[key][mine] for key in ("train_x", "train_y")}
            sites.append(site_of(f"{name}-{i + 1}", own, CLASSES, SCALES[self.scaling], note))
        return sites

    def _made(self, origin: "Photographs", name: str) -> Arrays:
        """Everything of one corruption. The training images of a site lie together; `photos` has their numbers."""
        train, test = self._numbers(len(origin.labels))
        labels = origin.labels[: train.stop]
        rng = Stream(self.seed).at(NAME, name)
        parts = dirichlet(labels, self.parts, rng, self.alpha, self.min_per_class)
        order = np.concatenate(parts)
        return {
            "photos": order,
            "bounds": np.cumsum([0, *map(len, parts)]),
            "train_x": resized(origin.images(name, self.severity, train)[order], self.size),
            "train_y": labels[order],
            "test_x": resized(origin.images(name, self.severity, test), self.size),
            "test_y": origin.labels[test.start : test.stop],
        }

    def _numbers(self, count: int) -> tuple[range, range]:
        """The photographs to train and to test on, of `count`."""
        held_out = count // HELD_OUT
        for name, most in (("train_photos", count - held_out), ("test_photos", held_out)):
            if (wanted := getattr(self, name)) > most:
                raise DataError(
                    f"data.{name} is {wanted}, but of {count} photographs {most} are for that; use fewer"
                )
        return range(self.train_photos), range(count - held_out, count - held_out + self.test_photos)

    def _key(self, origin: "Photographs", name: str) -> str:
        """Where one corruption is kept: a hash of all that its arrays depend on."""
        settings = (self.train_photos, self.test_photos, self.parts, self.alpha, self.min_per_class, self.seed)
        made_from = repr((origin.fingerprint(name), *settings)).encode()
        digest = hashlib.blake2b(made_from, digest_size=6).hexdigest()
        return f"made/{NAME}-{RECIPE}/{name}-{self.source}-{self.severity}-{self.size}-{digest}"

    def _note(self, origin: "Photographs") -> str:
        return (
            f"{origin.note}; severity {self.severity}; trained on photographs 0 to {self.train_photos - 1}, "
            f"tested on {self.test_photos} of the last tenth, the same ones for every corruption"
        )


class Photographs(Protocol):
    """Where corrupted photographs come from."""

    note: str

    @property
    def labels(self) -> Pixels: ...

    def images(self, name: str, severity: int, wanted: range) -> Pixels: ...

    def fingerprint(self, name: str) -> str:
        """What changes when the files do."""

    def describe(self, name: str, severity: int) -> str: ...


class Made:
    """CIFAR-10's test photographs, corrupted here."""

    note = "made from the CIFAR-10 test photographs by CIFAR-10-C's recipes and constants; not its published files"

    def __init__(self, seed: int) -> None:
        self._seed = seed

    @cached_property
    def _photographs(self) -> Arrays:
        return domain(PHOTOGRAPHS, "get it with: fedlgd data fetch cifar10", ("test",))

    @property
    def labels(self) -> Pixels:
        return self._photographs["test_y"]

    def images(self, name: str, severity: int, wanted: range) -> Pixels:
        from fedlgd.data.corrupt.making import corrupted  # only here: scipy takes long to import

        return corrupted(self._photographs["test_x"], name, severity, wanted, self._seed)

    def fingerprint(self, name: str) -> str:
        path = data_home() / f"{PHOTOGRAPHS}.npz"
        return fingerprint(path) if path.is_file() else ""

    def describe(self, name: str, severity: int) -> str:
        drawn = "; frost is drawn, the original lays photographs of frost over" if name == "frost" else ""
        return f"{name} of severity {severity}, made from CIFAR-10 test photographs{drawn}"


class Official:
    """The files of CIFAR-10-C, mapped: severities 1 to 5 one after the other, each of the same photographs."""

    note = "CIFAR-10-C"

    @cached_property
    def labels(self) -> Pixels:
        labels = _mapped("labels")
        return np.asarray(labels[: len(labels) // LEVELS])

    def images(self, name: str, severity: int, wanted: range) -> Pixels:
        every = _mapped(name)
        count = len(self.labels)
        if every.shape != (LEVELS * count, 32, 32, 3) or every.dtype != np.uint8:
            raise DataError(
                f"{_file(name)} is {every.dtype} of shape {every.shape}; it should be uint8 of shape "
                f"{(LEVELS * count, 32, 32, 3)}; {GET_OFFICIAL}"
            )
        first = (severity - 1) * count
        return np.asarray(every[first + wanted.start : first + wanted.stop])

    def fingerprint(self, name: str) -> str:
        found = [file.stat() for file in (_file(name), _file("labels")) if file.is_file()]
        return repr([(file.st_size, file.st_mtime_ns) for file in found])

    def describe(self, name: str, severity: int) -> str:
        return f"{name} of severity {severity}, from CIFAR-10-C"


def _file(name: str) -> Path:
    return data_home() / FOLDER / f"{name}.npy"


def _mapped(name: str) -> Pixels:
    path = _file(name)
    if not path.is_file():
        raise DataError(f"the data home {data_home()} has no {FOLDER}/{name}.npy; {GET_OFFICIAL}")
    try:
        return np.asanyarray(np.load(path, mmap_mode="r", allow_pickle=False))
    except (ValueError, EOFError) as error:
        raise DataError(f"{path} is not a readable .npy ({error}); {GET_OFFICIAL}") from error
