"""`fedlgd compare`: several methods and seeds under equal conditions."""

import json as jsonlib
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import typer

from fedlgd.cli.command import ConfigOptions
from fedlgd.cli.common import (
    announce_copies,
    announce_jobs,
    announce_preset,
    assignments,
    choose_engine,
    command_line,
    open_data,
    place_of,
    preset_of,
    resumable,
    set_up,
)
from fedlgd.cli.options import CompareOptions, PaperOptions
from fedlgd.cli.progress import duration, progress
from fedlgd.cli.terminal import MAX_SITE_COLUMNS, complain, folded, table_text, two_classes
from fedlgd.core.errors import FedlgdError
from fedlgd.core.text import plural
from fedlgd.data.federation import Federation
from fedlgd.engines.registry import Engine
from fedlgd.report.cost import cost_table
from fedlgd.report.groups import Group, group_runs
from fedlgd.report.page import write_report
from fedlgd.report.tables import accuracy_table, without_sites
from fedlgd.rundir.read import read_runs
from fedlgd.rundir.records import RoundRecord, committed_records
from fedlgd.rundir.sweep import swept
from fedlgd.runs.compare import Job, equal_run, matched_steps, parse_entry, plan_jobs, run_job
from fedlgd.runs.jobs import Ended, RoundListener, check_jobs, run_jobs
from fedlgd.runs.parse import parse_axes
from fedlgd.runs.trackers import Tracked, Tracking, check_trackers

Options = CompareOptions | PaperOptions

METRIC = "Accuracy (%) after the last round: mean over seeds ± standard deviation; `mean` is unweighted over sites."
BEST = " * marks the best method at each site and in the mean."


def compare(given: CompareOptions) -> None:
    check_trackers(given.track or ())
    check_jobs(given.jobs, given.threads, place_of(given))
    set_up(given.threads)
    settings = assignments(given, {})
    entries = [parse_entry(spec) for spec in swept(given.methods.split(","), parse_axes(given.sweep or ()))]
    preset = given.preset or preset_of(settings, {}, [entry.name for entry in entries])
    first, *_ = plan_jobs(entries, 1, given.out, settings, preset)
    federation = open_data(first.config.data, given.silent)
    announce_preset(given, preset)
    steps = _fedlgd_steps(settings, preset, len(federation.classes)) if given.match_steps else 0
    jobs = plan_jobs(entries, given.seeds, given.out, settings, preset, steps)
    methods = f"{plural(len(entries), 'point' if given.sweep else 'method')} x {plural(given.seeds, 'seed')}"
    budget = _budget(jobs, steps)
    announced = f"{plural(len(jobs), 'run')}: {methods} on {federation.name}; {budget}"
    ended = conduct(jobs, federation, given, given.out, announced)
    _print(ended, budget, given.out / "report.html", given.json)
    raise typer.Exit(1 if any(each.error for each in ended) else 0)


def conduct(
    jobs: Sequence[Job], federation: Federation, given: Options, out: Path, announced: str
) -> list[Ended[Job]]:
    """Run all jobs, with an estimate first, and write their report."""
    with resumable():
        engine = choose_engine(given, federation, "loop" if given.jobs > 1 else None)
        if not given.silent:
            typer.echo(folded(announced, "  "))
            announce_jobs(jobs, federation, engine, given.jobs)
            announce_copies(jobs[0].config, out, federation)
        ended = _run(jobs, federation, engine, given)
    if done := [each.job.folder for each in ended if not each.error and each.job.folder]:
        write_report(done, out / "report.html")
    return ended


def _fedlgd_steps(settings: Mapping[str, Any], preset: str, classes: int) -> int:
    """SGD steps per round of FedLGD under these settings."""
    ours = {k: v for k, v in settings.items() if k.split(".")[0] in ("distil", "local", "anchors")}
    (job,) = plan_jobs([parse_entry("fedlgd")], 1, Path(), ours, preset)
    method: Any = job.config.method
    local = method.local
    return local.steps or matched_steps(
        method.distil.pictures, method.anchors.per_class, classes, local.batch, local.epochs
    )


