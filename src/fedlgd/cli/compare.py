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
from fedlgd.cli.terminal import MAX_SITE_COLUMNS, complain, fitted, folded, terminal_width, two_classes
from fedlgd.core.errors import FedlgdError
from fedlgd.core.text import plural
from fedlgd.data.federation import Federation
from fedlgd.engines.registry import Engine
from fedlgd.report.cost import cost_table
from fedlgd.report.groups import Group, group_runs
from fedlgd.report.page import write_report
from fedlgd.report.tables import accuracy_table, without_sites
from fedlgd.rundir.read import read_runs
from fedlgd.rundir.records import RoundRecord
from fedlgd.rundir.sweep import swept
from fedlgd.runs.comparing.entries import Job, Outcome, budget, known_run, matched_steps, parse_entry, plan, run_job
from fedlgd.runs.comparing.parallel import check_jobs, run_jobs
from fedlgd.runs.parse import parse_axes
from fedlgd.runs.run import Listener
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
    preset = given.preset or preset_of(settings, {}, [entry.method for entry in entries])
    first, *_ = plan(entries, 1, given.out, settings, preset)
    federation = open_data(first.config.data, given.silent)
    announce_preset(given, preset)
    steps = _fedlgd_steps(settings, preset, len(federation.classes)) if given.match_steps else 0
    jobs = plan(entries, given.seeds, given.out, settings, preset, steps)
    methods = f"{plural(len(entries), 'point' if given.sweep else 'method')} x {plural(given.seeds, 'seed')}"
    announced = f"{plural(len(jobs), 'run')}: {methods} on {federation.name}; {budget(jobs, steps)}"
    outcomes = conduct(jobs, federation, given, given.out, announced)
    _print(outcomes, budget(jobs, steps), given.out / "report.html", given.json)
    raise typer.Exit(1 if any(outcome.error for outcome in outcomes) else 0)


def conduct(
    jobs: Sequence[Job], federation: Federation, given: Options, out: Path, announced: str
) -> list[Outcome]:
    """Run all jobs, with an estimate first, and write their report."""
    with resumable():
        engine = choose_engine(given, federation, "loop" if given.jobs > 1 else None)
        if not given.silent:
            typer.echo(folded(announced, "  "))
            announce_jobs(jobs, federation, engine, given.jobs)
            announce_copies(jobs[0].config, out, federation)
        run_all = _run_parallel if given.jobs > 1 else _run_in_turn
        outcomes = run_all(jobs, federation, engine, given)
    if done := [outcome.job.folder for outcome in outcomes if not outcome.error]:
        write_report(done, out / "report.html")
    return outcomes


def _fedlgd_steps(settings: Mapping[str, Any], preset: str, classes: int) -> int:
    """SGD steps per round of FedLGD under these settings."""
    ours = {k: v for k, v in settings.items() if k.split(".")[0] in ("distil", "local", "anchors")}
    (job,) = plan([parse_entry("fedlgd")], 1, Path(), ours, preset)
    method: Any = job.config.method
    local = method.local
    return local.steps or matched_steps(
        method.distil.pictures, method.anchors.per_class, classes, local.batch, local.epochs
    )


def _run_in_turn(jobs: Sequence[Job], federation: Federation, engine: Engine, given: Options) -> list[Outcome]:
    outcomes = []
    for i, job in enumerate(jobs, 1):
        known = known_run(job, federation)
        if not given.silent:
            typer.echo(folded(f"[{i}/{len(jobs)}] {_name(job)}{known}", "  "))
        quiet = given.silent or bool(known)
        with progress(quiet, job.config.plan.rounds, folder=job.folder, sites=federation.names) as show:
            outcomes.append(run_tracked(job, federation, engine, given, show))
        _report_failure(outcomes[-1])
    return outcomes


def _run_parallel(jobs: Sequence[Job], federation: Federation, engine: Engine, given: Options) -> list[Outcome]:
    """`given.jobs` at a time, with one line for each that finishes."""
    with suppress(FedlgdError):  # imports that every job would repeat; the jobs report errors
        jobs[0].config.net_for(federation)
    outcomes: list[Outcome] = []
    began = time.monotonic()
    running = run_jobs(jobs, given.jobs, lambda job, show: run_tracked(job, federation, engine, given, show))
    with closing(running):
        for outcome in running:
            _report_failure(outcome)
            outcomes.append(outcome)
            if not (given.silent or outcome.error):
                rest = (time.monotonic() - began) / len(outcomes) * (len(jobs) - len(outcomes))
                accuracy = f"mean {100 * outcome.accuracy:.1f} %" + (f"  {duration(rest)} left" if rest else "")
                typer.echo(f"[{len(outcomes)}/{len(jobs)}] {_name(outcome.job)}: {accuracy}")
    return sorted(outcomes, key=lambda outcome: jobs.index(outcome.job))


def run_tracked(
    job: Job, federation: Federation, engine: Engine, given: Options | ConfigOptions, show: Listener
) -> Outcome:
    with Tracking(given.track or (), Tracked(_name(job), job.folder, job.config)) as track:

        def listen(record: RoundRecord) -> None:
            show(record)
            track(record)

        return run_job(job, federation, command_line(), listen, engine)


def _name(job: Job) -> str:
    return f"{job.label}, seed {job.config.plan.seed}"


def _report_failure(outcome: Outcome) -> None:
    if outcome.error:
        complain(f"{_name(outcome.job)} failed: {outcome.error}")


def _print(outcomes: Sequence[Outcome], budget: str, page: Path, json: bool) -> None:
    done = [outcome.job.folder for outcome in outcomes if not outcome.error]
    failures = {str(o.job.folder): o.error for o in outcomes if o.error}
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
        for table in _tables(groups, terminal_width()):
            typer.echo("\n" + table)
        typer.echo(f"\n{folded(METRIC + BEST if len(groups) > 1 else METRIC)}\n{folded(budget)}")
    for folder, error in failures.items():
        typer.echo(f"failed: {folder}: {error}")
    if groups:
        typer.echo(f"Report: {page}")


def _tables(groups: Sequence[Group], width: int) -> Iterator[str]:
    """Accuracy, what two classes need beyond it, and cost."""
    accuracy = without_sites(accuracy_table(groups), MAX_SITE_COLUMNS)
    text = fitted(accuracy, width, ("spread", "seeds", "rounds"), turn=True)
    if max(map(len, text.splitlines())) > width:
        text = fitted(without_sites(accuracy, 0), width, ("spread", "seeds", "rounds"))
        text += "\nThe accuracy at each site is in the report."
    yield text
    if two := two_classes(groups):
        yield two
    yield fitted(cost_table(groups), width, ("evaluate", "server", "train", "distil"))
