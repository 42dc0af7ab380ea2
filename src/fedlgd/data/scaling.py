"""Normalisation constants of the sites, computed from training images only."""

from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np

from fedlgd.core.types import Scale
from fedlgd.data.store import Pixels

Scaling = Literal["half", "own", "shared"]

CHUNK = 256  # images summed at once
FLAT = 1 / 255  # least std: one grey level, for a channel that is constant


def mean_scale(scales: Sequence[Scale]) -> Scale:
    """The mean normalisation of all sites, for images that belong to no site, such as anchors."""
    if len(set(scales)) == 1:
        return scales[0]

    def mean(columns: Iterable[tuple[float, ...]]) -> tuple[float, ...]:
        return tuple(sum(column) / len(column) for column in zip(*columns, strict=True))

    return Scale(mean(s.mean for s in scales), mean(s.std for s in scales))


def scales(trains: Sequence[Pixels], scaling: Scaling) -> list[Scale]:
    """How each site's images become network input; `trains` are planes (n, 1 or 3, h, w).

    half: (x - 0.5) / 0.5 everywhere. own: each site by its own mean and std. shared: all sites by the mean and std
    of all pixels; real sites would have to disclose sums over their pixels for this.
    """
    if scaling == "half":
        return [Scale() for _ in trains]
    sums = [_sums(train) for train in trains]
    if scaling == "shared":
        return [_scale(sum(sums[1:], sums[0]))] * len(trains)
    return [_scale(each) for each in sums]


def _sums(planes: Pixels) -> np.ndarray:
    """Number, sum and sum of squares of the pixels of each of three channels, (3, 3), exact."""
    total = np.zeros((3, 3), dtype=object)
    for start in range(0, len(planes), CHUNK):
        part = planes[start : start + CHUNK].astype(np.int64)
        count = part.size // part.shape[1]
        rows = np.stack([np.full(part.shape[1], count), part.sum((0, 2, 3)), (part**2).sum((0, 2, 3))])
        total = total + np.broadcast_to(rows, (3, 3)).astype(object)
    return total


def _scale(sums: np.ndarray) -> Scale:
    """mean = E[x],  std^2 = E[x^2] - E[x]^2,  of pixels from 0 to 1."""
    count, first, second = sums
    mean = tuple(float(a / n / 255) for n, a in zip(count, first, strict=True))
    spread = [(b * n - a * a) / (n * n) for n, a, b in zip(count, first, second, strict=True)]
    return Scale(mean, tuple(max(float(v) ** 0.5 / 255, FLAT) for v in spread))
