"""The journal of a site: everything that left it, and what it refused, in plain words and one line per event."""

import os
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from fedlgd.core.errors import one_line

MAX_LINE_LETTERS = 10_000
MAX_ID_LETTERS = 12  # of a run
MAX_METHOD_LETTERS = 100


class Journal:
    """Appends to a private file. A line is on the disk before the answer is sent.

    run, method: what the tasks belong to, in the words of the server.
    """

    def __init__(self, file: Path, run: str = "", method: str = "") -> None:
        self._file = file
        self._of = f" of run {run[:MAX_ID_LETTERS]} ({method[:MAX_METHOD_LETTERS]})" if run else ""

    def left(self, what: str, round: int, parts: Mapping[str, int], circumstances: str = "") -> None:
        """What was sent, with its number of bytes: {"weights": 80_000, "scores": 120}."""
        listed = ", ".join(f"{name} ({size:,} bytes)" for name, size in parts.items()) or "nothing"
        told = f"{listed}; in total {sum(parts.values()):,} bytes{circumstances and '; '}{circumstances}"
        self._add(f"sent: answer to {what}{_during(round)}{self._of}: {told}")

    def refused(self, what: str, round: int, why: str) -> None:
        self._add(f"refused: {what}{_during(round)}{self._of}: {why}; no result is sent")

    def noted(self, text: str) -> None:
        self._add(f"note: {text}")

    def _add(self, text: str) -> None:
        """One line, whatever the text contains: parts of it come from the server."""
        line = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC  {one_line(text, MAX_LINE_LETTERS)}\n"
        with open(self._file, "ab", opener=partial(os.open, mode=0o600)) as file:
            file.write(line.encode())
            file.flush()
            os.fsync(file.fileno())


def _during(round: int) -> str:
    """Rounds are counted from 1 here, as in the terminal of the coordinator."""
    return "" if round < 0 else f" in round {round + 1}"
