"""The command that checks a user's own images, and how the others take them."""

import json as jsonlib
import os
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from fedlgd.cli.display import Lines
from fedlgd.core.errors import SettingError
from fedlgd.core.meter import listening
from fedlgd.data.folders.check import Checked, check_data
from fedlgd.data.folders.problems import Problem
from fedlgd.data.registry import SUITES

ALIKE = 3  # files with the same problem that a table lists one by one


def chosen_data(argument: str | None, folder: Path | None) -> dict[str, str | None]:
    """The settings behind a federation's name, or behind a path given as `--data` or in place of a name."""
    if folder is not None and argument is not None:
        raise SettingError(f"both {argument!r} and --data {folder} are given; name one federation")
    if argument is not None and argument not in SUITES and (os.sep in argument or Path(argument).exists()):
        folder = Path(argument)
    if folder is None:
        return {"data.name": argument}
    return {"data.name": "folders", "data.path": str(folder.expanduser().absolute())}


@contextmanager
def progress(quiet: bool) -> Iterator[None]:
    """Whatever takes long inside shows how far it is: a bar in a terminal, now and then a line elsewhere."""
    if quiet:
        yield
    elif not sys.stderr.isatty():
        with listening(Lines(0).tick):
            yield
    else:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        bars: dict[str, TaskID] = {}
        with Progress(*columns, transient=True, console=Console(stderr=True)) as shown:

            def tick(label: str, done: int, total: int) -> None:
                if label not in bars:
                    bars[label] = shown.add_task(escape(label), total=total)
                shown.update(bars[label], completed=done, total=total)

            with listening(tick):
                yield


def check(folder: Path, least: int, strict: bool, json: bool, quiet: bool) -> None:
    with progress(quiet or json):
        checked = check_data(folder.expanduser(), least)
    errors, warnings = checked.count("error"), checked.count("warning")
    if json:
        found = {"sites": checked.sites, "images": checked.images, "errors": errors, "warnings": warnings}
        typer.echo(jsonlib.dumps({**found, "problems": [asdict(problem) for problem in checked.problems]}))
    else:
        _print(checked, errors, warnings)
    raise typer.Exit(1 if errors or (strict and warnings) else 0)


def _print(checked: Checked, errors: int, warnings: int) -> None:
    if checked.problems:
        table = Table(show_lines=False)
        for column in ("severity", "site", "file", "problem", "what to do"):
            table.add_column(column, overflow="fold")
        for problem in _shortened(checked.problems):
            cells = (problem.severity, problem.site, problem.file, problem.problem, problem.way_out)
            table.add_row(*map(escape, cells))
        Console(soft_wrap=False).print(table)
    typer.echo(f"{checked.sites} sites, {checked.images} readable images: {errors} errors, {warnings} warnings")


def _shortened(problems: tuple[Problem, ...]) -> Iterator[Problem]:
    """The first few of each kind at each site, and how many more there are."""
    counts = Counter((p.severity, p.site, p.way_out) for p in problems)
    told: Counter[tuple[str, str, str]] = Counter()
    for problem in problems:
        kind = (problem.severity, problem.site, problem.way_out)
        told[kind] += 1
        if told[kind] <= ALIKE:
            yield problem
        elif told[kind] == counts[kind]:
            more = f"and {counts[kind] - ALIKE} more like the above (--json lists all)"
            yield Problem(problem.severity, problem.site, "", more, problem.way_out)
