"""The engines: each lets the sites' half of a run work in its own way.

The engine is not part of the configuration, because all engines give the same bits. `flower` is in `deploy`.
"""

import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch

from fedlgd.core.device import Place
from fedlgd.core.errors import SettingError, check, did_you_mean
from fedlgd.core.net import Net
from fedlgd.data.federation import Federation
from fedlgd.engines.process import Crew, check_fork, one_thread, usable_cores
from fedlgd.engines.server import Rounds, Work, serve
from fedlgd.engines.settings import RoundSettings
from fedlgd.engines.site import Sites
from fedlgd.engines.storage import FolderStates, RamStates, States, Storage
from fedlgd.methods.protocol import Method


@dataclass(frozen=True, kw_only=True)
class Engine(ABC):
    """Passes messages between the two halves of a method.

    `local`: whether the images and states of the sites are on this machine.
    """

    name: ClassVar[str]
    local: ClassVar[bool] = True
    place: Place = Place()

    def run(
        self, method: Method, federation: Federation, net: Net, plan: RoundSettings, memory: Storage, states: States
    ) -> Rounds:
        """Run every round that is not committed yet. Close the generator to end the work of the sites."""
        sites = Sites(method, federation, method.adapt(net), plan, states, self.place)
        with self.work(sites, memory) as work:
            yield from serve(sites, memory, work)

    @abstractmethod
    def work(self, sites: Sites, memory: Storage) -> AbstractContextManager[Work]:
        """The work of the sites, as long as the context is open."""

    @abstractmethod
    def describe(self, federation: Federation) -> str:
        """One line for the terminal."""

    def states(self) -> States:
        """The storage of site states for a run without a run folder."""
        return RamStates()

    def threads(self) -> AbstractContextManager[None]:
        """The number of threads of the server's half."""
        return nullcontext()

    def processes(self, federation: Federation) -> int:
        """The number of processes for the sites' work."""
        return 1


@dataclass(frozen=True, kw_only=True)
class Loop(Engine):
    """One process, one site after the other: each task is a function call, so breakpoints work."""

    name: ClassVar[str] = "loop"
    workers: int = 0

    def __post_init__(self) -> None:
        if self.workers:
            raise SettingError("loop-has-no-workers", workers=self.workers)

    def work(self, sites: Sites, memory: Storage) -> AbstractContextManager[Work]:
        return nullcontext(partial(map, sites))

    def describe(self, federation: Federation) -> str:
        return f"engine loop: one process, threads: {torch.get_num_threads()}{_device_note(self.place)}"


@dataclass(frozen=True, kw_only=True)
class Pool(Engine):
    """`workers` processes with one thread each; 0: one per core. States are in files that all workers can read.

    Bit-identical to `loop` with one thread, which the server's half also has. Processes exchange tasks and answers,
    with messages and scores. Images and site states are never sent.
    """

    name: ClassVar[str] = "pool"
    workers: int = 0

    def __post_init__(self) -> None:
        check(self.workers >= 0, "workers", self.workers, "use 1 or more, or 0 for one per core")
        if not self.place.in_memory:
            raise SettingError("pool-needs-memory", device=self.place.device)
        check_fork()

    @contextmanager
    def work(self, sites: Sites, memory: Storage) -> Iterator[Work]:
        crew = Crew(sites, self.processes(sites.federation))
        try:
            yield crew.work
        finally:
            crew.stop()

    def describe(self, federation: Federation) -> str:
        count = self.processes(federation)
        return f"engine pool: worker processes: {count}, one thread each{_device_note(self.place)}"

    def states(self) -> States:
        return FolderStates()

    def threads(self) -> AbstractContextManager[None]:
        return one_thread()

    def processes(self, federation: Federation) -> int:
        """At most the number of sites."""
        return min(self.workers or usable_cores(), len(federation.tested))


def _device_note(place: Place) -> str:
    device = "" if place.in_memory else f"; device {place.device}"
    compiled = {"auto": "; compiled if long", "on": "; compiled", "off": ""}[place.compile]
    return device + ("; bfloat16" if place.precision == "bf16" else "") + compiled


ENGINES: dict[str, type[Loop] | type[Pool]] = {"loop": Loop, "pool": Pool}


def engine(name: str = "loop", workers: int = 0, place: Place = Place()) -> Engine:
    """The engine with this name."""
    if name == "flower":
        raise SettingError("flower-needs-kit")
    if name not in ENGINES:
        hint = did_you_mean(name, (*ENGINES, "flower"))
        raise SettingError("engine-unknown", name=name, engines=" or ".join(ENGINES), hint=hint)
    return ENGINES[name](workers=workers, place=place)


def choose(name: str | None, workers: int, federation: Federation, threads: int, place: Place = Place()) -> Engine:
    """The requested engine; by default `pool` if there are several cores and several sites, with one thread each.

    With a CUDA device the default is `loop`: torch cannot train in a process forked after its parent trained.
    """
    if name is None:
        several = min(usable_cores(), len(federation.sites)) > 1
        forks_well = sys.platform == "linux" and not torch.cuda.is_available()
        helps = several and threads == 1 and place.in_memory and forks_well
        name = "pool" if workers or helps else "loop"
    if name == "pool" and threads != 1:
        raise SettingError("pool-has-one-thread", threads=threads)
    return engine(name, workers, place)
