"""The command that compares methods."""

import json as jsonlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

from fedlgd.cli.display import Display
from fedlgd.cli.running import command_line, prepare, say
from fedlgd.data.federation import Federation
from fedlgd.report.groups import group_runs
from fedlgd.report.page import write_report
from fedlgd.report.read import read_runs
from fedlgd.report.tables import accuracy_table, as_text, cost_table, flops_table
from fedlgd.runs.config import parse_assignment
from fedlgd.runs.files import saving
from fedlgd.runs.suite import Job, Outcome, budget, matched_steps, parse_entry, plan, run_job

RULE = "Accuracy (%) after the last round: mean over seeds ± standard deviation; `mean` is unweighted over sites."


def compare(
    methods: str,
    seeds: int,
    flags: Mapping[str, Any],
    preset: str,
    match_steps: bool,
    settings: list[str],
    out: Path,
    threads: int,
    json: bool,
    quiet: bool,
) -> None:
    prepare(threads)
    assignments = {key: value for key, value in flags.items() if value is not None}
    assignments |= dict(parse_assignment(text) for text in settings)
    entries = [parse_entry(spec) for spec in methods.split(",")]
    first = plan(entries[:1], 1, out, assignments, preset)[0].config
    federation = first.data.open()
    steps = _matched(assignments, preset, len(federation.classes)) if match_steps else 0
    jobs = plan(entries, seeds, out, assignments, preset, steps)
    if not (quiet or json):
        say(f"{len(jobs)} runs: {len(entries)} methods x {seeds} seeds on {federation.name}; {budget(steps)}")
    outcomes = _run(jobs, federation, quiet or json)
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


def _run(jobs: list[Job], federation: Federation, quiet: bool) -> list[Outcome]:
    outcomes: list[Outcome] = []
    try:
        for i, job in enumerate(jobs, 1):
            name = f"{job.label}, seed {job.config.plan.seed}"
            if not quiet:
                say(f"[{i}/{len(jobs)}] {name}")
            with Display(job.config.plan.rounds, quiet) as display:
                outcome = run_job(job, federation, command_line(), display.round)
            if outcome.error:
                typer.echo(f"fedlgd: {name} failed: {outcome.error}", err=True)
            outcomes.append(outcome)
    except KeyboardInterrupt:
        typer.echo(f"\nStopped; finished rounds are saved. To go on: {command_line()}", err=True)
        raise typer.Exit(130) from None
    return outcomes


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
    for table in (accuracy_table(groups), cost_table(groups), flops_table(groups)) if groups else ():
        say("\n" + as_text(table))
    say(f"\n{RULE}\n{budget(steps)}")
    for folder, error in failures.items():
        say(f"failed: {folder}: {error}")
    say(f"Report: {page}")
