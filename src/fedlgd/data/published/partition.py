"""Suites whose sites are parts of one data set: `split`, of a prepared domain, and `cifar10c`, of 19 corruptions.

Partitions are indices of images. Every class has a random stream of its own, so its partition does not depend on
the other classes.
"""

import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedlgd.core.errors import DataError, SettingError, check, did_you_mean
from fedlgd.core.homes import data_home
from fedlgd.core.meter import track
from fedlgd.core.settings import setting
from fedlgd.core.text import plural
from fedlgd.core.types import Scale, Site, Stream
from fedlgd.data import arrays as store
from fedlgd.data.arrays import Arrays, Pixels
from fedlgd.data.federation import Federation, from_sites
from fedlgd.data.suites import SuiteSettings

Labels = NDArray[np.integer]
Numbers = NDArray[np.intp]
Counts = NDArray[np.int64]
Shares = NDArray[np.float64]

MAX_DRAWS = 100  # draws of the shares of a class before `least` images are reserved for every site
RECIPE = 1  # increase with every change to the images, so that cached images of an older version are not used
BY = (
    '"iid": equal sites; "dirichlet": each class by its own shares from Dir(alpha); "quantity": all classes by the '
    'same shares from Dir(alpha); "shards": sorted by class and cut.'
)
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
PHOTOGRAPHS = "cifar10_test"
CIFAR10C_FOLDER = "CIFAR-10-C"
GET_OFFICIAL = "get it with: fedlgd data fetch cifar10c"
SEVERITY_LEVELS = 5  # severities in an official file, one after the other
HELD_OUT = 10  # the last tenth of photographs that are test images is never trained on: 9000-9999 of 10 000

SCALES: dict[str, Scale] = {"none": Scale((0.0,) * 3, (1.0,) * 3), "half": Scale()}

SEVERITIES: dict[str, tuple[tuple[float, ...], ...]] = {
    corruption: tuple(map(tuple, levels))
    for corruption, levels in tomllib.loads(Path(__file__).with_name("severities.toml").read_text()).items()
}
"""The arguments of the function of the same name in `corruptions`, for severities 1 to 5."""


def iid(labels: Labels, sites: int, rng: Stream, least: int = 0) -> list[Numbers]:
    """Shuffled, then assigned in turn, class by class: sites differ by at most one image per class and in total."""
    _check_room(labels, sites, least)
    order = _by_class(labels, rng)
    return [np.sort(order[site::sites]) for site in range(sites)]


def dirichlet(labels: Labels, sites: int, rng: Stream, alpha: float, least: int = 0) -> list[Numbers]:
    """Each class by its own shares, p ~ Dir(alpha, ..., alpha): the smaller alpha, the more the sites differ.

    The shares of a class are redrawn up to 100 times until every site has `least` images of it. After that every
    site gets `least` images and the last shares divide the rest.
    """
    _check_room(labels, sites, least)
    return _dealt(labels, sites, rng, lambda k, n: _draw(n, sites, alpha, least, rng.at("class", k)))


def quantity(labels: Labels, sites: int, rng: Stream, alpha: float, least: int = 0) -> list[Numbers]:
    """All classes by the same shares, p ~ Dir(alpha, ..., alpha): sites differ in size, not in class balance."""
    _check_room(labels, sites, least)
    shares = store.numpy_generator(rng.at("shares")).dirichlet(np.full(sites, alpha))
    return _dealt(labels, sites, rng, lambda _, n: allotted(n, shares, least))


def shards(labels: Labels, sites: int, rng: Stream, each: int) -> list[Numbers]:
    """Sorted by class and cut into sites * each equal shards; every site gets `each` of them at random."""
    if len(labels) < sites * each:
        raise DataError("too-many-shards", shards=sites * each, each=each, images=len(labels))
    cut = np.array_split(_by_class(labels, rng), sites * each)
    deal = store.numpy_generator(rng.at("shards")).permutation(sites * each).reshape(sites, each)
    return [np.sort(np.concatenate([cut[i] for i in mine])) for mine in deal]


def allotted(count: int, shares: Shares, least: int) -> Counts:
    """`least` for every site and the rest by shares, rounded so that the sum is `count`."""
    rest = count - least * len(shares)
    cuts = np.rint(np.cumsum(shares[:-1]) / shares.sum() * rest).astype(np.int64)
    return np.asarray(least + np.diff(cuts, prepend=0, append=rest), np.int64)


