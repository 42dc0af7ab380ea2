"""Distribution matching (DM): virtual images match the class means of real images in feature space.

Eq. 1:  L = sum_k || mean_{x in D_k} psi(A x) - mean_{v in V_k} psi(A v) ||^2

Batch norm normalises the real batch (all classes together) by its own statistics and the virtual batch by its own.
Running statistics are not used: a random network has none, and those of a global model follow its training slowly.

`distil` makes a site's first virtual set under random networks; `refine` moves it under the global features.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor

from fedlgd.core.device import to_cpu, to_device
from fedlgd.core.errors import DivergedError
from fedlgd.core.losses import class_means, mean_gap
from fedlgd.core.meter import phase, track
from fedlgd.core.net import Net
from fedlgd.core.rng import Stream
from fedlgd.core.types import LabelledSet, Params, Site, VirtualSet, cut
from fedlgd.data.federation import site_digest
from fedlgd.distill.augment import Sides, Transform, draw
from fedlgd.distill.cache import has, recall
from fedlgd.distill.files import read_start, set_digest
from fedlgd.distill.init import (
    PICKS,
    class_statistics,
    from_clusters,
    from_mean_image,
    from_neighbours,
    from_noise,
    from_real,
    from_statistics,
    is_file_name,
    labels_for,
    laid,
    mean_images,
    present_classes,
)
from fedlgd.distill.settings import Distil
from fedlgd.nets.registry import build_net


def distil(site: Site, net: Net, how: Distil, rng: Stream) -> VirtualSet:
    """The first virtual set of a site, from the cache if available."""
    made_from = _made_from(site, net, how, rng)
    random, how = narrowed(family(net, how), how)
    tiles = how.tiles**2 if how.start in PICKS else 1
    classes = present_classes(site.train, net.classes, how.per_class, site.name, tiles)
    labels = to_device(labels_for(classes, how.per_class))

    def compute() -> Tensor:
        with phase("distil"):
            start = to_device(_start(site, classes, random.shape, how, rng))
        return to_cpu(match(start, labels, site.train, random, lambda i: random.init(rng.at("net", i)), how, rng))

    images = to_device(recall(made_from, compute))
    _check_finite(images, made_from["how"]["lr"], f"distillation at site {site.name!r}")
    return VirtualSet(images=images, labels=labels, origin=site.name, round=-1, tiles=how.tiles)


def is_cached(site: Site, net: Net, how: Distil, rng: Stream) -> bool:
    """Whether the result of `distil` is in the cache."""
    return has(_made_from(site, net, how, rng))


def _made_from(site: Site, net: Net, how: Distil, rng: Stream) -> dict[str, Any]:
    label = family(net, how).label
    made_from = {"train": site_digest(site), "net": label, "how": asdict(how), "rng": [rng.seed, *rng.path]}
    return made_from | ({"start": set_digest(how.start, site.name)} if is_file_name(how.start) else {})


def family(net: Net, how: Distil) -> Net:
    return net.base if how.net == "same" else build_net(how.net, net.shape, net.classes)


def narrowed(net: Net, how: Distil) -> tuple[Net, Distil]:
    """Random networks of `how.width` and their learning rate.

    Eq. 1 with random networks estimates a distance between distributions. A feature of a narrow network is cheaper,
    because the cost of a layer grows with the square of its width. Eq. 1 is a sum over features: with r times fewer
    features the gradient is r times smaller except for its noise, so the lr is multiplied by the square root of r.
    """
    if not how.width or net.narrow is None:
        return net, how
    narrow = net.narrow(how.width)
    if narrow.features >= net.features:
        return net, how
    return narrow, replace(how, lr=how.lr * math.sqrt(net.features / narrow.features))


def refine(
    virtual: VirtualSet, real: LabelledSet, net: Net, params: Params, how: Distil, round: int, rng: Stream
) -> VirtualSet:
    """Iterative DM: `how.steps` further steps with the received features, which are fixed.

    A bank without augmentation needs one pair: the means of whole classes, which are what the draws estimate.
    A net with batch norm keeps its draws: it would need all real images in one batch.

    Batch norm uses batch statistics here too, not the model's running ones. In the first rounds these are still
    near their start (mean 0, variance 1), and images would hardly move. Later they are a mean over sites, which
    need not fit any of them. Sites train under batch statistics as well.
    """
    if how.plan == "bank" and not how.augment and net.per_image:
        how = replace(how, pairs=1, reuse=max(1, how.steps), real_per_class=len(real))
    images = match(virtual.images, virtual.labels, real, net, lambda _: params, how, rng)
    _check_finite(images, how.lr, "refinement of the virtual set")
    return replace(virtual, images=images, round=round)


def _check_finite(images: Tensor, lr: float, what: str) -> None:
    if not bool(images.isfinite().all()):
        raise DivergedError(f"{what} diverged; lower distil.lr, which is {lr:g}")


def match(
    images: Tensor,
    labels: Tensor,
    real: LabelledSet,
    net: Net,
    params_at: Callable[[int], Params],
    how: Distil,
    rng: Stream,
) -> Tensor:
    """Images after `how.steps` on Eq. 1; `params_at` returns the weights of the i-th pair."""
    descent = how.descent()
    with phase("distil"):
        drawn = pairs(labels.unique(), real, net, params_at, how, rng)
        for _, pair in zip(track("distil", how.steps), drawn, strict=False):
            gradient = image_gradient(net, pair.params, images, labels, pair.target, pair.transforms, how.tiles)
            images = descent(images, gradient)
    return images


class Pair(NamedTuple):
    """The target of one step: network weights, an augmentation for each class, and the real class means."""

    params: Params
    transforms: list[Transform]
    target: Tensor


def pairs(
    classes: Tensor, real: LabelledSet, net: Net, params_at: Callable[[int], Params], how: Distil, rng: Stream
) -> Iterator[Pair]:
    """The pair of each step. `exact` draws a new pair per step; `bank` cycles through a few, then draws new ones.

    The real class means, most of the cost of a new pair, are computed once per pair.
    """
    members = [real.of_class(int(k)) for k in classes]

    def draw_pair(i: int) -> Pair:
        params = params_at(i)
        transforms = draw_transforms(classes, how, net.shape[1:], rng.at("augment", i))
        batches = _draw_real(members, how.real_per_class, rng.at("real", i))
        return Pair(params, transforms, real_means(net, params, real, batches, transforms))

    held, turns = (1, 1) if how.plan == "exact" else (how.pairs, how.reuse)
    distinct = math.ceil(how.steps / turns)
    for first in range(0, distinct, held):
        bank = [draw_pair(i) for i in range(first, min(first + held, distinct))]
        for _ in range(turns):
            yield from bank


def real_means(
    net: Net, params: Params, real: LabelledSet, batches: list[Tensor], transforms: list[Transform]
) -> Tensor:
    """mean of psi(A_k x) over the chosen real images of each class; no gradient goes through it.

    A net with batch norm sees all classes in one batch, as it sees the virtual images.
    """
    parts = (transform(real.take(index).x) for index, transform in zip(batches, transforms, strict=True))
    with torch.no_grad():
        if net.per_image:
            features = [net.by_batch(params, part).features for part in parts]
        else:
            features = list(net.by_batch(params, torch.cat(list(parts))).features.split([len(b) for b in batches]))
    return torch.stack([part.mean(0) for part in features])


def image_gradient(
    net: Net,
    params: Params,
    images: Tensor,
    labels: Tensor,
    target: Tensor,
    transforms: list[Transform],
    tiles: int = 1,
) -> Tensor:
    """dL/dV of Eq. 1, all classes in one pass."""
    leaf = images.detach().requires_grad_()
    pictures, labels = cut(leaf, tiles), labels.repeat_interleave(tiles**2)
    classes = labels.unique()
    members = [(labels == k).nonzero().flatten() for k in classes]
    x = torch.cat([transform(pictures[index]) for index, transform in zip(members, transforms, strict=True)])
    loss = mean_gap(target, class_means(net.by_batch(params, x).features, labels[torch.cat(members)], classes))
    (gradient,) = torch.autograd.grad(loss, leaf)
    return gradient


def _start(site: Site, classes: list[int], shape: tuple[int, int, int], how: Distil, rng: Stream) -> Tensor:
    if is_file_name(how.start):
        return read_start(how.start, site.name, site.train.scale, labels_for(classes, how.per_class), shape)
    return laid(_pictures(site.train, classes, shape, how, rng.generator("start")), how.tiles)


def _pictures(
    data: LabelledSet, classes: list[int], shape: tuple[int, int, int], how: Distil, generator: Generator
) -> Tensor:
    """The initial pictures: `tiles^2` for each image."""
    count = how.pictures
    groups = {"real": from_real, "kmeans": from_clusters, "neighbours": from_neighbours}
    if how.start in groups:
        return groups[how.start](data, classes, count, generator)
    if how.start == "noise":
        return from_noise(len(classes) * count, shape, generator)
    if how.start == "mean-image":
        return from_mean_image(mean_images(data, classes), count, generator)
    return from_statistics(
        class_statistics(data, classes, how.statistics), count, shape[1:], how.start_scale, generator
    )


def draw_transforms(classes: Tensor, how: Distil, sides: Sides, rng: Stream) -> list[Transform]:
    generator = rng.generator()
    return [draw(how.augment, sides, generator) for _ in classes]


def _draw_real(members: list[Tensor], count: int, rng: Stream) -> list[Tensor]:
    """Indices from each class without replacement; all images of a class with at most `count` images."""
    generator = rng.generator()
    return [
        pool if len(pool) <= count else pool[torch.randperm(len(pool), generator=generator)[:count]]
        for pool in members
    ]
