"""A table of images: a CSV file with the columns path, site, label and optionally split and patient."""

import csv
import io
from collections.abc import Iterator, Mapping
from pathlib import Path

from fedlgd.core.errors import DataError
from fedlgd.data.images import ImageFile, Part, regular_file, shown
from fedlgd.data.own.sites import Problem, SiteImages, checked_name, natural, site_of_files

MANIFEST = "manifest.csv"
COLUMNS = ("path", "site", "label")
OPTIONAL = ("split", "patient")
SPLITS: dict[str, Part] = {"train": "train", "training": "train", "test": "test", "testing": "test", "": ""}
INCOMPLETE = "needs training images besides its test images, and a split in all of its lines or in none"

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
                first = lines[image.path]
                raise DataError(
                    f"lists {shown(row['path'])!r} again (first in line {first}); keep one of the lines"
                )
            lines[image.path] = number
            sites.setdefault(checked_name(row["site"], "site", file), []).append(image)
        except DataError as error:
            problem, _, way_out = str(error).rpartition("; ")
            where = f"{shown(file.name)}, line {number}"
            problems.append(Problem("error", shown(row["site"]), where, problem, way_out))
    problems += _incomplete(shown(file.name), sites)
    if not (sites or problems):
        raise DataError(f"{shown(file)} lists no image; add one line per image with {', '.join(COLUMNS)}")
    return [site_of_files(name, sites[name]) for name in natural(sites)]


def _incomplete(file: str, sites: Mapping[str, list[ImageFile]]) -> Iterator[Problem]:
    """Sites whose columns split or patient are filled in some lines only."""
    for name, images in sites.items():
        if {image.part for image in images} not in ({""}, {"train"}, {"train", "test"}):
            yield Problem("error", name, file, INCOMPLETE, "complete the column split")
        if len({bool(image.patient) for image in images}) > 1:
            problem = "has a patient in some of its lines and none in others"
            yield Problem("error", name, file, problem, "complete the column patient")


def _image(row: Row, root: Path) -> ImageFile:
    part = SPLITS.get(row["split"].lower())
    if part is None:
        raise DataError(f"split is {shown(row['split'])!r}; write train or test, or leave it empty in every line")
    if not row["path"]:
        raise DataError("has no path; give the path of the image file relative to the table")
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
                raise DataError(
                    f"{shown(file)} has no column {', '.join(missing)}; its first line has {columns}: "
                    "rename or add it, or map it: --set data.columns=label=diagnosis"
                )
            reader = csv.reader(lines, delimiter=delimiter)
            for values in reader:
                row = dict(zip(columns, (value.strip() for value in values), strict=False))
                if any(row.values()):
                    yield reader.line_num + 1, {name: row.get(place, "") for name, place in places.items()}
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{shown(file)} cannot be read as a table ({error}); save it as CSV in UTF-8") from error
