"""The progress of a run in one line on stderr, for scripts and notebooks: no package for it is needed."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fedlgd.core.meter import listening
from fedlgd.core.records import RoundRecord

Listener = Callable[[RoundRecord], None]

SECONDS = 0.2  # between two updates of the line
WIDTH = 20


class Line:
    """`[#####     ] round 5/20, mean 61.2 %, distil 40/100, 12 s`, rewritten in place."""

    def __init__(self, rounds: int) -> None:
        self._rounds, self._done, self._mean, self._step = rounds, 0, "", ""
        self._began = self._shown = time.monotonic()

    def tick(self, label: str, done: int, total: int) -> None:
        self._step = f", {label} {done}/{total}" if done < total else ""
        if time.monotonic() - self._shown > SECONDS:
            self.show()

    def round(self, record: RoundRecord) -> None:
        self._done, self._step = record.round + 1, ""
        if record.scores:
            self._mean = f", mean {100 * record.accuracy:.1f} %"
        self.show()

    def show(self, end: str = "") -> None:
        """The line is padded, so that nothing of a longer one before it stays."""
        self._shown = time.monotonic()
        bar = ("#" * (WIDTH * self._done // self._rounds)).ljust(WIDTH)
        text = f"[{bar}] round {self._done}/{self._rounds}{self._mean}{self._step}"
        sys.stderr.write(f"\r{text}, {self._shown - self._began:.0f} s".ljust(79) + end)
        sys.stderr.flush()


@contextmanager
def showing(wanted: bool, rounds: int, listen: Listener | None) -> Iterator[Listener | None]:
    """The listener to call with each record, which also updates the line if it is `wanted`."""
    if not wanted:
        yield listen
        return
    line = Line(rounds)

    def both(record: RoundRecord) -> None:
        line.round(record)
        if listen:
            listen(record)

    try:
        with listening(line.tick):
            yield both
    finally:
        line.show("\n")
