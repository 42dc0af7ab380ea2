r"""Differentially private distillation: the private images enter only through noisy sums, each released once.

Distribution matching reads real images for nothing but class means of features. A pair r of network psi_r and
augmentations A_{r,k} is public, and so is the current virtual set V. A site releases

    S_{r,k} = sum_{i: y_i = k} clip_C(psi_r(A_{r,k} x_i) - c_{r,k}) + sigma C N(0, I),   c_{r,k} = virtual mean
    target_{r,k} = c_{r,k} + S_{r,k} / (q n_k),   n_k a noisy count, q the part of the images in a sum

One image changes one row of S by at most C. Everything else is post-processing of the releases: the virtual set,
and with `train_on = "virtual"` all that any method sends (models, anchors, prototypes, control variates, losses),
because methods read nothing but the virtual set. Features are centred on the virtual means, because they share a
large part that would use up the clipping norm. Each release is used in many steps: that is free, and averages the
noise.

Promised is the privacy of one training image of one site. Scores on test images are not covered, and several images
of one person need that many times the epsilon. The noise comes from a secret of the site (`distill/ledger.py`).
"""

import json
import math
from dataclasses import asdict, replace
from functools import partial

import torch
from torch import Tensor

from fedlgd.core.device import to_cpu, to_device
from fedlgd.core.errors import PrivacyError
from fedlgd.core.files import digest
from fedlgd.core.meter import phase, track
from fedlgd.core.net import Net
from fedlgd.core.rng import Stream
from fedlgd.core.text import plural
from fedlgd.core.types import Params, Site, SiteState, VirtualSet
from fedlgd.data.federation import site_digest
from fedlgd.distill.augment import Transform
from fedlgd.distill.cache import recall
from fedlgd.distill.distribution import Pair, distil, draw_transforms, family, image_gradient, narrowed, refine
from fedlgd.distill.init import from_mean_image, from_noise, from_statistics, labels_for
from fedlgd.distill.settings import Distil
from fedlgd.dp.ledger import open_book
from fedlgd.dp.release import Releases, check_delta, check_protected, noisy_counts, watched

LARGE = 3.0  # standard deviations of a count: a class that may be smaller than `per_class` is left out
IMAGE_NORM = 0.5  # clipping norm of an image, in units of the largest possible
OLD = 0.5  # weight of the targets of the first virtual set during refinement


def distilled(site: Site, net: Net, how: Distil, rng: Stream, refinements: int = 0) -> SiteState:
    """The state of a site after its first distillation, private or not. `refinements`: planned releases."""
    if not how.private.on:
        return SiteState(virtual=distil(site, net, how, rng))
    random, scaled = narrowed(family(net, how), how)
    check_protected(site, random, "distil.private.epsilon")
    releases = _releases(site, net, how, rng.seed, refinements, only="counts")
    counts = noisy_counts(releases.book, releases.account, releases.levels["counts"], site.train, net.classes)
    check_delta(counts, how.private)
    classes = _large_enough(counts, how.per_class, releases.levels["counts"].sigma, site.name)
    releases.book.reserve(releases.account, releases.levels)
    releases = replace(releases, classes=classes, sizes=counts[classes])
    labels = labels_for(classes, how.per_class)
    made_from = {"account": releases.account, "secret": releases.book.fingerprint}
    compute = partial(_flat, releases, labels, random, scaled, _stream(site, rng.seed))
    flat = compute() if watched(site.name) else recall(made_from, compute)
    images, targets = flat.tensor_split([len(labels) * math.prod(net.shape)])
    virtual = VirtualSet(images=images.view(-1, *net.shape), labels=labels, origin=site.name, round=-1)
    released = {"targets": targets.view(-1, len(classes), random.features), "counts": counts}
    return to_device(SiteState(virtual=virtual, trees={"released": released}))


