"""Problems of a user's images: how they are reported, and the names of files, sites and classes in them."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fedlgd.core.errors import DataError

LONGEST_NAME = 100


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem of a folder of images and what to do about it: an error stops a run, a warning does not."""

    severity: Literal["error", "warning"]
    site: str
    file: str
    problem: str
    way_out: str


class ImageError(DataError):
    """A file that cannot be used as an image: what is wrong with it, and what to do."""

    def __init__(self, path: Path, problem: str, way_out: str = "replace it or remove it") -> None:
        self.problem, self.way_out = problem, way_out
        super().__init__(f"{shown(path)} {problem}; {way_out} (fedlgd data check lists all such files)")


def problem_of(error: DataError, site: str = "") -> Problem:
    """An error as a problem; messages have the form `what is wrong; what to do`."""
    problem, _, way_out = str(error).partition("; ")
    return Problem("error", site, "", problem, way_out)


def refuse_errors(problems: Sequence[Problem]) -> None:
    """Raise the first error, if there is one."""
    errors = [problem for problem in problems if problem.severity == "error"]
    if errors:
        first, more = errors[0], f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        where = ", ".join(filter(None, (first.site and f"site {first.site!r}", first.file)))
        message = " ".join(filter(None, (where, first.problem + more)))
        raise DataError(f"{message}; {first.way_out} (fedlgd data check lists all problems)")


def shown(path: Path | str) -> str:
    """A path that can be printed, whatever bytes its name has."""
    text = str(path)
    return text if text.isprintable() else text.encode("unicode_escape", "backslashreplace").decode()


def natural(names: Iterable[str]) -> list[str]:
    """Names in natural order: "9" before "10", "a" next to "A"."""
    return sorted(names, key=natural_key)


def natural_key(name: str) -> tuple[list[str | int], str]:
    pieces = re.split(r"([0-9]+)", name)
    return [int(piece) if i % 2 else piece.casefold() for i, piece in enumerate(pieces)], name


def checked_name(text: str, what: str, path: Path) -> str:
    """A name of a site or a class, refused if it cannot be shown in tables and file names."""
    if not text.strip() or not text.isprintable() or len(text) > LONGEST_NAME:
        raise DataError(
            f"{shown(path)}: {shown(text[: 2 * LONGEST_NAME])!r} is not a valid name of a {what}; "
            f"use 1 to {LONGEST_NAME} printable characters"
        )
    return text
