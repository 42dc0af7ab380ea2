"""The journal of a site: in plain words everything that left it, and what was refused. One line per event."""

import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from fedlgd.core.errors import one_line

LONGEST = 10_000  # letters of a line


class Journal:
    """Appends to a private file. A line is on the disk before the answer is sent."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def left(self, what: str, round: int, parts: Mapping[str, int]) -> None:
        """What was sent, with its number of bytes: {"model": 80_000, "scores": 120}."""
        listed = ", ".join(f"{name} ({size:,} bytes)" for name, size in parts.items()) or "nothing"
        self._add(f"sent: answer to {what}{_during(round)}: {listed}; in total {sum(parts.values()):,} bytes")

    def refused(self, what: str, round: int, why: str) -> None:
        self._add(f"refused: {what}{_during(round)}: {why}; no result is sent")

    def _add(self, text: str) -> None:
        """One line, whatever the text contains: parts of it come from the server."""
        line = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC  {one_line(text, LONGEST)}\n"
        handle = os.open(self._file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(handle, line.encode())
            os.fsync(handle)
        finally:
            os.close(handle)


def _during(round: int) -> str:
    """Rounds are counted from 1 here, as in the terminal of the coordinator."""
    return "" if round < 0 else f" in round {round + 1}"
