"""Distribution matching (DM): virtual images match the class means of real images in feature space.

Eq. 1:  L = sum_k || mean_{x in D_k} psi(A x) - mean_{v in V_k} psi(A v) ||^2

Batch norm normalises the real batch (all classes together) by its own statistics and the virtual batch by its own.
Running statistics are not used: a random network has none, and those of a global model follow its training slowly.

`first_set` makes a site's first virtual set under random networks; `refine` moves it under the global features.
Both take the steps of `match`.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from typing import NamedTuple

import torch
from torch import Tensor

from fedlgd.core.cache import Cached, result_key
from fedlgd.core.device import to_cpu, to_device
from fedlgd.core.errors import DivergedError
from fedlgd.core.losses import class_means, mean_gap
from fedlgd.core.meter import charge, metered, phase, track
from fedlgd.core.net import Net
from fedlgd.core.rng import Stream
from fedlgd.core.types import LabelledSet, Params, Site, VirtualSet, cut
from fedlgd.data.federation import site_digest
from fedlgd.distill import init
from fedlgd.distill.augment import Sides, Transform, draw_transform
from fedlgd.distill.files import is_file_name, read_start, set_digest
from fedlgd.distill.settings import Distil
from fedlgd.nets.registry import build_net


def first_set(site: Site, net: Net, distil: Distil, rng: Stream) -> VirtualSet:
    """The first virtual set of a site, from its cache if available."""
    key = first_set_key(site, net, distil, rng)
    random, scaled = narrowed(random_family(net, distil), distil)
    tiles = distil.tiles**2 if distil.start in init.PICKS else 1
    classes = init.present_classes(site.train, net.classes, distil.per_class, site.name, tiles)
    labels = to_device(init.labels_for(classes, distil.per_class))
    made = site.cache.get(key)
    if made is None:
        with metered() as meter, phase("distil"):
            start = to_device(initial_images(site, classes, random.shape, distil, rng))
            images = match(start, labels, site.train, random, lambda i: random.init(rng.at("net", i)), scaled, rng)
        made = Cached(tensor=to_cpu(images), **meter.spent())
        site.cache.put(key, made)
    charge(made)
    images = to_device(made.tensor)
    check_finite(images, distil.lr, f"distillation at site {site.name!r}")
    return VirtualSet(images=images, labels=labels, origin=site.name, round=-1, tiles=distil.tiles)


def first_set_key(site: Site, net: Net, distil: Distil, rng: Stream) -> str:
    """The key of this virtual set in a cache: a hash of all it is made from."""
    label = random_family(net, distil).label
    made_from = {"train": site_digest(site), "net": label, "how": asdict(distil), "rng": [rng.seed, *rng.path]}
    start = {"start": set_digest(distil.start, site.name)} if is_file_name(distil.start) else {}
    return result_key(made_from | start)


def initial_images(
    site: Site, classes: list[int], shape: tuple[int, int, int], distil: Distil, rng: Stream
) -> Tensor:
    """The images before the first step: from a file, or `distil.start` for `tiles^2` pictures in each image."""
    start, count, generator = distil.start, distil.pictures, rng.generator("start")
    if is_file_name(start):
        return read_start(start, site.name, site.train.scale, init.labels_for(classes, distil.per_class), shape)
    made_of_real = {"real": init.from_real, "kmeans": init.from_clusters, "neighbours": init.from_neighbours}
    if start in made_of_real:
        pictures = made_of_real[start](site.train, classes, count, generator)
    elif start == "noise":
        pictures = init.from_noise(len(classes) * count, shape, generator)
    elif start == "mean-image":
        pictures = init.from_mean_image(init.mean_images(site.train, classes), count, generator)
    else:
        statistics = init.class_statistics(site.train, classes, distil.statistics)
        pictures = init.from_statistics(statistics, count, shape[1:], distil.start_scale, generator)
    return init.as_tiles(pictures, distil.tiles)


def random_family(net: Net, distil: Distil) -> Net:
    """The architecture of the random networks."""
    return net.base if distil.net == "same" else build_net(distil.net, net.shape, net.classes)


def narrowed(net: Net, distil: Distil) -> tuple[Net, Distil]:
    """Random networks of `distil.width` and their learning rate.

    Eq. 1 with random networks estimates a distance between distributions. A feature of a narrow network is cheaper,
    because the cost of a layer grows with the square of its width. Eq. 1 is a sum over features: with r times fewer
    features the gradient is r times smaller except for its noise, so the lr is multiplied by the square root of r.
    """
    if not distil.width or net.narrow is None:
        return net, distil
    narrow = net.narrow(distil.width)
    if narrow.features >= net.features:
        return net, distil
    return narrow, replace(distil, lr=distil.lr * math.sqrt(net.features / narrow.features))


def refine(
    virtual: VirtualSet, real: LabelledSet, net: Net, params: Params, distil: Distil, round: int, rng: Stream
) -> VirtualSet:
    """Iterative DM: `distil.steps` further steps with the received features, which are fixed.

    A bank without augmentation needs one pair: the means of whole classes, which are what the draws estimate.
    A net with batch norm keeps its draws: it would need all real images in one batch.

    Batch norm uses batch statistics here too, not the model's running ones. In the first rounds these are still
    near their start (mean 0, variance 1), and images would hardly move. Later they are a mean over sites, which
    need not fit any of them. Sites train under batch statistics as well.
    """
    if distil.plan == "bank" and not distil.augment and net.per_image:
        distil = replace(distil, pairs=1, reuse=max(1, distil.steps), real_per_class=len(real))
    images = match(virtual.images, virtual.labels, real, net, lambda _: params, distil, rng)
    check_finite(images, distil.lr, "refinement of the virtual set")
    return replace(virtual, images=images, round=round)


def check_finite(images: Tensor, lr: float, work: str) -> None:
    if not bool(images.isfinite().all()):
        raise DivergedError("distillation-diverged", work=work, lr=lr)


def match(
    images: Tensor,
    labels: Tensor,
    real: LabelledSet,
    net: Net,
    weights: Callable[[int], Params],
    distil: Distil,
    rng: Stream,
) -> Tensor:
    """Images after `distil.steps` on Eq. 1; `weights(i)` are those of the network in the i-th draw."""
    optimiser = distil.pixel_optimiser()
    with phase("distil"):
        targets = draws(labels.unique(), real, net, weights, distil, rng)
        for _, pair in zip(track("distil", distil.steps), targets, strict=False):
            gradient = image_gradient(net, pair.params, images, labels, pair.target, pair.transforms, distil.tiles)
            images = optimiser(images, gradient)
    return images


class Pair(NamedTuple):
    """The target of one step: network weights, an augmentation for each class, and the real class means."""

    params: Params
    transforms: list[Transform]
    target: Tensor


def draws(
    classes: Tensor, real: LabelledSet, net: Net, weights: Callable[[int], Params], distil: Distil, rng: Stream
) -> Iterator[Pair]:
    """The pair of each step. `exact` draws a new pair per step; `bank` cycles through a few, then draws new ones.

    The real class means, most of the cost of a new pair, are computed once per pair.
    """
    members = [real.of_class(int(k)) for k in classes]
    held, turns = (1, 1) if distil.plan == "exact" else (distil.pairs, distil.reuse)
    distinct = math.ceil(distil.steps / turns)
    for first in range(0, distinct, held):
        bank = []
        for i in range(first, min(first + held, distinct)):
            params = weights(i)
            transforms = draw_transforms(classes, distil, net.shape[1:], rng.at("augment", i))
            batches = draw_real(members, distil.real_per_class, rng.at("real", i))
            bank.append(Pair(params, transforms, real_means(net, params, real, batches, transforms)))
        for _ in range(turns):
            yield from bank


def draw_transforms(classes: Tensor, distil: Distil, sides: Sides, rng: Stream) -> list[Transform]:
    """One augmentation for each class."""
    generator = rng.generator()
    return [draw_transform(distil.augment, sides, generator) for _ in classes]


def draw_real(members: list[Tensor], count: int, rng: Stream) -> list[Tensor]:
    """Indices from each class without replacement; all images of a class with at most `count` images."""
    generator = rng.generator()
    return [
        pool if len(pool) <= count else pool[torch.randperm(len(pool), generator=generator)[:count]]
        for pool in members
    ]


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