def _draw(count: int, sites: int, alpha: float, least: int, rng: Stream) -> Counts:
    generator = store.numpy_generator(rng)
    for _ in range(MAX_DRAWS):
        shares = generator.dirichlet(np.full(sites, alpha))
        counts = allotted(count, shares, 0)
        if counts.min() >= least:
            return counts
    return allotted(count, shares, least)


def _dealt(labels: Labels, sites: int, rng: Stream, count: Callable[[int, int], Counts]) -> list[Numbers]:
    """Each class shuffled and cut into one piece per site, of the sizes `count(class, number of its images)`."""
    pieces: list[list[Numbers]] = [[np.empty(0, np.intp)] for _ in range(sites)]
    for k in np.unique(labels):
        members = _shuffled(labels, k, rng)
        cuts = np.cumsum(count(int(k), len(members)))[:-1]
        for mine, piece in zip(pieces, np.split(members, cuts), strict=True):
            mine.append(piece)
    return [np.sort(np.concatenate(mine)) for mine in pieces]


def _by_class(labels: Labels, rng: Stream) -> Numbers:
    return np.concatenate([np.empty(0, np.intp), *(_shuffled(labels, k, rng) for k in np.unique(labels))])


def _shuffled(labels: Labels, k: np.integer, rng: Stream) -> Numbers:
    """The images of a class in an order that depends on the class alone."""
    return store.numpy_generator(rng.at("order", int(k))).permutation(np.flatnonzero(labels == k))


