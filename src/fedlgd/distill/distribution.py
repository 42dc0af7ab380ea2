"""Distribution matching (DM): virtual images match the class means of real images in feature space.

Eq. 1:  L = sum_k || mean_{x in D_k} psi(A x) - mean_{v in V_k} psi(A v) ||^2, or what `distil.match` names.

Batch norm normalises the real batch (all classes together) by its own statistics and the virtual batch by its own.
Running statistics are not used: a random network has none, and those of a global model follow its training slowly.

`first_set` makes a site's first virtual set under random networks; `refine_set` moves it under the global features.
Both take the steps of `match`.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import NamedTuple

import torch
from torch import Tensor

from fedlgd.core import meter
from fedlgd.core.device import compiling, to_cpu, to_device
from fedlgd.core.errors import DivergedError
from fedlgd.core.files import digest_json
from fedlgd.core.losses import class_means, class_moments, kernel_gap, means_gap, moments_gap
from fedlgd.core.net import ACTIVATION, Net
from fedlgd.core.source import code_digests
from fedlgd.core.types import Cached, LabelledSet, Params, Site, Stream, VirtualSet, cut
from fedlgd.data.federation import site_digest
from fedlgd.distill import init
from fedlgd.distill.augment import Sides, Transform, draw_transform
from fedlgd.distill.files import set_digest
from fedlgd.distill.settings import TUNED_COUNT, Distil, Match, is_file_name
from fedlgd.nets.registry import build_net

BETAS = 0.5, 0.9  # of Adam
ADAM_EPSILON = 1e-8
FREQUENCY_FLOOR = 1.4  # cycles per image; below it the weight is nearly flat
UNIT_FREQUENCY = 3.9  # cycles per image, whose weight is 1

ParamsOf = Callable[[int], Params]
"""The parameters of the network in the i-th draw."""

LogitTerm = Callable[[Tensor, Tensor], Tensor]
"""A term that is added to Eq. 1: of the mean logits of the virtual images of each class, and the classes."""

Gap = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""The loss of a step, of what is kept of real features, and of virtual features, their labels, and the classes."""


def first_set(site: Site, net: Net, distil: Distil, rng: Stream) -> VirtualSet:
    """The first virtual set of a site, from its cache if available."""
    key = first_set_key(site, net, distil, rng)
    random, scaled = random_networks(net, distil)
    numbers = init.virtual_numbers(site.train, net.classes, distil, site.name)
    labels = to_device(init.labels_for(list(numbers), list(numbers.values())))
    made = site.cache.get(key)
    if made is None:
        with meter.metered() as cost, meter.phase("distil"):
            start = to_device(init.initial_images(site, numbers, random.shape, distil, rng))
            images = match(start, labels, site.train, random, lambda i: random.init(rng.at("net", i)), scaled, rng)
        made = Cached(tensor=to_cpu(images), **cost.spent())
        site.cache.put(key, made)
    meter.charge(made)
    images = to_device(made.tensor)
    check_finite(images, distil.lr, f"distillation at site {site.name!r}")
    return VirtualSet(images=images, labels=labels, origin=site.name, round=-1, tiles=distil.tiles)


def first_set_key(site: Site, net: Net, distil: Distil, rng: Stream) -> str:
    """The key of this virtual set in a cache: a hash of all it is made from."""
    family = random_family(net, distil)
    made = {"train": site_digest(site), "net": family.label, "how": distil.made_from, "rng": [rng.seed, *rng.path]}
    start = {"start": set_digest(distil.start, site.name)} if is_file_name(distil.start) else {}
    code = {"code": code_digests(family.made_of)} if family.made_of else {}
    return digest_json(made | start | code)


def random_family(net: Net, distil: Distil) -> Net:
    """The architecture of the random networks."""
    return net.base if distil.net == "same" else build_net(distil.net, net.shape, net.classes)


