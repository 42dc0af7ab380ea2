"""The commands that run federations."""

import json as jsonlib
import shlex
import statistics
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedlgd.cli.checking import progress
from fedlgd.cli.display import Display
from fedlgd.cli.foretelling import estimated, foretell, tell
from fedlgd.core.device import Place
from fedlgd.core.files import writing as saving
from fedlgd.core.records import RoundRecord
from fedlgd.data.federation import Federation
from fedlgd.engines.registry import Engine, choose
from fedlgd.report.page import write_report
from fedlgd.runs.config import Config, parse_assignment, read_toml, resolve
from fedlgd.runs.runner import Listener, Result, default_folder, execute
from fedlgd.runs.track import Tracked, Tracking, check_trackers

DEMO_METHODS: dict[str, dict[str, Any]] = {
    "fedavg": {"method": "fedavg", "train_on": "virtual"},
    "fedlgd": {"method": "fedlgd"},
}
ACROSS = 8  # sites that a table has room for side by side
DEMO = {"net": {"name": "convnet", "width": 32}, "evaluate_every": 3}
DEMO_NOTE = (
    "Both start from the same virtual sets. FedLGD also refines them and trains on its anchors: it works more.\n"
    "Step-matched comparisons and controls: fedlgd compare --help"
)


class EngineChoice(NamedTuple):
    """What the command line asks for; no name: the one that suits."""

    name: str | None = None
    workers: int = 0
    threads: int = 1
    place: Place = Place()

    def engine(self, federation: Federation) -> Engine:
        return choose(self.name, self.workers, federation, self.threads, self.place)


def engine_choice(name: str | None, workers: int, threads: int, device: str, autocast: bool) -> EngineChoice:
    """What the options of a command come to."""
    return EngineChoice(name, workers, threads, Place(device=device, autocast=autocast))


def run(
    flags: Mapping[str, Any],
    preset: str,
    config_file: Path | None,
    settings: list[str],
    out: Path | None,
    engine: EngineChoice,
    track: Sequence[str],
    json: bool,
    quiet: bool,
    only_estimate: bool = False,
) -> None:
    check_trackers(track)
    given = read_toml(config_file) if config_file else {}
    assignments = {key: value for key, value in flags.items() if value is not None}
    assignments |= dict(parse_assignment(text) for text in settings)
    config = resolve(given, assignments, preset)
    folder = out or default_folder(config)
    if only_estimate:
        _estimate(config, folder, engine, json)
        return
    title = f"{config.method.label} on {config.data.name}, seed {config.plan.seed}"
    result = _execute(config, folder, engine, quiet or json, title, track)
    page = _report([folder], folder / "report.html")
    if json:
        typer.echo(jsonlib.dumps(_summary(config, folder, page, result)))
        return
    _print_table({config.method.label: result})
    say(f"Report: {page}")


def _estimate(config: Config, folder: Path, wanted: EngineChoice, json: bool) -> None:
    """How long, and nothing else."""
    prepare(wanted.threads)
    with progress(json):
        federation = config.data.open()
    engine = wanted.engine(federation)
    tell(estimated(config, folder, federation, engine.place), engine.processes(federation), json)


def demo(out: Path, rounds: int, seed: int, threads: int, json: bool, quiet: bool) -> None:
    results, summaries = {}, []
    for name, settings in DEMO_METHODS.items():
        config = resolve({**DEMO, **settings, "rounds": rounds, "seed": seed}, preset="quick")
        if not (quiet or json):
            say(f"{config.method.label} on builtin-digits")
        results[config.method.label] = result = _execute(
            config, out / name, EngineChoice(threads=threads), quiet or json
        )
        summaries.append(_summary(config, out / name, out / "report.html", result))
    page = _report([out / name for name in DEMO_METHODS], out / "report.html")
    if json:
        typer.echo(jsonlib.dumps({"runs": summaries, "report": str(page)}))
        return
    _print_table(results)
    say(f"{DEMO_NOTE}\nReport: {page}")
    if not quiet:
        say("Next: fedlgd run builtin-digits --method fedlgd --preset quick --rounds 100 --set pull.weight=1")


def _execute(
    config: Config,
    folder: Path,
    wanted: EngineChoice,
    quiet: bool,
    title: str = "",
    track: Sequence[str] = (),
) -> Result:
    """Run with a display; an interrupt says how to go on."""
    prepare(wanted.threads)
    try:
        with progress(quiet):
            federation = config.data.open()
        engine = wanted.engine(federation)
        if not quiet:
            foretell(config, folder, federation, engine)
        with (
            Display(config.plan.rounds, quiet, title, folder) as display,
            Tracking(track, Tracked(title, folder, config)) as tracking,
        ):
            heard = both(_at_first(engine.describe(federation), quiet), display.round, tracking)
            result = execute(config, federation, folder, heard, command_line(), "", engine)
    except KeyboardInterrupt:
        typer.echo(f"\nStopped; the finished rounds are saved in {folder}. To go on: {command_line()}", err=True)
        raise typer.Exit(130) from None
    if not (display.heard or quiet):
        typer.echo(f"{folder} is complete; nothing was run again", err=True)
    return result


def _at_first(words: str, quiet: bool) -> Listener:
    """A listener that says something once, when it is clear that the run works."""
    unsaid = [] if quiet else [words]

    def say_it(_: RoundRecord) -> None:
        while unsaid:
            typer.echo(unsaid.pop(), err=True)

    return say_it


def both(*listeners: Listener) -> Listener:
    """A listener that tells each of these."""

    def tell(record: RoundRecord) -> None:
        for listener in listeners:
            listener(record)

    return tell


def prepare(threads: int) -> None:
    """Before any run: the number of threads, and warnings as one line each."""
    torch.set_num_threads(threads)
    warnings.showwarning = lambda message, *_: typer.echo(f"fedlgd: {message}", err=True)


def _report(folders: list[Path], page: Path) -> Path:
    with saving(str(page)):
        return write_report(folders, page)


def command_line() -> str:
    return shlex.join(["fedlgd", *sys.argv[1:]])


def _summary(config: Config, folder: Path, page: Path, result: Result) -> dict[str, Any]:
    return {
        "method": config.method.label,
        "rounds": config.plan.rounds,
        "accuracy": result.accuracy,
        "mean": statistics.fmean(result.accuracy.values()),
        "folder": str(folder),
        "report": str(page),
    }


def _print_table(results: Mapping[str, Result]) -> None:
    """Last-round accuracy per site, and the unweighted mean over sites; many sites go down the page, not across."""
    sites = list(next(iter(results.values())).accuracy)
    rows = [["method", *sites, "mean"]]
    for name, result in results.items():
        values = [result.accuracy[site] for site in sites]
        rows.append([name, *(f"{100 * v:.1f}" for v in (*values, statistics.fmean(values)))])
    if len(sites) > ACROSS:
        rows = [list(column) for column in zip(*rows, strict=True)]
        rows[0][0] = "site"
    table = Table(title="Accuracy (%) on each site's test images after the last round")
    for i, column in enumerate(rows[0]):
        table.add_column(escape(column), justify="right" if i else "left")
    for row in rows[1:]:
        table.add_row(*map(escape, row))
    Console().print(table)


def say(text: str) -> None:
    typer.echo(text)
