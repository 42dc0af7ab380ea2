"""Finds the sites of a user's images with their classes and parts, by the layout of the folder, and what is wrong.

A table is a CSV file with the columns path, site, label and optionally split and patient.
"""

import csv
import io
import os
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedlgd.core.errors import DataError, message, similar_path
from fedlgd.data.arrays import PARTS, open_npz, read_domain
from fedlgd.data.images import SUFFIXES, ArrayRow, ImageError, ImageFile, Part, is_dicom, regular_file, shown

MANIFEST = "manifest.csv"
REQUIRED_COLUMNS = ("path", "site", "label")
COLUMNS = (*REQUIRED_COLUMNS, "split", "patient")
PART_NAMES: dict[str, Part] = {"train": "train", "training": "train", "test": "test", "testing": "test", "": ""}
JUNK = (
    *("thumbs.db", "ehthumbs.db", "desktop.ini", "__macosx", "@eadir", "$recycle.bin", "lost+found", "dicomdir"),
    *("readme", "readme.md", "readme.txt"),
)
LAYOUTS = (
    "site/class/image, site/train/class/image with site/test/class/image, "
    f"one site.npz per site, or a {MANIFEST} with the columns path, site, label and optionally split"
)
MAX_NAMES_IN_ERROR = 8
MAX_NAME_LETTERS = 100

Row = dict[str, str]


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
    """A problem that stops a run. Its message ends with a solution, after a semicolon."""
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


def plain_name(label: str) -> str:
    """A class without case, repeated whitespace and the encoding of its accents."""
    return " ".join(unicodedata.normalize("NFKC", label).casefold().replace("_", " ").split())


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


def read_table(file: Path, problems: list[Problem], names: Mapping[str, str]) -> list[SiteImages]:
    """The sites of a CSV file, whose paths are relative to its folder; wrong lines are added to the problems.

    names: our names of columns and those of the file, where they differ.
    """
    root = file.parent.resolve()
    sites: dict[str, list[ImageFile]] = {}
    lines: dict[Path, int] = {}
    for number, row in _rows(file, root, names):
        try:
            image = _image(row, root)
            if image.path in lines:
                raise DataError("row-listed-twice", path=shown(row["path"]), first=lines[image.path])
            lines[image.path] = number
            sites.setdefault(checked_name(row["site"], "site", file), []).append(image)
        except DataError as error:
            problems.append(problem_of(error, shown(row["site"]), f"{shown(file.name)}, line {number}"))
    for name, images in sites.items():  # the columns split and patient are filled in all lines of a site or in none
        if {image.part for image in images} not in ({""}, {"train"}, {"train", "test"}):
            problems.append(found_error("split-incomplete", name, shown(file.name)))
        if len({bool(image.patient) for image in images}) > 1:
            problems.append(found_error("patient-incomplete", name, shown(file.name)))
    if not (sites or problems):
        raise DataError("table-without-images", path=shown(file), columns=REQUIRED_COLUMNS)
    return [site_of_files(name, sites[name]) for name in natural(sites)]


def _image(row: Row, root: Path) -> ImageFile:
    part = PART_NAMES.get(row["split"].lower())
    if part is None:
        raise DataError("row-with-unknown-split", split=shown(row["split"]))
    if not row["path"]:
        raise DataError("row-without-path")
    path = root / row["path"]
    if "\\" in row["path"] and not path.exists():
        path = root / row["path"].replace("\\", "/")
    return ImageFile(path, root, checked_name(row["label"], "class", path), part, row["patient"])


def _rows(file: Path, root: Path, names: Mapping[str, str]) -> Iterator[tuple[int, Row]]:
    """The lines with their numbers; column names in any case, separated by comma, semicolon or tab."""
    try:
        with regular_file(file, root) as raw, io.TextIOWrapper(raw, encoding="utf-8-sig", newline="") as lines:
            head = lines.readline()
            delimiter = max(",;\t", key=head.count)
            columns = [name.strip().lower() for name in next(csv.reader([head], delimiter=delimiter), [])]
            places = {name: names.get(name, name).lower() for name in COLUMNS}
            missing = [places[name] for name in (*REQUIRED_COLUMNS, *names) if places[name] not in columns]
            if missing:
                raise DataError("table-without-column", path=shown(file), missing=missing, columns=columns)
            reader = csv.reader(lines, delimiter=delimiter)
            for values in reader:
                row = dict(zip(columns, (value.strip() for value in values), strict=False))
                if any(row.values()):
                    yield reader.line_num + 1, {name: row.get(place, "") for name, place in places.items()}
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError("table-unreadable", path=shown(file), error=error) from error


