"""Compare methods and seeds under equal conditions: `fedlgd.compare` and `fedlgd compare`.

Methods share virtual sets if their settings agree, a finished run with the same configuration can be copied, and a
failed run stops no other.
"""

import math
import os
import shutil
import statistics
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from html import escape
from itertools import count
from pathlib import Path
from typing import Any

import torch

from fedlgd import notebook
from fedlgd.core.device import Compile, Place, Precision
from fedlgd.core.errors import FedlgdError, RunError, SettingError
from fedlgd.core.files import make_folder, writing
from fedlgd.core.train import Local
from fedlgd.data.federation import Federation
from fedlgd.data.suites import load
from fedlgd.engines import registry as engines
from fedlgd.engines.registry import Loop
from fedlgd.nets.registry import named_net
from fedlgd.rundir.decision import Decision, MethodRuns, decide
from fedlgd.rundir.manifest import read_manifest
from fedlgd.rundir.order import write_order
from fedlgd.rundir.records import committed_records
from fedlgd.runs.config import on_federation, preset_changes, with_setting
from fedlgd.runs.entries import Entry, Job, Labelled, decision_entries, plan_jobs, read_entries, sweep_entries
from fedlgd.runs.folder import locked_folder
from fedlgd.runs.jobs import check_jobs, run_jobs
from fedlgd.runs.result import Result
from fedlgd.runs.resume import changed_code, check_origin, check_resume, continued, sources_of
from fedlgd.runs.run import Listener, NetObject, execute, net_object

OTHER_RUN = ("other-configuration", "more-rounds-done", "other-restarts", "images-changed", "other-version")
"""Errors of a folder that has a run which cannot be resumed as planned."""
NOT_COPIED = shutil.ignore_patterns(".lock", "*.part", "report.html")


class Comparison(dict[str, list[Result]]):
    """The results of each method by its label, one per seed. `folder` is where they are stored, if they are.

    failed: the errors of failed runs by label and seed; calling `compare` again with the same folder repeats them.
    notes: what a preset gave to method objects, and which methods a sweep skipped.
    decision: what each site gains by joining, if sites train alone in one of the methods; it prints as sentences.
    """

    notes: tuple[str, ...] = ()
    decision: Decision | None = None

    def __init__(self, results: Mapping[str, list[Result]], folder: Path | None, failed: Mapping[str, str]) -> None:
        super().__init__(results)
        self.folder, self.failed = folder, failed

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
        for label, sites in self.accuracy.items():
            means = [100 * statistics.fmean(each.accuracy.values()) for each in self[label]]
            spread = f" ± {statistics.stdev(means):.1f}" if len(means) > 1 else ""
            cells = (f"{100 * value:.1f}" for value in sites.values())
            rows.append((label, str(len(means)), f"{statistics.fmean(means):.1f}{spread}", *cells))
        return rows

    @property
    def head(self) -> tuple[str, ...]:
        return ("method", "seeds", "mean", *next(iter(self.values()))[0].accuracy)

    def __repr__(self) -> str:
        lines = [self.head, *self.rows()]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        table = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]
        failed = (f"failed: {title}: {error}" for title, error in self.failed.items())
        told = [str(self.decision)] if self.decision else []
        return "\n".join([*table, *self.notes, *failed, *told])

    def _repr_html_(self) -> str:
        failed = notebook.table(("failed run", "error"), list(self.failed.items())) if self.failed else ""
        told = str(self.decision).splitlines() if self.decision else ()
        notes = "".join(f"<p>{escape(note)}</p>" for note in (*self.notes, *told))
        return notebook.table(self.head, self.rows()) + notes + failed


