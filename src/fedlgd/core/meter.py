"""What work costs and how far it is: wall time, CPU time and FLOPs by phase, and ticks of long loops.

Both use context managers: a method calls `with phase("distil")` and does not depend on the listener.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

from fedlgd.core.device import settle

Listener = Callable[[str, int, int], None]


class Spent(Protocol):
    """What some work cost, by phase."""

    @property
    def seconds(self) -> Mapping[str, float]: ...

    @property
    def cpu(self) -> Mapping[str, float]: ...

    @property
    def flops(self) -> Mapping[str, int]: ...


class Meter:
    """Wall seconds, CPU seconds and FLOPs by phase. Phases nest; time belongs to the innermost one.

    CPU seconds are those of all threads of this process; other processes on a busy machine do not add to them.
    They do not measure the work of a GPU: there, use the wall seconds.
    """

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self.cpu: Counter[str] = Counter()
        self.flops: Counter[str] = Counter()
        self._phase = ""
        self._since = _clocks()

    def switch(self, phase: str) -> str:
        """Add the elapsed time to the old phase; returns its name."""
        settle()
        now = _clocks()
        if self._phase:
            self.seconds[self._phase] += now[0] - self._since[0]  # type: ignore[assignment]
            self.cpu[self._phase] += now[1] - self._since[1]  # type: ignore[assignment]
        old, self._phase, self._since = self._phase, phase, now
        return old

    def spend(self, flops: int) -> None:
        if self._phase:
            self.flops[self._phase] += flops

    def spent(self) -> dict[str, Any]:
        """The three costs by the names that records, answers and enrolments have for them."""
        return {"seconds": dict(self.seconds), "cpu": dict(self.cpu), "flops": dict(self.flops)}


def _clocks() -> tuple[float, float]:
    """Wall seconds, and CPU seconds of this process."""
    return time.perf_counter(), time.process_time()


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


def charge(spent: Spent) -> None:
    """Charge work that was metered elsewhere, e.g. in a worker process."""
    meter = _meter.get()
    meter.seconds.update(spent.seconds)
    meter.cpu.update(spent.cpu)
    meter.flops.update(spent.flops)


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
