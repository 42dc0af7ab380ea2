"""Contact sheets of virtual and real images in a run folder: one row per class, one column per image."""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from fedlgd.core.files import safe_name
from fedlgd.core.types import LabelledSet, Scale, SiteState, VirtualSet
from fedlgd.engines.storage import FolderStates, version_name
from fedlgd.rundir.contact_sheet import write_sheet

DIVISOR = 3  # for anchors, whose values are not bounded: most are within 3 standard deviations of an input


def write_picture(root: Path, folder: str, virtual: VirtualSet, scale: Scale, divisor: int = 1) -> None:
    """`root/<version>/<folder>.png`; values outside the valid range are clipped in the image only."""
    file = root / version_name(virtual.round) / f"{folder}.png"
    notes = {"divided by": str(divisor)} if divisor > 1 else {}
    write_sheet(root, file, scale.to_pixels(virtual.images / divisor), virtual.labels.unique().tolist(), notes)


def write_samples(root: Path, folder: str, data: LabelledSet, per_class: int) -> None:
    """Write `root/<folder>.png` once: the first real images of each class of the site; missing ones are blank."""
    file = root / f"{folder}.png"
    if per_class and not file.exists():
        classes = data.y.unique().tolist()
        write_sheet(root, file, torch.cat([_first(data, k, per_class) for k in classes]), classes)


def _first(data: LabelledSet, k: int, count: int) -> Tensor:
    pixels = data.pixels(data.of_class(k)[:count])
    return torch.cat([pixels, pixels.new_full((count - len(pixels), *pixels.shape[1:]), 255)])


class DrawnStates(FolderStates):
    """States of the sites. A virtual set that changed is also written as an image."""

    def __init__(self, path: Path, pictures: Path, scales: Mapping[str, Scale]) -> None:
        super().__init__(path)
        self._pictures, self._scales = pictures, scales

    def save(self, site: str, version: int, state: SiteState, before: int) -> None:
        if state.virtual and state.virtual.round == version:
            write_picture(self._pictures, safe_name(site), state.virtual, self._scales[site])
        super().save(site, version, state, before)
