"""The cost of a small run as a function of the size of the federation."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from bench.tools.measure import kept_malloc, seconds
from fedlgd.data.federation import Federation, from_arrays
from fedlgd.methods.fedlgd import FedLGD
from fedlgd.runs.config import configure
from fedlgd.runs.run import run


@dataclass(frozen=True)
class Size:
    """A federation of random images, ten classes."""

    sites: int = 2
    images: int = 400
    per_class: int = 5
    side: int = 16


def grown(factors: tuple[int, ...] = (2, 4)) -> Iterator[tuple[str, int, float]]:
    """(quantity, factor, CPU seconds relative to the base)."""
    base = cost(Size())
    for name in ("sites", "images", "per_class", "side"):
        for factor in factors:
            size = replace(Size(), **{name: getattr(Size(), name) * factor})
            yield name, factor, cost(size) / base


def cost(size: Size) -> float:
    """CPU seconds of enrolment and four rounds, one of them selected."""
    steps = {"distil__steps": 20, "refine__steps": 10, "anchors__steps": 5}
    method = configure(FedLGD, "", distil__per_class=size.per_class, **steps)
    data = federation(size)
    return seconds(lambda: run(data, method, rounds=4, net={"width": 16}), kept_malloc)


def federation(size: Size) -> Federation:
    rng = np.random.default_rng(0)
    test = size.images // 4

    def images(count: int) -> tuple[np.ndarray, np.ndarray]:
        pixels = rng.integers(0, 256, (count, size.side, size.side, 3), dtype=np.uint8)
        return pixels, np.arange(count) % 10

    return from_arrays({f"site{i}": (*images(size.images), *images(test)) for i in range(size.sites)})
