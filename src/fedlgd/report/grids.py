"""The virtual images of a run as data URIs: for each owner the first and the latest contact sheet."""

import base64
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fedlgd.report.groups import Group
from fedlgd.report.run import Run, Sheet

ANCHORS = "anchors"
_PNG = b"\x89PNG\r\n\x1a\n"


@dataclass(frozen=True, slots=True)
class Picture:
    """A contact sheet that can stand in a page by itself."""

    version: str
    uri: str
    width: int
    height: int


@dataclass(frozen=True, slots=True)
class Grid:
    """What one owner (a site, or the server for the anchors) distilled, first and latest."""

    owner: str
    pictures: tuple[Picture, ...]


@dataclass(frozen=True, slots=True)
class Gallery:
    """The virtual images of one method, from one of its runs; rows are classes."""

    label: str
    seed: int
    classes: tuple[str, ...]
    grids: tuple[Grid, ...]


def galleries(groups: Sequence[Group]) -> tuple[Gallery, ...]:
    """One gallery per group that has virtual images, from its counted run with the lowest seed."""
    shown = (_gallery(group.counted[0]) for group in groups)
    return tuple(gallery for gallery in shown if gallery.grids)


def _gallery(run: Run) -> Gallery:
    grids = (Grid(owner, tuple(_pictures(run.sheets, folder))) for owner, folder in _owners(run))
    data = run.manifest.data
    return Gallery(run.label, run.seed, data.classes, tuple(grid for grid in grids if grid.pictures))


def _owners(run: Run) -> tuple[tuple[str, str], ...]:
    sites = ((site.name, site.folder) for site in run.manifest.data.sites)
    return (("anchors, on the server", ANCHORS), *sites)


def _pictures(sheets: Sequence[Sheet], folder: str) -> Iterator[Picture]:
    own = [sheet for sheet in sheets if sheet.folder == folder]
    for sheet in dict.fromkeys((*own[:1], *own[-1:])):
        png = sheet.path.read_bytes()
        if png.startswith(_PNG):
            yield _picture(sheet.version, png)


def _picture(version: str, png: bytes) -> Picture:
    width, height = struct.unpack(">II", png[16:24])
    caption = f"round {int(version)}" if version.isdecimal() else version
    return Picture(caption, "data:image/png;base64," + base64.b64encode(png).decode("ascii"), width, height)
