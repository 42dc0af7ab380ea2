"""Distribution matching (DM): virtual images whose class means in feature space are those of the real images.

Eq. 1:  L = sum_k || mean_{x in D_k} psi(A x) - mean_{v in V_k} psi(A v) ||^2

`distil` makes a site's first virtual set under random networks; `refine` moves it under the global features.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from fedlgd.core.device import to_cpu, to_device
from fedlgd.core.errors import SettingError, check
from fedlgd.core.losses import class_means, mean_gap
from fedlgd.core.meter import phase, track
from fedlgd.core.net import Net
from fedlgd.core.rng import Stream
from fedlgd.core.types import LabelledSet, Params, Site, VirtualSet
from fedlgd.data.federation import site_digest
from fedlgd.distill.augment import OPERATIONS, Sides, Transform, draw
from fedlgd.distill.shelf import recall
from fedlgd.distill.smooth import smoothed
from fedlgd.distill.start import (
    Start,
    Statistics,
    class_statistics,
    from_noise,
    from_real,
    from_statistics,
    labels_for,
    present_classes,
)
from fedlgd.nets.registry import build_net

Plan = Literal["bank", "exact"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Distil:
    """How a site distils its images into a virtual set.

    per_class: virtual images per class. steps: SGD steps on the pixels at `lr` and `momentum`. real_per_class:
    real images per class and draw. plan: "exact" draws a network and an augmentation for every step, as
    published; "bank" holds `pairs` of them, whose real means it computes once, and takes `reuse` steps with each
    before it draws others. smooth: how far shapes go before single pixels; 0 is plain SGD, as published. net:
    family of the random networks, "same" as the task's or a net's name; width: theirs, 0 as the family has it.
    augment: operations of the siamese augmentation, [] for none. start: "statistics", "noise" or "real".
    statistics: "class", or "site" as the released code. start_scale: shrinks the std of a "statistics" start.
    """

    per_class: int = 10
    steps: int = 2000
    plan: Plan = "bank"
    pairs: int = 10
    reuse: int = 2
    real_per_class: int = 32
    lr: float = 1.0
    momentum: float = 0.5
    smooth: float = 1.5
    start: Start = "statistics"
    statistics: Statistics = "class"
    start_scale: float = 0.3
    augment: tuple[str, ...] = ("color", "crop", "cutout", "scale", "rotate")
    net: str = "same"
    width: int = 32

    def __post_init__(self) -> None:
        for name in ("per_class", "real_per_class", "pairs", "reuse"):
            check(getattr(self, name) >= 1, f"distil.{name}", getattr(self, name), "use 1 or more")
        check(self.steps >= 0, "distil.steps", self.steps, "use 0 (keep the start) or more")
        check(self.width >= 0, "distil.width", self.width, "use 0 (as the task's network) or more")
        check(self.lr > 0, "distil.lr", self.lr, "use a positive one such as 1.0")
        check(self.smooth >= 0, "distil.smooth", self.smooth, "use 0 (plain SGD) or more, such as 1.5")
        check(0 <= self.momentum < 1, "distil.momentum", self.momentum, "use 0 (off) up to below 1")
        check(
            self.start_scale >= 0,
            "distil.start_scale",
            self.start_scale,
            "use 1 (as measured) or less, such as 0.3",
        )
        for name in self.augment:
            if name not in OPERATIONS:
                raise SettingError(f"distil.augment has {name!r}; there are: {', '.join(OPERATIONS)}")


def distil(site: Site, net: Net, how: Distil, rng: Stream) -> VirtualSet:
    """A site's first virtual set. Asked twice for the same, a shelf gives what it has."""
    family = net.base if how.net == "same" else build_net(how.net, net.shape, net.classes)
    key = {"train": site_digest(site), "net": family.label, "how": asdict(how), "rng": [rng.seed, *rng.path]}
    net, how = _narrowed(family, how)
    classes = present_classes(site.train, net.classes, how.per_class, site.name)

    def compute() -> Tensor:
        images, labels = to_device(
            (_start(site.train, classes, net.shape, how, rng), labels_for(classes, how.per_class))
        )
        return to_cpu(match(images, labels, site.train, net, lambda step: net.init(rng.at("net", step)), how, rng))

    images, labels = to_device((recall(key, compute), labels_for(classes, how.per_class)))
    return VirtualSet(images=images, labels=labels, origin=site.name, round=-1)


