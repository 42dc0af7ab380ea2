"""A federation: its sites, checked once when it is created; and parts of it: fewer images, validation, pooled."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedlgd import notebook
from fedlgd.core.errors import DataError, check
from fedlgd.core.files import digest
from fedlgd.core.text import plural
from fedlgd.core.types import Cache, LabelledSet, Scale, Site, Stream
from fedlgd.data.images import Depth
from fedlgd.data.prepare import Colour, Fit, Preparation

POOLED = "all sites together"  # the name of the one site of pooled training
MAX_SITES_LISTED = 12  # when a federation is printed


@dataclass(frozen=True, eq=False)
class Federation:
    """Sites that share classes and image shape.

    note: where the images come from. test_sites: whose test images score a model, if not those of `sites`.
    public: whether anyone may see the images, as in the data sets of papers. fit, colour, depth: how an image
    was resized, and how more than 8 bits became pixels.
    """

    name: str
    sites: tuple[Site, ...]
    note: str = ""
    test_sites: tuple[Site, ...] = ()
    public: bool = False
    fit: Fit = "stretch"
    colour: Colour = "auto"
    depth: Depth = Depth()

    @property
    def preparation(self) -> Preparation:
        """How other images become input of a network that was trained on these."""
        scales = {site.name: site.train.scale for site in self.tested}
        return Preparation(self.shape, self.classes, scales, self.fit, self.colour, self.depth)

    @property
    def names(self) -> list[str]:
        """The sites whose test images score a model, in the order in which they are shown."""
        return [site.name for site in self.test_sites or self.sites]

    @property
    def tested(self) -> list[Site]:
        """The sites whose test images score a model, sorted by name."""
        return sorted(self.test_sites or self.sites, key=lambda s: s.name)

    @cached_property
    def by_name(self) -> dict[str, Site]:
        """Sites sorted by name, the order in which every engine works."""
        return {site.name: site for site in sorted(self.sites, key=lambda s: s.name)}

    @property
    def classes(self) -> tuple[str, ...]:
        return self.sites[0].classes

    @property
    def shape(self) -> tuple[int, int, int]:
        c, h, w = self.sites[0].train.x.shape[1:]
        return (c, h, w)

    def __repr__(self) -> str:
        c, h, w = self.shape
        size = f"{plural(len(self.sites), 'site')}, {plural(len(self.classes), 'class')}, {c}x{h}x{w}"
        head = f"Federation({self.name!r}: {size}"
        if len(self.sites) > MAX_SITES_LISTED:
            return f"{head}, {plural(sum(len(site.train) for site in self.sites), 'training image')})"
        lines = [f"  {s.name}: {len(s.train)} training, {len(s.test)} test" for s in self.sites]
        return "\n".join([head, *lines]) + ")"

    def _repr_html_(self) -> str:
        listed, rest = self.sites[:MAX_SITES_LISTED], len(self.sites) - MAX_SITES_LISTED
        rows = [(s.name, len(s.train), len(s.test), notebook.first_images(s.train, 1)) for s in listed]
        more = f"<p>and {plural(rest, 'more site')}</p>" if rest > 0 else ""
        return notebook.table((self.name, "train", "test", "first image of each class"), rows) + more

    def with_cache(self, cache: Cache) -> "Federation":
        """The same sites, which keep expensive results of their images in this cache."""
        return replace(self, sites=tuple(replace(site, cache=cache) for site in self.sites))

    @cached_property
    def digest(self) -> str:
        """A hash of every site's name, images, labels and scaling; independent of their order and of pooling."""
        parts = [f"{site.name}:{site_digest(site)}" for site in self.tested]
        return digest("\n".join(parts).encode())


def site_digest(site: Site) -> str:
    """A hash of one site's images, labels and scaling."""
    h = hashlib.blake2b(repr((site.classes, site.train.scale)).encode(), digest_size=16)
    for part in (site.train, site.test):
        for tensor in (part.x, part.y):
            h.update(repr((tuple(tensor.shape), str(tensor.dtype))).encode())
            h.update(np.ascontiguousarray(tensor.numpy()).data)
    return h.hexdigest()


