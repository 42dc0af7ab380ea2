"""The terminal of commands that run until they are stopped: lines with the time, a live line, and a log."""

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from types import FrameType

import typer
from rich.console import Console
from rich.markup import escape


def say(text: str) -> None:
    """One line with the time, above the live line if there is one: it takes the place of `sys.stderr`."""
    sys.stderr.write(f"{datetime.now():%H:%M:%S} {text}\n")


@contextmanager
def live_line() -> Iterator[Callable[[str], None]]:
    """A live line in a terminal; nowhere else."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _: None
        return
    with console.status("") as line:
        yield lambda text: line.update(escape(text))


@contextmanager
def logged(file: Path) -> Iterator[Callable[[str], None]]:
    """A private file for what the processes print; the one of the last start is kept beside it."""
    if file.exists():
        file.replace(file.with_suffix(".log.1"))
    file.touch(0o600)
    with file.open("a", buffering=1) as opened:
        yield lambda line: None if opened.closed else print(line, file=opened)


@contextmanager
def stopped_by_signal() -> Iterator[None]:
    """Ctrl-C and SIGTERM end the command cleanly."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    except KeyboardInterrupt:
        say("stopped")
        raise typer.Exit(130) from None