@dataclass(frozen=True)
class Tree:
    """The sites found under a path, and the problems found with them."""

    path: Path
    layout: str
    sites: tuple[SiteImages, ...]
    problems: tuple[Problem, ...] = ()

    @property
    def classes(self) -> tuple[str, ...]:
        """All classes of all sites, in natural order."""
        return tuple(natural({image.label for site in self.sites for image in site.images}))


@dataclass(frozen=True)
class Names:
    """How the owner calls things. columns: our names of columns of a table and theirs. classes: theirs and ours;
    "site/class" is the class of one site. patient: a pattern whose group is the patient in the name of a file."""

    columns: Mapping[str, str] = field(default_factory=dict)
    classes: Mapping[str, str] = field(default_factory=dict)
    patient: re.Pattern[str] | None = None

    def applied(self, site: SiteImages, problems: list[Problem]) -> SiteImages:
        """The images with our names of their classes, and with their patients."""
        images = []
        for image in site.images:
            label = self.classes.get(f"{site.name}/{image.label}", self.classes.get(image.label, image.label))
            found = self.patient and isinstance(image, ImageFile) and self.patient.search(image.path.name)
            if self.patient and isinstance(image, ImageFile) and not found:
                pattern = self.patient.pattern
                problems.append(found_error("name-without-patient", site.name, image.where, pattern=pattern))
            images.append(replace(image, label=label, patient=found[1] if found else image.patient))
        stamp = (site.stamp, sorted(self.classes.items()), self.patient)
        return replace(site, images=images, stamp=stamp) if self.classes or self.patient else site


def survey(path: Path, names: Names = Names(), only: str = "") -> Tree:
    """The sites under `path`, by the layout that fits; no image is opened yet.

    only: the name of the one site that all images belong to. Then a folder has its class folders, or train and test
    folders with them.
    """
    if not path.exists():
        hint = similar_path(path) or "; correct the path"
        raise DataError("no-such-path", path=shown(path), hint=hint)
    root, problems = path.resolve(), list[Problem]()
    if only and path.is_dir() and not (path / MANIFEST).exists():
        layout, sites = "one site", [site_of_files(only, _site(root, root, problems))]
        if not sites[0].images:
            raise DataError("site-without-images", path=shown(path))
    elif path.is_dir():
        layout, sites = _survey_folder(path, root, problems, names.columns)
    elif path.suffix.lower() == ".csv":
        layout, sites = "csv", read_table(path, problems, names.columns)
    elif path.suffix.lower() == ".npz":
        layout, sites = "npz", _npz_sites([path], root.parent, problems)
    else:
        raise DataError("unknown-layout", path=shown(path), layouts=LAYOUTS)
    if only and len(sites) != 1:
        raise DataError("not-one-site", path=shown(path), sites=len(sites))
    named = [names.applied(replace(site, name=only or site.name), problems) for site in sites]
    return Tree(path, layout, tuple(named), (*problems, *_equal_names(named)))


def _survey_folder(
    path: Path, root: Path, problems: list[Problem], columns: Mapping[str, str]
) -> tuple[str, list[SiteImages]]:
    children = list(_children(root, root))
    for child in children:
        if child.name.lower() == MANIFEST:
            return "csv", read_table(child, problems, columns)
    packed = [child for child in children if child.suffix.lower() == ".npz"]
    folders = [child for child in children if child.is_dir()]
    if packed and folders:
        raise DataError("npz-beside-folders", path=shown(path), found=_seen(children))
    problems += [_skipped(child, root, "") for child in children if child not in packed and child not in folders]
    if packed:
        return "npz", _npz_sites(packed, root, problems)
    return "folders", _folder_sites(path, root, folders, problems)


def _folder_sites(path: Path, root: Path, folders: list[Path], problems: list[Problem]) -> list[SiteImages]:
    """One site per folder; empty folders are added to the problems."""
    parts = [shown(folder.name) for folder in folders if folder.name.lower() in PART_NAMES]
    if parts:
        raise DataError("parts-above-sites", path=shown(path), parts=parts)
    sites = []
    for folder in folders:
        if images := _site(folder, root, problems):
            sites.append(site_of_files(checked_name(folder.name, "site", folder), images))
        else:
            problems.append(_skipped(folder, root, folder.name, "folder-without-images"))
    if not sites:
        raise DataError("no-site-with-images", path=shown(path), found=_seen(folders), layouts=LAYOUTS)
    return sites


