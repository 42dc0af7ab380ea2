"""A site as a method receives it: reads of its private images are noticed, or refused while a promise holds.

With differential privacy a method gets a `sealed` site. Only releases (`fedlgd.dp`) open it, so that the promise
holds for methods that nobody here has seen.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import Tensor

from fedlgd.core.errors import PrivacyError
from fedlgd.core.types import LabelledSet, Scale, Site


class GuardedSet(LabelledSet):
    """A set that calls `on_images` before its images are read, and `on_labels` before its labels or its length."""

    __slots__ = ("inner", "on_images", "on_labels")
    inner: LabelledSet
    on_images: Callable[[], None]
    on_labels: Callable[[], None]

    def __new__(cls, x: Tensor, y: Tensor, scale: Scale = Scale()) -> Any:
        """What `dataclasses.replace` makes of it: an ordinary set, of what was read."""
        return LabelledSet(x, y, scale)

    @property
    def x(self) -> Tensor:
        self.on_images()
        return self.inner.x

    @property
    def y(self) -> Tensor:
        self.on_labels()
        return self.inner.y

    @property
    def scale(self) -> Scale:
        return self.inner.scale


def guarded(inner: LabelledSet, on_images: Callable[[], None], on_labels: Callable[[], None]) -> LabelledSet:
    found = object.__new__(GuardedSet)
    for name, value in (("inner", inner), ("on_images", on_images), ("on_labels", on_labels)):
        object.__setattr__(found, name, value)
    return found


def watched(site: Site, note: Callable[[], None]) -> Site:
    """The site; `note` is called when its training images are read."""
    return replace(site, train=guarded(site.train, note, lambda: None))


def sealed(site: Site, method: str) -> Site:
    """The site; its images, labels and their number can be read through releases only."""

    def refuse() -> None:
        raise PrivacyError("images-sealed", site=site.name, method=method)

    return replace(site, train=guarded(site.train, refuse, refuse), test=guarded(site.test, refuse, refuse))


def unsealed(site: Site) -> Site:
    """The site with its images, for a release; what is made of them has noise before it goes on."""
    return replace(site, train=_inner(site.train), test=_inner(site.test))


def blank_site(site: Site) -> Site:
    """The site for a method whose training is done by others: no image of it is there."""
    train = _inner(site.train)
    return replace(site, train=LabelledSet(train.x[:0], train.y[:0], train.scale))


def _inner(data: LabelledSet) -> LabelledSet:
    return data.inner if isinstance(data, GuardedSet) else data