def _narrowed(net: Net, how: Distil) -> tuple[Net, Distil]:
    """Random networks of `how.width`, and the lr for them.

    Eq. 1 under random networks estimates a distance between distributions, feature by feature, and a feature of
    a narrow network costs less: the work of a layer grows with the square of its width. Eq. 1 sums over features:
    with r times fewer the gradient is r times smaller but for its noise, so the lr grows by the root of r.
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
    """Iterative DM: `how.steps` more steps under the received features, which stay fixed.

    A bank without augmentation needs one pair: the means of whole classes, which are what the draws estimate.
    """
    if how.plan == "bank" and not how.augment:
        how = replace(how, pairs=1, reuse=max(1, how.steps), real_per_class=len(real))
    images = match(virtual.images, virtual.labels, real, net, lambda _: params, how, rng)
    return replace(virtual, images=images, round=round)


def match(
    images: Tensor,
    labels: Tensor,
    real: LabelledSet,
    net: Net,
    params_at: Callable[[int], Params],
    how: Distil,
    rng: Stream,
) -> Tensor:
    """Images after `how.steps` of SGD on Eq. 1; `params_at` gives the extractor of the i-th pair."""
    images, velocity = images.clone(), torch.zeros_like(images)
    with phase("distil"):
        drawn = pairs(labels.unique(), real, net, params_at, how, rng)
        for _, pair in zip(track("distil", how.steps), drawn, strict=False):
            gradient = image_gradient(net, pair.params, images, labels, pair.target, pair.transforms)
            velocity = how.momentum * velocity + smoothed(gradient, how.smooth)
            images -= how.lr * velocity
    return images


class Pair(NamedTuple):
    """What one step matches: an extractor, an augmentation for each class, and the real class means under both."""

    params: Params
    transforms: list[Transform]
    target: Tensor


def pairs(
    classes: Tensor, real: LabelledSet, net: Net, params_at: Callable[[int], Params], how: Distil, rng: Stream
) -> Iterator[Pair]:
    """A pair for every step. `exact` draws each anew; `bank` holds a few, goes round them, and then draws others.

    The real means, nearly all the work of a fresh step, are computed once per pair.
    """
    members = [real.of_class(int(k)) for k in classes]

    def draw_pair(i: int) -> Pair:
        params = params_at(i)
        transforms = _draw_transforms(classes, how, net.shape[1:], rng.at("augment", i))
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
    """mean of psi(A_k x) over the chosen real images of each class; no gradient goes through it."""
    rows = []
    for index, transform in zip(batches, transforms, strict=True):
        rows.append(net.frozen(params, transform(real.take(index).x)).features.mean(0))
    return torch.stack(rows)


def image_gradient(
    net: Net, params: Params, images: Tensor, labels: Tensor, target: Tensor, transforms: list[Transform]
) -> Tensor:
    """dL/dV of Eq. 1, all classes in one pass."""
    leaf = images.detach().requires_grad_()
    classes = labels.unique()
    members = [(labels == k).nonzero().flatten() for k in classes]
    x = torch.cat([transform(leaf[index]) for index, transform in zip(members, transforms, strict=True)])
    loss = mean_gap(target, class_means(net(params, x).features, labels[torch.cat(members)], classes))
    (gradient,) = torch.autograd.grad(loss, leaf)
    return gradient


def _start(data: LabelledSet, classes: list[int], shape: tuple[int, int, int], how: Distil, rng: Stream) -> Tensor:
    generator = rng.generator("start")
    if how.start == "real":
        return from_real(data, classes, how.per_class, generator)
    if how.start == "noise":
        return from_noise(len(classes) * how.per_class, shape, generator)
    statistics = class_statistics(data, classes, how.statistics)
    return from_statistics(statistics, how.per_class, shape[1:], how.start_scale, generator)


def _draw_transforms(classes: Tensor, how: Distil, sides: Sides, rng: Stream) -> list[Transform]:
    generator = rng.generator()
    return [draw(how.augment, sides, generator) for _ in classes]


def _draw_real(members: list[Tensor], count: int, rng: Stream) -> list[Tensor]:
    """From each class without replacement; one with no more than `count` images is taken whole."""
    generator = rng.generator()
    return [
        pool if len(pool) <= count else pool[torch.randperm(len(pool), generator=generator)[:count]]
        for pool in members
    ]
