"""Progress of runs, downloads and other long work: a live view in a terminal, plain lines elsewhere."""

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fedlgd.cli.terminal import Evaluations, folded
from fedlgd.core.errors import RunError
from fedlgd.core.meter import listening, told_waiting
from fedlgd.core.text import number_of_bytes, rough_duration
from fedlgd.engines.validate import listed
from fedlgd.rundir.records import RoundRecord, committed_records, in_order

Listener = Callable[[RoundRecord], None]

SECONDS_BETWEEN_LINES = 10.0
MAX_SECONDS_BETWEEN = 300.0  # two lines that say what is awaited
MAX_STEP_BARS = 4  # each worker process has its own
BAR_WIDTH = 24


class Pace:
    """Measures the speed of a loop from its first reported step on."""

    def __init__(self) -> None:
        self.done = 0
        self._first: int | None = None
        self._started = self._updated = time.monotonic()

    def update(self, done: int) -> None:
        self.done, self._updated = done, time.monotonic()
        if self._first is None:
            self._first, self._started = done, self._updated

    def left(self, total: int) -> float | None:
        """Estimated seconds until `total`; None before the second step."""
        if self._first is None or self.done == self._first or not total:
            return None
        per_step = (self._updated - self._started) / (self.done - self._first)
        return max(0.0, per_step * (total - self.done) - (time.monotonic() - self._updated))


def events(record: RoundRecord) -> str:
    """refused: 'bee' (weight is nan); no score: 'cat' (it did not answer); enrolled late or again: dog"""
    faults = {"refused": record.refused, "no score": record.unscored}
    parts = [f"{what}: {listed(found)}" for what, found in faults.items() if found]
    return "; ".join(parts + ([f"enrolled late or again: {', '.join(record.joined)}"] if record.joined else []))


