"""The images of a page as data URIs: real samples, and the versions of virtual sets and anchors.

The size of a page is bounded: every image is embedded once, only some of many versions are shown, and contact
sheets are cropped to fewer columns if they are large, or if together they would exceed the budget.
"""

import base64
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path

from PIL import Image, ImageChops

from fedlgd.report.groups import Group
from fedlgd.rundir.manifest import DataInfo
from fedlgd.rundir.read import Run

ANCHORS = "anchors"
MAX_VERSIONS = 8
MAX_SITES_SHOWN = 24
MAX_PNG_BYTES = 2_500_000  # of all images; base64 adds a third
MAX_COLUMNS, MAX_TILES = 10, 50  # of a sheet; four columns are always shown
MIN_TILE_SIDE = 40  # CSS pixels of one image
DIFFERENCE_GAINS = (32, 16, 8, 4, 2, 1)  # of the difference view


@dataclass(frozen=True, slots=True)
class PageImage:
    """A contact sheet as a data URI, and its width on the page in CSS pixels.

    `rows` are the names of the classes if they are known, `at` is the position of its version on the slider."""

    version: str
    uri: str
    image: Image.Image
    width: int
    rows: tuple[str, ...]
    at: int = 0


@dataclass(frozen=True, slots=True)
class Grid:
    """The images of one site, or of the anchors on the server: real samples, and virtual images by version."""

    owner: str
    real: PageImage | None
    pictures: tuple[PageImage, ...]

    @property
    def gain(self) -> int:
        """The largest gain that clips at most 1 % of the difference between the first and the last version."""
        if len({picture.image.size for picture in self.pictures}) != 1:
            return 1
        first, last = (self.pictures[at].image.convert("RGB") for at in (0, -1))
        counts = ImageChops.difference(first, last).convert("L").histogram()
        few = 0.01 * sum(counts)
        return next(gain for gain in DIFFERENCE_GAINS if gain == 1 or sum(counts[255 // gain + 1 :]) <= few)


@dataclass(frozen=True, slots=True)
class Gallery:
    """The images of one method, from one of its runs.

    `columns`: images per class that are shown, and in total, if sheets are cropped; `hidden`: sites not shown."""

    label: str
    seed: int
    versions: tuple[str, ...]
    grids: tuple[Grid, ...]
    columns: tuple[int, int] | None = None
    hidden: int = 0


@dataclass(frozen=True, slots=True)
class Pictures:
    """All galleries, the largest first, and the methods whose images are all in the galleries of others."""

    galleries: tuple[Gallery, ...] = ()
    repeated: tuple[str, ...] = ()


@dataclass(slots=True)
class _Embedded:
    """The images that are in the page already, and the share of its columns that is kept of a sheet."""

    keep: float
    seen: set[bytes] = field(default_factory=set)

    def add(self, files: Iterable[Path]) -> dict[Path, bytes]:
        """The content of these files, or nothing if all of it is in the page already."""
        content = {file: png for file in files if (png := _read(file))}
        new = not self.seen.issuperset(content.values())
        self.seen.update(content.values())
        return content if new else {}


def pictures(groups: Sequence[Group]) -> Pictures:
    """One gallery per group that has images of its own, from its counted run with the lowest seed."""
    runs = sorted((group.counted[0] for group in groups), key=lambda run: -len(run.sheets))
    files = (file for run in runs for _, real, sheets in _owners(run) for file in (*real, *sheets))
    size = sum(map(len, set(map(_read, files))))
    embedded = _Embedded(min(1.0, MAX_PNG_BYTES / size) if size else 1.0)
    made = {run.path: _gallery(run, embedded) for run in runs}
    shown = tuple(gallery for gallery in made.values() if gallery.grids)
    repeated = (run.label for run in runs if run.sheets and not made[run.path].grids)
    return Pictures(shown, tuple(repeated) if shown else ())


def thin(versions: Sequence[str], most: int = MAX_VERSIONS) -> list[str]:
    """At most this many versions, evenly spaced, with the first and the last."""
    if len(versions) <= most:
        return list(versions)
    return [versions[round(at * (len(versions) - 1) / (most - 1))] for at in range(most)]


def _versions(run: Run) -> list[str]:
    return thin(list(dict.fromkeys(sheet.version for sheet in run.sheets)))


def _owners(run: Run) -> Iterator[tuple[str, list[Path], dict[Path, str]]]:
    """The sites that are shown and the anchors, with their real samples, and the version of each contact sheet."""
    sites, versions = run.manifest.data.sites, _versions(run)
    shown = sorted(sites, key=lambda site: site.name)[:MAX_SITES_SHOWN]
    named = [(site.name, site.folder) for site in sites if site in shown]
    for owner, folder in (*named, ("anchors, on the server", ANCHORS)):
        real = [run.samples[folder]] if folder in run.samples and folder != ANCHORS else []
        yield owner, real, {s.path: s.version for s in run.sheets if s.folder == folder and s.version in versions}


def _gallery(run: Run, embedded: _Embedded) -> Gallery:
    grids = tuple(grid for owned in _owners(run) if (grid := _grid(run, *owned, embedded)))
    captions, hidden = tuple(map(_caption, _versions(run))), max(0, len(run.manifest.data.sites) - MAX_SITES_SHOWN)
    return Gallery(run.label, run.seed, captions, grids, _columns(run, grids), hidden)


def _grid(run: Run, owner: str, samples: list[Path], sheets: dict[Path, str], embedded: _Embedded) -> Grid | None:
    data, versions = run.manifest.data, _versions(run)
    real = [picture_of(png, "real", data) for png in embedded.add(samples).values()]
    virtual = [
        picture_of(png, _caption(sheets[file]), data, embedded.keep, versions.index(sheets[file]))
        for file, png in embedded.add(sheets).items()
    ]
    shown = tuple(picture for picture in virtual if picture)
    return Grid(owner, next(iter(real), None), shown) if shown or any(real) else None


def picture_of(png: bytes, version: str, data: DataInfo, keep: float = 1.0, at: int = 0) -> PageImage | None:
    """A contact sheet, cropped to fewer columns if it is large; None if it is damaged."""
    image = _open(png)
    if image is None:
        return None
    _, height, width = data.shape
    rows, columns = max(1, image.height // height), max(1, image.width // width)
    shown = max(1, min(MAX_COLUMNS, max(4, MAX_TILES // rows), int(keep * columns)))
    if shown < columns and image.width % width == 0:
        image, columns = image.crop((0, 0, shown * width, image.height)), shown
        image.save(buffer := io.BytesIO(), "PNG", optimize=True)
        png = buffer.getvalue()
    if str(divisor := image.info.get("divided by")).isdecimal():
        version += f", values ÷ {divisor}"
    uri = "data:image/png;base64," + base64.b64encode(png).decode("ascii")
    side = width * max(1, ceil(MIN_TILE_SIDE / width)) if rows <= MAX_TILES / 2 else width
    return PageImage(version, uri, image, columns * side, _rows(image, rows, data.classes), at)


def _rows(sheet: Image.Image, rows: int, classes: Sequence[str]) -> tuple[str, ...]:
    """The names of the classes, by the numbers in the file; older files have none."""
    numbers = [*map(int, re.findall(r"\d+", str(sheet.info.get("classes", ""))))] or [*range(len(classes))]
    return tuple(classes[k] for k in numbers) if len(numbers) == rows and max(numbers) < len(classes) else ()


def _columns(run: Run, grids: Sequence[Grid]) -> tuple[int, int] | None:
    """The number of columns of the first sheet after and before cropping; None if it is complete."""
    first = next((picture for grid in grids for picture in grid.pictures), None)
    complete = _open(_read(run.sheets[0].path)) if first else None
    if first is None or complete is None or complete.width <= first.image.width:
        return None
    tile = run.manifest.data.shape[-1]
    return first.image.width // tile, complete.width // tile


def _caption(version: str) -> str:
    return f"round {int(version) + 1}" if version.isdecimal() else "setup"


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:
        return b""


def _open(png: bytes) -> Image.Image | None:
    """A complete PNG image; None for any other content."""
    try:
        image = Image.open(io.BytesIO(png), formats=["PNG"])
        image.load()
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return None
    return image
