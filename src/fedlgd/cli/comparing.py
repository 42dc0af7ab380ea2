"""The command that compares methods."""

import json as jsonlib
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import typer

from fedlgd.cli.checking import progress
from fedlgd.cli.display import Display
from fedlgd.cli.foretelling import foretell_all
from fedlgd.cli.pace import time_left
from fedlgd.cli.running import ACROSS, EngineChoice, both, command_line, prepare, say
from fedlgd.core.errors import FedlgdError
from fedlgd.core.files import writing as saving
from fedlgd.data.federation import Federation
from fedlgd.engines.loop import Loop
from fedlgd.engines.registry import Engine
from fedlgd.nets.registry import build_net
from fedlgd.report.formats import as_text
from fedlgd.report.groups import group_runs
from fedlgd.report.page import write_report
from fedlgd.report.read import read_runs
from fedlgd.report.tables import accuracy_table, cost_table, flops_table, without_sites
from fedlgd.runs.config import Config, parse_assignment
from fedlgd.runs.jobs import check_jobs, run_jobs
from fedlgd.runs.runner import Listener
from fedlgd.runs.suite import Job, Outcome, budget, matched_steps, parse_entry, plan, run_job
from fedlgd.runs.track import Tracked, Tracking, check_trackers

RULE = "Accuracy (%) after the last round: mean over seeds ± standard deviation; `mean` is unweighted over sites."


def compare(
    methods: str,
    seeds: int,
    flags: Mapping[str, Any],
    preset: str,
    match_steps: bool,
    settings: list[str],
    out: Path,
    jobs: int,
    wanted: EngineChoice,
    track: Sequence[str],
    json: bool,
    quiet: bool,
) -> None:
    check_trackers(track)
    check_jobs(jobs, wanted.threads, wanted.place)
    prepare(wanted.threads)
    assignments = {key: value for key, value in flags.items() if value is not None}
    assignments |= dict(parse_assignment(text) for text in settings)
    entries = [parse_entry(spec) for spec in methods.split(",")]
    first = plan(entries[:1], 1, out, assignments, preset)[0].config
    with progress(quiet or json):
        federation = first.data.open()
    steps = _matched(assignments, preset, len(federation.classes)) if match_steps else 0
    runs = plan(entries, seeds, out, assignments, preset, steps)
    if not (quiet or json):
        say(f"{len(runs)} runs: {len(entries)} methods x {seeds} seeds on {federation.name}; {budget(steps)}")
    with _stoppable():
        engine = Loop(place=wanted.place) if jobs > 1 else wanted.engine(federation)
        if not (quiet or json):
            foretell_all(runs, federation, engine, jobs)
        if jobs > 1:
            outcomes = _run_at_once(runs, jobs, federation, engine, track, quiet or json)
        else:
            outcomes = _run(runs, federation, engine, track, quiet or json)
    page = out / "report.html"
    failed = [outcome for outcome in outcomes if outcome.error]
    if len(failed) < len(outcomes):
        with saving(str(page)):
            write_report([o.job.folder for o in outcomes if not o.error], page)
    _print(outcomes, steps, page, json)
    raise typer.Exit(1 if failed else 0)


def _matched(assignments: Mapping[str, Any], preset: str, classes: int) -> int:
    """What FedLGD would take under these settings."""
    ours = {k: v for k, v in assignments.items() if k.split(".")[0] in ("distil", "local", "anchors")}
    (job,) = plan([parse_entry("fedlgd")], 1, Path(), ours, preset)
    method: Any = job.config.method
    return matched_steps(
        method.distil.per_class, method.anchors.per_class, classes, method.local.batch, method.local.epochs
    )


@contextmanager
def _stoppable() -> Iterator[None]:
    """An interrupt says how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo(f"\nStopped; finished rounds are saved. To go on: {command_line()}", err=True)
        raise typer.Exit(130) from None


def _run(
    jobs: list[Job], federation: Federation, engine: Engine, track: Sequence[str], quiet: bool
) -> list[Outcome]:
    """One after the other, each with a display."""
    outcomes = []
    for i, job in enumerate(jobs, 1):
        if not quiet:
            say(f"[{i}/{len(jobs)}] {_name(job)}")
        with (
            Display(job.config.plan.rounds, quiet, folder=job.folder, lasting=False) as display,
            Tracking(track, Tracked(_name(job), job.folder, job.config)) as tracking,
        ):
            heard = both(display.round, tracking)
            outcome = run_job(job, federation, command_line(), heard, engine)
        _complain(outcome)
        outcomes.append(outcome)
    return outcomes


def _run_at_once(
    jobs: list[Job], count: int, federation: Federation, engine: Engine, track: Sequence[str], quiet: bool
) -> list[Outcome]:
    """`count` at a time; a line for each that ends."""

    def do(job: Job, listener: Listener) -> Outcome:
        with Tracking(track, Tracked(_name(job), job.folder, job.config)) as tracking:
            return run_job(job, federation, command_line(), both(listener, tracking), engine)

    _import_ahead(jobs[0].config, federation)
    outcomes, began = [], time.monotonic()
    with closing(run_jobs(jobs, count, do)) as ending:
        for outcome in ending:
            _complain(outcome)
            outcomes.append(outcome)
            if not (quiet or outcome.error):
                each = (time.monotonic() - began) / len(outcomes)
                say(_line(outcome, len(outcomes), len(jobs), each))
    return sorted(outcomes, key=lambda outcome: jobs.index(outcome.job))


def _import_ahead(config: Config, federation: Federation) -> None:
    """The first net of a process takes two seconds of imports: once here, and every job has them."""
    with suppress(FedlgdError):  # the jobs will say it
        build_net(config.net["name"], federation.shape, len(federation.classes), config.net_settings)


def _line(outcome: Outcome, done: int, total: int, each: float) -> str:
    left = f"  {time_left(each * (total - done))}" if done < total else ""
    return f"[{done}/{total}] {_name(outcome.job)}: mean {100 * outcome.accuracy:.1f} %{left}"


def _name(job: Job) -> str:
    return f"{job.label}, seed {job.config.plan.seed}"


def _complain(outcome: Outcome) -> None:
    if outcome.error:
        typer.echo(f"fedlgd: {_name(outcome.job)} failed: {outcome.error}", err=True)


def _print(outcomes: list[Outcome], steps: int, page: Path, json: bool) -> None:
    done = [outcome.job.folder for outcome in outcomes if not outcome.error]
    failures = {str(o.job.folder): o.error for o in outcomes if o.error}
    groups = group_runs(read_runs(done)[0]) if done else ()
    if json:
        rows = [
            {"method": g.label, "seeds": len(g.counted), "mean": g.accuracy.mean, "std": g.accuracy.std}
            for g in groups
            if g.accuracy
        ]
        result = {"methods": rows, "budget": budget(steps), "failed": failures, "report": str(page)}
        typer.echo(jsonlib.dumps(result))
        return
    if groups:
        for table in (without_sites(accuracy_table(groups), ACROSS), cost_table(groups), flops_table(groups)):
            say("\n" + as_text(table))
    say(f"\n{RULE}\n{budget(steps)}")
    for folder, error in failures.items():
        say(f"failed: {folder}: {error}")
    say(f"Report: {page}")
