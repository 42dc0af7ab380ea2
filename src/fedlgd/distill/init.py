"""Initialisation of virtual images: class statistics, noise, mean images, picks of real images, or their means."""

from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from fedlgd.core.errors import DataError, SettingError
from fedlgd.core.types import LabelledSet
from fedlgd.distill.files import is_file_name

Start = Literal["statistics", "noise", "mean-image", "real", "kmeans", "neighbours"]
STARTS: tuple[str, ...] = get_args(Start)
PICKS = ("real", "kmeans")  # virtual images that are private images
Statistics = Literal["class", "site"]

STD_AROUND_MEAN_IMAGE = 0.2
IMAGES_IN_MEAN = 8  # of neighbours
MAX_NEIGHBOUR_POOL = 1000  # real images of a class among which neighbours are searched
KMEANS_STEPS = 20


def check_start(setting: str, start: str, words: tuple[str, ...]) -> None:
    if start not in words and not is_file_name(start):
        raise SettingError("start-unknown", setting=setting, start=start, words=words)


def class_statistics(data: LabelledSet, classes: Sequence[int], over: Statistics = "class") -> Tensor:
    """(len(classes), 2, channels): mean and population std over all pixels of each class, per channel.

    over="site" divides the sums of a class by the size of the full set, as the released code does.
    """
    rows = []
    for k in classes:
        x = data.take(data.of_class(k)).x.double()
        n = (len(x) if over == "class" else len(data)) * x.shape[2] * x.shape[3]
        mean = x.sum((0, 2, 3)) / n
        rows.append(torch.stack([mean, (x.square().sum((0, 2, 3)) / n - mean.square()).clamp(min=0).sqrt()]))
    return torch.stack(rows)


def from_statistics(
    statistics: Tensor, per_class: int, side: tuple[int, int], scale: float, generator: Generator
) -> Tensor:
    """Every pixel of class k i.i.d. from N(mu_k, (scale * sigma_k)^2), scalars per channel."""
    classes, _, channels = statistics.shape
    noise = torch.randn(classes, per_class, channels, *side, generator=generator).to(statistics.device)
    mean, std = statistics.float().view(classes, 2, 1, channels, 1, 1).unbind(1)
    return (mean + scale * std * noise).flatten(0, 1)


def from_noise(images: int, shape: tuple[int, int, int], generator: Generator) -> Tensor:
    """Every pixel from N(0, 1) in network-input space."""
    return torch.randn(images, *shape, generator=generator)


def mean_images(data: LabelledSet, classes: Sequence[int]) -> Tensor:
    """(len(classes), channels, height, width)"""
    return torch.stack([data.take(data.of_class(k)).x.mean(0) for k in classes])


def from_mean_image(means: Tensor, per_class: int, generator: Generator) -> Tensor:
    """The mean image of each class with the average of 2x2 pixels in their place, plus 0.2 N(0, 1)."""
    sides = (means.shape[2], means.shape[3])
    coarse = F.interpolate(F.avg_pool2d(means, 2, ceil_mode=True), scale_factor=2)[..., : sides[0], : sides[1]]
    images = coarse.repeat_interleave(per_class, 0)
    return images + STD_AROUND_MEAN_IMAGE * torch.randn(images.shape, generator=generator).to(images)


def from_neighbours(data: LabelledSet, classes: Sequence[int], per_class: int, generator: Generator) -> Tensor:
    r"""v = mean of the 8 images of a class that are most similar to a random one of them, itself included.

    Similar: the largest correlation  c_i.c_j,  c = (p - mean p) / ||p - mean p||,  p the averages of 2x2 pixels,
    among 1 000 random images of the class. Means of groups are microaggregation (Domingo-Ferrer and Mateo-Sanz,
    IEEE TKDE 2002): each virtual image is made of at least 8 private ones, or of all if the class has fewer. That
    is no differential privacy.
    """
    return torch.cat(
        [
            _groups(data.take(_pick(data.of_class(k), MAX_NEIGHBOUR_POOL, generator)).x, per_class, generator)
            for k in classes
        ]
    )