def random_networks(net: Net, distil: Distil) -> tuple[Net, Distil]:
    """Random networks of `distil.width` and their learning rate.

    Eq. 1 with random networks estimates a distance between distributions. A feature of a narrow network is cheaper,
    because the cost of a layer grows with the square of its width. Eq. 1 is a sum over features: with r times fewer
    features the gradient is r times smaller except for its noise, so the lr is multiplied by the square root of r.
    """
    net = random_family(net, distil)
    narrow = net.narrow(distil.width) if distil.width and net.narrow else net
    if narrow.features >= net.features:
        return net, distil
    return narrow, replace(distil, lr=distil.lr * math.sqrt(net.features / narrow.features))


def refine_set(
    virtual: VirtualSet, real: LabelledSet, net: Net, params: Params, distil: Distil, round: int, rng: Stream
) -> VirtualSet:
    """Iterative DM: `distil.steps` further steps under the features of the received model, which stays fixed.

    A bank (see `draws`) without augmentation needs one pair: the means of whole classes, which batches estimate.
    A net with batch norm keeps its draws, because it would need all real images in one batch, and so does a kernel,
    which compares every real image with all others.

    Batch norm uses batch statistics here too, not the model's running ones. In the first rounds the running ones
    are still near their start (mean 0, variance 1), and images would hardly move. Later they are a mean over sites,
    which need not fit any of them. Sites train under batch statistics as well.
    """
    if net.per_image and distil.match != "kernel" and distil.plan == "bank" and not distil.augment:
        distil = replace(distil, pairs=1, reuse=max(1, distil.steps), real_per_class=len(real))
    images = match(virtual.images, virtual.labels, real, net, lambda _: params, distil, rng)
    check_finite(images, distil.lr, "refinement of the virtual set")
    return replace(virtual, images=images, round=round)


def check_finite(images: Tensor, lr: float, work: str) -> None:
    if not bool(images.isfinite().all()):
        raise DivergedError("distillation-diverged", work=work, lr=lr)


def perturbed(net: Net, params: Params, radius: float, rng: Stream) -> Params:
    """w = theta + u min(1, rho / ||u||),  u ~ N(0, I) over all trainable parameters together (FedDM).

    ||u|| is about the square root of their number: in practice w is uniform on the sphere of radius rho around
    theta. Buffers, such as running statistics, are those of theta; radius 0: theta.
    """
    if not radius:
        return params
    generator = rng.generator()
    u = {name: torch.randn(params[name].shape, generator=generator) for name in sorted(net.trainable)}
    share = min(1.0, radius / math.sqrt(sum(float(each.double().square().sum()) for each in u.values())))
    return params | {name: params[name] + share * each.to(params[name]) for name, each in u.items()}


def match(
    images: Tensor,
    labels: Tensor,
    real: LabelledSet,
    net: Net,
    params_of: ParamsOf,
    distil: Distil,
    rng: Stream,
    *,
    term: LogitTerm | None = None,
    chances: Tensor | None = None,
    largest: float = 0.0,
    running: bool = False,
) -> Tensor:
    """The images after `distil.steps` of  V <- V - lr dL/dV  on Eq. 1, each under one drawn pair.

    term: added to Eq. 1. chances: of the real images to be drawn within their class; None: all alike. largest: norm
    of the gradient of all images; 0: any. running: batch norm uses running statistics for the virtual images.
    """
    optimiser = PixelOptimiser(distil, labels)
    with meter.phase("distil"):
        targets = draws(labels.unique(), real, net, params_of, distil, rng, chances)
        for _, pair in zip(meter.track("distil", distil.steps), targets, strict=False):
            gradient = image_gradient(net, pair, images, labels, distil.tiles, term, running)
            if largest:
                gradient = gradient * (largest / gradient.norm()).clamp(max=1)
            images = optimiser(images, gradient)
    return images


class Pair(NamedTuple):
    """The target of one step: network weights, an augmentation for each class, and what is compared of real images:
    their class means."""

    params: Params
    transforms: list[Transform]
    target: Tensor
    gap: Gap = means_gap


