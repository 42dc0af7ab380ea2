"""`fedlgd tune`: the best settings of methods, searched on held-out training images."""

import json as jsonlib
from collections.abc import Generator, Sequence

import msgspec
import typer

from fedlgd.cli.common import assignments, choose_engine, open_data, place_of, program, resumable, set_up
from fedlgd.cli.compare import run_tracked
from fedlgd.cli.options import TuneOptions
from fedlgd.cli.progress import Pace, duration, progress
from fedlgd.cli.terminal import folded, table_text
from fedlgd.core.text import duration as exact
from fedlgd.core.text import plural
from fedlgd.data.federation import Federation, validation_of
from fedlgd.engines.registry import Engine
from fedlgd.report.formats import Cell, Column, Table
from fedlgd.runs.cache import shared_cache
from fedlgd.runs.compare import Job
from fedlgd.runs.config import RunSettings
from fedlgd.runs.estimate import estimate
from fedlgd.runs.folder import locked_folder
from fedlgd.runs.jobs import Ended, RoundListener, check_jobs, run_jobs
from fedlgd.runs.trackers import check_trackers
from fedlgd.runs.tune import SCORES_HEAD, Findings, Halving, Search, TrialLog, cpu_seconds, plan_search, search

HEDGE = (
    "From the {trials} candidates of each method after {rounds}, one seed: a small difference can be "
    "chance, and what pays late does not show. A candidate that diverges counts as 0."
)


def tune(given: TuneOptions) -> None:
    check_trackers(given.track or ())
    check_jobs(given.jobs, given.threads, place_of(given))
    set_up(given.threads)
    settings = assignments(given, {})
    how = plan_search(
        given.methods.split(","),
        Halving(rounds=settings.pop("rounds", RunSettings().rounds), rungs=given.rungs, eta=given.eta),
        given.candidates,
        given.out,
        given.space,
        settings=settings,
        preset=given.preset,
        seed=given.seed,
        validation=given.validation,
    )
    whole = open_data(how.given(how.entries[0]).data, given.silent)
    federation = validation_of(whole, given.validation, given.seed)
    engine = choose_engine(given, federation, "loop" if given.jobs > 1 else None)
    if given.estimate:
        _print_plan(how, _seconds(how, federation, engine, given), given)
        return
    with resumable(f" in {given.out}", "Finished trials"), locked_folder(given.out):
        log = TrialLog(how, federation)
        if not (log.trials or given.silent):
            _print_plan(how, _seconds(how, federation, engine, given), given)
        found = search(how, log, _Trials(how, log, federation, engine, given))
    _print(how, found, given.json)


def _seconds(how: Search, federation: Federation, engine: Engine, given: TuneOptions) -> float | None:
    """The estimated time of the search if all candidates cost as much as the given settings; None: not known."""
    total, workers = 0.0, engine.processes(federation)
    shares = sum(count * rounds for count, rounds in how.levels) / how.halving.rounds
    with progress(given.silent):
        for entry in how.entries:
            config = how.given(entry)
            cache, net = shared_cache(engine.place), config.net_for(federation)
            if (one := estimate(config, federation, net, None, cache, engine.place)) is None:
                return None
            enrolment = one.enrolment / workers
            total += enrolment + shares * (one.total(workers) - enrolment)
    return total / given.jobs


def _print_plan(how: Search, seconds: float | None, given: TuneOptions) -> None:
    if given.json:
        rungs = [{"candidates": count, "rounds": rounds} for count, rounds in how.levels]
        spaces = {entry.spec: msgspec.to_builtins(how.space_of(entry)) for entry in how.entries}
        typer.echo(jsonlib.dumps({"seconds": seconds, "rungs": rungs, "spaces": spaces}))
        return
    (count, rounds), *rest = how.levels
    steps = [f"{count} candidates with {plural(rounds, 'round')}", *(f"the best {n} with {r}" for n, r in rest)]
    lines = [f"For each method: {', '.join(steps)}; scored on {how.validation:.0%} of the training images"]
    lines += [f"{entry.spec}: {', '.join(how.space_of(entry))}" for entry in how.entries]
    for line in lines:
        typer.echo(folded(line, "  "), err=True)
    if seconds is not None:
        typer.echo(f"Estimated time: {duration(seconds)}", err=True)


class _Trials:
    """Runs trials and prints a line for each, with the time left."""

    def __init__(
        self, how: Search, log: TrialLog, federation: Federation, engine: Engine, given: TuneOptions
    ) -> None:
        self._federation, self._engine, self._given = federation, engine, given
        rounds = sum(n * rounds for n, rounds in how.levels)
        self._done, self._pace = 0, Pace()
        self._total = len(how.entries) * rounds - sum(trial.rounds for trial in log.trials)

    def __call__(self, jobs: Sequence[Job]) -> Generator[Ended[Job], None, None]:
        for number, ended in enumerate(run_jobs(jobs, self._given.jobs, self._work), 1):
            yield ended
            rounds = ended.job.config.plan.rounds
            self._done += rounds
            self._pace.update(self._done)
            left = self._pace.left(self._total) if self._done < self._total else None
            score = "diverged" if ended.error else f"{100 * ended.result:.1f} %"
            rest = "" if left is None else f"  {duration(left)} left"
            if not self._given.silent:
                line = f"[{number}/{len(jobs)}] {ended.job.label}, {plural(rounds, 'round')}: {score}{rest}"
                typer.echo(line, err=True)

    def _work(self, job: Job, listen: RoundListener) -> float:
        with progress(self._given.silent or self._given.jobs > 1):
            return run_tracked(job, self._federation, self._engine, self._given, listen)


def _print(how: Search, found: Findings, json: bool) -> None:
    files = {entry.spec: str(how.best_file(entry)) for entry in how.entries}
    cpu = cpu_seconds(found.trials)
    if json:
        best = {
            spec: {
                "accuracy": b.trial.accuracy,
                "rounds": b.trial.rounds,
                "settings": b.trial.settings,
                "file": files[spec],
            }
            for spec, b in found.best.items()
        }
        counts = {"candidates": found.candidates, "rounds": found.rounds, "validation": found.validation}
        typer.echo(jsonlib.dumps({"best": best, **counts, "cpu_seconds": cpu}))
        return
    for title, heads, rows in (
        ("Accuracy (%) on the validation images", SCORES_HEAD, found.scores()),
        ("Best values", ("setting", *found.best), found.settings()),
    ):
        numbers = 1 if heads is SCORES_HEAD else len(heads)  # the first of these columns
        columns = tuple(Column(head, number=at >= numbers) for at, head in enumerate(heads))
        table = Table(columns, tuple(tuple(map(Cell, row)) for row in rows))
        typer.echo(f"\n{title}\n{table_text(table)}")
    note = HEDGE.format(trials=found.candidates, rounds=plural(found.rounds[0], "round"))
    typer.echo(f"\n{folded(note)}")
    typer.echo(f"CPU time of the search: {exact(cpu)}")
    typer.echo("Best settings: " + ", ".join(files.values()))
    typer.echo(f"Next: {program()} compare --methods {','.join(files.values())} --seeds 3")
