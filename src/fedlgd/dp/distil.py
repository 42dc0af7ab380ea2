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
of one person need that many times the epsilon. The noise comes from a secret of the site (`dp/ledger.py`).
"""

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from fedlgd.core.device import to_cpu, to_device
from fedlgd.core.errors import PrivacyError
from fedlgd.core.files import digest_json
from fedlgd.core.guard import unsealed
from fedlgd.core.meter import charge, metered, phase, track
from fedlgd.core.net import Net
from fedlgd.core.types import Cached, Params, Site, SiteState, Stream, VirtualSet
from fedlgd.distill.augment import Transform
from fedlgd.distill.distribution import (
    Pair,
    PixelOptimiser,
    draw_transforms,
    image_gradient,
    random_family,
    random_networks,
)
from fedlgd.distill.init import from_mean_image, from_noise, from_statistics, labels_for
from fedlgd.distill.settings import Distil
from fedlgd.dp.budget import noise_levels
from fedlgd.dp.ledger import account_name, charged_settings, open_book, params_digest
from fedlgd.dp.release import Releases, check_delta, check_protected, noisy_counts

COUNT_MARGIN = 3.0  # standard deviations of a count: a class that may be smaller than `per_class` is left out
IMAGE_NORM = 0.5  # clipping norm of an image, in units of the largest possible
OLD_TARGETS_WEIGHT = 0.5  # of the targets of the first virtual set during refinement


def first_private_set(site: Site, net: Net, distil: Distil, rng: Stream, refinements: int = 0) -> SiteState:
    """The state of a site after its first private distillation. `refinements`: planned releases in later rounds."""
    site = unsealed(site)
    random, scaled = random_networks(net, distil)
    releases, counts = _releases_of_classes(site, net, distil, rng.seed, distil.per_class, refinements)
    labels, classes = labels_for(releases.classes, distil.per_class), releases.classes
    key = digest_json({"account": releases.account, "secret": releases.book.fingerprint})
    made = None if site.on_release else site.cache.get(key)  # an audit hears the releases of a set that is made
    if made is None:
        with metered() as meter:
            images, pairs = _match(releases, labels, random, scaled, _stream(site, rng.seed))
        flat = torch.cat([images.flatten(), *(pair.target.flatten() for pair in pairs)])
        made = Cached(tensor=to_cpu(flat), **meter.spent())
        if not site.on_release:
            site.cache.put(key, made)
    charge(made)
    images, targets = made.tensor.tensor_split([len(labels) * math.prod(net.shape)])
    virtual = VirtualSet(images=images.view(-1, *net.shape), labels=labels, origin=site.name, round=-1)
    released = {"targets": targets.view(-1, len(classes), random.features), "counts": counts}
    return to_device(SiteState(virtual=virtual, trees={"released": released}))


def released_means(
    site: Site, net: Net, distil: Distil, seed: int, draw: Callable[[int], tuple[Params, list[Transform]]]
) -> tuple[Tensor, Tensor]:
    """Noisy class means of features, (draws, classes, features), and noisy counts: what a site of CollabDM sends.

    One release for each of the `distil.distinct` draws, which are public. Features are centred on those of public
    noise images. A class that may have no image is left out: its means and its count are 0.
    """
    site = unsealed(site)
    random, _ = random_networks(net, distil)
    releases, counts = _releases_of_classes(site, net, distil, seed, least=1, kind="collab")
    classes = releases.classes
    images = to_device(from_noise(len(classes) * distil.per_class, net.shape, Stream(seed).generator("centre")))
    means = torch.zeros(distil.distinct, net.classes, random.features)
    with phase("distil"):
        for r in track("distil", distil.distinct):
            params, transforms = draw(r)
            chosen = [transforms[k] for k in classes]
            means[r, classes] = to_cpu(releases.target("distil", str(r), random, params, chosen, images))
    sizes = torch.zeros(net.classes, dtype=torch.int64)
    sizes[classes] = counts[classes].round().long()
    return means, sizes


def _releases_of_classes(
    site: Site, net: Net, distil: Distil, seed: int, least: int, refinements: int = 0, kind: str = "distil"
) -> tuple[Releases, Tensor]:
    """The releases, all reserved, about classes of `least` images or more by noisy counts, and the counts."""
    check_protected(site, random_networks(net, distil)[0], "distil.private.epsilon")
    releases = open_releases(site, net, distil, seed, refinements, "counts", kind)
    counts = noisy_counts(releases.book, releases.account, releases.levels["counts"], site.train, net.classes)
    check_delta(counts, distil.private)
    classes = _large_enough(counts, least, releases.levels["counts"].sigma, site.name)
    releases.book.reserve(releases.account, releases.levels)
    return replace(releases, classes=classes, sizes=counts[classes]), counts


def refine_privately(
    state: SiteState,
    site: Site,
    net: Net,
    params: Params,
    refinement: Distil,
    first: Distil,
    refinements: int,
    t: int,
    rng: Stream,
) -> SiteState:
    """The state after iterative DM in round t with the settings `refinement`; `first` made the virtual set.

    Sums are released under the received features, `refinements` in all rounds together. DM under psi_t on these
    targets, plus half the gradient on an old target under its random network.
    """
    site = unsealed(site)
    virtual = state.virtual
    assert virtual is not None
    check_protected(site, net, "distil.private.epsilon")
    images, labels, classes = virtual.images, virtual.labels, virtual.labels.unique().tolist()
    releases = open_releases(site, net, first, rng.seed, refinements)
    releases = replace(releases, classes=classes, sizes=to_cpu(state.trees["released"]["counts"])[classes])
    old, random = state.trees["released"]["targets"], _stream(site, rng.seed)
    narrow, scaled = random_networks(net, first)
    generator, optimiser = rng.generator("steps"), PixelOptimiser(refinement, labels)
    pairs, part = list[Pair](), next(name for name in releases.levels if name.startswith("refine"))
    with phase("distil"):
        for j in range(planned_refinements(refinement, 1)):
            transforms = draw_transforms(labels.unique(), refinement, net.shape[1:], rng.at("augment", j))
            number = f"round {t}, {j}, {params_digest(params)}"
            target = releases.target(part, number, net, params, transforms, images)
            pairs.append(Pair(params, transforms, target))
        for s in track("distil", refinement.steps):
            gradient = image_gradient(net, pairs[s % len(pairs)], images, labels)
            if len(old):
                r = int(torch.randint(len(old), (), generator=generator))
                pair = Pair(*_draw(narrow, labels, first, random, r), old[r])
                share = OLD_TARGETS_WEIGHT * scaled.lr / first.lr
                gradient = gradient + share * image_gradient(narrow, pair, images, labels)
            images = optimiser(images, gradient)
    return replace(state, virtual=replace(virtual, images=images, round=t))


def planned_refinements(refinement: Distil, rounds: int) -> int:
    """The releases of so many rounds with refinement; without augmentation, all of a round would be the same."""
    return rounds * (refinement.pairs if refinement.augment else 1)


def _large_enough(counts: Tensor, per_class: int, sigma: float, site: str) -> list[int]:
    """The classes that have more than `per_class` images almost surely; no exact count is used."""
    least = per_class + COUNT_MARGIN * sigma
    classes = [k for k, count in enumerate(counts.tolist()) if count >= least]
    if not classes:
        redrawn = 1 + math.sqrt(2)  # other settings draw other counts: the noise of both is between them
        fits = math.floor(float(counts.max()) - redrawn * COUNT_MARGIN * sigma)
        smaller = f", or distil.per_class={fits}" if fits > 0 else ""
        values = {"wanted": round(least), "largest": float(counts.max()), "smaller": smaller}
        raise PrivacyError("no-class-large-enough", site=site, **values)
    return classes


def open_releases(
    site: Site, net: Net, distil: Distil, seed: int, refinements: int, only: str = "", kind: str = "distil"
) -> Releases:
    """The account of these settings at this site; its budget is reserved before anything is released."""
    site = unsealed(site)
    levels = noise_levels(distil.private, distil.start, refinements)
    if refinements:
        levels[f"refine {refinements}"] = levels.pop("refine")
    settings = distil.made_from | {"private": charged_settings(distil.private)}
    del settings["tiles"]  # accounts are older than this setting, and do not use it
    account = account_name(kind, seed, site, random_family(net, distil).label, how=settings)
    book = open_book(site.name, distil.private)
    book.reserve(account, levels, only)
    return Releases(site=site, book=book, account=account, levels=levels, clip=distil.private.clip)


def _stream(site: Site, seed: int) -> Stream:
    """Public randomness of networks, augmentations and steps."""
    return Stream(seed).at("private", site.name)


def _match(releases: Releases, labels: Tensor, net: Net, distil: Distil, rng: Stream) -> tuple[Tensor, list[Pair]]:
    """DM on noisy targets. New ones are released before each block of steps; a step uses any of those so far."""
    images, labels = to_device((_start(releases, net.shape, distil, rng), labels))
    optimiser, pairs, p = PixelOptimiser(distil, labels), list[Pair](), distil.private
    generator = rng.generator("steps")
    with phase("distil"):
        for s in track("distil", distil.steps):
            for r in range(len(pairs), math.ceil(p.releases * (1 + s * p.blocks // distil.steps) / p.blocks)):
                params, transforms = _draw(net, labels, distil, rng, r)
                target = releases.target("distil", str(r), net, params, transforms, images)
                pairs.append(Pair(params, transforms, target))
            pair = pairs[int(torch.randint(len(pairs), (), generator=generator))]
            images = optimiser(images, image_gradient(net, pair, images, labels))
    return images, pairs


def _draw(net: Net, labels: Tensor, distil: Distil, rng: Stream, r: int) -> tuple[Params, list[Transform]]:
    """The r-th random network and its augmentations."""
    return net.init(rng.at("net", r)), draw_transforms(labels.unique(), distil, net.shape[1:], rng.at("augment", r))


def _start(releases: Releases, shape: tuple[int, int, int], distil: Distil, rng: Stream) -> Tensor:
    """Initial images: noise, or from a release of class sums of pixel statistics or of images."""
    generator, channels, sizes = rng.generator("start"), shape[0], releases.sizes[:, None]
    if distil.start == "noise":
        return from_noise(len(sizes) * distil.per_class, shape, generator)
    if distil.start == "mean-image":
        pixels = math.prod(shape)
        sums = releases.sums(pixels, IMAGE_NORM * math.sqrt(pixels), lambda x: x.flatten(1))
        return from_mean_image((sums / sizes).float().view(-1, *shape), distil.per_class, generator)

    def moments(x: Tensor) -> Tensor:
        return torch.cat([x.mean((2, 3)).clamp(-1, 1), x.square().mean((2, 3)).clamp(0, 1)], 1)

    whole = sizes if distil.statistics == "class" else sizes.sum()
    mean, square = (releases.sums(2 * channels, math.sqrt(2 * channels), moments) / whole).split(channels, 1)
    std = (square - mean.square()).clamp(min=0).sqrt()
    return from_statistics(torch.stack([mean, std], 1), distil.per_class, shape[1:], distil.start_scale, generator)