def refined(
    state: SiteState,
    site: Site,
    net: Net,
    params: Params,
    how: Distil,
    first: Distil,
    refinements: int,
    t: int,
    rng: Stream,
) -> SiteState:
    """The state after iterative DM in round t with the settings `how`; `first` made the virtual set.

    Private: sums under the received features, `refinements` in all rounds together, and the old targets.
    """
    virtual = state.virtual
    assert virtual is not None
    if not how.private.on:
        return replace(state, virtual=refine(virtual, site.train, net, params, how, t, rng))
    check_protected(site, net, "distil.private.epsilon")
    classes = virtual.labels.unique().tolist()
    releases = _releases(site, net, first, rng.seed, refinements)
    releases = replace(releases, classes=classes, sizes=to_cpu(state.trees["released"]["counts"])[classes])
    images = _refined(releases, virtual, state.trees["released"]["targets"], net, params, how, first, t, rng)
    return replace(state, virtual=replace(virtual, images=images, round=t))


def reserve_refinements(site: Site, net: Net, how: Distil, seed: int, refinements: int, only: str = "") -> None:
    """Charge the refinements of a run to the budget at enrolment, so that it is not refused in a later round."""
    if how.private.on and refinements:
        _releases(site, net, how, seed, refinements, only)


def refinements_of(how: Distil, rounds: int) -> int:
    """The releases of so many rounds with refinement; without augmentation, all of a round would be the same."""
    return rounds * (how.pairs if how.augment else 1) if how.private.on else 0


def _large_enough(counts: Tensor, per_class: int, sigma: float, site: str) -> list[int]:
    """The classes that have more than `per_class` images almost surely; no exact count is used."""
    least = per_class + LARGE * sigma
    classes = [k for k, count in enumerate(counts.tolist()) if count >= least]
    if not classes:
        fits = math.floor(float(counts.max()) - LARGE * sigma)
        smaller = f", or distil.per_class={fits}" if fits > 0 else ""
        raise PrivacyError(
            f"site {site!r} has no class with {plural(round(least), 'image')} or more by its noisy counts, which "
            f"are charged to its budget alone (the largest is {float(counts.max()):.0f}); use a larger "
            f"distil.private.epsilon or share distil.private.counts (below 0.5){smaller}"
        )
    return classes


def _releases(site: Site, net: Net, how: Distil, seed: int, refinements: int, only: str = "") -> Releases:
    """The account of these settings at this site; its budget is reserved before anything is released."""
    levels = how.private.levels(how.start, refinements)
    if refinements:
        levels[f"refine {refinements}"] = levels.pop("refine")
    asked = asdict(replace(how, private=replace(how.private, total=0.0, test_key="")))
    del asked["tiles"], asked["private"]["scores"]  # accounts are older than these settings, and do not use them
    made_from = {"site": site.name, "data": site_digest(site), "net": family(net, how).label, "how": asked}
    account = f"distil, seed {seed}, {digest(json.dumps(made_from, sort_keys=True).encode())}"
    book = open_book(site.name, how.private)
    book.reserve(account, levels, only)
    return Releases(site=site, book=book, account=account, levels=levels, clip=how.private.clip)


def _stream(site: Site, seed: int) -> Stream:
    """Public randomness of networks, augmentations and steps."""
    return Stream(seed).at("private", site.name)


