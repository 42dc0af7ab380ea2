"""Detects the layout of a folder of images: its sites, classes and parts, and files that do not belong there.

A table is a CSV file with the columns path, site, label and optionally split and patient.
"""

import csv
import io
import os
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from fedlgd.core.errors import DataError, similar_path
from fedlgd.data.dicom import is_dicom
from fedlgd.data.images import SUFFIXES, ImageFile, Part, regular_file, shown
from fedlgd.data.own import sites as own
from fedlgd.data.own.sites import Problem, SiteImages, checked_name

MANIFEST = "manifest.csv"
COLUMNS = ("path", "site", "label")
OPTIONAL = ("split", "patient")
PART_NAMES: dict[str, Part] = {"train": "train", "training": "train", "test": "test", "testing": "test", "": ""}

Row = dict[str, str]


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
            problems.append(own.problem_of(error, shown(row["site"]), f"{shown(file.name)}, line {number}"))
    problems += _incomplete(shown(file.name), sites)
    if not (sites or problems):
        raise DataError("table-without-images", path=shown(file), columns=COLUMNS)
    return [own.site_of_files(name, sites[name]) for name in own.natural(sites)]


def _incomplete(file: str, sites: Mapping[str, list[ImageFile]]) -> Iterator[Problem]:
    """Sites whose columns split or patient are filled in some lines only."""
    for name, images in sites.items():
        if {image.part for image in images} not in ({""}, {"train"}, {"train", "test"}):
            yield own.found_error("split-incomplete", name, file)
        if len({bool(image.patient) for image in images}) > 1:
            yield own.found_error("patient-incomplete", name, file)


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
            places = {name: names.get(name, name).lower() for name in (*COLUMNS, *OPTIONAL)}
            missing = [places[name] for name in (*COLUMNS, *names) if places[name] not in columns]
            if missing:
                raise DataError("table-without-column", path=shown(file), missing=missing, columns=columns)
            reader = csv.reader(lines, delimiter=delimiter)
            for values in reader:
                row = dict(zip(columns, (value.strip() for value in values), strict=False))
                if any(row.values()):
                    yield reader.line_num + 1, {name: row.get(place, "") for name, place in places.items()}
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError("table-unreadable", path=shown(file), error=error) from error


JUNK = ("thumbs.db", "ehthumbs.db", "desktop.ini", "__macosx", "@eadir", "$recycle.bin", "lost+found", "dicomdir")
LAYOUTS = (
    "site/class/image, site/train/class/image with site/test/class/image, "
    f"one site.npz per site, or a {MANIFEST} with the columns path, site, label and optionally split"
)
MAX_NAMES_IN_ERROR = 8


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
        return tuple(own.natural({image.label for site in self.sites for image in site.images}))


@dataclass(frozen=True)
class Names:
    """How the owner calls things. columns: our names of columns of a table and theirs. classes: theirs and ours;
    "site/class" is the class of one site. patient: a pattern whose group is the patient in the name of a file."""

    columns: Mapping[str, str] = field(default_factory=dict)
    classes: Mapping[str, str] = field(default_factory=dict)
    patient: re.Pattern[str] | None = None

    def tree(self, path: Path, layout: str, sites: Sequence[SiteImages], problems: list[Problem]) -> Tree:
        sites = [self._applied(site, problems) for site in sites]
        return Tree(path, layout, tuple(sites), (*problems, *_equal_names(sites)))

    def _applied(self, site: SiteImages, problems: list[Problem]) -> SiteImages:
        """The images with our names of their classes, and with their patients."""
        images = []
        for image in site.images:
            label = self.classes.get(f"{site.name}/{image.label}", self.classes.get(image.label, image.label))
            found = self.patient and isinstance(image, ImageFile) and self.patient.search(image.path.name)
            if self.patient and isinstance(image, ImageFile) and not found:
                pattern = self.patient.pattern
                problems.append(own.found_error("name-without-patient", site.name, image.where, pattern=pattern))
            images.append(replace(image, label=label, patient=found[1] if found else image.patient))
        stamp = (site.stamp, sorted(self.classes.items()), self.patient)
        return replace(site, images=images, stamp=stamp) if self.classes or self.patient else site


def survey(path: Path, names: Names = Names()) -> Tree:
    """The sites under `path`, by the layout that fits; no image is opened yet."""
    if not path.exists():
        hint = similar_path(path) or "; correct the path"
        raise DataError("no-such-path", path=shown(path), hint=hint)
    root, problems = path.resolve(), list[Problem]()
    if path.is_dir():
        layout, sites = _survey_folder(path, root, problems, names.columns)
    elif path.suffix.lower() == ".csv":
        layout, sites = "csv", read_table(path, problems, names.columns)
    elif path.suffix.lower() == ".npz":
        layout, sites = "npz", _npz_sites([path], root.parent, problems)
    else:
        raise DataError("unknown-layout", path=shown(path), layouts=LAYOUTS)
    return names.tree(path, layout, sites, problems)


