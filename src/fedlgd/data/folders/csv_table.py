"""A table of images: a CSV file with the columns path, site, label and perhaps split."""

import csv
import io
from collections.abc import Iterator
from pathlib import Path

from fedlgd.core.errors import DataError
from fedlgd.data.holding import Entry, Files, Part, Problem, checked_name, natural
from fedlgd.data.images import regular_file, shown

MANIFEST = "manifest.csv"
COLUMNS = ("path", "site", "label")
SPLITS: dict[str, Part] = {"train": "train", "training": "train", "test": "test", "testing": "test", "": ""}

Row = dict[str, str]


def read_listing(file: Path) -> tuple[list[Files], list[Problem]]:
    """The sites of a CSV file, whose paths are relative to its folder, and the lines that make no sense."""
    root = file.parent.resolve()
    sites: dict[str, list[Entry]] = {}
    problems: list[Problem] = []
    lines: dict[Path, int] = {}
    for number, row in _rows(file, root):
        where = f"{shown(file.name)}, line {number}"
        try:
            entry = _entry(row, root)
            if entry.path in lines:
                raise DataError(f"lists {shown(row['path'])!r} again (first in line {lines[entry.path]}); keep one")
            lines[entry.path] = number
            sites.setdefault(checked_name(row["site"], "site", file), []).append(entry)
        except DataError as error:
            problem, _, way_out = str(error).rpartition("; ")
            problems.append(Problem("error", shown(row["site"]), where, problem, way_out))
    problems += [_half_divided(file, site) for site, entries in sites.items() if _is_half_divided(entries)]
    if not (sites or problems):
        raise DataError(f"{shown(file)} lists no image; give a line for each with {', '.join(COLUMNS)}")
    return [Files(name, root, tuple(sites[name])) for name in natural(sites)], problems


def _entry(row: Row, root: Path) -> Entry:
    part = SPLITS.get(row["split"].lower())
    if part is None:
        raise DataError(f"split is {shown(row['split'])!r}; write train, test, or leave it empty in every line")
    if not row["path"]:
        raise DataError("has no path; name the image file relative to the table")
    path = root / row["path"]
    if "\\" in row["path"] and not path.exists():
        path = root / row["path"].replace("\\", "/")
    return Entry(path, checked_name(row["label"], "class", path), part)


def _is_half_divided(entries: list[Entry]) -> bool:
    parts = {entry.part for entry in entries}
    return parts not in ({""}, {"train"}, {"train", "test"})


def _half_divided(file: Path, site: str) -> Problem:
    problem = "needs training images beside its test images, and a split in all of its lines or in none"
    return Problem("error", site, shown(file.name), problem, "complete the column split")


def _rows(file: Path, root: Path) -> Iterator[tuple[int, Row]]:
    """The lines with their numbers; names of columns in any case, separated by comma, semicolon or tab."""
    try:
        with regular_file(file, root) as raw, io.TextIOWrapper(raw, encoding="utf-8-sig", newline="") as lines:
            head = lines.readline()
            columns = [name.strip().lower() for name in next(csv.reader([head], delimiter=_delimiter(head)), [])]
            missing = [name for name in COLUMNS if name not in columns]
            if missing:
                raise DataError(f"{shown(file)} has no column {', '.join(missing)}; its first line names {columns}")
            reader = csv.reader(lines, delimiter=_delimiter(head))
            for values in reader:
                row = dict(zip(columns, (value.strip() for value in values), strict=False))
                if any(row.values()):
                    yield reader.line_num + 1, {name: row.get(name, "") for name in (*COLUMNS, "split")}
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{shown(file)} cannot be read as a table ({error}); save it as CSV in UTF-8") from error


def _delimiter(head: str) -> str:
    return max(",;\t", key=head.count)
