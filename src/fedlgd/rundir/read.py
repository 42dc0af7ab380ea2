"""Reads run folders without torch: settings, manifest, committed records, and the paths of the images.

A damaged or missing file is a `RunError` that names it.
"""

import json
import math
import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from fedlgd.core.errors import RunError
from fedlgd.core.files import reading
from fedlgd.rundir.manifest import MANIFEST, Manifest, read_manifest
from fedlgd.rundir.order import sort_runs
from fedlgd.rundir.records import RECORDS, RoundRecord, committed_records, refuse_links
from fedlgd.rundir.results import AUDIT, Analysis, Audit, Inversion, results_of

T = TypeVar("T")
START = "start"  # the version of virtual images made at enrolment; later versions are round numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """How settings were chosen: `fedlgd tune` writes it to a configuration, runs keep it, the report says it.

    accuracy: on `validation`, a share of the training images, after the last of `rounds`, with one seed.
    """

    settings: tuple[str, ...]
    candidates: int
    rounds: tuple[int, ...]
    cpu_seconds: float
    validation: float
    accuracy: float


@dataclass(frozen=True, slots=True)
class Sheet:
    """A contact sheet of virtual images: one row per class, one column per image."""

    folder: str
    version: str
    path: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run folder. `samples`: contact sheets of real images by folder; `damage`: files that cannot be shown.

    Audits and inversions are by the name of their file, without `.json`.
    """

    path: Path
    config: str
    settings: Mapping[str, Any]
    seed: int
    planned: int
    manifest: Manifest
    records: tuple[RoundRecord, ...] = ()
    sheets: tuple[Sheet, ...] = ()
    samples: Mapping[str, Path] = field(default_factory=dict)
    analysis: Analysis | None = None
    audits: Mapping[str, Audit] = field(default_factory=dict)
    inversions: Mapping[str, Inversion] = field(default_factory=dict)
    damage: tuple[str, ...] = ()
    tuned: Tuned | None = None

    @property
    def label(self) -> str:
        return self.manifest.label

    @property
    def done(self) -> int:
        """The number of completed rounds."""
        return sum(record.round >= 0 for record in self.records)

    @property
    def finished(self) -> bool:
        return self.done >= self.planned

    @property
    def has_cpu_time(self) -> bool:
        """Is CPU time known for all the work, and was it done by processors?"""
        known = all(record.seconds.keys() <= record.cpu.keys() for record in self.records)
        return known and self.manifest.engine.device == "cpu"

    @property
    def evaluated(self) -> tuple[RoundRecord, ...]:
        return tuple(record for record in self.records if record.scores)

    @property
    def final(self) -> RoundRecord | None:
        """The last evaluated round."""
        return self.evaluated[-1] if self.evaluated else None


@dataclass(frozen=True, slots=True)
class _Plan:
    seed: int
    rounds: int
    tuned: Tuned | None = None


def run_folders(path: Path) -> list[Path]:
    """The path itself if it is a run folder, and all run folders inside it, methods of a comparison as given.

    Hidden folders are left out.
    """
    found = []
    for folder, inside, names in os.walk(path):  # it passes over a folder that is removed meanwhile
        inside[:] = (name for name in inside if not name.startswith("."))
        if {MANIFEST, "config.toml"} & set(names):
            found.append(Path(folder))
    return sort_runs(path, found)


def read_runs(paths: Sequence[Path]) -> tuple[tuple[Run, ...], tuple[str, ...]]:
    """The readable runs in the order given, and an error message for each of the others."""
    runs, errors = [], []
    for path in dict.fromkeys(paths):
        try:
            runs.append(read_run(path))
        except RunError as error:
            errors.append(str(error))
    if errors and not runs:
        raise RunError("no-readable-run", errors="; ".join(errors))
    if not runs:
        raise RunError("no-run-folder-given")
    return tuple(runs), tuple(errors)


def read_run(path: Path) -> Run:
    """Everything the report needs from one run folder."""
    refuse_links(path)
    file, damage = path / "config.toml", list[str]()
    if not file.exists():
        raise RunError("run-file-missing", file=str(file))
    with reading(file):
        config = file.read_text(encoding="utf-8")
        settings = tomllib.loads(config)
        plan = msgspec.convert(settings, _Plan)
    records = _read_records(path)
    return Run(
        path=path,
        config=config,
        settings=settings,
        seed=plan.seed,
        planned=plan.rounds,
        manifest=read_manifest(path, as_written=False),
        records=records,
        sheets=_find_sheets(path / "virtual", records[-1].round if records else -1),
        samples={file.stem: file for file in sorted((path / "real").glob("*.png"))},
        analysis=_read_optional(path / "analysis.json", Analysis, damage),
        audits=_read_all(path, AUDIT, Audit, damage),
        inversions=_read_all(path, "invert", Inversion, damage),
        damage=tuple(damage),
        tuned=plan.tuned,
    )


def _read_records(path: Path) -> tuple[RoundRecord, ...]:
    with reading(path / RECORDS):
        records = tuple(committed_records(path))
        for before, after in pairwise(records):
            if after.round <= before.round:  # its cost would be counted twice
                raise ValueError(f"round {after.round} is recorded after round {before.round}")
        for record in records:
            scores = [0 <= s.accuracy <= 1 and len(s.correct) == len(s.total) for s in record.scores.values()]
            times = (record.wall, *record.seconds.values(), *record.cpu.values())
            if not all(scores) or not all(map(math.isfinite, times)):
                raise ValueError(f"the scores or seconds of round {record.round} are not valid")
        return records


def _read_optional(file: Path, kind: type[T], damage: list[str]) -> T | None:
    """A damaged optional file is named in `damage`, and the rest of the run is shown."""
    if not file.exists():
        return None
    try:
        with reading(file):
            return msgspec.convert(json.loads(file.read_bytes()), kind)
    except RunError as error:
        damage.append(f"{file.name} is damaged ({error.__cause__})")
        return None


def _read_all(folder: Path, name: str, kind: type[T], damage: list[str]) -> dict[str, T]:
    """The results `name.json`, `name-2.json` and so on, the oldest first."""
    found = {file.stem: _read_optional(file, kind, damage) for file in results_of(folder, name)}
    return {stem: each for stem, each in found.items() if each is not None}


def _find_sheets(folder: Path, last: int) -> tuple[Sheet, ...]:
    """The contact sheets up to round `last`, oldest version first: later ones are not committed.

    They are listed, so a name in a manifest cannot point outside.
    """
    ages = {START: -1} | {each.name: int(each.name) for each in folder.glob("*") if each.name.isdecimal()}
    return tuple(
        Sheet(file.stem, version, file)
        for version in sorted(ages, key=ages.__getitem__)
        if ages[version] <= last
        for file in sorted((folder / version).glob("*.png"))
    )
