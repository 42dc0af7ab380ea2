"""How fast something goes, and how long it still takes."""

import time


class Pace:
    """Seconds a step since the first step heard of; what was done before it does not count."""

    def __init__(self) -> None:
        self.done = 0
        self._first: int | None = None
        self._since = self._at = time.monotonic()

    def heard(self, done: int) -> None:
        self.done, self._at = done, time.monotonic()
        if self._first is None:
            self._first, self._since = done, self._at

    def left(self, total: int) -> float | None:
        """Seconds until `total`, less those that passed since the last step; None before the second step."""
        if self._first is None or self.done == self._first:
            return None
        each = (self._at - self._since) / (self.done - self._first)
        return max(0.0, each * (total - self.done) - (time.monotonic() - self._at))


def time_left(seconds: float) -> str:
    return f"about {seconds:.0f} s left" if seconds < 90 else f"about {seconds / 60:.0f} min left"


def about(seconds: float) -> str:
    """50 -> "about 50 s"; 840 -> "about 14 min"; 12000 -> "about 3 h 20 min"."""
    if seconds < 90:
        return f"about {seconds:.0f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"about {hours} h {minutes} min" if hours else f"about {minutes} min"


def clock_time(seconds: float) -> str:
    """65 -> "1:05"; 3665 -> "1:01:05"."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
