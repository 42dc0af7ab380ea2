"""Compare methods and seeds under equal conditions: `fedlgd.compare` and `fedlgd compare`.

An entry of a comparison is a method object, or text: a method, its parts, and its settings, such as `fedavg`,
`scaffold+anchors`, `fedavg+noise`, `vhl:labels=patch`, `moon:mu=5:head=true`, or a configuration file, such as
`best-fedlgd.toml` of `fedlgd tune`. Methods share virtual sets if their settings agree, a finished run with the
same configuration can be copied, and a failed run stops no other.
"""

import math
import os
import shutil
import statistics
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fedlgd import notebook
from fedlgd.core.device import Place
from fedlgd.core.errors import FedlgdError, SettingError, did_you_mean
from fedlgd.core.files import make_folder, safe_name, writing
from fedlgd.data.federation import Federation
from fedlgd.data.suites import load
from fedlgd.engines.loop import Loop
from fedlgd.engines.registry import Engine
from fedlgd.engines.registry import engine as find_engine
from fedlgd.methods import registry
from fedlgd.methods.parts import Part, name_of
from fedlgd.methods.protocol import Method
from fedlgd.nets.registry import named_net
from fedlgd.rundir.manifest import read_manifest
from fedlgd.rundir.records import committed_records
from fedlgd.rundir.sweep import check_axes, entry_folder, points, swept, with_note
from fedlgd.runs.config import Config, RunSettings, on_federation, resolve
from fedlgd.runs.folder import check_origin
from fedlgd.runs.jobs import check_jobs, run_jobs
from fedlgd.runs.parse import parse_assignment, read_toml
from fedlgd.runs.result import Result
from fedlgd.runs.run import Listener, execute

NOT_COPIED = shutil.ignore_patterns(".lock", "*.part", "report.html")


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of a comparison. `base`: the content of its configuration file, if it has one."""

    spec: str
    method: str | Method
    settings: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""
    base: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of its method, with parts."""
        return self.method if isinstance(self.method, str) else name_of(self.method)

    @property
    def folder(self) -> str:
        return safe_name(Path(self.spec).stem) if self.base else entry_folder(self.spec)


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """One run of a comparison. `folder` None: in memory.

    `library`: a folder of runs, of which one with the same configuration is copied.
    """

    entry: Entry
    config: Config
    folder: Path | None
    library: Path | None = None

    @property
    def label(self) -> str:
        return self.config.method.label + (f" ({self.entry.note})" if self.entry.note else "")

    @property
    def title(self) -> str:
        return f"{self.label}, seed {self.config.plan.seed}"

    @property
    def group(self) -> int:
        """Virtual sets depend on the seed."""
        return self.config.plan.seed


@dataclass(frozen=True, eq=False, repr=False)
class Comparison(Mapping[str, list[Result]]):
    """The results of each method by its label, one per seed. `folder` is where they are stored, if they are.

    failed: the errors of failed runs by label and seed; calling `compare` again with the same folder repeats them.
    """

    results: dict[str, list[Result]]
    folder: Path | None = None
    failed: Mapping[str, str] = field(default_factory=dict)

    def __getitem__(self, label: str) -> list[Result]:
        return self.results[label]

    def __iter__(self) -> Iterator[str]:
        return iter(self.results)

    def __len__(self) -> int:
        return len(self.results)

    @property
    def accuracy(self) -> dict[str, dict[str, float]]:
        """Accuracy of each method at each site, the mean over seeds."""
        return {
            label: {site: statistics.fmean(each.accuracy[site] for each in results) for site in results[0].accuracy}
            for label, results in self.items()
        }

    def rows(self) -> list[tuple[str, ...]]:
        """Method, seeds, mean over sites with its standard deviation over seeds, and the sites, in percent."""
        rows = []
        for label, results in self.items():
            means = [100 * statistics.fmean(each.accuracy.values()) for each in results]
            spread = f" ± {statistics.stdev(means):.1f}" if len(means) > 1 else ""
            cells = (f"{100 * value:.1f}" for value in self.accuracy[label].values())
            rows.append((label, str(len(results)), f"{statistics.fmean(means):.1f}{spread}", *cells))
        return rows

    @property
    def head(self) -> tuple[str, ...]:
        return ("method", "seeds", "mean", *next(iter(self.values()))[0].accuracy)

    def __repr__(self) -> str:
        lines = [self.head, *self.rows()]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        table = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]
        return "\n".join([*table, *(f"failed: {title}: {error}" for title, error in self.failed.items())])

    def _repr_html_(self) -> str:
        failed = notebook.table(("failed run", "error"), list(self.failed.items())) if self.failed else ""
        return notebook.table(self.head, self.rows()) + failed


