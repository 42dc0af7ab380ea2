"""Which engine does the work, and where. It is no part of a run's configuration.

Engines come to the same bits; a GPU, or passes in bfloat16, to nearly the same numbers.
"""

import sys
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Literal, get_args

import torch

from fedlgd.core.device import Place
from fedlgd.core.errors import SettingError, check
from fedlgd.core.net import Net
from fedlgd.data.federation import Federation
from fedlgd.engines.loop import Plan, Rounds, loop
from fedlgd.engines.memory import Memory
from fedlgd.engines.pool import pool
from fedlgd.engines.process import check_fork, one_thread, usable_cores
from fedlgd.methods.protocol import Method

Name = Literal["loop", "pool"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """`loop`: this process, site after site. `pool`: `workers` processes of one thread; 0: one for every core."""

    name: Name = "loop"
    workers: int = 0
    place: Place = Place()

    def __post_init__(self) -> None:
        check(self.name in get_args(Name), "engine", self.name, "use loop or pool")
        if self.name == "pool" and not self.place.in_memory:
            raise SettingError(
                f"engine is pool, but device is {self.place.device!r}, which is one; use engine loop"
            )
        check(self.workers >= 0, "workers", self.workers, "use 1 or more, or 0 for one on every core")
        if self.name == "pool":
            check_fork()
        elif self.workers:
            raise SettingError(f"workers is {self.workers}, but engine loop has none; use engine pool")

    def threads(self) -> AbstractContextManager[None]:
        """The server's half of `pool` has one thread too: its bits are those of `loop` at one thread."""
        return one_thread() if self.name == "pool" else nullcontext()

    def run(self, method: Method, federation: Federation, net: Net, plan: Plan, memory: Memory) -> Rounds:
        """Every round that is not committed yet. Close it when it is not read to the end."""
        if self.name == "loop":
            return loop(method, federation, net, plan, memory, self.place)
        return pool(method, federation, net, plan, memory, self.hands(federation), self.place)

    def hands(self, federation: Federation) -> int:
        """Processes that work at sites: no more than there are sites."""
        most = self.workers or usable_cores()
        return 1 if self.name == "loop" else min(most, len(federation.tested))

    def facts(self, federation: Federation) -> dict[str, int | str | bool]:
        """For the manifest."""
        hands = {"name": self.name, "workers": self.hands(federation), "threads": torch.get_num_threads()}
        return {**hands, "device": self.place.device, "autocast": self.place.autocast}

    def words(self, federation: Federation) -> str:
        """For the terminal."""
        if self.name == "loop":
            words = f"engine loop: one process, threads: {torch.get_num_threads()}"
        else:
            words = f"engine pool: worker processes: {self.hands(federation)}, one thread each"
        if not self.place.in_memory:
            words += f"; device {self.place.device}"
        return words + ("; passes in bfloat16" if self.place.autocast else "")


def choose(name: str | None, workers: int, federation: Federation, threads: int, place: Place = Place()) -> Engine:
    """The engine asked for; by default `pool` where it helps: several cores, several sites, one thread each."""
    if name is None:
        several = min(usable_cores(), len(federation.sites)) > 1
        helps = several and threads == 1 and place.in_memory and _forks_well()
        name = "pool" if workers or helps else "loop"
    if name == "pool" and threads != 1:
        raise SettingError(f"threads is {threads}, but a worker of engine pool has one; use --engine loop")
    return Engine(name=name, workers=workers, place=place)  # type: ignore[arg-type]


def _forks_well() -> bool:
    """With CUDA, torch does not train in a process forked after its parent trained, as the next run's would be."""
    return sys.platform == "linux" and not torch.cuda.is_available()