def survey_site(path: Path, name: str, names: Names = Names()) -> Tree:
    """One site: a folder with class folders (or train and test folders with them), a table, or its .npz file."""
    if not path.is_dir() or (path / MANIFEST).exists():
        tree = survey(path, Names(names.columns))
        if len(tree.sites) != 1:
            raise DataError("not-one-site", path=shown(path), sites=len(tree.sites))
        problems = [each for each in tree.problems if each.site or each.file]
        return names.tree(path, tree.layout, [replace(tree.sites[0], name=name)], problems)
    problems = list[Problem]()
    images = _site(path.resolve(), path.resolve(), problems)
    if not images:
        raise DataError("site-without-images", path=shown(path))
    return names.tree(path, "one site", [own.site_of_files(name, images)], problems)


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
            sites.append(own.site_of_files(checked_name(folder.name, "site", folder), images))
        else:
            problems.append(_empty(folder, root, folder.name))
    if not sites:
        raise DataError("no-site-with-images", path=shown(path), found=_seen(folders), layouts=LAYOUTS)
    return sites


def _npz_sites(files: Sequence[Path], root: Path, problems: list[Problem]) -> list[SiteImages]:
    """One site per .npz; unreadable ones are added to the problems."""
    sites = []
    for file in files:
        name = checked_name(file.stem, "site", file)
        try:
            sites.append(own.site_of_npz(name, file, root))
        except DataError as error:
            problems.append(own.problem_of(error, name))
    return sites


def _site(folder: Path, root: Path, problems: list[Problem]) -> list[ImageFile]:
    """The images of one site folder; other files in it are added to the problems."""
    children = list(_children(folder, root))
    folders = [child for child in children if child.is_dir()]
    if not folders and any(_is_image(child) for child in children):
        raise DataError("no-class-folders", path=shown(folder), found=_seen(children), name=shown(folder.name))
    problems += [_skipped(child, root, folder.name) for child in children if child not in folders]
    if not any(child.name.lower() in PART_NAMES for child in folders):
        return _classes(folders, "", folder.name, root, problems)
    images: list[ImageFile] = []
    for part, inner in _parts(folder, folders).items():
        inside = list(_children(inner, root))
        if any(_is_image(child) for child in inside):
            raise DataError("no-class-folders-in-part", path=shown(inner), part=part)
        images += _classes([c for c in inside if c.is_dir()], part, folder.name, root, problems)
    return images


def _parts(folder: Path, folders: list[Path]) -> dict[Part, Path]:
    """The training and the test folder; the latter is optional."""
    parts: dict[Part, Path] = {}
    for child in folders:
        part = PART_NAMES.get(child.name.lower())
        if part is None or part in parts:
            raise DataError("folder-beside-parts", path=shown(folder), found=_seen(folders), name=shown(child.name))
        parts[part] = child
    if "train" not in parts:
        raise DataError("no-train-folder", path=shown(folder))
    return parts


def _classes(folders: list[Path], part: Part, site: str, root: Path, problems: list[Problem]) -> list[ImageFile]:
    images: list[ImageFile] = []
    for folder in folders:
        label = checked_name(folder.name, "class", folder)
        children = list(_children(folder, root))
        images += [ImageFile(child, root, label, part) for child in children if _is_image(child)]
        problems += [_skipped(child, root, site) for child in children if not _is_image(child)]
        if not children:
            problems.append(_empty(folder, root, site))
    return images


def _children(folder: Path, root: Path) -> Iterator[Path]:
    """The content of a folder in natural order, without hidden files and files of operating systems."""
    if not folder.resolve().is_relative_to(root):
        raise DataError("link-out-of-folder", path=shown(folder), root=shown(root))
    try:
        names = os.listdir(folder)  # noqa: PTH208
    except OSError as error:
        raise DataError("folder-cannot-be-listed", path=shown(folder), error=error.strerror) from error
    for name in sorted(names, key=own.natural_key):
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


def _skipped(path: Path, root: Path, site: str) -> Problem:
    kind = "folder-in-class" if path.is_dir() else "image-outside-class" if _is_image(path) else "not-an-image"
    return own.found_warning(kind, shown(site), shown(path.relative_to(root)))


def _empty(folder: Path, root: Path, site: str) -> Problem:
    return own.found_warning("folder-without-images", shown(site), shown(folder.relative_to(root)))


def _seen(paths: list[Path]) -> str:
    names = [shown(path.name) + ("/" if path.is_dir() else "") for path in paths]
    more = f" and {len(names) - MAX_NAMES_IN_ERROR} more" if len(names) > MAX_NAMES_IN_ERROR else ""
    return (", ".join(names[:MAX_NAMES_IN_ERROR]) or "nothing") + more


def _equal_names(sites: Sequence[SiteImages]) -> Iterator[Problem]:
    """Class names that differ only in case, whitespace or the encoding of an accent."""
    variants: dict[str, dict[str, str]] = {}
    for site in sites:
        for label in own.natural({image.label for image in site.images}):
            plain = " ".join(unicodedata.normalize("NFKC", label).casefold().replace("_", " ").split())
            variants.setdefault(plain, {}).setdefault(label, site.name)
    for names in variants.values():
        if len(names) > 1:
            listed = ", ".join(f"{name!r} (site {site!r})" for name, site in names.items())
            yield own.found_error("class-names-alike", count=len(names), names=listed, mapping="=".join(names))