def _matched(releases: Releases, labels: Tensor, net: Net, how: Distil, rng: Stream) -> tuple[Tensor, list[Pair]]:
    """DM on noisy targets. New ones are released before each block of steps; a step uses any of those so far."""
    images, labels = to_device((_start(releases, net.shape, how, rng), labels))
    descent, pairs, p = how.descent(), list[Pair](), how.private
    generator = rng.generator("steps")
    with phase("distil"):
        for s in track("distil", how.steps):
            for r in range(len(pairs), math.ceil(p.releases * (1 + s * p.blocks // how.steps) / p.blocks)):
                params, transforms = _drawn(net, labels, how, rng, r)
                target = releases.target("distil", str(r), net, params, transforms, images)
                pairs.append(Pair(params, transforms, target))
            pair = pairs[int(torch.randint(len(pairs), (), generator=generator))]
            gradient = image_gradient(net, pair.params, images, labels, pair.target, pair.transforms)
            images = descent(images, gradient)
    return images, pairs


def _refined(
    releases: Releases,
    virtual: VirtualSet,
    old: Tensor,
    net: Net,
    params: Params,
    how: Distil,
    first: Distil,
    t: int,
    rng: Stream,
) -> Tensor:
    """DM under psi_t on new targets, plus half the gradient on an old target under its random network."""
    images, labels, random = virtual.images, virtual.labels, _stream(releases.site, rng.seed)
    narrow, scaled = narrowed(family(net, first), first)
    generator, descent = rng.generator("steps"), how.descent()
    pairs, part = list[Pair](), next(name for name in releases.levels if name.startswith("refine"))
    with phase("distil"):
        for j in range(refinements_of(how, 1)):
            transforms = draw_transforms(labels.unique(), how, net.shape[1:], rng.at("augment", j))
            number = f"round {t}, {j}, {digest_of(params)}"
            target = releases.target(part, number, net, params, transforms, images)
            pairs.append(Pair(params, transforms, target))
        for s in track("distil", how.steps):
            gradient = image_gradient(net, params, images, labels, *reversed(pairs[s % len(pairs)][1:]))
            if len(old):
                r = int(torch.randint(len(old), (), generator=generator))
                weights, transforms = _drawn(narrow, labels, first, random, r)
                share = OLD * scaled.lr / first.lr
                gradient = gradient + share * image_gradient(narrow, weights, images, labels, old[r], transforms)
            images = descent(images, gradient)
    return images


def _drawn(net: Net, labels: Tensor, how: Distil, rng: Stream, r: int) -> tuple[Params, list[Transform]]:
    """The r-th random network and its augmentations."""
    return net.init(rng.at("net", r)), draw_transforms(labels.unique(), how, net.shape[1:], rng.at("augment", r))


def _start(releases: Releases, shape: tuple[int, int, int], how: Distil, rng: Stream) -> Tensor:
    """Initial images: noise, or from a release of class sums of pixel statistics or of images."""
    generator, channels, sizes = rng.generator("start"), shape[0], releases.sizes[:, None]
    if how.start == "noise":
        return from_noise(len(sizes) * how.per_class, shape, generator)
    if how.start == "mean-image":
        pixels = math.prod(shape)
        sums = releases.sums(pixels, IMAGE_NORM * math.sqrt(pixels), lambda x: x.flatten(1))
        return from_mean_image((sums / sizes).float().view(-1, *shape), how.per_class, generator)

    def moments(x: Tensor) -> Tensor:
        return torch.cat([x.mean((2, 3)).clamp(-1, 1), x.square().mean((2, 3)).clamp(0, 1)], 1)

    whole = sizes if how.statistics == "class" else sizes.sum()
    mean, square = (releases.sums(2 * channels, math.sqrt(2 * channels), moments) / whole).split(channels, 1)
    std = (square - mean.square()).clamp(min=0).sqrt()
    return from_statistics(torch.stack([mean, std], 1), how.per_class, shape[1:], how.start_scale, generator)


def _flat(releases: Releases, labels: Tensor, net: Net, how: Distil, rng: Stream) -> Tensor:
    """Images and targets as one tensor, for the cache."""
    images, pairs = _matched(releases, labels, net, how, rng)
    return to_cpu(torch.cat([images.flatten(), *(pair.target.flatten() for pair in pairs)]))


def digest_of(params: Params) -> str:
    """A hash of the weights of a model."""
    parts = [(name, to_cpu(value).contiguous().numpy().tobytes()) for name, value in sorted(params.items())]
    return digest(repr(parts).encode())
