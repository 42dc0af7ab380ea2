"""The attacked images of a site, and federations in which the site has a random half of them."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedlgd.core.files import digest
from fedlgd.core.types import LabelledSet
from fedlgd.data.federation import Federation
from fedlgd.methods.protocol import Stream

Canaries = Literal["none", "mislabelled", "noise"]


@dataclass(frozen=True, eq=False)
class CandidatePool:
    """The attacked images of a site, in an order that depends only on their content, and which are canaries.

    rest: the other training images of a large site, which every federation has.
    """

    site: str
    data: LabelledSet
    flipped: Tensor
    rest: LabelledSet
    canaries: Canaries = "mislabelled"

    @property
    def parts(self) -> dict[str, NDArray[np.bool_]]:
        """The groups that are scored separately: the images, and the canaries if there are any."""
        flipped = self.flipped.numpy()
        return {"": ~flipped} | ({f", {self.canaries}": flipped} if flipped.any() else {})

    def __len__(self) -> int:
        return len(self.data)


def draw_pool(
    federation: Federation, site: str, size: int, flip: float, rng: Stream, canaries: Canaries = "mislabelled"
) -> CandidatePool:
    """At most `size` training images; a share `flip` of them gets another label, or becomes noise as well."""
    train = federation.by_name[site].train
    keys = [digest(x.numpy().tobytes(), bytes([int(y) % 256])) for x, y in zip(train.x, train.y, strict=True)]
    order = torch.tensor(sorted(range(len(keys)), key=keys.__getitem__))
    drawn = order[torch.randperm(len(order), generator=rng.generator("pool"))]
    chosen, kept = drawn[:size], drawn[size:]
    labels, classes = train.y[chosen].clone(), len(federation.classes)
    flipped = torch.rand(len(chosen), generator=rng.generator("canaries")) < flip
    others = torch.randint(1, classes, (len(chosen),), generator=rng.generator("labels"))
    labels[flipped] = (labels + others)[flipped] % classes
    images = train.x[chosen]
    if canaries == "noise":
        pixels = torch.randint(256, images.shape, generator=rng.generator("pixels"), dtype=torch.uint8)
        images[flipped] = pixels[flipped]
    rest = LabelledSet(train.x[kept], train.y[kept], train.scale)
    return CandidatePool(site, LabelledSet(images, labels, train.scale), flipped, rest, canaries)


def members_in(pool: CandidatePool, federation: int, rng: Stream) -> Tensor:
    """Every image is a member with probability 1/2, independently."""
    return torch.rand(len(pool), generator=rng.generator("members", federation)) < 0.5


def halved(
    federation: Federation, pool: CandidatePool, members: Tensor, on_release: Callable[[Any], None] | None = None
) -> Federation:
    """The federation in which the site has only the members of its attacked images, and the rest."""
    data, rest = pool.data, pool.rest
    train = LabelledSet(torch.cat([data.x[members], rest.x]), torch.cat([data.y[members], rest.y]), data.scale)
    half = replace(federation.by_name[pool.site], train=train, on_release=on_release)
    return replace(federation, sites=tuple(half if site.name == pool.site else site for site in federation.sites))
