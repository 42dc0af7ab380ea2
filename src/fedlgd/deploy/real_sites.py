"""The suite `real-sites`: a federation without images, because every site keeps its own."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from fedlgd.core.errors import DataError
from fedlgd.core.types import LabelledSet, Site
from fedlgd.data.federation import Federation
from fedlgd.data.suites import SuiteSettings

NAME = "real-sites"


@dataclass(frozen=True, kw_only=True)
class RealSites(SuiteSettings):
    """Real sites, reached with the engine flower; see docs/deploy.md."""

    def open(self) -> Federation:
        raise DataError("images-at-sites")


def without_images(sites: Mapping[str, str], classes: tuple[str, ...], shape: tuple[int, ...]) -> Federation:
    """What a coordinator knows of its sites: their names with a note, the classes, and the shape of an image."""
    empty = LabelledSet(torch.empty(0, *shape, dtype=torch.uint8), torch.empty(0, dtype=torch.int64))
    made = (Site(name, empty, empty, classes, note) for name, note in sites.items())
    return Federation(NAME, tuple(made), "images at real sites, which keep them")
