"""`fedlgd tune`: the best settings of methods, searched on held-out training images."""

import json as jsonlib
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing

import msgspec
import typer

from fedlgd.cli.common import assignments, choose_engine, open_data, place_of, program, resumable, set_up
from fedlgd.cli.compare import run_tracked
from fedlgd.cli.options import TuneOptions
from fedlgd.cli.progress import Pace, duration, progress
from fedlgd.cli.terminal import fitted, folded, terminal_width
from fedlgd.core.errors import SettingError
from fedlgd.core.text import duration as exact
from fedlgd.core.text import plural
from fedlgd.data.federation import Federation, validation_of
from fedlgd.engines.registry import Engine
from fedlgd.report.formats import NONE, Cell, Column, Table, percent, percentage_points
from fedlgd.runs.comparing.entries import Job, Outcome
from fedlgd.runs.comparing.parallel import check_jobs, run_jobs
from fedlgd.runs.config import RunSettings
from fedlgd.runs.folder import locked
from fedlgd.runs.parse import parse_duration
from fedlgd.runs.run import Listener
from fedlgd.runs.trackers import check_trackers
from fedlgd.runs.tuning.findings import SCORES, Findings, spent
from fedlgd.runs.tuning.search import Halving, Ledger, Search, search
from fedlgd.runs.tuning.tune import Costs, open_ledger, planned_search

HEDGE = (
    "From the {trials} candidates of each method after {rounds}, one seed: a small difference can be "
    "chance, and what pays late does not show. A candidate that diverges counts as 0."
)


def tune(given: TuneOptions) -> None:
    check_trackers(given.track or ())
    check_jobs(given.jobs, given.threads, place_of(given))
    set_up(given.threads)
    how = _planned(given)
    federation = validation_of(open_data(how.given.data, given.silent), given.validation, given.seed)
    engine = choose_engine(given, federation, "loop" if given.jobs > 1 else None)
    if given.estimate:
        _print_plan(how, *_decided(how, federation, engine, given), given)
        return
    with resumable(f" in {given.out}", "Finished trials"), locked(given.out):
        ledger = open_ledger(how, federation, given.budget, given.candidates or 0)
        if not ledger.candidates:
            count, seconds = _decided(how, federation, engine, given)
            ledger.begin(count)
            if not given.silent:
                _print_plan(how, count, seconds, given)
        found = search(how, ledger, Trials(how, ledger, federation, engine, given))
    _print(how, found, given.json)


def _planned(given: TuneOptions) -> Search:
    settings = assignments(given, {})
    return planned_search(
        given.methods.split(","),
        Halving(rounds=settings.pop("rounds", RunSettings().rounds), rungs=given.rungs, eta=given.eta),
        given.out,
        given.space,
        settings=settings,
        preset=given.preset,
        seed=given.seed,
        validation=given.validation,
    )


def _decided(how: Search, federation: Federation, engine: Engine, given: TuneOptions) -> tuple[int, float | None]:
    """The number of candidates, and the estimated seconds; None if they are not known and not needed."""
    try:
        with progress(given.silent):
            costs = Costs(how, federation, engine, given.jobs)
    except SettingError:
        if not given.candidates:
            raise
        return given.candidates, None
    count = given.candidates or costs.affordable(parse_duration(given.budget))
    return count, costs.total(count)


def _print_plan(how: Search, candidates: int, seconds: float | None, given: TuneOptions) -> None:
    levels = how.halving.levels(candidates)
    if given.json:
        rungs = [{"candidates": count, "rounds": rounds} for count, rounds in levels]
        spaces = {entry.spec: msgspec.to_builtins(how.space_of(entry)) for entry in how.entries}
        typer.echo(jsonlib.dumps({"seconds": seconds, "rungs": rungs, "spaces": spaces}))
        return
    (count, rounds), *rest = levels
    steps = [f"{count} candidates with {plural(rounds, 'round')}", *(f"the best {n} with {r}" for n, r in rest)]
    lines = [f"For each method: {', '.join(steps)}; scored on {how.validation:.0%} of the training images"]
    lines += [f"{entry.spec}: {', '.join(how.space_of(entry))}" for entry in how.entries]
    for line in lines:
        typer.echo(folded(line, "  "), err=True)
    if seconds is not None:
        typer.echo(f"Estimated time: {duration(seconds)}", err=True)


