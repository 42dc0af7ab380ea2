"""Costs as CPU seconds of one thread, both sides by turns in one process, each with its own allocator settings."""

import ctypes
import gc
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch.utils.flop_counter import FlopCounterMode

from fedlgd.cli.app import M_MMAP_THRESHOLD, M_TRIM_THRESHOLD, keep_memory

Call = Callable[[], object]


@dataclass(frozen=True)
class Spread:
    """Median and quartiles."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        if len(values) == 1:
            return cls(values[0], values[0], values[0])
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(median, low, high)


@dataclass(frozen=True)
class Compared:
    """CPU seconds of the two sides, and the ratio of neighbours in time."""

    first: Spread
    second: Spread
    ratio: Spread


def compare(
    first: Call,
    second: Call,
    repeats: int,
    units: tuple[float, float] = (1, 1),
    malloc: Callable[[], None] | None = None,
) -> Compared:
    """A B A B ...: what slows the machine down for a while slows both. `malloc` sets the second's allocator."""
    a, b = [], []
    for _ in range(repeats):
        a.append(seconds(first, default_malloc) / units[0])
        b.append(seconds(second, malloc or kept_malloc) / units[1])
    return Compared(Spread.of(a), Spread.of(b), Spread.of([x / y for x, y in zip(a, b, strict=True)]))


def seconds(call: Call, malloc: Callable[[], None] | None = None) -> float:
    """CPU seconds of this process."""
    if malloc:
        malloc()
    start = time.process_time()
    call()
    return time.process_time() - start


def kept_malloc() -> None:
    """As the `fedlgd` command sets it."""
    keep_memory()


def default_malloc() -> None:
    """What glibc's own rule comes to after large blocks were freed; freed memory is given back first."""
    if sys.platform == "linux":
        gc.collect()
        libc = ctypes.CDLL(None)
        libc.mallopt(M_MMAP_THRESHOLD, 32 << 20)
        libc.mallopt(M_TRIM_THRESHOLD, 64 << 20)
        libc.malloc_trim(0)


def peak_flops(side: int = 2048, repeats: int = 5) -> float:
    """FLOP/s that one thread reaches on a large matrix product: the best of a few."""
    a = torch.randn(side, side)
    a @ a
    return 2 * side**3 / min(seconds(lambda: a @ a) for _ in range(repeats))


@dataclass(frozen=True)
class Once:
    """What one call takes: floating-point operations, and memory above that of the process at rest."""

    flops: int
    megabytes: float


def once(call: Call, malloc: Callable[[], None]) -> Once:
    """Measured in a child, so that nothing that ran before counts."""
    _ready()
    with _child(lambda: _count(call, malloc)) as (flops, megabytes):
        return Once(int(flops), megabytes)


@cache
def _ready() -> None:
    """What counting itself imports comes first, and once."""
    with FlopCounterMode(display=False):
        net = torch.nn.Linear(2, 2)
        net(torch.zeros(1, 2)).sum().backward()


def _count(call: Call, malloc: Callable[[], None]) -> tuple[float, float]:
    default_malloc()
    malloc()
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    rest = _memory("VmRSS")
    with FlopCounterMode(display=False) as counter:
        call()
    return counter.get_total_flops(), _memory("VmHWM") - rest


def _memory(key: str) -> float:
    """Megabytes of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    line = next(line for line in lines if line.startswith(key))
    return int(line.split()[1]) / 1024


@contextmanager
def _child(work: Callable[[], tuple[float, float]]) -> Iterator[tuple[float, float]]:
    """The numbers that `work` gives in a forked process."""
    here, there = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.write(there, " ".join(map(str, work())).encode())
            code = 0
        finally:
            os._exit(code)
    os.close(there)
    with os.fdopen(here) as answer:
        text = answer.read()
    if os.waitpid(pid, 0)[1] != 0:
        raise RuntimeError("the child that measures memory failed; its message is above")
    a, b = text.split()
    yield float(a), float(b)