def compare(
    data: Federation | str = "builtin-digits",
    methods: Iterable[Method | str] = ("fedavg", "fedlgd"),
    *,
    seeds: int = 3,
    preset: str = "",
    sweep: Mapping[str, Sequence[Any]] | None = None,
    net: str | Mapping[str, Any] | nn.Module | Callable[..., nn.Module] = "convnet",
    features: str = "",
    out: str | Path | None = None,
    on_round: Listener | None = None,
    engine: str = "loop",
    workers: int = 0,
    device: str = "cpu",
    autocast: bool = False,
    real_samples: int | None = None,
    jobs: int = 1,
    **settings: Any,
) -> Comparison:
    """Run each method with the seeds 0, 1, ... Options and `settings` (`rounds`, `ratio`, ...) are those of `run`.

    `preset` applies to the methods that are given by name. `sweep` runs every method with each value of one or two
    settings of methods: {"pull.weight": [0, 1, 10]}. With the same seed, methods start from the same model
    and sampled sites, and share virtual sets if their settings agree. With `out`, calling it again resumes; then
    `jobs` runs can be computed at a time, in a process each. A failed run stops no other, see `failed`.
    """
    federation = load(data) if isinstance(data, str) else data
    place = Place(device=device, autocast=autocast)
    entries = list(_entries(methods, sweep or {}))
    if not entries or seeds < 1:
        raise SettingError("nothing-to-compare", methods=len(entries), seeds=seeds)
    check_jobs(jobs, torch.get_num_threads() if engine == "pool" else 1, place)
    if jobs > 1 and out is None:
        raise SettingError("jobs-in-memory", jobs=jobs)
    assignments = {**settings, "net": named_net(net, features), "real_samples": 0}
    planned = [
        replace(job, config=on_federation(job.config, federation, real_samples))
        for job in plan_jobs(entries, seeds, Path(out) if out else None, assignments, preset)
    ]
    labels = {job.label: job.entry.spec for job in planned}
    if twice := [job.label for job in planned if labels[job.label] != job.entry.spec]:
        raise SettingError("two-methods-same-label", label=twice[0])
    given, chosen = (None if isinstance(net, str | Mapping) else net), find_engine(engine, workers, place)
    found, failed = _run_all(planned, jobs, federation, on_round, chosen, given)
    return Comparison(found, Path(out) if out else None, failed)


def _run_all(
    planned: Sequence[Job],
    jobs: int,
    federation: Federation,
    on_round: Listener | None,
    engine: Engine,
    net: nn.Module | Callable[..., nn.Module] | None,
) -> tuple[dict[str, list[Result]], dict[str, str]]:
    """The results by label, in the order of `planned`, and the errors by label and seed."""
    results: dict[Job, Result] = {}

    def work(job: Job, listen: Callable[..., None]) -> None:
        heard = on_round if jobs == 1 else listen
        results[job] = run_job(job, federation, "fedlgd.compare(...)", heard, engine, net)

    with closing(run_jobs(sorted(planned, key=lambda job: job.group), jobs, work)) as running:
        errors = {ended.job: ended.error for ended in running}
    done = [job for job in planned if not errors[job]]
    if not done:
        raise SettingError("every-run-failed", runs=len(planned), error=errors[planned[0]])
    found: dict[str, list[Result]] = {}
    for job in done:
        if job not in results:  # it ran in a process of its own, and is read from its folder
            results[job] = run_job(job, federation, net_object=net)
        found.setdefault(job.label, []).append(results[job])
    return found, {job.title: error for job, error in errors.items() if error}


def _entries(methods: Iterable[Method | str], sweep: Mapping[str, Sequence[Any]]) -> Iterator[Entry]:
    """Every method at every point of a sweep."""
    check_axes(sweep)
    for method in methods:
        if isinstance(method, str):
            yield from map(parse_entry, swept([method], sweep))
            continue
        for point in points(sweep):
            yield Entry(with_note(method.label, point), method, point, with_note("", point).strip(" ()"))


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


def plan_jobs(
    entries: Sequence[Entry],
    seeds: int,
    out: Path | None,
    assignments: Mapping[str, Any],
    preset: str = "",
    steps: int = 0,
) -> list[Job]:
    """Each entry with each seed. `assignments` apply to all entries; `steps` above 0: SGD steps per round.

    Refused: a setting that applies to no method, an entry given twice, and configuration files for different data.
    """
    for path, value in assignments.items():
        if not any(for_method(entry.method, {path: value}) for entry in entries):
            raise SettingError("setting-of-no-method", path=path, methods=[entry.name for entry in entries])
    seen: dict[str, Entry] = {}
    for entry in entries:
        if (first := seen.setdefault(entry.folder, entry)) is not entry:
            both = repr(entry.spec) if entry.spec == first.spec else f"{first.spec!r} and {entry.spec!r}"
            raise SettingError("entry-twice", entries=both, method=entry.name)
    more = {"local.steps": steps} if steps else {}
    jobs = [
        job_of(
            replace(entry, settings={**entry.settings, **more}),
            {**assignments, "seed": seed},
            out / entry.folder / f"seed{seed}" if out else None,
            preset,
        )
        for entry in entries
        for seed in range(seeds)
    ]
    for job in jobs:
        if job.config.data != jobs[0].config.data:
            spec, data = job.entry.spec, job.config.data.name
            other, other_data = jobs[0].entry.spec, jobs[0].config.data.name
            raise SettingError(
                "entries-of-different-data", entry=spec, data=data, other=other, other_data=other_data
            )
    return jobs


