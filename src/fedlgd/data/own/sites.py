"""The images of a site before they are read, and the problems found with them."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image

from fedlgd.core.errors import DataError, message
from fedlgd.data.arrays import PARTS, Pixels, open_npz, read_domain
from fedlgd.data.images import Depth, Header, ImageError, ImageFile, Part, Picture, regular_file, shown

MAX_NAME_LETTERS = 100


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem of a folder of images and what to do about it: an error stops a run, a warning does not."""

    severity: Literal["error", "warning"]
    site: str
    file: str
    problem: str
    way_out: str
    code: str


def found_error(code: str, site: str = "", file: str = "", **values: Any) -> Problem:
    """A problem that stops a run. Its message ends with the way out, after a semicolon."""
    problem, _, way_out = message(code, **values).rpartition("; ")
    return Problem("error", site, file, problem, way_out, code)


def found_warning(code: str, site: str = "", file: str = "", **values: Any) -> Problem:
    """A problem that does not stop a run."""
    return replace(found_error(code, site, file, **values), severity="warning")


def problem_of(error: DataError, site: str = "", file: str = "") -> Problem:
    """An error as a problem; messages have the form `what is wrong; what to do`."""
    problem, _, way_out = str(error).partition("; ")
    return Problem("error", site, file, problem, way_out, error.code)


def refuse_errors(problems: Sequence[Problem]) -> None:
    """Raise the first error, if there is one."""
    errors = [problem for problem in problems if problem.severity == "error"]
    if errors:
        first, more = errors[0], f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        where = ", ".join(filter(None, (first.site and f"site {first.site!r}", first.file)))
        problem = " ".join(filter(None, (where, first.problem + more)))
        raise DataError("folder-problem", problem=problem, way_out=first.way_out, problem_code=first.code)


def natural(names: Iterable[str]) -> list[str]:
    """Names in natural order: "9" before "10", "a" next to "A"."""
    return sorted(names, key=natural_key)


def natural_key(name: str) -> tuple[list[str | int], str]:
    pieces = re.split(r"([0-9]+)", name)
    return [int(piece) if i % 2 else piece.casefold() for i, piece in enumerate(pieces)], name


def checked_name(text: str, what: str, path: Path) -> str:
    """A name of a site or a class, refused if it cannot be shown in tables and file names."""
    if not text.strip() or not text.isprintable() or len(text) > MAX_NAME_LETTERS:
        name = shown(text[: 2 * MAX_NAME_LETTERS])
        raise DataError("invalid-name", path=shown(path), name=name, what=what, most=MAX_NAME_LETTERS)
    return text


@dataclass(frozen=True, slots=True, eq=False)
class ArrayRow:
    """One row of a prepared .npz, (h, w) or (h, w, 3), with its class."""

    where: str
    pixels: Pixels
    label: str
    part: Part
    patient: str = ""

    def header(self) -> Header:
        return Header(self.pixels.shape[1], self.pixels.shape[0], self.pixels.ndim == 2)

    def read(self, depth: Depth = Depth()) -> Picture:
        return Picture(Image.fromarray(np.ascontiguousarray(self.pixels)))


@dataclass(frozen=True, slots=True, eq=False)
class SiteImages:
    """The images of one site, not yet read. `stamp` changes whenever the files change."""

    name: str
    images: Sequence[ImageFile | ArrayRow]
    stamp: tuple[object, ...]

    @property
    def is_split(self) -> bool:
        """Whether the owner chose the test images."""
        return any(image.part == "test" for image in self.images)


def site_of_files(name: str, images: Sequence[ImageFile]) -> SiteImages:
    return SiteImages(name, images, tuple((i.where, i.label, i.part, i.patient, _stamp(i.path)) for i in images))


def site_of_npz(name: str, path: Path, root: Path) -> SiteImages:
    """The rows of a prepared .npz inside `root`, training rows first; the test part is optional."""
    with regular_file(path, root), open_npz(path) as archive:
        members = archive.namelist()
    parts = PARTS if "test_x.npy" in members else PARTS[:1]
    arrays, rows = read_domain(path, parts), list[ArrayRow]()
    for part in parts:
        x = np.asarray(arrays[f"{part}_x"])  # a plain view: rows of a memmap are large objects
        for row, label in enumerate(arrays[f"{part}_y"]):
            where = f"{shown(path.name)}, {part}_x[{row}]"
            rows.append(ArrayRow(where, x[row], str(label), "test" if part == "test" else "train"))
    if not rows:
        raise ImageError("npz-without-images", path=path)
    return SiteImages(name, rows, (name, _stamp(path)))


def _stamp(path: Path) -> tuple[int, ...]:
    """Size and times; zeros for a missing file, for which reading raises an error."""
    try:
        info = path.stat()
    except (OSError, ValueError):
        return (0, 0, 0)
    return (info.st_size, info.st_mtime_ns, info.st_ctime_ns)
