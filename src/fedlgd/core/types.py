"""Messages, states, data sets and random streams.

A method sends an `Update` per round, and one `Hello` at enrolment, from a site. It sends a `Broadcast` to a site.
For the records of a run a site also reports scores, seconds and FLOPs: see `Answer` in `engines/site.py`.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from html import escape
from typing import Any

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from fedlgd.core.device import to_device
from fedlgd.core.meter import Spent
from fedlgd.core.text import plural

Params = dict[str, Tensor]
"""The tensors of a model by name; `tree` calculates with them."""

Trees = Mapping[str, Params]
"""More tensors of a message or a state, by a name that the method chooses."""

Shape = tuple[int, int, int]
"""Of an image: channels, height, width."""


@dataclass(frozen=True, slots=True)
class Stream:
    """A random stream, identified by a seed and a path, e.g. Stream(7).at("site", "usps", 12).

    Named streams instead of a global state: results do not depend on the order of sites or workers.
    """

    seed: int
    path: tuple[int | str, ...] = ()

    def at(self, *path: int | str) -> "Stream":
        return Stream(self.seed, self.path + path)

    def number(self) -> int:
        """A 63-bit hash of seed and path; torch's CPU generator uses its low 32 bits."""
        digest = hashlib.blake2b(repr((self.seed, *self.path)).encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") >> 1

    def generator(self, *path: int | str) -> Generator:
        return Generator().manual_seed(self.at(*path).number())


@dataclass(frozen=True, slots=True)
class Scale:
    """Per-channel normalisation: network input = (pixel / 255 - mean) / std."""

    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: tuple[float, ...] = (0.5, 0.5, 0.5)

    def to_input(self, pixels: Tensor) -> Tensor:
        return self._scaled(pixels.float() / 255)

    def from_scale(self, x: Tensor, other: "Scale") -> Tensor:
        """Network input under `other` as input under this one:  (mean_other + std_other x - mean) / std."""
        return x if self == other else self._scaled(other._unscaled(x))

    def to_pixels(self, x: Tensor) -> Tensor:
        """Pixels 0..255 for display; values outside the valid range are clipped."""
        return (self._unscaled(x) * 255).round().clamp(0, 255).to(torch.uint8)

    def _scaled(self, grey: Tensor) -> Tensor:
        return (grey - _column(self.mean, grey)) / _column(self.std, grey)

    def _unscaled(self, x: Tensor) -> Tensor:
        return x * _column(self.std, x) + _column(self.mean, x)


def _column(values: tuple[float, ...], like: Tensor) -> Tensor:
    return torch.tensor(values).view(-1, 1, 1).to(like)


@dataclass(frozen=True, slots=True, eq=False)
class LabelledSet:
    """Images and labels. Pixels are uint8, possibly memory-mapped, until `take` converts them to network input."""

    x: Tensor
    y: Tensor
    scale: Scale = Scale()

    def __len__(self) -> int:
        return len(self.y)

    def take(self, index: Tensor | slice) -> "LabelledSet":
        """The images at `index` as float network input, channel by channel: convolutions and norms of pixels whose
        channels are interleaved, as in colour arrays of a user, take up to twice as long on a CPU."""
        x, y = to_device((self.x[index].contiguous(), self.y[index]))
        return LabelledSet(self.scale.to_input(x) if x.dtype == torch.uint8 else x, y, self.scale)

    def of_class(self, k: int) -> Tensor:
        """The indices of the images of class `k`."""
        return (self.y == k).nonzero().flatten()

    def counts(self, classes: int) -> Tensor:
        return torch.bincount(self.y, minlength=classes)

    def pixels(self, index: Tensor | slice) -> Tensor:
        """The images at `index` as pixels 0..255, for display."""
        x = self.x[index]
        return self.scale.to_pixels(x) if x.is_floating_point() else x

    def __repr__(self) -> str:
        shape = "x".join(map(str, self.x.shape[1:]))
        return f"LabelledSet({plural(len(self), 'image')} of {shape}, {plural(len(self.y.unique()), 'class')})"

    def _repr_html_(self) -> str:
        return _html(repr(self), self)


def _html(text: str, data: LabelledSet) -> str:
    """What a notebook shows of a set: a line, and the first images of each class."""
    from fedlgd.notebook import first_images  # here: only notebooks need Pillow

    return f"<p>{escape(text)}</p>{first_images(data)}"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Cached(Spent):
    """An expensive result and its original cost: what a method costs does not depend on the order of runs."""

    tensor: Tensor


class Cache:
    """Results by the hash of their inputs: compared methods with the same seed share virtual sets.

    This one keeps nothing; `runs.folder.FolderCache` keeps them in a folder.
    """

    def get(self, key: str) -> Cached | None:
        return None

    def put(self, key: str, item: Cached) -> None:
        pass


@dataclass(frozen=True, slots=True, eq=False)
class Site:
    """A site with its private images. Only messages created by a method leave it.

    cache: of results that are made from its images, such as virtual sets. on_release: is told of every release
    (`dp.release.Told`) that the site makes under differential privacy, for audits of simulations.
    """

    name: str
    train: LabelledSet
    test: LabelledSet
    classes: tuple[str, ...]
    note: str = ""
    cache: Cache = Cache()
    on_release: Callable[[Any], None] | None = None

    def __repr__(self) -> str:
        return f"Site({self.name!r}: {len(self.train)} training and {plural(len(self.test), 'test image')})"

    def _repr_html_(self) -> str:
        return _html(repr(self), self.train)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class VirtualSet:
    """Virtual images in network-input space, sorted by class. `round` is the version: when they last changed.

    scale: of images that were made as pictures; a site maps them to its own. None: the same input at every site.
    tiles: small pictures along each side of an image.
    """

    images: Tensor
    labels: Tensor
    origin: str
    round: int
    scale: Scale | None = None
    tiles: int = 1

    @property
    def data(self) -> LabelledSet:
        """The pictures to train on: the images themselves, or their tiles."""
        return LabelledSet(cut(self.images, self.tiles), self.labels.repeat_interleave(self.tiles**2))

    def under(self, scale: Scale) -> "VirtualSet":
        """The set as input at a site with this scale."""
        if self.scale is None:
            return self
        return replace(self, images=scale.from_scale(self.images, self.scale), scale=None)

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        when = "made at enrolment" if self.round < 0 else f"changed in round {self.round + 1}"
        shape = "x".join(map(str, self.images.shape[1:]))
        return f"VirtualSet({plural(len(self), 'image')} of {shape} from {self.origin!r}, {when})"

    def _repr_html_(self) -> str:
        """The first images of each class; shown under the scale of the set, or the default scale."""
        shown = LabelledSet(self.images, self.labels, self.scale or Scale())
        return _html(repr(self), shown)


def cut(images: Tensor, tiles: int) -> Tensor:
    """(n, c, h, w) -> (n tiles^2, c, h, w): each tile, in reading order, enlarged bilinearly.

    Several small pictures in one image are multi-formation of IDC (Kim et al., ICML 2022). The inverse is
    `distill.init.as_tiles`.
    """
    if tiles == 1:
        return images
    (h, w), (n, c) = images.shape[2:], images.shape[:2]
    a, b = h // tiles, w // tiles
    grid = images[:, :, : tiles * a, : tiles * b].reshape(n, c, tiles, a, tiles, b).permute(0, 2, 4, 1, 3, 5)
    return F.interpolate(grid.reshape(n * tiles**2, c, a, b), size=(h, w), mode="bilinear", align_corners=False)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SiteState:
    """The state of a site between rounds. It never leaves the site."""

    virtual: VirtualSet | None = None
    anchors: VirtualSet | None = None
    trees: Trees = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ServerState:
    """The state of the server between rounds. `round` is the next round, `exchange` the next exchange of messages
    in it (0 unless a method has several), and `held` the version of the anchors, or of other tensors to keep, that
    each site has; the engine updates these three."""

    round: int = 0
    exchange: int = 0
    params: Params
    anchors: VirtualSet | None = None
    held: Mapping[str, int] = field(default_factory=dict)
    trees: Trees = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Hello:
    """What a site sends once: its number of training images per class, pixel statistics only with
    `anchors.start = "statistics"`, and other tensors of a method that expects them (`expects_hello`)."""

    site: str
    counts: Tensor
    statistics: Tensor | None = None
    trees: Trees = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Broadcast:
    """The message of a method to a site in one round. `exchange`: which of the round, set by the engine.

    kept: the version of `trees` that the site keeps, if it keeps them; like that of anchors, the server notes it in
    `held` once the site has answered, so that they are sent once."""

    round: int
    exchange: int = 0
    params: Params
    anchors: VirtualSet | None = None
    trees: Trees = field(default_factory=dict)
    kept: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Update:
    """The message of a site to the server in one round."""

    site: str
    params: Params
    weight: float
    metrics: Mapping[str, float] = field(default_factory=dict)
    trees: Trees = field(default_factory=dict)
