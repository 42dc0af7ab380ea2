"""Cost in CPU seconds of one thread. Both sides alternate in one process, each with its own malloc settings."""

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
from torch.nn.functional import conv2d
from torch.utils.flop_counter import FlopCounterMode

from fedlgd.cli import M_MMAP_THRESHOLD, M_TRIM_THRESHOLD, keep_memory

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
    """CPU seconds of both sides, and the ratios of consecutive measurements."""

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
    """Measure A B A B ..., so that load on the machine affects both. `malloc` sets the allocator of the second."""
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
    """The malloc settings of the `fedlgd` command."""
    keep_memory()


def default_malloc() -> None:
    """The default malloc settings of glibc after large blocks were freed; free memory is returned first."""
    if sys.platform == "linux":
        gc.collect()
        libc = ctypes.CDLL(None)
        libc.mallopt(M_MMAP_THRESHOLD, 32 << 20)
        libc.mallopt(M_TRIM_THRESHOLD, 64 << 20)
        libc.malloc_trim(0)


def peak_flops(side: int = 2048, channels: int = 256, repeats: int = 5) -> float:
    """Peak FLOP/s of one thread: the best of several large matrix products and 3 x 3 convolutions.

    On some CPUs the product is from another library than the convolution, with half of its speed.
    """
    a, x, w = torch.randn(side, side), torch.randn(16, channels, 32, 32), torch.randn(channels, channels, 3, 3)
    works: dict[Call, int] = {
        lambda: a @ a: 2 * side**3,
        lambda: conv2d(x, w, padding=1): 18 * 16 * 32**2 * channels**2,
    }
    for work in works:
        work()
    return max(flops / seconds(work) for work, flops in works.items() for _ in range(repeats))


@dataclass(frozen=True)
class Once:
    """The cost of one call: floating-point operations, and memory above that of the idle process."""

    flops: int
    megabytes: float


def once(call: Call, malloc: Callable[[], None]) -> Once:
    """Measured in a child process, independent of earlier work."""
    _ready()
    with _child(lambda: _count(call, malloc)) as (flops, megabytes):
        return Once(int(flops), megabytes)


@cache
def _ready() -> None:
    """Import the modules of the counter before the measurement."""
    with FlopCounterMode(display=False):
        net = torch.nn.Linear(2, 2)
        net(torch.zeros(1, 2)).sum().backward()


def _count(call: Call, malloc: Callable[[], None]) -> tuple[float, float]:
    default_malloc()
    malloc()
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # start of the peak measurement
    rest = _memory("VmRSS")
    with FlopCounterMode(display=False) as counter:
        call()
    return counter.get_total_flops(), _memory("VmHWM") - rest


def _memory(key: str) -> float:
    """Memory of this process in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    line = next(line for line in lines if line.startswith(key))
    return int(line.split()[1]) / 1024


@contextmanager
def _child(work: Callable[[], tuple[float, float]]) -> Iterator[tuple[float, float]]:
    """The values that `work` returns in a forked process."""
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