def draws(
    classes: Tensor,
    real: LabelledSet,
    net: Net,
    params_of: ParamsOf,
    distil: Distil,
    rng: Stream,
    chances: Tensor | None = None,
) -> Iterator[Pair]:
    """The pair of each step, with the means of `distil.real_per_class` real images of each class as target.

    The real class means, most of the cost of a new pair, are computed once per pair. Real images are drawn without
    replacement, or by their chances with replacement.
    """
    members = [real.of_class(int(k)) for k in classes]

    def pair(i: int) -> Pair:
        params = params_of(i)
        transforms = draw_transforms(classes, distil, net.shape[1:], rng.at("augment", i))
        generator, count = rng.generator("real", i), distil.real_per_class
        if chances is None:
            batches = [each if len(each) <= count else init.pick(each, count, generator) for each in members]
        else:
            batches = [each[chances[each].multinomial(count, True, generator=generator)] for each in members]
        features = real_features(net, params, real, batches, transforms)
        return Pair(params, transforms, *target_of(features, classes, distil.match))

    yield from scheduled(distil, pair)


def scheduled(distil: Distil, pair: Callable[[int], Pair]) -> Iterator[Pair]:
    """The pair of each step: with `exact` a new one per step; `bank` cycles through a few, then draws new ones."""
    size, uses = (1, 1) if distil.plan == "exact" else (distil.pairs, distil.reuse)
    for first in range(0, distil.distinct, size):
        bank = [pair(i) for i in range(first, min(first + size, distil.distinct))]
        for _ in range(uses):
            yield from bank


def draw_transforms(classes: Tensor, distil: Distil, sides: Sides, rng: Stream) -> list[Transform]:
    """One augmentation for each class."""
    generator = rng.generator()
    return [draw_transform(distil.augment, sides, generator) for _ in classes]


def real_features(
    net: Net, params: Params, real: LabelledSet, batches: list[Tensor], transforms: list[Transform]
) -> list[Tensor]:
    """psi(A_k x) of the chosen real images of each class; no gradient goes through it.

    A net with batch norm sees all classes in one batch, as it sees the virtual images. So does a compiled one if
    they fit in the cache: each call costs as much as some images.
    """
    parts = (transform(real.take(index).x) for index, transform in zip(batches, transforms, strict=True))
    sizes = [len(batch) for batch in batches]
    few = 4 * sum(sizes) * math.prod(net.shape) <= ACTIVATION
    with torch.no_grad():
        if net.per_image and not (compiling() and few):
            return [net.by_batch(params, part).features for part in parts]
        return list(net.by_batch(params, torch.cat(list(parts))).features.split(sizes))


def real_means(
    net: Net, params: Params, real: LabelledSet, batches: list[Tensor], transforms: list[Transform]
) -> Tensor:
    """mean of psi(A_k x) over the chosen real images of each class."""
    return torch.stack([part.mean(0) for part in real_features(net, params, real, batches, transforms)])


def target_of(features: Sequence[Tensor], classes: Tensor, match: Match) -> tuple[Tensor, Gap]:
    """What a step needs of the real features of each class, and the loss that reads it."""
    if match == "means":
        return torch.stack([part.mean(0) for part in features]), means_gap
    joint, sizes = torch.cat([*features]), torch.tensor([len(part) for part in features], device=classes.device)
    owners = classes.repeat_interleave(sizes)
    if match == "moments":
        return class_moments(joint, owners, classes), moments_gap
    return joint, partial(kernel_gap, owners=owners)


def image_gradient(
    net: Net,
    pair: Pair,
    images: Tensor,
    labels: Tensor,
    tiles: int = 1,
    term: LogitTerm | None = None,
    running: bool = False,
) -> Tensor:
    """dL/dV of the gap and the term, all classes in one pass; with `running` statistics in eval mode."""
    leaf = images.detach().requires_grad_()
    pictures, labels = cut(leaf, tiles), labels.repeat_interleave(tiles**2)
    classes, counts = labels.unique(return_counts=True)
    order = labels.argsort(stable=True)
    parts = pictures.index_select(0, order).split(counts.tolist())
    x = torch.cat([transform(part) for part, transform in zip(parts, pair.transforms, strict=True)])
    with net.training(False):
        out = net(pair.params, x) if running else net.by_batch(pair.params, x)
    sorted_labels = labels[order]
    loss = pair.gap(pair.target, out.features, sorted_labels, classes)
    if term:
        loss = loss + term(class_means(out.logits, sorted_labels, classes), classes)
    return torch.autograd.grad(loss, leaf)[0]


