"""Cost and progress: seconds and FLOPs by phase, and progress of long loops.

Both use context managers: a method calls `with phase("distil")` and does not depend on the listener.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

from fedlgd.core.device import settle

Listener = Callable[[str, int, int], None]


class Meter:
    """Seconds and FLOPs by phase. Phases can be nested; time is added to the innermost phase."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self.flops: Counter[str] = Counter()
        self._phase = ""
        self._since = time.perf_counter()

    def switch(self, phase: str) -> str:
        """Add the elapsed time to the old phase; returns its name."""
        settle()
        now = time.perf_counter()
        if self._phase:
            self.seconds[self._phase] += now - self._since  # type: ignore[assignment]
        old, self._phase, self._since = self._phase, phase, now
        return old

    def spend(self, flops: int) -> None:
        if self._phase:
            self.flops[self._phase] += flops


_meter: ContextVar[Meter] = ContextVar("meter", default=Meter())  # noqa: B039
_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


@contextmanager
def metered() -> Iterator[Meter]:
    """Measure all phases inside this context with a new meter."""
    meter = Meter()
    token = _meter.set(meter)
    try:
        yield meter
    finally:
        _meter.reset(token)


@contextmanager
def phase(name: str) -> Iterator[None]:
    meter = _meter.get()
    old = meter.switch(name)
    try:
        yield
    finally:
        meter.switch(old)


def spend(flops: int) -> None:
    """Add FLOPs to the current phase."""
    _meter.get().spend(flops)


def charge(seconds: Mapping[str, float], flops: Mapping[str, int]) -> None:
    """Add a cost that was measured elsewhere."""
    meter = _meter.get()
    meter.seconds.update(seconds)
    meter.flops.update(flops)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Call `listener(label, done, total)` for each step of `track` inside this context."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def track(label: str, total: int) -> Iterator[int]:
    """`range(total)` that reports its progress to the listener."""
    for i in range(total):
        yield i
        tick(label, i + 1, total)


def tick(label: str, done: int, total: int) -> None:
    """Report progress to the listener."""
    listener = _listener.get()
    if listener:
        listener(label, done, total)
