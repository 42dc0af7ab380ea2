"""Reads a run directory into a `Run`: settings, manifest, records and where the virtual images are.

A report must be readable where the run was not made, so nothing here needs torch or the code that trained.
"""

import json
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from fedlgd.report.run import Analysis, Manifest, Round, Run, Sheet, Unreadable

T = TypeVar("T")
FORMAT = 1
START = "start"


class ReportError(ValueError):
    """A run directory cannot be read, or there is nothing to report."""


@dataclass(frozen=True, slots=True)
class _Settings:
    seed: int
    rounds: int


def read_runs(paths: Sequence[Path]) -> tuple[tuple[Run, ...], tuple[Unreadable, ...]]:
    """The readable runs in the order given, and the rest with the reasons. At least one must be readable."""
    results = [_read_or_explain(path) for path in dict.fromkeys(paths)]
    runs = tuple(result for result in results if isinstance(result, Run))
    unreadable = tuple(result for result in results if isinstance(result, Unreadable))
    if not runs:
        raise ReportError(_nothing(unreadable))
    return runs, unreadable


def read_run(path: Path) -> Run:
    """Everything the report needs from one run directory."""
    config, settings, known = _read_settings(path / "config.toml")
    records, cut = _read_records(path / "records.jsonl")
    damage: list[str] = []
    return Run(
        path=path,
        config=config,
        settings=settings,
        seed=known.seed,
        planned=known.rounds,
        manifest=_read_manifest(path / "manifest.json"),
        records=records,
        cut=cut,
        sheets=_find_sheets(path / "virtual"),
        samples={file.stem: file for file in sorted((path / "real").glob("*.png"))},
        analysis=_read_extra(path / "analysis.json", Analysis, damage),
        audit=_read_extra(path / "audit.json", dict[str, Any], damage) or {},
        damage=tuple(damage),
    )


def _read_or_explain(path: Path) -> Run | Unreadable:
    try:
        return read_run(path)
    except ReportError as error:
        return Unreadable(path, str(error))


def _nothing(unreadable: Sequence[Unreadable]) -> str:
    if not unreadable:
        return "no run directory was given; pass at least one, e.g. fedlgd report runs/demo/fedlgd/seed0-1a2b3c"
    return "no run can be read: " + "; ".join(f"{each.path}: {each.why}" for each in unreadable)


@contextmanager
def _explained(file: Path) -> Iterator[None]:
    """Every way a file can be damaged becomes one error that names the file."""
    try:
        yield
    except FileNotFoundError:
        raise ReportError(f"{file.name} is missing") from None
    except (OSError, ValueError) as error:
        raise ReportError(f"{file.name} is damaged: {error}") from error


def _read_settings(file: Path) -> tuple[str, dict[str, Any], _Settings]:
    with _explained(file):
        text = file.read_text(encoding="utf-8")
        settings = tomllib.loads(text)
        return text, settings, msgspec.convert(settings, _Settings)


def _read_manifest(file: Path) -> Manifest:
    with _explained(file):
        content = json.loads(file.read_bytes())
        written = content.get("format") if isinstance(content, dict) else None
        if written != FORMAT:
            raise ValueError(f"format {written!r} is unknown, this version of fedlgd reads format {FORMAT}")
        return msgspec.convert(content, Manifest)


def _read_records(file: Path) -> tuple[tuple[Round, ...], bool]:
    """The records, and whether the last line was cut off by a crash. No file yet means no records yet."""
    if not file.exists():
        return (), False
    with _explained(file):
        lines = file.read_bytes().splitlines()
        cut = bool(lines) and not _is_json(lines[-1])
        whole = lines[:-1] if cut else lines
        records = tuple(msgspec.convert(json.loads(line), Round) for line in whole)
        _check_order(records)
        return records, cut


def _read_extra(file: Path, kind: type[T], damage: list[str]) -> T | None:
    """What a run may have beside its records; a damaged file is named and left out, the rest is shown."""
    if not file.exists():
        return None
    try:
        with _explained(file):
            return msgspec.convert(json.loads(file.read_bytes()), kind)
    except ReportError as error:
        damage.append(str(error))
        return None


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


def _check_order(records: Sequence[Round]) -> None:
    """A round on record twice would be counted twice in every cost."""
    for before, after in pairwise(records):
        if after.round <= before.round:
            raise ValueError(f"round {after.round} is written after round {before.round}")


def _find_sheets(folder: Path) -> tuple[Sheet, ...]:
    """All contact sheets, oldest version first. Listed, never opened by name: a manifest cannot point outside."""
    versions = [each.name for each in folder.iterdir() if _is_version(each)] if folder.is_dir() else []
    return tuple(
        Sheet(file.stem, version, file)
        for version in sorted(versions, key=_age)
        for file in sorted((folder / version).glob("*.png"))
    )


def _is_version(folder: Path) -> bool:
    return folder.is_dir() and (folder.name == START or folder.name.isdecimal())


def _age(version: str) -> int:
    return -1 if version == START else int(version)