def _npz_sites(files: Sequence[Path], root: Path, problems: list[Problem]) -> list[SiteImages]:
    """One site per .npz; unreadable ones are added to the problems."""
    sites = []
    for file in files:
        name = checked_name(file.stem, "site", file)
        try:
            sites.append(site_of_npz(name, file, root))
        except DataError as error:
            problems.append(problem_of(error, name))
    return sites


def _site(folder: Path, root: Path, problems: list[Problem]) -> list[ImageFile]:
    """The images of one site folder; other files in it are added to the problems."""
    children, images = list(_children(folder, root)), list[ImageFile]()
    folders = [child for child in children if child.is_dir()]
    if not folders and any(_is_image(child) for child in children):
        raise DataError("no-class-folders", path=shown(folder), found=_seen(children), name=shown(folder.name))
    problems += [_skipped(child, root, folder.name) for child in children if child not in folders]
    for part, above in _parts(folder, folders).items():
        beside = list(_children(above, root))
        if part and any(_is_image(child) for child in beside):
            raise DataError("no-class-folders-in-part", path=shown(above), part=part)
        for inner in (child for child in beside if child.is_dir()):
            label, inside = checked_name(inner.name, "class", inner), list(_children(inner, root))
            images += [ImageFile(child, root, label, part) for child in inside if _is_image(child)]
            problems += [_skipped(child, root, folder.name) for child in inside if not _is_image(child)]
            if not inside:
                problems.append(_skipped(inner, root, folder.name, "folder-without-images"))
    return images


def _parts(folder: Path, folders: list[Path]) -> dict[Part, Path]:
    """The training and the test folder, which is optional; or the folder itself, if the owner did not split."""
    if not any(child.name.lower() in PART_NAMES for child in folders):
        return {"": folder}
    parts: dict[Part, Path] = {}
    for child in folders:
        part = PART_NAMES.get(child.name.lower())
        if part is None or part in parts:
            raise DataError("folder-beside-parts", path=shown(folder), found=_seen(folders), name=shown(child.name))
        parts[part] = child
    if "train" not in parts:
        raise DataError("no-train-folder", path=shown(folder))
    return parts


def _children(folder: Path, root: Path) -> Iterator[Path]:
    """The content of a folder in natural order, without hidden files, files of operating systems and a README."""
    if not folder.resolve().is_relative_to(root):
        raise DataError("link-out-of-folder", path=shown(folder), root=shown(root))
    try:
        names = os.listdir(folder)  # noqa: PTH208
    except OSError as error:
        raise DataError("folder-cannot-be-listed", path=shown(folder), error=error.strerror) from error
    for name in natural(names):
        if not name.startswith(".") and name.lower() not in JUNK:
            yield folder / name


def _is_image(path: Path) -> bool:
    """By its suffix; DICOM files often have none, so their mark is read."""
    if path.suffix.lower() in SUFFIXES:
        return not path.is_dir()
    try:
        if not path.is_file():  # a pipe would be waited for
            return False
        with path.open("rb") as file:
            return is_dicom(file)
    except OSError:
        return False  # it is listed as a skipped file


def _skipped(path: Path, root: Path, site: str, kind: str = "") -> Problem:
    found = "folder-in-class" if path.is_dir() else "image-outside-class" if _is_image(path) else "not-an-image"
    return found_warning(kind or found, shown(site), shown(path.relative_to(root)))


def _seen(paths: list[Path]) -> str:
    names = [shown(path.name) + ("/" if path.is_dir() else "") for path in paths]
    more = f" and {len(names) - MAX_NAMES_IN_ERROR} more" if len(names) > MAX_NAMES_IN_ERROR else ""
    return (", ".join(names[:MAX_NAMES_IN_ERROR]) or "nothing") + more


def _equal_names(sites: Sequence[SiteImages]) -> Iterator[Problem]:
    """Class names that differ only in case, whitespace or the encoding of an accent."""
    variants: dict[str, dict[str, str]] = {}
    for site in sites:
        for label in natural({image.label for image in site.images}):
            variants.setdefault(plain_name(label), {}).setdefault(label, site.name)
    for names in variants.values():
        if len(names) > 1:
            listed = ", ".join(f"{name!r} (site {site!r})" for name, site in names.items())
            yield found_error("class-names-alike", count=len(names), names=listed, mapping="=".join(names))