class Trials:
    """Runs trials and prints a line for each, with the time left."""

    def __init__(
        self, how: Search, ledger: Ledger, federation: Federation, engine: Engine, given: TuneOptions
    ) -> None:
        self._federation, self._engine, self._given = federation, engine, given
        rounds = sum(n * rounds for n, rounds in how.halving.levels(ledger.candidates))
        self._done, self._pace = 0, Pace()
        self._total = len(how.entries) * rounds - sum(trial.rounds for trial in ledger.trials)

    def __call__(self, jobs: Sequence[Job]) -> Iterator[Outcome]:
        running = self._in_turn(jobs) if self._given.jobs == 1 else run_jobs(jobs, self._given.jobs, self._do)
        with closing(running):
            for number, outcome in enumerate(running, 1):
                yield outcome
                self._report(outcome, f"[{number}/{len(jobs)}]")

    def _in_turn(self, jobs: Sequence[Job]) -> Generator[Outcome, None, None]:
        for job in jobs:
            with progress(self._given.silent):
                outcome = self._do(job, lambda _: None)
            yield outcome

    def _do(self, job: Job, show: Listener) -> Outcome:
        return run_tracked(job, self._federation, self._engine, self._given, show)

    def _report(self, outcome: Outcome, number: str) -> None:
        rounds = outcome.job.config.plan.rounds
        self._done += rounds
        self._pace.update(self._done)
        left = self._pace.left(self._total) if self._done < self._total else None
        score = "diverged" if outcome.error else f"{100 * outcome.accuracy:.1f} %"
        rest = "" if left is None else f"  {duration(left)} left"
        if not self._given.silent:
            typer.echo(f"{number} {outcome.job.label}, {plural(rounds, 'round')}: {score}{rest}", err=True)


def _print(how: Search, found: Findings, json: bool) -> None:
    files = {entry.spec: str(how.best_file(entry)) for entry in how.entries}
    cpu = spent(found.trials)
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
        effects = [{**each._asdict(), "difference": each.difference} for each in found.effects]
        counts = {"candidates": found.candidates, "rounds": found.rounds, "validation": found.validation}
        typer.echo(jsonlib.dumps({"best": best, "effects": effects, **counts, "cpu_seconds": cpu}))
        return
    width = terminal_width()
    for title, table, drop in _tables(found):
        typer.echo(f"\n{title}\n{fitted(table, width, drop)}")
    note = HEDGE.format(trials=found.candidates, rounds=plural(found.rounds[0], "round"))
    typer.echo(f"\n{folded(note)}")
    typer.echo(f"CPU time of the search: {exact(cpu)}")
    typer.echo("Best settings: " + ", ".join(files.values()))
    typer.echo(f"Next: {program()} compare --methods {','.join(files.values())} --seeds 3")


def _tables(found: Findings) -> Iterator[tuple[str, Table, tuple[str, ...]]]:
    """Scores, best values, and effects: title, table, and the columns to leave out if it is too wide."""
    yield "Accuracy (%) on the validation images", _table(SCORES, found.scores(), 1), ()
    yield "Best values", _table(("setting", *found.best), found.settings(), 1 + len(found.best)), ()
    heads = ("setting", "highest mean", "lowest mean", "points", "rank corr.")
    for spec in found.best:
        rows = [
            (
                each.setting,
                f"{each.best}: {percent(each.best_mean)}",
                f"{each.worst}: {percent(each.worst_mean)}",
                percentage_points(each.difference),
                NONE if each.correlation is None else f"{each.correlation:+.2f}",
            )
            for each in found.effects
            if each.method == spec
        ]
        title = f"What mattered for {spec}: mean accuracy (%) by value of a setting"
        yield title, _table(heads, rows, 3), ("rank corr.", "lowest mean")


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], words: int) -> Table:
    """The first `words` columns are aligned to the left."""
    columns = tuple(Column(head, number=at >= words) for at, head in enumerate(heads))
    return Table(columns, tuple(tuple(map(Cell, row)) for row in rows))
