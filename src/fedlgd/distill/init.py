"""Initialisation of virtual images: class statistics, noise, mean images, picks of real images, or their means."""

from collections.abc import Mapping, Sequence

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from fedlgd.core.errors import DataError
from fedlgd.core.types import LabelledSet, Shape, Site, Stream
from fedlgd.distill.files import read_start
from fedlgd.distill.settings import Distil, Statistics, is_file_name

STD_AROUND_MEAN_IMAGE = 0.2
IMAGES_IN_MEAN = 8  # of neighbours
MAX_NEIGHBOUR_POOL = 1000  # real images of a class among which neighbours are searched
KMEANS_STEPS = 20

PerClass = int | Sequence[int]
"""Images of each class: the same number, or one for each class."""


def initial_images(site: Site, numbers: Mapping[int, int], shape: Shape, distil: Distil, rng: Stream) -> Tensor:
    """The images before the first step: from a file, or `distil.start` for `tiles^2` pictures in each image.

    numbers: the virtual images of each class.
    """
    start, generator, classes = distil.start, rng.generator("start"), list(numbers)
    if is_file_name(start):
        return read_start(start, site.name, site.train.scale, labels_for(classes, [*numbers.values()]), shape)
    count = [number * distil.tiles**2 for number in numbers.values()]
    made_of_real = {"real": from_real, "kmeans": from_clusters, "neighbours": from_neighbours}
    if start in made_of_real:
        pictures = made_of_real[start](site.train, classes, count, generator)
    elif start == "noise":
        pictures = from_noise(sum(count), shape, generator)
    elif start == "mean-image":
        pictures = from_mean_image(mean_images(site.train, classes), count, generator)
    else:
        statistics = class_statistics(site.train, classes, distil.statistics)
        pictures = from_statistics(statistics, count, shape[1:], distil.start_scale, generator)
    return as_tiles(pictures, distil.tiles)


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
    statistics: Tensor, per_class: PerClass, side: tuple[int, int], scale: float, generator: Generator
) -> Tensor:
    """Every pixel of class k i.i.d. from N(mu_k, (scale * sigma_k)^2), scalars per channel."""
    mean, std = _repeat(statistics.float()[..., None, None], per_class).unbind(1)
    noise = torch.randn(*mean.shape[:2], *side, generator=generator).to(statistics.device)
    return mean + scale * std * noise


def from_noise(images: int, shape: Shape, generator: Generator) -> Tensor:
    """Every pixel from N(0, 1) in network-input space."""
    return torch.randn(images, *shape, generator=generator)


def mean_images(data: LabelledSet, classes: Sequence[int]) -> Tensor:
    """(len(classes), channels, height, width). That of a single image has its mean colour alone: it is no copy."""
    return torch.stack([_mean(data.take(data.of_class(k)).x) for k in classes])


def _mean(x: Tensor) -> Tensor:
    return x.mean(0) if len(x) > 1 else x[0].mean((1, 2), keepdim=True).expand_as(x[0])


def from_mean_image(means: Tensor, per_class: PerClass, generator: Generator) -> Tensor:
    """The mean image of each class with the average of 2x2 pixels in their place, plus 0.2 N(0, 1)."""
    sides = (means.shape[2], means.shape[3])
    coarse = F.interpolate(F.avg_pool2d(means, 2, ceil_mode=True), scale_factor=2)[..., : sides[0], : sides[1]]
    images = _repeat(coarse, per_class)
    return images + STD_AROUND_MEAN_IMAGE * torch.randn(images.shape, generator=generator).to(images)


