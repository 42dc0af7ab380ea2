"""The pictures of a page as data URIs: real samples, and every version of virtual sets and anchors.

A page stays small: the same picture is never in it twice, versions are thinned out when there are many, and
contact sheets are cut to fewer columns when all of them together would be too large.
"""

import base64
import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from PIL import Image

from fedlgd.report.groups import Group
from fedlgd.report.run import Run

ANCHORS = "anchors"
VERSIONS = 8
SITES = 24
BUDGET = 2_500_000  # bytes of PNG; base64 makes a third more of them


@dataclass(frozen=True, slots=True)
class Picture:
    """A contact sheet that can stand in a page by itself; `at` is its version's place on the slider."""

    version: str
    uri: str
    width: int
    height: int
    at: int = 0


@dataclass(frozen=True, slots=True)
class Grid:
    """What one owner (a site, or the server for the anchors) has: real samples, and virtual images by version."""

    owner: str
    real: Picture | None
    pictures: tuple[Picture, ...]


@dataclass(frozen=True, slots=True)
class Gallery:
    """The images of one method, from one of its runs; rows are classes.

    `columns`: how many of how many images a class are left where sheets are cut; `hidden`: sites not shown."""

    label: str
    seed: int
    classes: tuple[str, ...]
    versions: tuple[str, ...]
    grids: tuple[Grid, ...]
    columns: tuple[int, int] | None = None
    hidden: int = 0

    @property
    def real_width(self) -> int:
        return max((grid.real.width for grid in self.grids if grid.real), default=0)


@dataclass(frozen=True, slots=True)
class Pictures:
    """All galleries, those with most to see first, and the methods whose pictures are all among theirs."""

    galleries: tuple[Gallery, ...] = ()
    repeated: tuple[str, ...] = ()


@dataclass(slots=True)
class _Shelf:
    """Which files are in the page already, and to what share of its columns a sheet is cut."""

    keep: float
    shown: set[bytes] = field(default_factory=set)

    def new(self, files: Iterable[Path]) -> dict[Path, bytes]:
        """The content of these files, unless all of it is in the page already."""
        content = {file: png for file in files if (png := _read(file))}
        fresh = not self.shown.issuperset(content.values())
        self.shown.update(content.values())
        return content if fresh else {}


def pictures(groups: Sequence[Group]) -> Pictures:
    """One gallery per group that has pictures of its own, from its counted run with the lowest seed."""
    runs = sorted((group.counted[0] for group in groups), key=lambda run: -len(run.sheets))
    size = sum(map(len, {_read(file) for run in runs for file in _files(run)}))
    shelf = _Shelf(min(1.0, BUDGET / size) if size else 1.0)
    made = {run.path: _gallery(run, shelf) for run in runs}
    shown = tuple(gallery for gallery in made.values() if gallery.grids)
    repeated = (run.label for run in runs if run.sheets and not made[run.path].grids)
    return Pictures(shown, tuple(repeated) if shown else ())


def spread(versions: Sequence[str], most: int = VERSIONS) -> list[str]:
    """At most so many of them, evenly, the first and the last always."""
    if len(versions) <= most:
        return list(versions)
    return [versions[round(at * (len(versions) - 1) / (most - 1))] for at in range(most)]


def _versions(run: Run) -> list[str]:
    return spread(list(dict.fromkeys(sheet.version for sheet in run.sheets)))


def _files(run: Run) -> list[Path]:
    versions, folders = _versions(run), {folder for _, folder in _owners(run)}
    samples = [file for folder, file in run.samples.items() if folder in folders]
    sheets = (sheet for sheet in run.sheets if sheet.version in versions and sheet.folder in folders)
    return samples + [sheet.path for sheet in sheets]


def _gallery(run: Run, shelf: _Shelf) -> Gallery:
    grids = tuple(grid for owner, folder in _owners(run) if (grid := _grid(run, owner, folder, shelf)))
    data = run.manifest.data
    captions = tuple(map(_caption, _versions(run)))
    hidden = max(0, len(data.sites) - SITES)
    return Gallery(run.label, run.seed, data.classes, captions, grids, _columns(run, grids), hidden)


def _owners(run: Run) -> tuple[tuple[str, str], ...]:
    by_name = sorted(run.manifest.data.sites, key=lambda site: site.name)[:SITES]
    sites = ((site.name, site.folder) for site in run.manifest.data.sites if site in by_name)
    return (*sites, ("anchors, on the server", ANCHORS))


def _grid(run: Run, owner: str, folder: str, shelf: _Shelf) -> Grid | None:
    tile = run.manifest.data.shape[-1]
    versions = {version: at for at, version in enumerate(_versions(run))}
    sheets = {s.path: s.version for s in run.sheets if s.folder == folder and s.version in versions}
    real = [_picture(png, "real", tile, 1.0) for png in shelf.new(_sample(run, folder)).values()]
    virtual = [
        _picture(png, _caption(sheets[file]), tile, shelf.keep, versions[sheets[file]])
        for file, png in shelf.new(sheets).items()
    ]
    seen = tuple(picture for picture in virtual if picture)
    return Grid(owner, next(iter(real), None), seen) if seen or any(real) else None


def _sample(run: Run, folder: str) -> Iterator[Path]:
    if folder != ANCHORS and folder in run.samples:
        yield run.samples[folder]


def _columns(run: Run, grids: Sequence[Grid]) -> tuple[int, int] | None:
    """How many of how many columns are left of the first sheet."""
    cut = next((picture for grid in grids for picture in grid.pictures), None)
    if cut is None:
        return None
    file = next(sheet.path for sheet in run.sheets)
    whole = _open(_read(file))
    tile = run.manifest.data.shape[-1]
    return (cut.width // tile, whole.width // tile) if whole and whole.width > cut.width else None


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:
        return b""


def _open(png: bytes) -> Image.Image | None:
    """A whole PNG, or nothing: a page shows no file that is not what it says."""
    try:
        image = Image.open(io.BytesIO(png), formats=["PNG"])
        image.load()
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return None
    return image


def _picture(png: bytes, version: str, tile: int, keep: float, at: int = 0) -> Picture | None:
    image = _open(png)
    if image is None:
        return None
    columns = max(1, int(keep * image.width / tile))
    if columns * tile < image.width and image.width % tile == 0:
        image = image.crop((0, 0, columns * tile, image.height))
        buffer = io.BytesIO()
        image.save(buffer, "PNG", optimize=True)
        png = buffer.getvalue()
    uri = "data:image/png;base64," + base64.b64encode(png).decode("ascii")
    return Picture(version, uri, image.width, image.height, at)


def _caption(version: str) -> str:
    return f"round {int(version)}" if version.isdecimal() else version
