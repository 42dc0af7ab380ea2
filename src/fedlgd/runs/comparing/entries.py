"""The entries of a comparison and their runs: equal conditions, shared virtual sets; a failed run stops no other.

An entry is a method, its parts, and its settings:
`fedavg`, `scaffold+anchors`, `fedavg+noise`, `vhl:labels=patch`, `moon:mu=5:head=true`.
It can also be a configuration file, such as `best-fedlgd.toml` of `fedlgd tune`.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedlgd.core.errors import FedlgdError, SettingError
from fedlgd.core.files import safe_name
from fedlgd.core.text import plural
from fedlgd.data.federation import Federation
from fedlgd.engines.loop import Loop
from fedlgd.engines.registry import Engine
from fedlgd.methods import registry
from fedlgd.methods.parts import name_of
from fedlgd.rundir.records import RoundRecord, committed_records
from fedlgd.rundir.sweep import entry_folder
from fedlgd.runs.comparing.reuse import copy_run, find_equal
from fedlgd.runs.config import Config, resolve
from fedlgd.runs.parse import parse_assignment, read_toml
from fedlgd.runs.run import execute


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of a comparison. `base`: the content of its configuration file, if it has one."""

    spec: str
    method: str
    settings: Mapping[str, Any]
    note: str
    base: Mapping[str, Any] = field(default_factory=dict)

    @property
    def folder(self) -> str:
        if self.base:
            return safe_name(Path(self.spec).stem)
        return entry_folder(self.spec)


@dataclass(frozen=True, slots=True)
class Job:
    """One run of a comparison. `library`: a folder of runs, of which one with the same configuration is copied."""

    entry: Entry
    config: Config
    folder: Path
    library: Path | None = None

    @property
    def label(self) -> str:
        return self.config.method.label + (f" ({self.entry.note})" if self.entry.note else "")


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a job: the error if it failed, otherwise the mean accuracy after the last round."""

    job: Job
    error: str = ""
    accuracy: float = math.nan


def parse_entry(spec: str) -> Entry:
    """Parse `method+part:setting=value:...`; a colon before a word without `=` is part of `module:Class`."""
    spec = spec.strip()
    if spec.endswith(".toml"):
        base = read_toml(Path(spec))
        config = resolve(base)
        return Entry(spec, name_of(config.method), {}, "tuned" if config.tuned else Path(spec).stem, base)
    words = spec.split(":")
    assignments = [word for word in words if "=" in word]
    method = ":".join(word for word in words if "=" not in word)
    registry.recipe(method)
    return Entry(spec, method, dict(map(parse_assignment, assignments)), ", ".join(assignments))


def plan(
    entries: Sequence[Entry],
    seeds: int,
    out: Path,
    assignments: Mapping[str, Any],
    preset: str = "",
    steps: int = 0,
) -> list[Job]:
    """Each entry with each seed. `assignments` apply to all entries; `steps` above 0: SGD steps per round."""
    _refuse_unused(entries, assignments)
    _refuse_twice(entries)
    more = {"local.steps": steps} if steps else {}
    jobs = [
        job_of(
            replace(entry, settings={**entry.settings, **more}),
            {**assignments, "seed": seed},
            out / entry.folder / f"seed{seed}",
            preset,
        )
        for entry in entries
        for seed in range(seeds)
    ]
    _refuse_other_data(jobs)
    return jobs


def job_of(entry: Entry, assignments: Mapping[str, Any], folder: Path, preset: str = "") -> Job:
    """The run of an entry with these settings, of which the entry's own win."""
    settings = {**for_method(entry.method, assignments), **entry.settings, "method": entry.method}
    try:
        return Job(entry, resolve(entry.base, settings, preset), folder)
    except SettingError as error:
        hint = "NAME.path=value sets it only for the method NAME, NAME:path=value in --methods only for one entry"
        raise SettingError(f"method {entry.method}: {error} ({hint})") from error


