"""Progress: a live table with time left in a terminal, plain lines elsewhere."""

import os
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType

import typer

from fedlgd.cli.live import LiveTable
from fedlgd.cli.pace import Pace, time_left
from fedlgd.core.errors import RunError
from fedlgd.core.meter import listening
from fedlgd.core.records import RoundRecord
from fedlgd.core.records import committed_records as committed

PLAIN_EVERY = 10.0  # seconds between plain lines about one long step


class Display:
    """Hears every record and every tick of a run, from enrolment to the last round.

    In a terminal, what is in `folder` already is shown too, and `lasting` leaves the table on the screen.
    """

    def __init__(
        self,
        rounds: int,
        quiet: bool,
        title: str = "",
        folder: Path | None = None,
        lasting: bool = True,
    ) -> None:
        self._rounds = rounds
        self._quiet = quiet
        self._title, self._folder, self._lasting = title, folder, lasting
        self.heard = False
        self._stack = ExitStack()
        self._shown: LiveTable | Lines | None = None

    def __enter__(self) -> "Display":
        if not self._quiet:
            self._shown = self._live() if _is_terminal() else Lines(self._rounds)
            self._stack.enter_context(listening(self._shown.tick))
            self._stack.callback(self._shown.close)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def round(self, record: RoundRecord) -> None:
        self.heard = True
        if self._shown:
            self._shown.round(record)

    def _live(self) -> LiveTable:
        earlier: list[RoundRecord] = []
        with suppress(RunError):  # the run itself will say what is wrong
            earlier = committed(self._folder) if self._folder else []
        return LiveTable(self._rounds, self._title, earlier, self._lasting)


def _is_terminal() -> bool:
    return sys.stderr.isatty() and os.environ.get("TERM", "") not in ("", "dumb")


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


class Lines:
    """A line a round; long steps inside a round speak up now and then."""

    def __init__(self, rounds: int) -> None:
        self._rounds = rounds
        self._pace = Pace()
        self._inner: dict[str, Pace] = {}
        self._spoke = time.monotonic()

    def tick(self, label: str, done: int, total: int) -> None:
        pace = self._inner.setdefault(label, Pace())
        pace.heard(done)
        left = pace.left(total)
        if done == total:
            del self._inner[label]
        elif left is not None and time.monotonic() - self._spoke > PLAIN_EVERY:
            self._spoke = time.monotonic()
            self._print(f"  {label} {done}/{total}, {time_left(left)}")

    def round(self, record: RoundRecord) -> None:
        self._spoke = time.monotonic()
        text, done = sentence(record, self._rounds), record.round + 1
        if done:
            self._pace.heard(done)
        left = self._pace.left(self._rounds)
        self._print(text if left is None or done == self._rounds else f"{text}  {time_left(left)}")

    def close(self) -> None:
        pass

    @staticmethod
    def _print(text: str) -> None:
        typer.echo(text, err=True)