def job_of(entry: Entry, assignments: Mapping[str, Any], folder: Path | None, preset: str = "") -> Job:
    """The run of an entry with these settings, of which the entry's own win."""
    settings = {**for_method(entry.method, assignments), **entry.settings}
    if isinstance(entry.method, str):
        try:
            return Job(entry, resolve(entry.base, {**settings, "method": entry.method}, preset), folder)
        except SettingError as error:
            raise SettingError("setting-of-entry", method=entry.method, error=error) from error
    method, of_run = entry.method, {f.name for f in fields(RunSettings)}
    for path, value in settings.items():
        if path not in of_run and path != "net":
            method = _with_setting(method, path, value, path)
    plan = RunSettings(**{path: value for path, value in settings.items() if path in of_run})
    return Job(entry, Config(method=method, plan=plan, net=settings["net"]), folder)


def for_method(method: str | Method, assignments: Mapping[str, Any]) -> dict[str, Any]:
    """`fedprox.mu` applies to FedProx only; a setting that a method fixes, such as `train_on`, to the others."""
    while isinstance(method, Part):
        method = method.method
    base = method.partition("+")[0] if isinstance(method, str) else method.name
    own, fixed = {}, registry.fixed(registry.find_method(base) if isinstance(method, str) else type(method))
    for path, value in assignments.items():
        first, _, rest = path.partition(".")
        if first in registry.names():
            own.update({rest: value} if first == base else {})
        elif path not in fixed:
            own[path] = value
    return own


def _with_setting(settings: Any, path: str, value: Any, whole: str) -> Any:
    """A method, or a section of its settings, with the setting at `path` changed."""
    first, _, rest = path.partition(".")
    if not hasattr(settings, first):
        if hasattr(settings, "method"):  # a part on a method
            return replace(settings, method=_with_setting(settings.method, path, value, whole))
        hint = did_you_mean(first, [f.name for f in fields(settings)])
        raise SettingError("setting-not-of-every-method", path=whole, hint=hint)
    inner = _with_setting(getattr(settings, first), rest, value, whole) if rest else value
    return replace(settings, **{first: inner})


def matched_steps(per_class: int, anchors: int, classes: int, batch: int, epochs: int) -> int:
    """The SGD steps of FedLGD in an unselected round, E ceil((n_v + n_g) / b): a budget for every method."""
    return epochs * math.ceil(classes * (per_class + anchors) / batch)


def run_job(
    job: Job,
    federation: Federation,
    command: str = "",
    on_round: Listener | None = None,
    engine: Engine = Loop(),
    net_object: nn.Module | Callable[..., nn.Module] | None = None,
) -> Result:
    """Run or resume one job, or copy an equal run."""
    if job.folder and (equal := equal_run(job, federation)):
        copy_run(equal, job.folder, job.label)
    return execute(job.config, federation, job.folder, on_round, command, job.label, engine, net_object)


def equal_run(job: Job, federation: Federation) -> Path | None:
    """A finished run in the library of a job that has not begun itself, with its configuration and these images.

    Unreadable runs are passed over.
    """
    if job.library is None or job.folder is None or job.folder.exists():
        return None
    wanted = job.config.toml().encode()
    for file in sorted(job.library.rglob("seed*/config.toml")):
        run = file.parent
        with suppress(FedlgdError, OSError):
            if file.read_bytes() == wanted and len(committed_records(run)) == job.config.plan.rounds + 1:
                check_origin(run, read_manifest(run), federation)
                return run
    return None


def copy_run(run: Path, folder: Path, label: str) -> None:
    """Copy beside, sync, rename: the folder is absent or complete. The copy names its origin."""
    beside = folder.with_name(f".{folder.name}.{uuid.uuid4().hex}.part")
    with writing(folder):
        make_folder(folder.parent)
        try:
            shutil.copytree(run, beside, ignore=NOT_COPIED)
            replace(read_manifest(run), label=label, copy_of=os.path.relpath(run, folder)).write(beside)
            os.sync()
            beside.rename(folder)
        except BaseException:
            shutil.rmtree(beside, ignore_errors=True)
            raise