def _check_room(labels: Labels, sites: int, least: int) -> None:
    """Refuse a minimum that the smallest class cannot meet."""
    classes, counts = np.unique(labels, return_counts=True)
    if least and len(counts) and counts.min() < sites * least:
        k, most = int(classes[counts.argmin()]), int(counts.min())
        fewer = f", at most {plural(most // least, 'site')}" if most >= least else ""
        room = {"possible": most // sites, "fewer": fewer}
        raise DataError("class-too-small-to-divide", label=k, images=most, sites=sites, least=least, **room)


def arrays_of_parts(
    numbers: str, parts: Sequence[Numbers], train: tuple[Pixels, Pixels], test: tuple[Pixels, Pixels], side: int
) -> Arrays:
    """The training images of a site are contiguous; `numbers` is the name of their indices in the whole."""
    order = np.concatenate(parts)
    divided = store.resized(train[0][order], side), train[1][order]
    places = {numbers: order, "bounds": np.cumsum([0, *map(len, parts)])}
    return places | store.both_parts(divided, (store.resized(test[0], side), test[1]))


@dataclass(frozen=True, kw_only=True)
class Split(SuiteSettings):
    """The training images of one prepared domain partitioned among sites; all sites share its test images.

    Of a domain without training images, such as `cifar10_test`, the last tenth are test images.
    """

    of: str = setting("mnist", "The domain: a file <of>.npz in the data home.")
    by: Literal["iid", "dirichlet", "shards", "quantity"] = setting("dirichlet", BY)
    sites: int = setting(10, "Number of sites.", least=1, most=100_000)
    alpha: float = setting(
        0.5, "Dirichlet parameter: the smaller, the more the sites differ.", least=1e-3, most=1e6
    )
    shards: int = setting(2, 'Shards per site, for by="shards".', least=1, most=10_000)
    min_per_class: int = setting(
        0, 'Least number of training images of each class at each site; 0 for by="shards".', least=0, most=10**6
    )
    size: int = setting(0, "Side of the images in pixels; 0 leaves them unchanged.", least=0, most=512)
    seed: int = setting(0, "Seed of the partition.", least=0, most=2**63 - 1)

    def __post_init__(self) -> None:
        super().__post_init__()
        plain = bool(self.of) and not set(self.of) & set("/\\") and not self.of.startswith(".")
        check(plain, "data.of", repr(self.of), "give the name of a file in the data home, such as mnist")
        both = self.by == "shards" and self.min_per_class > 0
        check(not both, "data.min_per_class", self.min_per_class, 'use 0 with data.by="shards": sites lack classes')

    def open(self) -> Federation:
        """The sites, mapped from the data home; partitioned and cached there on first use."""
        key = store.cache_key(store.npz_digest(data_home() / f"{self.of}.npz"), self)
        arrays = store.load_or_make(f"made/split-{RECIPE}/{self.of}-{self.by}-{self.sites}-{key}", self._made)
        classes = tuple(str(k) for k in range(1 + max(int(arrays[f"{part}_y"].max()) for part in store.PARTS)))
        how, digits = self._how(), len(str(self.sites))
        sites = []
        for i in range(self.sites):
            name, note = f"{self.of}-{i + 1:0{digits}}", f"part of {self.of}, {how}"
            sites.append(store.site_from_arrays(name, store.site_share(arrays, i), classes, note=note))
        note = f"{self.of} partitioned among {plural(self.sites, 'site')}, {how}, seed {self.seed}"
        return from_sites("split", sites, note, self.min_per_class)

    def _made(self) -> Arrays:
        names = ("test",) if self.of == PHOTOGRAPHS else store.PARTS
        whole = store.load_domain(self.of, "prepared files are named <domain>.npz; see: fedlgd data list", names)
        train, test = ((whole[f"{part}_x"], whole[f"{part}_y"]) for part in (names[0], "test"))
        if names == ("test",):
            kept = len(test[1]) - len(test[1]) // HELD_OUT
            train, test = (test[0][:kept], test[1][:kept]), (test[0][kept:], test[1][kept:])
        return arrays_of_parts("images", self._partition(train[1]), train, test, self.size or train[0].shape[1])

    def _partition(self, labels: Labels) -> list[Numbers]:
        rng = Stream(self.seed).at("split", self.by)
        if self.by == "iid":
            return iid(labels, self.sites, rng, self.min_per_class)
        if self.by == "shards":
            return shards(labels, self.sites, rng, self.shards)
        divide = dirichlet if self.by == "dirichlet" else quantity
        return divide(labels, self.sites, rng, self.alpha, self.min_per_class)

    def _how(self) -> str:
        """The difference between the sites, for the notes."""
        return {
            "iid": "evenly",
            "dirichlet": f"classes by Dir({self.alpha:g})",
            "quantity": f"sizes by Dir({self.alpha:g})",
            "shards": f"{self.shards} shards each",
        }[self.by]


@dataclass(frozen=True, kw_only=True)
class Cifar10C(SuiteSettings):
    """Every corruption is a domain, partitioned among `parts` sites by Dir(alpha) per class."""

    source: Literal["made", "official"] = setting(
        "made", '"made": corrupted here from the CIFAR-10 test photographs; "official": the files of CIFAR-10-C.'
    )
    corruptions: tuple[str, ...] = setting(tuple(SEVERITIES), "Names of the corruptions, each once.")
    severity: int = setting(3, "Severity of the corruptions, 1 (mild) to 5.", least=1, most=SEVERITY_LEVELS)
    train_photos: int = setting(
        6000, "Training photographs per corruption, from number 0; 6000 in the paper.", least=1, most=10**6
    )
    test_photos: int = setting(
        1000, "Test photographs per corruption, from the last tenth, never trained on.", least=1, most=10**6
    )
    parts: int = setting(3, "Sites per corruption.", least=1, most=1000)
    alpha: float = setting(
        2.0, "Dirichlet parameter: the smaller, the more the sites differ.", least=1e-3, most=1e6
    )
    min_per_class: int = setting(
        100, "Least number of training images of each class at each site.", least=0, most=10**6
    )
    size: Literal[28, 32] = setting(28, "Side of the images in pixels.")
    scaling: Literal["none", "half"] = setting("none", '"none": pixels in 0..1; "half": (x - 0.5) / 0.5.')
    seed: int = setting(0, "Seed of the corruptions and of the partition.", least=0, most=2**63 - 1)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self.corruptions:
            if name not in SEVERITIES:
                hint = did_you_mean(name, SEVERITIES) or ";"
                raise SettingError("unknown-corruption", name=name, hint=hint, available=list(SEVERITIES))
        once = len(set(self.corruptions)) == len(self.corruptions) > 0
        check(once, "data.corruptions", list(self.corruptions), "name at least one, and each once")

    def open(self) -> Federation:
        """The sites, mapped from the data home; made and cached there on first use, corruption by corruption."""
        origin = Made(self.seed) if self.source == "made" else Official()
        sites: list[Site] = []
        for i in track("cifar10c", len(self.corruptions)):
            sites += self._sites(origin, self.corruptions[i])
        note = (
            f"{origin.note}; severity {self.severity}; trained on photographs 0 to {self.train_photos - 1}, "
            f"tested on {self.test_photos} of the last tenth, the same for every corruption"
        )
        return from_sites("cifar10c", sites, note, self.min_per_class)

    def _sites(self, origin: "Made | Official", name: str) -> list[Site]:
        """The sites of one corruption: each has its own training images, all share the test images."""
        settings = (self.train_photos, self.test_photos, self.parts, self.alpha, self.min_per_class, self.seed)
        key = f"{name}-{self.source}-{self.severity}-{self.size}-{store.cache_key(origin.digest(name), *settings)}"
        arrays = store.load_or_make(f"made/cifar10c-{RECIPE}/{key}", lambda: self._made(origin, name))
        scale, note = SCALES[self.scaling], origin.describe(name, self.severity)
        return [
            store.site_from_arrays(f"{name}-{i + 1}", store.site_share(arrays, i), CLASSES, scale, note)
            for i in range(self.parts)
        ]

    def _made(self, origin: "Made | Official", name: str) -> Arrays:
        """All images of one corruption."""
        count = len(origin.labels)
        held_out = count // HELD_OUT
        for setting_name, most in (("train_photos", count - held_out), ("test_photos", held_out)):
            if (wanted := getattr(self, setting_name)) > most:
                values = {"wanted": wanted, "most": most, "count": count}
                raise DataError("too-few-photographs", setting=f"data.{setting_name}", **values)
        train, test = range(self.train_photos), range(count - held_out, count - held_out + self.test_photos)
        labels = origin.labels[: train.stop]
        rng = Stream(self.seed).at("cifar10c", name)
        parts = dirichlet(labels, self.parts, rng, self.alpha, self.min_per_class)
        of_train, of_test = (origin.images(name, self.severity, wanted) for wanted in (train, test))
        tests = of_test, origin.labels[test.start : test.stop]
        return arrays_of_parts("photos", parts, (of_train, labels), tests, self.size)


class Made:
    """CIFAR-10's test photographs, corrupted here."""

    note = "made from the CIFAR-10 test photographs by CIFAR-10-C's recipes and constants; not its published files"

    def __init__(self, seed: int) -> None:
        self._seed = seed

    @cached_property
    def _photographs(self) -> Arrays:
        return store.load_domain(PHOTOGRAPHS, "get it with: fedlgd data fetch cifar10", ("test",))

    @property
    def labels(self) -> Pixels:
        return self._photographs["test_y"]

    def images(self, name: str, severity: int, wanted: range) -> Pixels:
        from fedlgd.data.published.corruptions import corrupted  # here, because scipy is slow to import

        return corrupted(self._photographs["test_x"], name, severity, wanted, self._seed)

    def digest(self, name: str) -> str:
        return store.npz_digest(data_home() / f"{PHOTOGRAPHS}.npz")

    def describe(self, name: str, severity: int) -> str:
        drawn = "; the frost is drawn, the original overlays photographs of frost" if name == "frost" else ""
        return f"{name} of severity {severity}, made from CIFAR-10 test photographs{drawn}"


class Official:
    """The files of CIFAR-10-C, mapped: severities 1 to 5 one after the other, each of the same photographs."""

    note = "CIFAR-10-C"

    @cached_property
    def labels(self) -> Pixels:
        labels = _mapped("labels")
        return np.asarray(labels[: len(labels) // SEVERITY_LEVELS])

    def images(self, name: str, severity: int, wanted: range) -> Pixels:
        every = _mapped(name)
        count = len(self.labels)
        expected = (SEVERITY_LEVELS * count, 32, 32, 3)
        if every.shape != expected or every.dtype != np.uint8:
            found = {"dtype": every.dtype, "shape": every.shape, "expected": expected}
            raise DataError("array-of-wrong-shape", path=_file(name), way_out=GET_OFFICIAL, **found)
        first = (severity - 1) * count
        return np.asarray(every[first + wanted.start : first + wanted.stop])

    def digest(self, name: str) -> str:
        found = [file.stat() for file in (_file(name), _file("labels")) if file.is_file()]
        return repr([(file.st_size, file.st_mtime_ns) for file in found])

    def describe(self, name: str, severity: int) -> str:
        return f"{name} of severity {severity}, from CIFAR-10-C"


def _file(name: str) -> Path:
    return data_home() / CIFAR10C_FOLDER / f"{name}.npy"


def _mapped(name: str) -> Pixels:
    path = _file(name)
    if not path.is_file():
        raise DataError(
            "files-missing", home=data_home(), files=[f"{CIFAR10C_FOLDER}/{name}.npy"], way_out=GET_OFFICIAL
        )
    try:
        return np.asanyarray(np.load(path, mmap_mode="r", allow_pickle=False))
    except (ValueError, EOFError) as error:
        raise DataError("npy-unreadable", path=path, error=error, way_out=GET_OFFICIAL) from error
