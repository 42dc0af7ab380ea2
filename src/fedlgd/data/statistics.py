"""Statistics of a site's images: counts per class, and mean, std and histogram of red, green and blue."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fedlgd.core.types import LabelledSet, Site

LEVELS = 256
BINS = 16  # of a histogram; each is 16 grey levels wide
ENOUGH = 20_000  # images; of a larger set only every second, third, ... is measured
CHUNK = 512
SPARKS = " ▁▂▃▄▅▆▇█"

Colours = tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """Statistics of one site. mean, std and histogram (shares of BINS bins) are of its training pixels, 0 to 1.

    measured: number of training images measured, all or evenly spaced ones.
    """

    site: str
    note: str
    train: int
    test: int
    train_per_class: tuple[int, ...]
    test_per_class: tuple[int, ...]
    measured: int
    mean: Colours
    std: Colours
    histogram: tuple[Colours, ...]


def statistics_of(site: Site) -> Statistics:
    step = math.ceil(len(site.train) / ENOUGH)
    levels = grey_levels(site.train, step)
    mean, std = _moments(levels)
    bins = levels.view(len(levels), BINS, -1).sum(2) / levels.sum(1, keepdim=True)
    return Statistics(
        site=site.name,
        note=site.note,
        train=len(site.train),
        test=len(site.test),
        train_per_class=tuple(site.train.counts(len(site.classes)).tolist()),
        test_per_class=tuple(site.test.counts(len(site.classes)).tolist()),
        measured=math.ceil(len(site.train) / step),
        mean=_rounded(mean),
        std=_rounded(std),
        histogram=tuple(_rounded(row) for row in bins),
    )


def grey_levels(data: LabelledSet, step: int = 1) -> Tensor:
    """(channels, 256): how often each level occurs in every step-th image; network input is converted to uint8."""
    x = data.x[::step]
    if x.shape[1] > 1 and x.stride(1) == 0:  # grey, expanded to three equal channels
        return grey_levels(LabelledSet(x[:, :1], data.y, data.scale)).expand(x.shape[1], -1)
    counts = torch.zeros(x.shape[1], LEVELS, dtype=torch.float64)
    for part in x.split(CHUNK):
        pixels = data.scale.to_pixels(part) if part.is_floating_point() else part
        counts += torch.stack([torch.bincount(c.flatten(), minlength=LEVELS) for c in pixels.unbind(1)])
    return counts


def _moments(levels: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and std of each channel; level k is the pixel value k / 255."""
    share, value = levels / levels.sum(1, keepdim=True), torch.arange(LEVELS) / (LEVELS - 1)
    mean = (share * value).sum(1)
    return mean, (share * (value - mean[:, None]).square()).sum(1).sqrt()


def _rounded(values: Tensor) -> Colours:
    return tuple(round(v, 4) for v in values.tolist())


def spark(shares: Colours) -> str:
    """A histogram in one line of text; the largest bin is a full block, an empty one is blank."""
    top = max(shares) or 1.0
    return "".join(SPARKS[math.ceil(share / top * (len(SPARKS) - 1))] for share in shares)
