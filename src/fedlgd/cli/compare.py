"""`fedlgd compare`: several methods and seeds under equal conditions; `fedlgd paper ITEM`: a table of the paper."""

import json as jsonlib
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import typer

from fedlgd.cli.compute import (
    announce_copies,
    announce_jobs,
    announce_preset,
    assignments,
    choose_engine,
    command_line,
    estimate_jobs,
    open_data,
    place_of,
    preset_of,
    resumable,
    set_up,
)
from fedlgd.cli.options import CompareOptions, ConfigOptions, PaperOptions
from fedlgd.cli.progress import duration, progress
from fedlgd.cli.terminal import MAX_SITE_COLUMNS, complain, fitted, folded, terminal_width, two_classes
from fedlgd.core.errors import FedlgdError, SettingError
from fedlgd.core.files import writing
from fedlgd.core.records import RoundRecord
from fedlgd.core.sweep import swept
from fedlgd.core.words import plural
from fedlgd.data.federation import Federation
from fedlgd.engines.registry import Engine
from fedlgd.report.cost import cost_table
from fedlgd.report.formats import as_text
from fedlgd.report.groups import Group, group_runs
from fedlgd.report.page import write_report
from fedlgd.report.paper.items import Comparison, Item, comparison, find, parts_at, reduced
from fedlgd.report.paper.stored import stored_part
from fedlgd.report.paper.tables import printed_table
from fedlgd.report.paper.verdicts import verdicts
from fedlgd.report.read import read_runs
from fedlgd.report.tables import accuracy_table, without_sites
from fedlgd.runs.comparing.entries import Entry, Job, Outcome, budget, matched_steps, parse_entry, plan, run_job
from fedlgd.runs.comparing.parallel import check_jobs, run_jobs
from fedlgd.runs.literals import parse_axes
from fedlgd.runs.runner import Listener
from fedlgd.runs.track import Tracked, Tracking, check_trackers

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
        with writing(out / "report.html"):
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
        if not given.silent:
            typer.echo(f"[{i}/{len(jobs)}] {_name(job)}")
        with progress(given.silent, job.config.plan.rounds, folder=job.folder, sites=federation.names) as show:
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


OWNERS = {"anchors": ("fedlgd", "anchors"), "pull": ("fedlgd", "anchors"), "refine": ("fedlgd", "refine")}
"""The methods and parts that the settings of a section apply to."""


def run_item(given: PaperOptions) -> None:
    """Run all parts of an item, or estimate their time."""
    item = find(given.item or "")
    if not item.methods:
        raise SettingError(f"{item.name} has no runs of its own; use: {item.command}")
    check_jobs(given.jobs, given.threads, place_of(given))
    set_up(given.threads)
    failed: dict[str, str] = {}
    for part in _parts(item, given):
        failed |= _run_part(item, part, given)
    if given.estimate:
        return
    found = [each for each in verdicts(given.out, {item.name: item}) if given.scale != "tiny"]
    if given.json:
        words = {each.claim.text: each.word for each in found}
        typer.echo(jsonlib.dumps({"item": item.name, "scale": given.scale, "verdicts": words, "failed": failed}))
    else:
        for each in found:
            typer.echo(f"{each.word}: {each.claim.text} {each.why}")
    raise typer.Exit(1 if failed else 0)


def _parts(item: Item, given: PaperOptions) -> tuple[str, ...]:
    known = parts_at(item, given.scale)
    if given.part is not None and given.part not in item.parts:
        raise SettingError(f"{item.name} has no part {given.part!r}; available: {', '.join(item.parts)}")
    return known if given.part is None else (given.part,)


def _run_part(item: Item, part: str, given: PaperOptions) -> dict[str, str]:
    """Run or estimate one part; returns the errors by run folder."""
    out = given.out / given.scale / item.name / part
    jobs = jobs_of(comparison(item, part, given.scale), out, given.out / given.scale)
    federation = open_data(jobs[0].config.data, given.silent)
    title = f"{item.name} {part}".strip()
    if given.estimate:
        engine = choose_engine(given, federation, "loop" if given.jobs > 1 else None)
        typer.echo(f"{title}: {duration(estimate_jobs(jobs, federation, engine) / given.jobs)}")
        return {}
    less = reduced(item, part, given.scale)
    announced = f"{title}, scale {given.scale}: {plural(len(jobs), 'run')} on {federation.name}" + (
        less and f"; reduced: {less}"
    )
    outcomes = conduct(jobs, federation, given, out, announced)
    if not given.silent:
        table = printed_table(stored_part(given.out, item, part, given.scale))
        typer.echo(f"\n{as_text(table)}\nReport: {out / 'report.html'}")
    return {str(each.job.folder): each.error for each in outcomes if each.error}


def jobs_of(wanted: Comparison, out: Path, library: Path | None = None) -> list[Job]:
    """The runs of a comparison; all methods of a seed first, so that an interrupted one can be read.

    A finished run with the same configuration in `library`, such as one of another item, is copied.
    """
    shared = {path: value for path, value in wanted.settings.items() if path.partition(".")[0] not in OWNERS}
    entries = [_with_own(parse_entry(spec), wanted.settings) for spec in wanted.methods]
    jobs = plan(entries, wanted.seeds, out, shared, wanted.preset)
    return [replace(job, library=library) for job in sorted(jobs, key=lambda job: job.config.plan.seed)]


def _with_own(entry: Entry, settings: Mapping[str, Any]) -> Entry:
    """The entry with the settings of anchors, pull and refine if it has them; its own settings win."""
    words = entry.method.split("+")
    own = {
        path: value
        for path, value in settings.items()
        if any(word in words for word in OWNERS.get(path.partition(".")[0], ()))
    }
    return replace(entry, settings={**own, **entry.settings})
