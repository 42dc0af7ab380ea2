"""Measure the domain shift: RBF-MMD between the images of sites, in pixels or features, with a zero reference."""

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from fedlgd.core.errors import DataError, check
from fedlgd.core.meter import track
from fedlgd.core.net import Net
from fedlgd.core.types import LabelledSet, Params, Stream
from fedlgd.data.federation import Federation
from fedlgd.nets.registry import build_net
from fedlgd.runs.analysis import between, features_of, mmd2

MAX_IMAGES_IN_DRAW = 2000  # images per site and draw: distances of all pairs are held in memory
BATCH_SIZE = 128  # images per forward pass
MIN_IMAGES = 4  # images per site: two draws of two images
NET_WIDTH = 64  # of the untrained ConvNets that compute random features
ALL = "all images"

Matrix = tuple[tuple[float, ...], ...]
Space = Callable[[Tensor, int], Tensor]
"""(network input, number of the draw) -> one row per image."""


def width_of(a: Tensor, b: Tensor) -> float:
    """Mean squared distance between two different members of the joint set:  2 / (n - 1) sum_u ||u - mean||^2."""
    joint = torch.cat([a, b]).double()
    square = (joint - joint.mean(0)).square().sum().item()
    return max(2 * square / (len(joint) - 1), torch.finfo(joint.dtype).tiny)


@dataclass(frozen=True, slots=True, kw_only=True)
class Draws:
    """How to sample: `size` images per site in each of `draws` draws, and the estimator.

    A site with fewer than twice `size` images reduces the size for all sites, because MMD depends on the size.
    """

    size: int = 100
    draws: int = 5
    unbiased: bool = True

    def __post_init__(self) -> None:
        check(
            2 <= self.size <= MAX_IMAGES_IN_DRAW,
            "size",
            self.size,
            f"use 2 to {MAX_IMAGES_IN_DRAW} images per site and draw",
        )
        check(self.draws >= 2, "draws", self.draws, "use 2 or more; the std over draws is part of the result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shift:
    """Mean and std over draws of the squared MMD between sites.

    The diagonal compares two disjoint draws of one site: the reference for zero shift at this size.
    """

    sites: tuple[str, ...]
    size: int
    draws: int
    unbiased: bool
    mean: Matrix
    std: Matrix

    @property
    def pairs(self) -> Iterator[tuple[str, str, float, float]]:
        """Every two different sites, with mean and std."""
        for (i, a), (j, b) in combinations(enumerate(self.sites), 2):
            yield a, b, self.mean[i][j], self.std[i][j]

    @property
    def average(self) -> float:
        """Mean over pairs of different sites."""
        return statistics.fmean(mean for *_, mean, _ in self.pairs)

    @property
    def zero(self) -> float:
        """Mean of the diagonal."""
        return statistics.fmean(self.mean[i][i] for i in range(len(self.sites)))


def measure(sites: Mapping[str, LabelledSet], space: Space, how: Draws, rng: Stream, label: str = "shift") -> Shift:
    """The shift between sites over all images; it includes different class proportions."""
    return _measure({name: (data, torch.arange(len(data))) for name, data in sites.items()}, space, how, rng, label)


def measure_class(
    sites: Mapping[str, LabelledSet], k: int, space: Space, how: Draws, rng: Stream, label: str = "shift"
) -> Shift | None:
    """The shift of class `k` between sites with enough images of it; None for fewer than two such sites."""
    members = {name: (data, data.of_class(k)) for name, data in sites.items()}
    enough = {name: pool for name, pool in members.items() if len(pool[1]) >= MIN_IMAGES}
    return _measure(enough, space, how, rng.at("class", k), label) if len(enough) > 1 else None


Pool = tuple[LabelledSet, Tensor]


def _measure(pools: Mapping[str, Pool], space: Space, how: Draws, rng: Stream, label: str) -> Shift:
    for name, (_, index) in pools.items():
        if len(index) < MIN_IMAGES:
            raise DataError("too-few-for-shift", site=name, images=len(index), wanted=MIN_IMAGES)
    size = min([how.size, *(len(index) // 2 for _, index in pools.values())])
    drawn = []
    for draw in track(label, how.draws):
        rows = {name: _rows(pool, size, space, draw, rng.at(name, draw)) for name, pool in pools.items()}
        matrix = between({name: first for name, (first, _) in rows.items()}, how.unbiased)
        for i, (first, second) in enumerate(rows.values()):
            matrix[i][i] = mmd2(first, second, how.unbiased)
        drawn.append(matrix)
    mean, std = over(drawn)
    return Shift(sites=tuple(pools), size=size, draws=how.draws, unbiased=how.unbiased, mean=mean, std=std)


def _rows(pool: Pool, size: int, space: Space, draw: int, rng: Stream) -> tuple[Tensor, Tensor]:
    """Two disjoint draws, mapped to the space in which they are compared."""
    data, index = pool
    chosen = index[torch.randperm(len(index), generator=rng.generator())[: 2 * size]]
    first, second = space(data.take(chosen).x, draw).split(size)
    return first, second


def over(matrices: Sequence[Sequence[Sequence[float]]]) -> tuple[Matrix, Matrix]:
    """Elementwise mean and sample standard deviation."""
    stack = torch.tensor(matrices, dtype=torch.float64)
    mean, std = stack.mean(0).tolist(), stack.std(0).tolist()
    return tuple(map(tuple, mean)), tuple(map(tuple, std))


def pixels(x: Tensor, draw: int) -> Tensor:
    """The network input itself."""
    return x.flatten(1)


def features(net: Net, params: Params) -> Space:
    """psi(x) of one model."""
    return lambda x, _: features_of(net, params, x, BATCH_SIZE)


def random_features(net: Net, rng: Stream) -> Space:
    """psi(x) of an untrained network, a new one in each draw; the std over draws includes this variation."""
    return lambda x, draw: features_of(net, net.init(rng.at("net", draw)), x, BATCH_SIZE)


@dataclass(frozen=True, slots=True)
class Measured:
    """The shift in one feature space, among all images or those of one class."""

    space: str
    among: str
    shift: Shift

    def plain(self) -> dict[str, Any]:
        extra = {"average": self.shift.average, "zero": self.shift.zero}
        return {"space": self.space, "among": self.among, **asdict(self.shift), **extra}


def measure_shift(federation: Federation, how: Draws, seed: int, per_class: bool = False) -> list[Measured]:
    """The shift between sites in pixels and in random features, and that of each class."""
    net = build_net("convnet", federation.shape, len(federation.classes), {"width": NET_WIDTH})
    rng = Stream(seed).at("shift")
    sites = {site.name: site.train for site in federation.sites}
    spaces: dict[str, Space] = {"pixels": pixels, "random features": random_features(net, rng)}
    found = []
    for name, space in spaces.items():
        found.append(Measured(name, ALL, measure(sites, space, how, rng, name)))
        for k, title in enumerate(federation.classes if per_class else ()):
            shift = measure_class(sites, k, space, how, rng, f"{name}, class {title}")
            found += [Measured(name, title, shift)] if shift else []
    return found