def from_sites(name: str, sites: Sequence[Site], note: str = "", min_per_class: int = 1) -> Federation:
    """A federation of sites that pass every check; a `DataError` says what is wrong and what to do."""
    if not sites:
        raise DataError("federation-without-site", name=name)
    seen: set[str] = set()
    for site in sites:
        if site.name in seen:
            raise DataError("site-twice", site=site.name)
        seen.add(site.name)
        _check_site(site, min_per_class)
        _check_agree(sites[0], site)
    return Federation(name, tuple(sites), note)


def _check_site(site: Site, min_per_class: int) -> None:
    for part, data in (("train", site.train), ("test", site.test)):
        if len(data.x) != len(data.y):
            counts = {"images": len(data.x), "labels": len(data.y)}
            raise DataError("labels-do-not-match", site=site.name, part=part, **counts)
        if not len(data):
            raise DataError("part-empty", site=site.name, part=part)
        low, high, classes = int(data.y.min()), int(data.y.max()), len(site.classes)
        if low < 0 or high >= classes:
            values = {"label": low if low < 0 else high, "classes": classes, "most": classes - 1}
            raise DataError("label-out-of-range", site=site.name, part=part, **values)
        if data.x.is_floating_point() and not bool(torch.isfinite(data.x).all()):
            raise DataError("pixels-not-finite", site=site.name, part=part)
    for k, count in enumerate(site.train.counts(len(site.classes)).tolist()):
        if count < min_per_class:
            of = {"number": k, "label": site.classes[k], "least": min_per_class}
            raise DataError("class-too-small", site=site.name, count=count, **of)


def _check_agree(first: Site, site: Site) -> None:
    if site.classes != first.classes:
        ours, theirs = list(site.classes), list(first.classes)
        raise DataError("classes-differ", site=site.name, classes=ours, other=first.name, others=theirs)
    want = tuple(first.train.x.shape[1:])
    for part in (site.train, site.test):
        got = tuple(part.x.shape[1:])
        if got != want:
            raise DataError("site-shapes-differ", site=site.name, shape=got, other=first.name, others=want)


def from_arrays(
    sites: Mapping[str, Sequence[Any]],
    classes: Sequence[str] | None = None,
    name: str = "own-arrays",
    scale: Scale = Scale(),
    min_per_class: int = 1,
) -> Federation:
    """A federation from `{site: (train_x, train_y, test_x, test_y)}`.

    Images are arrays (n, height, width) or (n, height, width, 3): uint8 0..255, or floats 0..1. Grey images
    become RGB. Labels are integers from 0; `classes` names them, by default "0", "1", ...
    """
    for site, part in sites.items():
        if len(part) != 4:
            raise DataError("not-four-arrays", site=site, count=len(part))
    labels = {site: (_labels(part[1], site), _labels(part[3], site)) for site, part in sites.items()}
    count = max((int(y.max()) + 1 for pair in labels.values() for y in pair if len(y)), default=0)
    names = tuple(classes) if classes is not None else tuple(str(k) for k in range(count))
    made = []
    for site, part in sites.items():
        pairs = zip(part[::2], labels[site], strict=True)
        train, test = (LabelledSet(_images(x, scale, site), y, scale) for x, y in pairs)
        made.append(Site(site, train, test, names))
    return from_sites(name, made, "arrays given by the user", min_per_class)


def _images(array: Any, scale: Scale, site: str) -> Tensor:
    x = torch.as_tensor(np.ascontiguousarray(array))  # torch refuses views such as x[::-1]
    if x.ndim == 3:
        x = x[..., None]
    if x.ndim != 4 or x.shape[-1] not in (1, 3):
        raise DataError("array-not-images", site=site, shape=tuple(x.shape))
    x = x.permute(0, 3, 1, 2).expand(-1, 3, -1, -1)
    if x.dtype == torch.uint8:
        return x
    if not x.is_floating_point():
        raise DataError("images-of-wrong-type", site=site, dtype=x.dtype)
    if x.numel() and (x.min() < 0 or x.max() > 1):
        raise DataError("pixels-out-of-range", site=site, low=float(x.min()), high=float(x.max()))
    return scale.to_input(x.float() * 255)


