"""Engines by name. Which one does the work is no part of a run's configuration: all come to the same bits."""

import sys
from contextlib import AbstractContextManager
from typing import Any, ClassVar, Protocol

import torch

from fedlgd.core.device import Place
from fedlgd.core.errors import SettingError
from fedlgd.core.net import Net
from fedlgd.core.suggest import did_you_mean
from fedlgd.data.federation import Federation
from fedlgd.engines.loop import Loop, Rounds
from fedlgd.engines.memory import Memory, States
from fedlgd.engines.plan import Plan
from fedlgd.engines.pool import Pool
from fedlgd.engines.process import usable_cores
from fedlgd.methods.protocol import Method


class Engine(Protocol):
    """Moves messages between the two halves of a method."""

    name: ClassVar[str]

    @property
    def place(self) -> Place: ...

    def run(
        self, method: Method, federation: Federation, net: Net, plan: Plan, memory: Memory, states: States
    ) -> Rounds:
        """Every round that is not committed yet. Close it when it is not read to the end."""
        ...

    def states(self) -> States:
        """Where the sites' states are in a run that leaves no folder."""
        ...

    def threads(self) -> AbstractContextManager[None]:
        """The number of threads that the server's half has inside."""
        ...

    def processes(self, federation: Federation) -> int:
        """Processes that work at sites."""
        ...

    def describe(self, federation: Federation) -> str:
        """One line for the terminal."""
        ...


ENGINES: dict[str, type[Any]] = {"loop": Loop, "pool": Pool}


def engine(name: str = "loop", workers: int = 0, place: Place = Place()) -> Engine:
    """The engine of this name."""
    if name not in ENGINES:
        raise SettingError(f"engine is {name!r}; use {' or '.join(ENGINES)}{did_you_mean(name, ENGINES)}")
    made: Engine = ENGINES[name](workers=workers, place=place)
    return made


def choose(name: str | None, workers: int, federation: Federation, threads: int, place: Place = Place()) -> Engine:
    """The engine asked for; by default `pool` where it helps: several cores, several sites, one thread each.

    With CUDA, torch does not train in a process forked after its parent trained, as the next run's would be.
    """
    if name is None:
        several = min(usable_cores(), len(federation.sites)) > 1
        forks_well = sys.platform == "linux" and not torch.cuda.is_available()
        helps = several and threads == 1 and place.in_memory and forks_well
        name = "pool" if workers or helps else "loop"
    if name == "pool" and threads != 1:
        raise SettingError(f"threads is {threads}, but a worker of engine pool has one; use --engine loop")
    return engine(name, workers, place)


def facts(chosen: Engine, federation: Federation) -> dict[str, int | str | bool]:
    """What the manifest says of the engine."""
    return {
        "name": chosen.name,
        "workers": chosen.processes(federation),
        "threads": torch.get_num_threads(),
        "device": chosen.place.device,
        "autocast": chosen.place.autocast,
    }
