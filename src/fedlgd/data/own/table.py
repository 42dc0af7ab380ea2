"""A table of images: a CSV file with the columns path, site, label and optionally split and patient."""

import csv
import io
from collections.abc import Iterator, Mapping
from pathlib import Path

from fedlgd.core.errors import DataError
from fedlgd.data.images import ImageFile, Part, regular_file, shown
from fedlgd.data.own.sites import Problem, SiteImages, checked_name, found_error, natural, problem_of, site_of_files

MANIFEST = "manifest.csv"
COLUMNS = ("path", "site", "label")
OPTIONAL = ("split", "patient")
SPLITS: dict[str, Part] = {"train": "train", "training": "train", "test": "test", "testing": "test", "": ""}

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
            problems.append(problem_of(error, shown(row["site"]), f"{shown(file.name)}, line {number}"))
    problems += _incomplete(shown(file.name), sites)
    if not (sites or problems):
        raise DataError("table-without-images", path=shown(file), columns=COLUMNS)
    return [site_of_files(name, sites[name]) for name in natural(sites)]


def _incomplete(file: str, sites: Mapping[str, list[ImageFile]]) -> Iterator[Problem]:
    """Sites whose columns split or patient are filled in some lines only."""
    for name, images in sites.items():
        if {image.part for image in images} not in ({""}, {"train"}, {"train", "test"}):
            yield found_error("split-incomplete", name, file)
        if len({bool(image.patient) for image in images}) > 1:
            yield found_error("patient-incomplete", name, file)


def _image(row: Row, root: Path) -> ImageFile:
    part = SPLITS.get(row["split"].lower())
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
