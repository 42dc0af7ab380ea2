"""Progress: bars with time left in a terminal, plain lines elsewhere."""

import sys
import time
from contextlib import ExitStack
from types import TracebackType

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from fedlgd.core.meter import listening
from fedlgd.core.types import RoundRecord

PLAIN_EVERY = 10.0  # seconds between plain lines about one long step


class Display:
    """Hears every record and every tick of a run, from enrolment to the last round."""

    def __init__(self, rounds: int, quiet: bool) -> None:
        self._rounds = rounds
        self._quiet = quiet
        self.heard = False
        self._stack = ExitStack()
        self._bars: Bars | Lines | None = None

    def __enter__(self) -> "Display":
        if not self._quiet:
            self._bars = Bars(self._rounds) if sys.stderr.isatty() else Lines(self._rounds)
            self._stack.enter_context(listening(self._bars.tick))
            self._stack.callback(self._bars.close)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def round(self, record: RoundRecord) -> None:
        self.heard = True
        if self._bars:
            self._bars.round(record)


def sentence(record: RoundRecord, rounds: int) -> str:
    """One round in one line."""
    if record.round < 0:
        return f"enrolled in {sum(record.seconds.values()):.0f} s"
    parts = [f"round {record.round + 1}/{rounds}"]
    if record.scores:
        sites = "  ".join(f"{name} {100 * s.accuracy:.1f}" for name, s in record.scores.items())
        parts += [f"mean {100 * record.accuracy:.1f} %", sites]
    parts.append(f"{(record.bytes_up + record.bytes_down) / 1e6:.1f} MB")
    if record.flags:
        parts.append(f"moved: {', '.join(record.flags)}")
    return "  ".join(parts)


def time_left(seconds: float) -> str:
    return f"about {seconds:.0f} s left" if seconds < 90 else f"about {seconds / 60:.0f} min left"


class Bars:
    """A bar for the rounds and one for whatever takes long inside."""

    def __init__(self, rounds: int) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._progress = Progress(*columns, transient=True, console=Console(stderr=True))
        self._progress.start()
        self._total = self._progress.add_task("rounds", total=rounds)
        self._inner: dict[str, TaskID] = {}
        self._rounds = rounds

    def tick(self, label: str, done: int, total: int) -> None:
        if label not in self._inner:
            self._inner[label] = self._progress.add_task(label, total=total)
        self._progress.update(self._inner[label], completed=done, total=total, visible=done < total)

    def round(self, record: RoundRecord) -> None:
        self._progress.update(self._total, completed=record.round + 1)
        self._progress.console.print(sentence(record, self._rounds), highlight=False, markup=False)

    def close(self) -> None:
        self._progress.stop()


class Lines:
    """A line a round; long steps inside a round speak up now and then."""

    def __init__(self, rounds: int) -> None:
        self._rounds = rounds
        self._began: dict[str, float] = {}
        self._spoke = time.monotonic()
        self._first = 0
        self._since = time.monotonic()

    def tick(self, label: str, done: int, total: int) -> None:
        now = time.monotonic()
        began = self._began.setdefault(label, now)
        if done == total:
            del self._began[label]
        elif now - self._spoke > PLAIN_EVERY and now > began:
            self._spoke = now
            self._print(f"  {label} {done}/{total}, {time_left((now - began) / done * (total - done))}")

    def round(self, record: RoundRecord) -> None:
        now = self._spoke = time.monotonic()
        text = sentence(record, self._rounds)
        done = record.round + 1
        if self._first and done < self._rounds:
            each = (now - self._since) / (done - self._first)
            text += f"  {time_left(each * (self._rounds - done))}"
        elif not self._first:
            self._first, self._since = done, now
        self._print(text)

    def close(self) -> None:
        pass

    @staticmethod
    def _print(text: str) -> None:
        typer.echo(text, err=True)
