"""Distribution matching (DM): virtual images whose class means in feature space are those of the real images.

Eq. 1:  L = sum_k || mean_{x in D_k} psi(A x) - mean_{v in V_k} psi(A v) ||^2

`distil` makes a site's first virtual set under random networks; `refine` moves it under the global features.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

import torch
from torch import Tensor

from fedlgd.core.errors import SettingError, check
from fedlgd.core.losses import class_means, mean_gap
from fedlgd.core.meter import phase, track
from fedlgd.core.net import Net
from fedlgd.core.rng import Stream
from fedlgd.core.types import LabelledSet, Params, Site, VirtualSet
from fedlgd.data.federation import site_digest
from fedlgd.distill.augment import OPERATIONS, Sides, Transform, draw
from fedlgd.distill.shelf import recall
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

CHUNK = 64  # images per forward pass of the real branch: its activations then stay in cache


@dataclass(frozen=True, slots=True, kw_only=True)
class Distil:
    """How a site distils its images into a virtual set.

    per_class: virtual images per class. steps: SGD steps on the pixels. real_per_class: real images per
    class and step. start: "statistics", "noise" or "real". statistics: "class", or "site" as the released
    code. start_scale: shrinks the std of a "statistics" start. augment: operations of the siamese
    augmentation, [] for none. net: family of the random networks, "same" as the task's or a net's name.
    """

    per_class: int = 10
    steps: int = 10_000
    real_per_class: int = 256
    lr: float = 1.0
    momentum: float = 0.5
    start: Start = "statistics"
    statistics: Statistics = "class"
    start_scale: float = 0.3
    augment: tuple[str, ...] = ("color", "crop", "cutout", "scale", "rotate")
    net: str = "same"

    def __post_init__(self) -> None:
        for name in ("per_class", "real_per_class"):
            check(getattr(self, name) >= 1, f"distil.{name}", getattr(self, name), "use 1 or more")
        check(self.steps >= 0, "distil.steps", self.steps, "use 0 (keep the start) or more")
        check(self.lr > 0, "distil.lr", self.lr, "use a positive one such as 1.0")
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
    net = net.base if how.net == "same" else build_net(how.net, net.shape, net.classes)
    key = {"train": site_digest(site), "net": net.label, "how": asdict(how), "rng": [rng.seed, *rng.path]}
    classes = present_classes(site.train, net.classes, how.per_class, site.name)

    def compute() -> Tensor:
        labels = labels_for(classes, how.per_class)
        images = _start(site.train, classes, net.shape, how, rng)
        return match(images, labels, site.train, net, lambda step: net.init(rng.at("net", step)), how, rng)

    return VirtualSet(
        images=recall(key, compute), labels=labels_for(classes, how.per_class), origin=site.name, round=-1
    )


def refine(
    virtual: VirtualSet, real: LabelledSet, net: Net, params: Params, how: Distil, round: int, rng: Stream
) -> VirtualSet:
    """Iterative DM: `how.steps` more steps under the received features, which stay fixed."""
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
    """Images after `how.steps` of SGD on Eq. 1; every step and class draws its own augmentation."""
    classes = labels.unique()
    members = [real.of_class(int(k)) for k in classes]
    images, velocity = images.clone(), torch.zeros_like(images)
    with phase("distil"):
        for step in track("distil", how.steps):
            params = params_at(step)
            transforms = _draw_transforms(classes, how, net.shape[1:], rng.at("augment", step))
            batches = _draw_real(members, how.real_per_class, rng.at("real", step))
            target = real_means(net, params, real, batches, transforms)
            gradient = image_gradient(net, params, images, labels, target, transforms)
            velocity = how.momentum * velocity + gradient
            images -= how.lr * velocity
    return images


def real_means(
    net: Net, params: Params, real: LabelledSet, batches: list[Tensor], transforms: list[Transform]
) -> Tensor:
    """mean of psi(A_k x) over the chosen real images of each class; no gradient goes through it."""
    rows = []
    for index, transform in zip(batches, transforms, strict=True):
        parts = transform(real.take(index).x).split(CHUNK)
        sums = [net.frozen(params, part).features.sum(0) for part in parts]
        rows.append(torch.stack(sums).sum(0) / len(index))
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
