"""A validation part of the training images, for choices that must not depend on test images."""

from dataclasses import replace

import torch
from torch import Tensor

from fedlgd.core.errors import DataError, check
from fedlgd.core.rng import Stream
from fedlgd.core.types import LabelledSet, Site
from fedlgd.data.federation import Federation


def validation_of(whole: Federation, share: float = 0.2, seed: int = 0) -> Federation:
    """The federation with held-out training images in place of its test images, which are not read.

    Of the n images of a class at a site, max(1, floor(share n)) are held out; the only image of a class stays.
    """
    check(0 < share < 1, "validation", share, "use a share of the training images between 0 and 1, such as 0.2")
    sites = tuple(_split(site, share, Stream(seed).at("validation", site.name)) for site in whole.sites)
    note = f"scored on {share:.0%} of the training images of each class and site, which are held out"
    return replace(whole, sites=sites, test_sites=(), note="; ".join(filter(None, (whole.note, note))))


def _split(site: Site, share: float, rng: Stream) -> Site:
    held = torch.zeros(len(site.train), dtype=torch.bool)
    for k in range(len(site.classes)):
        of_class = site.train.of_class(k)
        count = max(1, int(share * len(of_class) + 1e-9)) if len(of_class) > 1 else 0
        held[of_class[torch.randperm(len(of_class), generator=rng.generator(k))[:count]]] = True
    if not held.any():
        raise DataError(
            f"site {site.name!r} has no class with two training images, so none can be held out for validation; "
            "add images or remove the site"
        )
    train, test = (_at(site.train, part.nonzero().flatten()) for part in (~held, held))
    return replace(site, train=train, test=test)


def _at(data: LabelledSet, index: Tensor) -> LabelledSet:
    """A part of a set, without a change of its pixels."""
    return LabelledSet(data.x[index], data.y[index], data.scale)