def for_method(method: str, assignments: Mapping[str, Any]) -> dict[str, Any]:
    """`fedprox.mu` applies to FedProx only; a setting that a method fixes, such as `train_on`, to the others."""
    base, own, fixed = method.partition("+")[0], {}, registry.fixed(registry.find_method(method))
    for path, value in assignments.items():
        first, _, rest = path.partition(".")
        if first in registry.names():
            own.update({rest: value} if first == base else {})
        elif path not in fixed:
            own[path] = value
    return own


def _refuse_unused(entries: Sequence[Entry], assignments: Mapping[str, Any]) -> None:
    """A setting that applies to no method is an error."""
    for path, value in assignments.items():
        if not any(for_method(entry.method, {path: value}) for entry in entries):
            compared = ", ".join(entry.method for entry in entries)
            raise SettingError(
                f"setting {path!r} applies to none of the compared methods ({compared}); "
                "leave it out, or add a method that has it"
            )


def _refuse_twice(entries: Sequence[Entry]) -> None:
    seen: dict[str, Entry] = {}
    for entry in entries:
        if (first := seen.setdefault(entry.folder, entry)) is not entry:
            both = repr(entry.spec) if entry.spec == first.spec else f"{first.spec!r} and {entry.spec!r}"
            raise SettingError(
                f"--methods has {both} twice; name it once, or give each its own settings: "
                f"{entry.method}:local.lr=0.1 (for more repetitions use --seeds)"
            )


def _refuse_other_data(jobs: Sequence[Job]) -> None:
    """Configuration files can name different federations."""
    for job in jobs:
        if job.config.data != jobs[0].config.data:
            raise SettingError(
                f"{job.entry.spec} is for other data ({job.config.data.name}) than {jobs[0].entry.spec} "
                f"({jobs[0].config.data.name}); name the data of the comparison: fedlgd compare DATA ..."
            )


def matched_steps(per_class: int, anchors: int, classes: int, batch: int, epochs: int) -> int:
    """The SGD steps of FedLGD in an unselected round, E ceil((n_v + n_g) / b): a budget for every method."""
    return epochs * math.ceil(classes * (per_class + anchors) / batch)


def budget(jobs: Sequence[Job], steps: int = 0) -> str:
    """The budget of a comparison as text; `steps`: those of every method, if they are matched."""
    methods = [job.config.method for job in jobs]
    counts = {steps} if steps else {getattr(getattr(method, "local", None), "steps", 0) for method in methods}
    if len(counts) > 1:
        return "budget: the numbers of SGD steps per round differ (local.steps)"
    if count := counts.pop():
        return f"budget: {plural(count, 'SGD step')} per round at each site, for every method"
    more = any(hasattr(method, "anchors") for method in methods)
    return "budget: equal epochs for every method" + ("; those with anchors take more steps" if more else "")


def equal_run(job: Job, federation: Federation) -> Path | None:
    """The run to copy in place of computing this one: none if the job has begun itself."""
    if job.library is None or job.folder.exists():
        return None
    return find_equal(job.library, job.config, federation)


def known_run(job: Job, federation: Federation) -> str:
    """In parentheses why a job needs no computing: ` (finished)`, ` (a copy of ...)`; empty if it does."""
    if equal := equal_run(job, federation):
        return f" (a copy of {equal})"
    with suppress(FedlgdError):  # a damaged folder: the run itself says so
        if len(committed_records(job.folder)) > job.config.plan.rounds:
            return " (finished)"
    return ""


def run_job(
    job: Job,
    federation: Federation,
    command: str,
    on_round: Callable[[RoundRecord], None] | None = None,
    engine: Engine = Loop(),
) -> Outcome:
    """Run or resume one job; an error is returned as an outcome, so that the other jobs continue."""
    try:
        if equal := equal_run(job, federation):
            copy_run(equal, job.folder, job.label)
        result = execute(job.config, federation, job.folder, on_round, command, job.label, engine)
    except Exception as error:
        return Outcome(job, f"{type(error).__name__}: {error}")
    return Outcome(job, accuracy=result.records[-1].accuracy)
