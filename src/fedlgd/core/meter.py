"""What work costs and how far it is: wall time, CPU time and FLOPs by phase, and ticks of long loops.

Both use context managers: a method calls `with phase("distil")` and does not depend on the listener.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from fedlgd.core.device import assigned, settle

Listener = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Spent:
    """What some work cost, by phase."""

    seconds: Mapping[str, float] = field(default_factory=dict)
    cpu: Mapping[str, float] = field(default_factory=dict)
    flops: Mapping[str, int] = field(default_factory=dict)


class Meter:
    """Wall seconds, CPU seconds and FLOPs by phase. Phases nest; time belongs to the innermost one, or to a phase
    that is a whole.

    CPU seconds are those of all threads of this process; other processes on a busy machine do not add to them.
    They do not measure the work of a GPU: there, use the wall seconds.
    """

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self.cpu: Counter[str] = Counter()
        self.flops: Counter[str] = Counter()
        self.phase = ""
        self.whole = False
        self._since = _clocks()

    def switch(self, phase: str) -> str:
        """Add the elapsed time to the old phase; returns its name."""
        settle()
        now = _clocks()
        if self.phase:
            self.seconds[self.phase] += now[0] - self._since[0]  # type: ignore[assignment]
            self.cpu[self.phase] += now[1] - self._since[1]  # type: ignore[assignment]
        old, self.phase, self._since = self.phase, phase, now
        return old

    def spent(self) -> dict[str, Any]:
        """The three costs by the names that records, answers and enrolments have for them."""
        return {"seconds": dict(self.seconds), "cpu": dict(self.cpu), "flops": dict(self.flops)}


def _clocks() -> tuple[float, float]:
    """Wall seconds, and CPU seconds of this process."""
    return time.perf_counter(), time.process_time()


_meter: ContextVar[Meter] = ContextVar("meter", default=Meter())  # noqa: B039
_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)
_patience: ContextVar[Callable[[str], None] | None] = ContextVar("patience", default=None)


@contextmanager
def metered() -> Iterator[Meter]:
    """Measure all phases inside this context with a new meter. The time does not count for the phase outside."""
    outside, meter = _meter.get(), Meter()
    old = outside.switch("")
    try:
        with assigned(_meter, meter):
            yield meter
    finally:
        outside.switch(old)


@contextmanager
def phase(name: str, whole: bool = False) -> Iterator[None]:
    """Book what happens in this context as `name`. whole: also what is a phase of its own elsewhere."""
    meter = _meter.get()
    if meter.whole:
        yield
        return
    old, meter.whole = meter.switch(name), whole
    try:
        yield
    finally:
        meter.whole = False
        meter.switch(old)


def spend(flops: int) -> None:
    """Add FLOPs to the current phase."""
    meter = _meter.get()
    if meter.phase:
        meter.flops[meter.phase] += flops


def charge(spent: Spent) -> None:
    """Charge work that was metered elsewhere, e.g. in a worker process."""
    meter = _meter.get()
    for total, part in ((meter.seconds, spent.seconds), (meter.cpu, spent.cpu), (meter.flops, spent.flops)):
        for name, value in part.items():
            total[meter.phase if meter.whole else name] += value  # type: ignore[assignment]


def listening(listener: Listener) -> AbstractContextManager[Listener | None]:
    """Call `listener(label, done, total)` for each step of `track` inside this context."""
    return assigned(_listener, listener)


def track(label: str, total: int) -> Iterator[int]:
    """`range(total)` that reports its progress to the listener."""
    for i in range(total):
        yield i
        tick(label, i + 1, total)


def tick(label: str, done: int, total: int) -> None:
    """Report progress to the listener."""
    if listener := _listener.get():
        listener(label, done, total)


def told_waiting(listener: Callable[[str], None]) -> AbstractContextManager[Callable[[str], None] | None]:
    """Call `listener(text)` with what the work inside this context waits for; an empty text: it goes on."""
    return assigned(_patience, listener)


def waiting(text: str) -> None:
    """Report what the work waits for, for how long, and what happens next; an empty text: it goes on."""
    if listener := _patience.get():
        listener(text)