def compare(
    data: Federation | str = "builtin-digits",
    methods: Labelled | None = None,
    *,
    seeds: int = 3,
    preset: str = "",
    sweep: Mapping[str, Sequence[Any]] | None = None,
    net: str | Mapping[str, Any] | NetObject = "convnet",
    features: str = "",
    out: str | Path | None = None,
    on_round: Listener | None = None,
    engine: str = "loop",
    workers: int = 0,
    device: str = "cpu",
    precision: Precision = "float32",
    compile: Compile = "off",
    real_samples: int | None = None,
    jobs: int = 1,
    accept_changed_code: bool = False,
    settings: Mapping[str, Any] | None = None,
    **more: Any,
) -> Comparison:
    """Run each method with the seeds 0, 1, ... Options (`rounds`, `ratio`, ...) are those of `run`.

    Methods are names, such as "moon:mu=5", or objects; {"mine": method} gives one a label. Without them, published
    data has FedAvg and FedLGD, and your own what a decision to join needs; see `decision`. `settings` by path hold
    for all methods, with a method's name in front for it alone: {"local.lr": 0.1, "moon.mu": 5}. `preset` gives a
    method object the settings in which it has the defaults of its class; see `notes`. `sweep` runs each method with
    each value of one or two settings: {"pull.weight": [0, 1, 10]}; methods without them are skipped. With one seed,
    methods have the same start and sampled sites, and share virtual sets if they can. With `out`, calling it again
    resumes; `jobs` run at a time. A failed run is in `failed`. Changed code runs anew, or `accept_changed_code`.
    """
    federation, folder = load(data) if isinstance(data, str) else data, Path(out) if out else None
    deciding = methods is None and not (federation.public or sweep)
    given = decision_entries() if deciding else read_entries(("fedavg", "fedlgd") if methods is None else methods)
    entries, skipped = sweep_entries(given, sweep or {})
    _check_size(len(entries), seeds, jobs, folder)
    assignments = {**more, **(settings or {}), "net": named_net(net, features), "real_samples": 0}
    every = plan_jobs(entries, seeds, folder, assignments, preset)
    here = (replace(job, config=on_federation(job.config, federation, real_samples)) for job in every)
    planned = [as_upper_bound(job, federation) if deciding else job for job in here]
    chosen = engines.engine(engine, workers, Place(device=device, precision=precision, compile=compile))
    found = _run_on(federation, planned, jobs, chosen, net_object(net), on_round, folder, accept_changed_code)
    found.notes = tuple(filter(None, (*preset_notes(entries, preset), skipped)))
    return found


def _decided(found: Comparison, jobs: Sequence[Job], device: str) -> Decision | None:
    """What the results say about joining. The time is CPU time, or wall time where CPU time is not the work."""
    by_cpu = device == "cpu" and all(result.spent.cpu for results in found.values() for result in results)
    arms = []
    for label, results in found.items():
        done = [job for job in jobs if job.label == label and job.title not in found.failed]
        method, spent = done[0].config.method, [result.spent for result in results]
        scores = [next((r.scores for r in reversed(result.records) if r.scores), {}) for result in results]
        arms.append(
            MethodRuns(
                label=label,
                method=done[0].entry.name,
                competes=not (method.personal or method.pooled),
                scores={job.config.plan.seed: each for job, each in zip(done, scores, strict=True)},
                bytes=statistics.fmean(each.bytes_up + each.bytes_down for each in spent),
                seconds=statistics.fmean(sum((each.cpu if by_cpu else each.seconds).values()) for each in spent),
            )
        )
    return decide(arms, "CPU time" if by_cpu else "wall time")


def _run_on(
    federation: Federation,
    planned: Sequence[Job],
    jobs: int,
    engine: engines.Engine,
    net: NetObject | None,
    on_round: Listener | None,
    folder: Path | None,
    accept_changed_code: bool,
) -> Comparison:
    """Run the jobs in this process or in `jobs` others."""
    check_jobs(jobs, torch.get_num_threads() if engine.name == "pool" else 1, engine.place)
    _check_labels(planned)
    for job in () if accept_changed_code else planned:  # here, because a process of its own cannot say so
        set_aside_changed(job, federation, net)
    refuse_other_runs(planned, federation)
    run = partial(run_job, federation=federation, command="fedlgd.compare(...)", engine=engine, net=net)
    found = _run_all(planned, jobs, partial(run, accept_changed_code=accept_changed_code), on_round, folder)
    found.decision = _decided(found, planned, engine.place.device)
    return found


def preset_notes(entries: Sequence[Entry], preset: str) -> Iterator[str]:
    """What a preset gives to each method object, and what it leaves as the user gave it."""
    for entry in entries if preset else ():
        if not isinstance(entry.method, str):
            changes = preset_changes(entry.method, preset)
            applied, kept = (", ".join(f"{path}={value}" for path, value in each.items()) for each in changes)
            given = f"; as given: {kept}" if kept else ""
            yield f"Preset {preset} for {entry.spec}: {applied or 'nothing to change'}{given}"


def _check_size(methods: int, seeds: int, jobs: int, folder: Path | None) -> None:
    """There is something to run, and a folder for runs in processes of their own."""
    if not methods or seeds < 1:
        raise SettingError("nothing-to-compare", methods=methods, seeds=seeds)
    if jobs > 1 and folder is None:
        raise SettingError("jobs-in-memory", jobs=jobs)


def _check_labels(jobs: Sequence[Job]) -> None:
    """Results are told apart by their labels."""
    labels = {job.label: job.entry.spec for job in jobs}
    for job in jobs:
        if labels[job.label] != job.entry.spec:
            raise SettingError("two-methods-same-label", label=job.label)