def _groups(x: Tensor, count: int, generator: Generator) -> Tensor:
    p = F.avg_pool2d(x, 2, ceil_mode=True).flatten(1)
    c = F.normalize(p - p.mean(1, keepdim=True), dim=1)
    seeds = torch.randint(len(x), (count,), generator=generator)
    nearest = (c[seeds] @ c.T).topk(min(IMAGES_IN_MEAN, len(x)), dim=1).indices
    return x[nearest].mean(1)


def from_real(data: LabelledSet, classes: Sequence[int], per_class: int, generator: Generator) -> Tensor:
    """`per_class` different real images of each class. Such a set discloses private images."""
    return torch.cat([data.take(_pick(data.of_class(k), per_class, generator)).x for k in classes])


def from_clusters(data: LabelledSet, classes: Sequence[int], per_class: int, generator: Generator) -> Tensor:
    """The real image nearest to each of `per_class` centres of k-means in pixels. It discloses private images."""
    return torch.cat([data.take(_nearest(data, data.of_class(k), per_class, generator)).x for k in classes])


def _nearest(data: LabelledSet, members: Tensor, count: int, generator: Generator) -> Tensor:
    """Lloyd's algorithm from random members:  c_j = mean of the x whose nearest centre is c_j.

    A centre without members stays where it is. Each centre takes the nearest image that no earlier one has taken.
    """
    x = data.take(members).x.flatten(1)
    centres = x[torch.randperm(len(x), generator=generator)[:count]].clone()
    for _ in range(KMEANS_STEPS):
        owner = torch.cdist(x, centres).argmin(1)
        sums = torch.zeros_like(centres).index_add_(0, owner, x)
        sizes = owner.bincount(minlength=count)[:, None]
        centres = torch.where(sizes > 0, sums / sizes.clamp(min=1), centres)
    gaps = torch.cdist(x, centres)
    chosen: list[int] = []
    for j in range(count):
        chosen.append(int(gaps[:, j].argmin()))
        gaps[chosen[-1]] = torch.inf
    return members[chosen]


def _pick(members: Tensor, count: int, generator: Generator) -> Tensor:
    return members[torch.randperm(len(members), generator=generator)[:count]]


def as_tiles(pictures: Tensor, tiles: int) -> Tensor:
    """(n tiles^2, c, h, w) -> (n, c, h, w): each picture as a tile, reduced by averages. Rows left over are 0.

    `core.types.cut` is the inverse.
    """
    if tiles == 1:
        return pictures
    c, h, w = pictures.shape[1:]
    a, b = h // tiles, w // tiles
    small = F.adaptive_avg_pool2d(pictures, (a, b)).reshape(-1, tiles, tiles, c, a, b)
    images = torch.zeros(len(small), c, h, w, dtype=pictures.dtype, device=pictures.device)
    images[:, :, : tiles * a, : tiles * b] = small.permute(0, 3, 1, 4, 2, 5).reshape(-1, c, tiles * a, tiles * b)
    return images


def labels_for(classes: Sequence[int], per_class: int) -> Tensor:
    """Hard labels, sorted by class."""
    return torch.tensor(classes).repeat_interleave(per_class)


def present_classes(data: LabelledSet, classes: int, per_class: int, site: str, tiles: int = 1) -> list[int]:
    """The classes of a site; each must have at least `per_class` images, each of so many tiles."""
    counts = data.counts(classes).tolist()
    for k, count in enumerate(counts):
        if 0 < count < per_class * tiles:
            most, made_of = min(c for c in counts if c) // tiles, f", each of {tiles} tiles" if tiles > 1 else ""
            way_out = f"distil.per_class={most} or less" if most else "distil.tiles=1"
            values = {"count": count, "label": k, "per_class": per_class, "made_of": made_of, "way_out": way_out}
            raise DataError("class-smaller-than-virtual", site=site, **values)
    return [k for k, count in enumerate(counts) if count]
