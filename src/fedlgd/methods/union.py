"""Virtual sets as messages: a site uploads its set in a fixed form, and a server trains on the union of all.

A method that uploads sets is an `Uploading`, which asks for consent where images begin as private ones. It has in
`site`

    Update(site=..., params={}, weight=1.0, trees={"virtual": upload_of(virtual, net.classes, per_class)})

with a set that began as `images_before`, returns `expected_upload(net, per_class)` from `expects`, declares the
kind `images` in `sends`, and in `server` trains with `common.fit_on` on `union_of(updates)`. One whose sites do
nothing but match images in every round is a `Condensing`.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from fedlgd.core.device import to_device
from fedlgd.core.errors import DataError, PrivacyError, RunError
from fedlgd.core.meter import phase
from fedlgd.core.train import Local
from fedlgd.core.types import Hello, LabelledSet, Params, Site, SiteState, Stream, Update, VirtualSet, cut
from fedlgd.distill.distribution import check_finite, match, random_networks
from fedlgd.distill.init import initial_images, labels_for, virtual_numbers
from fedlgd.distill.settings import Distil
from fedlgd.methods import common
from fedlgd.methods.protocol import Cost, Expected, Net, setting
from fedlgd.rundir.manifest import Reading

TREE = "virtual"
SAFE_STARTS = ("noise", "statistics")  # hold no pixel of an image, and no mean over images at a pixel


@dataclass(frozen=True, kw_only=True)
class Uploading(common.Training):
    """Settings of a method whose sites send virtual images.

    What the steps leave of a start from private images, from means of them or from a file would be sent.
    """

    allow_copies: bool = setting(
        False, "Sites may send images that began as private images, as means of them, or in a file."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.allow_copies or self.distil.private.on or self.distil.start in SAFE_STARTS):
            raise PrivacyError("upload-of-copies", method=self.name, start=self.distil.start)


@dataclass(frozen=True, kw_only=True)
class Condensing(Uploading):
    """A method whose sites match their images again in every round, and whose server trains on all of them.

    Sites train no model. `distil` is the matching of a round, `local` the training of the server.
    """

    stackable: ClassVar[tuple[str, ...]] = ()
    train_on: ClassVar[Literal["nothing"]] = "nothing"  # type: ignore[misc]
    reads: ClassVar[tuple[Reading, ...]] = ("every",)

    local: Local = Local(epochs=50, batch=256, momentum=0.9, weight_decay=5e-4)
    distil: Distil = Distil(steps=100, reuse=10, real_per_class=64)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.distil.private.on:
            raise PrivacyError("private-not-offered", epsilon=self.distil.private.epsilon, method=self.name)

    def cost(self, t: int, site: Site, classes: int) -> Cost | None:
        """Unknown if a site is asked twice in a round, or for epochs: the server knows what they have."""
        if self.exchanges > 1 or not self.local.steps:
            return None
        steps, few = self.distil.steps, self.distil.shrunk().steps
        server = self.local.steps / self.local.shrunk().steps
        return Cost(images=1, kind=(t > 0,), distil=steps / few if t >= 0 and few else 0.0, server=server)

    def enrol(self, site: Site, net: Net, rng: Stream) -> tuple[SiteState, Hello]:
        """No images yet; the counts are those of the virtual images that the site will send, not of its own."""
        counts = torch.zeros(net.classes, dtype=torch.int64)
        for k, number in virtual_numbers(site.train, net.classes, self.distil, site.name).items():
            counts[k] = number
        return SiteState(), Hello(site=site.name, counts=counts)

    start, broadcast = common.start, common.broadcast


def images_before(state: SiteState, site: Site, net: Net, distil: Distil, t: int, rng: Stream) -> VirtualSet:
    """The images of a site before the first step of round t: those that it keeps, or initial ones."""
    if state.virtual is not None:
        return state.virtual
    numbers = virtual_numbers(site.train, net.classes, distil, site.name)
    labels = labels_for(list(numbers), list(numbers.values()))
    with phase("distil"):
        images = to_device(initial_images(site, numbers, net.shape, distil, rng)).contiguous()  # as it is stored
    return VirtualSet(images=images, labels=to_device(labels), origin=site.name, round=t, tiles=distil.tiles)


def condense(
    virtual: VirtualSet, site: Site, net: Net, params: Params, distil: Distil, t: int, rng: Stream, **how: Any
) -> VirtualSet:
    """The set after the steps of round t: under new random networks in round 0, later under `params`.

    how: changes of the steps, as in `match`; not in round 0, when no model knows anything.
    """
    matched, distil = (net, distil) if t else random_networks(net, distil)

    def drawn(i: int) -> Params:
        return params if t else matched.init(rng.at("net", i))

    more = how if t else {}
    images = match(virtual.images, virtual.labels, site.train, matched, drawn, distil, rng, **more)
    check_finite(images, distil.lr, f"distillation at site {site.name!r}")
    return replace(virtual, images=images, round=t)


def upload_of(virtual: VirtualSet, classes: int, per_class: int) -> Params:
    """The images in the order of the classes, `per_class` of each, and how many of each class are present.

    Messages of all sites have the same form: images that are not present are 0. Labels follow from the order.
    Images are sent as network input of the site; one that holds several tiles is sent whole.
    """
    counts = torch.bincount(virtual.labels, minlength=classes)
    if len(counts) > classes or bool((counts > per_class).any()):
        raise DataError("upload-uneven", site=virtual.origin, per_class=per_class, counts=counts.tolist())
    labels, order = virtual.labels.sort(stable=True)
    before = (counts.cumsum(0) - counts)[labels]  # images of smaller classes
    images = virtual.images.new_zeros(classes * per_class, *virtual.images.shape[1:])
    images[labels * per_class + torch.arange(len(labels), device=labels.device) - before] = virtual.images[order]
    return {"images": images, "present": counts.float()}


def expected_upload(net: Net, per_class: int) -> Expected:
    """What the server expects from every site: no model, and a set as `upload_of` returns it."""
    form = {"images": torch.empty(net.classes * per_class, *net.shape), "present": torch.empty(net.classes)}
    return Expected({}, {TREE: form}, {f"trees/{TREE}/present": 0})


def union_of(updates: Iterable[Update | Hello], tiles: int = 1) -> LabelledSet:
    """All images that were uploaded, sorted by class and then by site, without those that a site lacks.

    Every image counts the same, so a site with more classes counts more. tiles: along each side of an image. Each
    update is read once.
    """
    by_class: dict[int, list[Tensor]] = {}
    for update in updates:
        images, present = update.trees[TREE]["images"], update.trees[TREE]["present"]
        for k in (present >= 1).nonzero().flatten().tolist():
            own = images.unflatten(0, (len(present), -1))[k, : int(present[k])]
            by_class.setdefault(k, []).append(own.clone())
    if not by_class:
        raise RunError("union-empty")
    parts = [(k, cut(torch.cat(by_class.pop(k)), tiles)) for k in sorted(by_class)]
    labels = [torch.full((len(images),), k, device=images.device) for k, images in parts]
    return LabelledSet(torch.cat([images for _, images in parts]), torch.cat(labels))