def _run_all(
    planned: Sequence[Job], jobs: int, run: Callable[..., Result], on_round: Listener | None, folder: Path | None
) -> Comparison:
    """The results in the order of `planned`, which the folder stores."""
    if folder:
        write_order(folder, [job.entry.folder for job in planned])
    results: dict[Job, Result] = {}

    def work(job: Job, listen: Listener) -> None:
        results[job] = run(job, on_round=on_round if jobs == 1 else listen)

    with closing(run_jobs(planned, jobs, work)) as running:
        errors = {ended.job: ended.error for ended in running}
    found: dict[str, list[Result]] = {job.label: [] for job in planned}
    for job in planned:
        if not errors[job]:  # one that ran in a process of its own is read from its folder
            found[job.label].append(results.get(job) or run(job))
    if not any(found.values()):
        raise SettingError("every-run-failed", runs=len(planned), error=errors[planned[0]])
    failed = {job.title: error for job, error in errors.items() if error}
    return Comparison({label: each for label, each in found.items() if each}, folder, failed)


def matched_steps(per_class: int, anchors: int, classes: int, batch: int, epochs: int) -> int:
    """The SGD steps of FedLGD in an unselected round, E ceil((n_v + n_g) / b): a budget for every method."""
    return epochs * math.ceil(classes * (per_class + anchors) / batch)


def pooled_steps(local: Local, sizes: Sequence[int], ratio: float = 1.0) -> int:
    """The SGD steps of a round in one place that give an image as many steps as a round at the sites does:

    K = ceil(r sum_c m_c / min(b, sum_c n_c)),  m_c the images that the batches of site c have in a round, b their
    size, n_c its images, r the share of sampled sites.
    """
    sampled = max(1, int(ratio * len(sizes) + 1e-9)) / len(sizes)
    return math.ceil(sampled * sum(map(local.images, sizes)) / min(local.batch, sum(sizes)))


def as_upper_bound(job: Job, federation: Federation) -> Job:
    """Pooled training with as many steps per image as the other methods have; any other job as it is."""
    method: Any = job.config.method
    if not method.pooled:
        return job
    sizes = [len(site.train) for site in federation.sites]
    steps = pooled_steps(method.local, sizes, job.config.plan.ratio)
    return replace(job, config=replace(job.config, method=with_setting(method, "local.steps", steps)))


def run_job(
    job: Job,
    federation: Federation,
    command: str = "",
    on_round: Listener | None = None,
    engine: engines.Engine = Loop(),
    net: NetObject | None = None,
    accept_changed_code: bool = False,
) -> Result:
    """Run or resume one job, or copy an equal run."""
    if not accept_changed_code:
        set_aside_changed(job, federation, net)
    if job.folder and (equal := equal_run(job, federation)):
        copy_run(equal, job.folder, job.label)
    config, title = job.config, job.label
    return execute(config, federation, job.folder, on_round, command, title, engine, net, accept_changed_code)


def refuse_other_runs(jobs: Sequence[Job], federation: Federation) -> None:
    """Refuse folders with runs of other settings, data or versions before any job starts.

    Otherwise the jobs with a new folder would run, and their results would stand beside those of other settings. A
    damaged folder is left for the run itself to refuse.
    """
    refused = list[RunError]()
    for job in (job for job in jobs if job.folder and (job.folder / "state").exists()):
        assert job.folder
        try:
            check_resume(job.folder, continued(job.config, job.folder), federation)
        except RunError as error:
            refused += [error] if error.code in OTHER_RUN else []
    if refused:
        raise RunError("other-comparison", refused=len(refused), runs=len(jobs), error=refused[0])


def set_aside_changed(job: Job, federation: Federation, net: NetObject | None = None) -> None:
    """Rename the folder of a run whose code has changed, so that it is run anew: seed0 becomes .seed0.1, which
    reports and comparisons pass over. A folder that cannot be read is left for the run itself to refuse."""
    if job.folder is None or not (job.folder / "state").exists():
        return
    with suppress(FedlgdError):
        sources = sources_of(job.config.method, job.config.net_for(federation, net))
        if changed := changed_code(read_manifest(job.folder), sources):
            names = (job.folder.with_name(f".{job.folder.name}.{number}") for number in count(1))
            with locked_folder(job.folder), writing(job.folder):
                aside = job.folder.rename(next(path for path in names if not path.exists()))
            why = f"{', '.join(changed)} changed"
            warnings.warn(f"{job.title} is run anew: {why}; the run before is in {aside}", stacklevel=2)


def equal_run(job: Job, federation: Federation) -> Path | None:
    """A finished run in the library of a job that has not begun itself, with its configuration, code and images.

    Unreadable runs are passed over.
    """
    if job.library is None or job.folder is None or job.folder.exists():
        return None
    wanted = job.config.toml().encode()
    for file in sorted(job.library.rglob("seed*/config.toml")):
        run = file.parent
        with suppress(FedlgdError, OSError):
            if file.read_bytes() == wanted and len(committed_records(run)) == job.config.plan.rounds + 1:
                manifest = read_manifest(run)
                check_origin(run, manifest, federation)
                if manifest.method.sources == sources_of(job.config.method, job.config.net_for(federation)):
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