def _labels(array: Any, site: str) -> Tensor:
    y = np.asarray(array).ravel()
    if y.dtype.kind not in "iu":
        raise DataError("labels-not-integers", site=site, dtype=y.dtype)
    return torch.as_tensor(y.astype(np.int64))


def limited(whole: Federation, train: int = 0, test: int = 0) -> Federation:
    """At most `train` training and `test` test images per site, taken from the classes in turn; 0 keeps all."""
    rng = Stream(0).at("limit")
    sites = []
    for site in whole.sites:
        mine, classes = rng.at(site.name), len(site.classes)
        fewer = _subset(site.train, train, classes, mine.at("train"))
        sites.append(replace(site, train=fewer, test=_subset(site.test, test, classes, mine.at("test"))))
    return replace(whole, sites=from_sites(whole.name, sites, min_per_class=0).sites)


def _subset(data: LabelledSet, size: int, classes: int, rng: Stream) -> LabelledSet:
    """Take the classes in turn, so that a small subset has all of them."""
    if size <= 0 or size >= len(data):
        return data
    order = torch.randperm(len(data), generator=rng.generator())
    turns = torch.cat([torch.arange(int((data.y[order] == k).sum())) for k in range(classes)])
    by_class = torch.cat([order[data.y[order] == k] for k in range(classes)])
    return _at(data, by_class[torch.argsort(turns, stable=True)[:size]].sort().values)


def _at(data: LabelledSet, index: Tensor) -> LabelledSet:
    """A part of a set, without a change of its pixels."""
    return LabelledSet(data.x[index], data.y[index], data.scale)


def validation_of(whole: Federation, share: float = 0.2, seed: int = 0) -> Federation:
    """The federation with held-out training images in place of its test images, which are not read: for choices
    that must not depend on test images.

    Of the n images of a class at a site, max(1, floor(share n)) are held out; the only image of a class stays.
    """
    check(0 < share < 1, "validation", share, "use a share of the training images between 0 and 1, such as 0.2")
    sites = tuple(_held_out(site, share, Stream(seed).at("validation", site.name)) for site in whole.sites)
    note = f"scored on {share:.0%} of the training images of each class and site, which are held out"
    return replace(whole, sites=sites, test_sites=(), note="; ".join(filter(None, (whole.note, note))))


def _held_out(site: Site, share: float, rng: Stream) -> Site:
    held = torch.zeros(len(site.train), dtype=torch.bool)
    for k in range(len(site.classes)):
        of_class = site.train.of_class(k)
        count = max(1, int(share * len(of_class) + 1e-9)) if len(of_class) > 1 else 0
        held[of_class[torch.randperm(len(of_class), generator=rng.generator(k))[:count]]] = True
    if not held.any():
        raise DataError("nothing-to-hold-out", site=site.name)
    train, test = (_at(site.train, part.nonzero().flatten()) for part in (~held, held))
    return replace(site, train=train, test=test)


def pooled(whole: Federation) -> Federation:
    """All training images at one site; the model is still scored on the test images of every original site."""
    parts = [site.train for site in whole.by_name.values()]
    if len({(part.scale, part.x.dtype) for part in parts}) > 1:
        parts = [part.take(slice(None)) for part in parts]
    train = LabelledSet(torch.cat([p.x for p in parts]), torch.cat([p.y for p in parts]), parts[0].scale)
    test = whole.tested[0].test
    together = Site(POOLED, train, test, whole.classes, "training images of all sites")
    return replace(whole, sites=(together,), test_sites=whole.sites)
