"""The suite `split`: one prepared domain partitioned among sites.

Partitions are indices of images. Every class has a random stream of its own, so its partition does not depend on
the other classes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.random import PCG64, Generator
from numpy.typing import NDArray

from fedlgd.core.errors import DataError, check
from fedlgd.core.rng import Stream
from fedlgd.core.settings import setting
from fedlgd.core.text import plural
from fedlgd.data import arrays as store
from fedlgd.data.federation import Federation, federation
from fedlgd.data.suites import SuiteSettings, data_home

Labels = NDArray[np.integer]
Numbers = NDArray[np.intp]
Counts = NDArray[np.int64]
Shares = NDArray[np.float64]

MAX_DRAWS = 100  # draws of the shares of a class before `least` images are reserved for every site


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
    _check_alpha(alpha)
    _check_room(labels, sites, least)
    return _dealt(labels, sites, rng, lambda k, n: _draw(n, sites, alpha, least, rng.at("class", k)))


def quantity(labels: Labels, sites: int, rng: Stream, alpha: float, least: int = 0) -> list[Numbers]:
    """All classes by the same shares, p ~ Dir(alpha, ..., alpha): sites differ in size, not in class balance."""
    _check_alpha(alpha)
    _check_room(labels, sites, least)
    shares = _generator(rng.at("shares")).dirichlet(np.full(sites, alpha))
    return _dealt(labels, sites, rng, lambda _, n: allotted(n, shares, least))


def shards(labels: Labels, sites: int, rng: Stream, each: int) -> list[Numbers]:
    """Sorted by class and cut into sites * each equal shards; every site gets `each` of them at random."""
    check(each >= 1, "shards", each, "use 1 or more per site")
    check(sites >= 1, "sites", sites, "use 1 or more")
    if len(labels) < sites * each:
        raise DataError("too-many-shards", shards=sites * each, each=each, images=len(labels))
    cut = np.array_split(_by_class(labels, rng), sites * each)
    deal = _generator(rng.at("shards")).permutation(sites * each).reshape(sites, each)
    return [np.sort(np.concatenate([cut[i] for i in mine])) for mine in deal]


def allotted(count: int, shares: Shares, least: int) -> Counts:
    """`least` for every site and the rest by shares, rounded so that the sum is `count`."""
    rest = count - least * len(shares)
    cuts = np.rint(np.cumsum(shares[:-1]) / shares.sum() * rest).astype(np.int64)
    return np.asarray(least + np.diff(cuts, prepend=0, append=rest), np.int64)


def _draw(count: int, sites: int, alpha: float, least: int, rng: Stream) -> Counts:
    generator = _generator(rng)
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
    return _generator(rng.at("order", int(k))).permutation(np.flatnonzero(labels == k))


def _generator(rng: Stream) -> Generator:
    """PCG64 by name: numpy may change its default generator."""
    return Generator(PCG64(rng.number()))


def _check_alpha(alpha: float) -> None:
    check(1e-3 <= alpha <= 1e6, "alpha", alpha, "use 0.001 (one site has nearly all images) to 1e6 (equal shares)")


def _check_room(labels: Labels, sites: int, least: int) -> None:
    """Refuse a minimum that the smallest class cannot meet."""
    check(sites >= 1, "sites", sites, "use 1 or more")
    check(least >= 0, "min_per_class", least, "use 0 (no minimum) or more")
    classes, counts = np.unique(labels, return_counts=True)
    if least and len(counts) and counts.min() < sites * least:
        k, most = int(classes[counts.argmin()]), int(counts.min())
        fewer = f", at most {plural(most // least, 'site')}" if most >= least else ""
        room = {"possible": most // sites, "fewer": fewer}
        raise DataError("class-too-small-to-divide", label=k, images=most, sites=sites, least=least, **room)


NAME = "split"
RECIPE = 1  # increase with every change to the images, so that cached images of an older version are not used
BY = (
    '"iid": equal sites; "dirichlet": each class by its own shares from Dir(alpha); "quantity": all classes by the '
    'same shares from Dir(alpha); "shards": sorted by class and cut.'
)


@dataclass(frozen=True, kw_only=True)
class Split(SuiteSettings):
    """The training images of one prepared domain partitioned among sites; all sites share its test images."""

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
        arrays = store.load_or_make(f"made/{NAME}-{RECIPE}/{self.of}-{self.by}-{self.sites}-{key}", self._made)
        classes = tuple(str(k) for k in range(1 + max(int(arrays[f"{part}_y"].max()) for part in store.PARTS)))
        how, digits = self._how(), len(str(self.sites))
        sites = []
        for i in range(self.sites):
            name, note = f"{self.of}-{i + 1:0{digits}}", f"part of {self.of}, {how}"
            sites.append(store.site_from_arrays(name, store.site_share(arrays, i), classes, note=note))
        note = f"{self.of} partitioned among {plural(self.sites, 'site')}, {how}, seed {self.seed}"
        return federation(NAME, sites, note, self.min_per_class)

    def _made(self) -> store.Arrays:
        """The training images of a site are contiguous; `images` has their indices in the prepared file."""
        whole = store.load_domain(self.of, "prepared files are named <domain>.npz; see: fedlgd data list")
        size = self.size or whole["train_x"].shape[1]
        parts = self._partition(whole["train_y"])
        order = np.concatenate(parts)
        return {
            "images": order,
            "bounds": np.cumsum([0, *map(len, parts)]),
            "train_x": store.resized(whole["train_x"][order], size),
            "train_y": whole["train_y"][order],
            "test_x": store.resized(whole["test_x"], size),
            "test_y": whole["test_y"],
        }

    def _partition(self, labels: Labels) -> list[Numbers]:
        rng = Stream(self.seed).at(NAME, self.by)
        if self.by == "iid":
            return iid(labels, self.sites, rng, self.min_per_class)
        if self.by == "shards":
            return shards(labels, self.sites, rng, self.shards)
        divide = dirichlet if self.by == "dirichlet" else quantity
        return divide(labels, self.sites, rng, self.alpha, self.min_per_class)

    def _how(self) -> str:
        """What makes the sites differ, for the notes."""
        return {
            "iid": "evenly",
            "dirichlet": f"classes by Dir({self.alpha:g})",
            "quantity": f"sizes by Dir({self.alpha:g})",
            "shards": f"{self.shards} shards each",
        }[self.by]
