"""`fedlgd data fetch`: terms first, then downloads with progress, then what became of each data set."""

import json as jsonlib
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from fedlgd.core.errors import DataError
from fedlgd.core.meter import listening
from fedlgd.data.fetch.prepare import Outcome, attempt, chosen
from fedlgd.data.store import data_home, readable

PLAIN_EVERY = 5.0  # seconds between plain lines about one file


def fetch(names: list[str], given: Path | None, again: bool, keep: bool, json: bool, quiet: bool) -> None:
    sources, home = chosen(names), data_home()
    if given and not given.is_dir():
        raise DataError(f"--from {given} is not a folder; give the one that holds the original files")
    for source in sources:
        typer.echo(f"{source.name}: {source.what}. Terms: {source.terms}; {source.page}", err=True)
    outcomes = []
    try:
        for source in sources:
            with progress(quiet):
                named = source.name in names
                outcomes.append(attempt(source, home, named=named, given=given, again=again, keep=keep))
            _report(outcomes[-1], json)
    except KeyboardInterrupt:
        typer.echo("Interrupted. The same command goes on where it stopped.", err=True)
        raise typer.Exit(130) from None
    if json:
        typer.echo(jsonlib.dumps([asdict(outcome) for outcome in outcomes]))
    if not all(outcome.ready or outcome.optional for outcome in outcomes):
        raise typer.Exit(2)


def _report(outcome: Outcome, json: bool) -> None:
    """Where a data set is, on the output; what is left to do, beside it."""
    if outcome.ready:
        said = "prepared" if outcome.state == "prepared" else "already there (--again prepares it anew)"
        if not json:
            typer.echo(f"{outcome.name}: {said}: {', '.join(outcome.paths)}")
        return
    how = "to be got by hand" if outcome.state == "by hand" else "failed"
    rest = " (optional: the suite renders a stand-in)" if outcome.optional else ""
    typer.echo(f"{outcome.name}: {how}{rest}: {outcome.note}", err=True)


@contextmanager
def progress(quiet: bool) -> Iterator[None]:
    """A bar a file in a terminal, a line now and then elsewhere."""
    if quiet:
        yield
    elif sys.stderr.isatty() and os.environ.get("TERM", "") not in ("", "dumb"):
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
        with Progress(*columns, transient=True, console=Console(stderr=True)) as bars, listening(Bars(bars).tick):
            yield
    else:
        with listening(Lines().tick):
            yield


class Bars:
    """One bar for each label."""

    def __init__(self, bars: Progress) -> None:
        self._bars = bars
        self._tasks: dict[str, TaskID] = {}

    def tick(self, label: str, done: int, total: int) -> None:
        if label not in self._tasks:
            self._tasks[label] = self._bars.add_task(label, total=None)
        self._bars.update(self._tasks[label], completed=done, total=total or None)


class Lines:
    """A line at the beginning of each step and every few seconds."""

    def __init__(self) -> None:
        self._spoke: dict[str, float] = {}

    def tick(self, label: str, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self._spoke.get(label, -PLAIN_EVERY) >= PLAIN_EVERY:
            self._spoke[label] = now
            of = f" of {readable(total)}" if total else ""
            typer.echo(f"  {label}: {readable(done)}{of}", err=True)
