"""What work costs and how far it is: seconds and FLOPs by phase, and ticks of long loops.

Both are contexts, so that a method says `with phase("distil")` and knows nothing of who listens.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

from fedlgd.core.device import settle

Listener = Callable[[str, int, int], None]


class Meter:
    """Seconds and FLOPs by phase. Phases nest; time belongs to the innermost one."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self.flops: Counter[str] = Counter()
        self._phase = ""
        self._since = time.perf_counter()

    def switch(self, phase: str) -> str:
        """Charge the time so far to the old phase; returns its name."""
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
    """All phases entered inside are charged to a new meter."""
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
    """Charge arithmetic to the current phase."""
    _meter.get().spend(flops)


def charge(seconds: Mapping[str, float], flops: Mapping[str, int]) -> None:
    """Charge work that was metered elsewhere."""
    meter = _meter.get()
    meter.seconds.update(seconds)
    meter.flops.update(flops)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """`listener(label, done, total)` hears every tick of `track` inside."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def track(label: str, total: int) -> Iterator[int]:
    """`range(total)` that tells whoever listens how far it is."""
    for i in range(total):
        yield i
        tick(label, i + 1, total)


def tick(label: str, done: int, total: int) -> None:
    """Tell whoever listens how far it is."""
    listener = _listener.get()
    if listener:
        listener(label, done, total)