def clock_time(seconds: float) -> str:
    """65 -> "1:05"; 3665 -> "1:01:05"."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def _amount(done: int, total: int, in_bytes: bool) -> str:
    if in_bytes:
        return number_of_bytes(done) + (f" of {number_of_bytes(total)}" if total else "")
    return f"{done}/{total}"


def _left(seconds: float | None) -> tuple[str, ...]:
    return () if seconds is None else (f"{rough_duration(seconds)} left",)


class Lines:
    """Plain lines: one per round, and one every few seconds during a long step. Downloads are in bytes.

    announced: also one for each step of which nothing is done yet.
    """

    def __init__(self, rounds: int = 0, in_bytes: bool = False, announced: bool = False) -> None:
        self._rounds, self._in_bytes, self._announced = rounds, in_bytes, announced
        self._pace = Pace()
        self._steps: dict[str, Pace] = {}
        self._printed = time.monotonic()
        self._pause = 0.0

    def tick(self, label: str, done: int, total: int) -> None:
        begins = label not in self._steps
        pace = self._steps.setdefault(label, Pace())
        pace.update(done)
        left = _left(pace.left(total))
        due = time.monotonic() - self._printed > SECONDS_BETWEEN_LINES and done != total and not self._pause
        if self._announced and begins and not done:
            self._print(f"  {label}")
        elif (self._in_bytes and (begins or due)) or (due and left):
            self._print(", ".join((f"  {label} {_amount(done, total, self._in_bytes)}", *left)))
        if done == total:
            del self._steps[label]

    def wait(self, text: str) -> None:
        """A line at once, and again after pauses that grow, until the work goes on."""
        if not text:
            self._pause = 0.0
        elif not self._pause or time.monotonic() - self._printed >= self._pause:
            self._pause = min(2 * self._pause, MAX_SECONDS_BETWEEN) or SECONDS_BETWEEN_LINES
            self._print(folded(f"  {text}", "    "))

    def round(self, record: RoundRecord) -> None:
        done = record.round + 1
        if done:
            self._pace.update(done)
        left = self._pace.left(self._rounds) if done < self._rounds else None
        self._print("  ".join((self._describe(record), *_left(left))))

    def close(self) -> None:
        """Nothing to clean up."""

    def _describe(self, record: RoundRecord) -> str:
        if record.round < 0:
            spent = sum((record.cpu or record.seconds).values())
            cost = f"setup: sites enrolled; CPU time, also of sets from the cache: {spent:.0f} s"
            return "  ".join(filter(None, (cost, events(record))))
        parts = [f"round {record.round + 1}/{self._rounds}"]
        if record.scores:
            limits = record.limits_of_mean and f" ({record.limits_of_mean})"
            parts.append(f"mean {100 * record.accuracy:.1f} %{limits}")
            parts += [f"{site} {100 * score.accuracy:.1f}" for site, score in record.scores.items()]
        parts.append(number_of_bytes(record.bytes_up + record.bytes_down))
        if record.flags:
            parts.append(f"updated: {', '.join(record.flags)}")
        if said := events(record):
            parts.append(said)
        return "  ".join(parts)

    def _print(self, text: str) -> None:
        self._printed = time.monotonic()
        typer.echo(text, err=True)


class LiveView:
    """A table of evaluations and progress bars, redrawn in place.

    rounds: 0 shows only the bars of steps. earlier: records of a run that is resumed. lasting: leave the table on
    the screen at the end, else one summary line.
    """

    def __init__(
        self,
        rounds: int = 0,
        title: str = "",
        earlier: Iterable[RoundRecord] = (),
        lasting: bool = False,
        in_bytes: bool = False,
        console: Console | None = None,
    ) -> None:
        self._rounds, self._title, self._lasting, self._in_bytes = rounds, title, lasting, in_bytes
        self._console = console or Console(stderr=True)
        self._evaluations = Evaluations(self._console, other_lines=5 + MAX_STEP_BARS)
        self._began = time.monotonic()
        self._pace = Pace()
        self._steps: dict[str, tuple[Pace, int]] = {}
        self._done = self._sent = 0
        self._ended = self._set_up = False
        self._refused = self._awaited = ""
        for record in earlier:
            self._add(record, "before")
        self._live = Live(get_renderable=self.draw, console=self._console, transient=not lasting)
        self._live.start()

    def tick(self, label: str, done: int, total: int) -> None:
        pace, _ = self._steps.get(label, (Pace(), total))
        pace.update(done)
        self._steps[label] = pace, total
        if done == total:
            del self._steps[label]

    def wait(self, text: str) -> None:
        self._awaited = text

    def round(self, record: RoundRecord) -> None:
        self._add(record, self._elapsed)
        if record.round >= 0:
            self._pace.update(self._done)

    def close(self) -> None:
        self._ended = True
        self._live.stop()
        if self._rounds and not self._lasting:
            self._console.print(self._summary())

    def draw(self) -> RenderableType:
        title = [_line(self._title, "bold")] if self._title else []
        below = self._summary() if self._ended and self._rounds else self._bars()
        refused = [_line(self._refused, "yellow")] if self._refused else []
        awaited = [Text(self._awaited, "yellow")] if self._awaited and not self._ended else []
        return Group(*title, *self._evaluations.render(), *refused, *awaited, below)

    @property
    def _elapsed(self) -> str:
        return clock_time(time.monotonic() - self._began)

    def _add(self, record: RoundRecord, at: str) -> None:
        self._done, self._set_up = record.round + 1, True
        self._sent += record.bytes_up + record.bytes_down
        self._evaluations.add(record, self._sent, at)
        if said := events(record):
            self._refused = f"round {self._done} {said}"

    def _bars(self) -> Table:
        """A bar for the rounds and one for each long step inside a round, with the time left.

        Where the texts need the width of the terminal, they stand without bars.
        """
        rows, bars = list(self._rows()), Table.grid(padding=(0, 1))
        longest = [max(map(len, texts)) for texts in zip(*(row[:2] for row in rows), strict=True)]
        width = min(BAR_WIDTH, self._console.width - sum(longest) - 3)
        for text, times, done, total in rows:
            bar = [ProgressBar(total=total or None, completed=done, width=width)] if width > 5 else []
            bars.add_row(_line(text), *bar, _line(times, "dim"))
        return bars

    def _rows(self) -> Iterator[tuple[str, str, int, int]]:
        """What is done, the times, and the numbers of the bar."""
        if self._rounds:
            left = self._pace.left(self._rounds) if self._done < self._rounds else None
            text = f"round {self._done}/{self._rounds}" if self._set_up else "setup"
            times = (f"{self._elapsed} elapsed", *_left(left))
            yield text, ", ".join(times), self._done, self._rounds
        for label, (pace, total) in list(self._steps.items())[:MAX_STEP_BARS]:
            text = f"{label} {_amount(pace.done, total, self._in_bytes)}"
            yield text, "".join(_left(pace.left(total))), pace.done, total

    def _summary(self) -> Text:
        parts = [f"round {self._done}/{self._rounds}"]
        parts += [self._evaluations.mean] if self._evaluations.mean else []
        return _line(", ".join([*parts, f"{number_of_bytes(self._sent)} sent", self._elapsed]))


def _line(text: str, style: str = "") -> Text:
    return Text(text, style, no_wrap=True, overflow="ellipsis")


def _earlier(folder: Path | None, sites: Sequence[str]) -> Iterator[RoundRecord]:
    """The committed records of a run that is resumed; the run itself reports a damaged folder."""
    with suppress(RunError):
        for record in committed_records(folder) if folder else ():
            yield in_order(record, sites)


@contextmanager
def progress(
    quiet: bool,
    rounds: int = 0,
    title: str = "",
    folder: Path | None = None,
    lasting: bool = False,
    in_bytes: bool = False,
    sites: Sequence[str] = (),
    announced: bool = False,
    plain: bool = False,
) -> Iterator[Listener]:
    """Show the progress of the work inside: its long steps, and the rounds of a run given to the yielded listener.

    folder: a terminal also shows the records that are already there, with `sites` in this order. The other
    arguments are those of `LiveView` and `Lines`. plain: lines also in a terminal, which can then ask questions.
    """
    if quiet:
        yield lambda _: None
        return
    view: LiveView | Lines = Lines(rounds, in_bytes, announced)
    if not plain and sys.stderr.isatty() and os.environ.get("TERM", "") not in ("", "dumb"):
        view = LiveView(rounds, title, _earlier(folder, sites), lasting, in_bytes)
    try:
        with listening(view.tick), told_waiting(view.wait):
            yield view.round
    finally:
        view.close()