def from_neighbours(data: LabelledSet, classes: Sequence[int], per_class: PerClass, generator: Generator) -> Tensor:
    r"""v = mean of the 8 images of a class that are most similar to a random one of them, itself included.

    Similar: the largest correlation  c_i.c_j,  c = (p - mean p) / ||p - mean p||,  p the averages of 2x2 pixels,
    among 1 000 random images of the class. Means of groups are microaggregation (Domingo-Ferrer and Mateo-Sanz,
    IEEE TKDE 2002): each virtual image is made of at least 8 private ones, or of all if the class has fewer. That
    is no differential privacy. A single image has no neighbours: its class starts as in `from_mean_image`.
    """
    pools = (pick(data.of_class(k), MAX_NEIGHBOUR_POOL, generator) for k in classes)
    counts = _counts(classes, per_class)
    return torch.cat([_groups(data.take(pool).x, n, generator) for pool, n in zip(pools, counts, strict=True)])


def _groups(x: Tensor, count: int, generator: Generator) -> Tensor:
    if len(x) == 1:
        return from_mean_image(_mean(x)[None], count, generator)
    p = F.avg_pool2d(x, 2, ceil_mode=True).flatten(1)
    c = F.normalize(p - p.mean(1, keepdim=True), dim=1)
    seeds = torch.randint(len(x), (count,), generator=generator)
    nearest = (c[seeds] @ c.T).topk(min(IMAGES_IN_MEAN, len(x)), dim=1).indices
    return x[nearest].mean(1)


def from_real(data: LabelledSet, classes: Sequence[int], per_class: PerClass, generator: Generator) -> Tensor:
    """`per_class` different real images of each class, repeated if it has fewer. They disclose private images."""
    wanted = zip(classes, _counts(classes, per_class), strict=True)
    return torch.cat([data.take(_cycle(pick(data.of_class(k), n, generator), n)).x for k, n in wanted])


def from_clusters(data: LabelledSet, classes: Sequence[int], per_class: PerClass, generator: Generator) -> Tensor:
    """The real image nearest to each of `per_class` centres of k-means in pixels. It discloses private images.

    A class with fewer images has all of them, repeated.
    """
    picked = []
    for k, n in zip(classes, _counts(classes, per_class), strict=True):
        members = data.of_class(k)
        picked.append(data.take(_cycle(_nearest(data, members, min(n, len(members)), generator), n)).x)
    return torch.cat(picked)


def _cycle(members: Tensor, count: int) -> Tensor:
    """So many of the members, from the first again after the last."""
    return members[torch.arange(count) % len(members)]


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


def pick(members: Tensor, count: int, generator: Generator) -> Tensor:
    """Some members without replacement, in random order."""
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


def _counts(classes: Sequence[int], per_class: PerClass) -> Sequence[int]:
    return [per_class] * len(classes) if isinstance(per_class, int) else per_class


def _repeat(rows: Tensor, per_class: PerClass) -> Tensor:
    """Each row so many times."""
    times = per_class if isinstance(per_class, int) else torch.tensor(per_class, device=rows.device)
    return rows.repeat_interleave(times, 0)


def labels_for(classes: Sequence[int], per_class: PerClass) -> Tensor:
    """Hard labels, sorted by class."""
    return _repeat(torch.tensor(classes), per_class)


def virtual_numbers(data: LabelledSet, classes: int, distil: Distil, site: str) -> dict[int, int]:
    """The virtual images of each class that a site has: see `Distil.images_of`."""
    counts = data.counts(classes).tolist()
    few = short_classes(data, classes, distil)
    if few and distil.short == "refuse":
        label, count = next(iter(few.items()))
        tiles = distil.real_per_image
        most, made_of = min(c for c in counts if c) // tiles, f", each of {tiles} tiles" if tiles > 1 else ""
        way_out = f"distil.per_class={most} or less" if most else "distil.tiles=1"
        values = {"count": count, "label": label, "per_class": distil.per_class, "made_of": made_of}
        raise DataError("class-smaller-than-virtual", site=site, way_out=way_out, **values)
    return {k: distil.images_of(count) for k, count in enumerate(counts) if count}


def short_classes(data: LabelledSet, classes: int, distil: Distil) -> dict[int, int]:
    """The classes with too few images for `distil.per_class` virtual ones, and how many images they have."""
    wanted = distil.per_class * distil.real_per_image
    return {k: count for k, count in enumerate(data.counts(classes).tolist()) if 0 < count < wanted}