def _budget(jobs: Sequence[Job], steps: int) -> str:
    """The budget of a comparison as text; `steps`: those of every method, if they are matched."""
    methods = [job.config.method for job in jobs]
    counts = {steps} if steps else {getattr(getattr(method, "local", None), "steps", 0) for method in methods}
    if len(counts) > 1:
        return "budget: the numbers of SGD steps per round differ (local.steps)"
    if count := counts.pop():
        return f"budget: {plural(count, 'SGD step')} per round at each site, for every method"
    more = any(hasattr(method, "anchors") for method in methods)
    return "budget: equal epochs for every method" + ("; those with anchors take more steps" if more else "")


def _run(jobs: Sequence[Job], federation: Federation, engine: Engine, given: Options) -> list[Ended[Job]]:
    """Each job in turn, with its rounds; or `given.jobs` at a time, with one line for each that ends."""
    ended: list[Ended[Job]] = []
    began, in_turn = time.monotonic(), given.jobs == 1

    def work(job: Job, listen: RoundListener) -> float:
        known = _why_known(job, federation)
        if in_turn and not given.silent:
            typer.echo(folded(f"[{len(ended) + 1}/{len(jobs)}] {job.title}{known}", "  "))
        quiet = given.silent or bool(known) or not in_turn
        with progress(quiet, job.config.plan.rounds, folder=job.folder, sites=federation.names) as show:
            return run_tracked(job, federation, engine, given, show if in_turn else listen)

    with suppress(FedlgdError):  # imports that every process would repeat; the jobs report errors
        jobs[0].config.net_for(federation)
    with closing(run_jobs(jobs, given.jobs, work)) as running:
        for each in running:
            ended.append(each)
            if each.error:
                complain(f"{each.job.title} failed: {each.error}")
            elif not (given.silent or in_turn):
                rest = (time.monotonic() - began) / len(ended) * (len(jobs) - len(ended))
                accuracy = f"mean {100 * each.result:.1f} %" + (f"  {duration(rest)} left" if rest else "")
                typer.echo(f"[{len(ended)}/{len(jobs)}] {each.job.title}: {accuracy}")
    return sorted(ended, key=lambda each: jobs.index(each.job))


def _why_known(job: Job, federation: Federation) -> str:
    """In parentheses why a job needs no computing: ` (finished)`, ` (a copy of ...)`; empty if it does."""
    if equal := equal_run(job, federation):
        return f" (a copy of {equal})"
    with suppress(FedlgdError):  # a damaged folder: the run itself says so
        if job.folder and len(committed_records(job.folder)) > job.config.plan.rounds:
            return " (finished)"
    return ""


def run_tracked(
    job: Job, federation: Federation, engine: Engine, given: Options | ConfigOptions, show: RoundListener
) -> float:
    """Run a job with its trackers; its mean accuracy after the last round."""
    assert job.folder
    with Tracking(given.track or (), Tracked(job.folder, job.config)) as track:

        def listen(record: RoundRecord) -> None:
            show(record)
            track(record)

        return run_job(job, federation, command_line(), listen, engine).records[-1].accuracy


def _print(ended: Sequence[Ended[Job]], budget: str, page: Path, json: bool) -> None:
    done = [each.job.folder for each in ended if not each.error and each.job.folder]
    failures = {str(each.job.folder): each.error for each in ended if each.error}
    groups = group_runs(read_runs(done)[0]) if done else ()
    if json:
        rows = [
            {"method": g.label, "seeds": len(g.counted), "mean": g.accuracy.mean, "std": g.accuracy.std}
            for g in groups
            if g.accuracy
        ]
        typer.echo(jsonlib.dumps({"methods": rows, "budget": budget, "failed": failures, "report": str(page)}))
        return
    if groups:
        for table in _tables(groups):
            typer.echo("\n" + table)
        typer.echo(f"\n{folded(METRIC + BEST if len(groups) > 1 else METRIC)}\n{folded(budget)}")
    for folder, error in failures.items():
        typer.echo(f"failed: {folder}: {error}")
    if groups:
        typer.echo(f"Report: {page}")


def _tables(groups: Sequence[Group]) -> Iterator[str]:
    """Accuracy, what two classes need beyond it, and cost."""
    accuracy = without_sites(accuracy_table(groups), MAX_SITE_COLUMNS)
    yield table_text(accuracy)
    if two := two_classes(groups):
        yield two
    yield table_text(cost_table(groups))