@dataclass(slots=True, eq=False)
class PixelOptimiser:
    """The optimiser of one set of images, with its memory. S g is the smoothed gradient, see `smooth_gradient`.

    sgd:   v <- m v + S g;  x <- x - lr_n v,  lr_n = lr max(1, n / 10) with plan `bank`, n the images of the class.
           An image has 1 / n of the gradient of the mean of its class. With a rate that does not grow with n, the
           mean of 50 images would need five times as many steps as that of 10. Without labels lr_n = lr.
    adam:  v <- .5 v + .5 S g;  u <- .9 u + .1 (S g)^2;  x <- x - lr v' / (sqrt(u') + 1e-8),  v' = v / (1 - .5^i)
           and u' = u / (1 - .9^i) after i steps (Kingma and Ba, ICLR 2015). Its memory is short, because the
           target of the gradient changes with every draw; lr is a change of pixels, whatever the scale of the
           features.
    """

    how: Distil
    labels: Tensor | None
    steps: int = 0
    velocity: Tensor = field(default_factory=lambda: torch.zeros(()))
    square: Tensor = field(default_factory=lambda: torch.zeros(()))

    def __call__(self, images: Tensor, gradient: Tensor) -> Tensor:
        """The images after one step."""
        gradient = smooth_gradient(gradient, self.how.smooth)
        self.steps += 1
        if self.how.optimiser == "sgd":
            if self.labels is not None and self.how.plan == "bank":
                counts = self.labels.bincount()[self.labels][:, None, None, None].to(gradient)
                gradient = gradient * (counts / TUNED_COUNT).clamp(min=1)  # as the rate: v is linear in g
            self.velocity = self.how.momentum * self.velocity + gradient
            return images - self.how.lr * self.velocity
        first, second = BETAS
        self.velocity = first * self.velocity + (1 - first) * gradient
        self.square = second * self.square + (1 - second) * gradient.square()
        mean = self.velocity / (1 - first**self.steps)
        size = (self.square / (1 - second**self.steps)).sqrt()
        return images - self.how.lr * mean / (size + ADAM_EPSILON)


def smooth_gradient(gradient: Tensor, strength: float) -> Tensor:
    r"""F^-1 [ ((f + f_0) / (f_1 + f_0))^-strength  F g ], f the frequency in cycles per image; strength 0: g.

    A preconditioner that favours low frequencies. Gradients of matching are as large at high frequencies as at low
    frequencies, but low frequencies need larger changes. Frequency weights like the amplitudes of natural images,
    which decrease with frequency, improve the conditioning: the same loss is reached in fewer steps
    (docs/results/speed-phases.md says in how many).
    """
    if not strength:
        return gradient
    sides = (gradient.shape[-2], gradient.shape[-1])
    spectrum = torch.fft.rfft2(gradient) * frequency_weights(sides, strength).to(gradient)
    smooth: Tensor = torch.fft.irfft2(spectrum, s=sides)
    return smooth


@cache
def frequency_weights(sides: tuple[int, int], strength: float) -> Tensor:
    """The weight of each frequency of `rfft2`."""
    down = torch.fft.fftfreq(sides[0], 1 / sides[0], dtype=torch.float64)
    right = torch.fft.rfftfreq(sides[1], 1 / sides[1], dtype=torch.float64)
    frequency = torch.hypot(down[:, None], right)
    return ((frequency + FREQUENCY_FLOOR) / (UNIT_FREQUENCY + FREQUENCY_FLOOR)) ** -strength
