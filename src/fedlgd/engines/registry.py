"""Engines by name. The engine is not part of the configuration, because all engines give the same bits."""

import sys
from contextlib import AbstractContextManager
from typing import ClassVar, Protocol

import torch

from fedlgd.core.device import Place
from fedlgd.core.errors import SettingError, did_you_mean
from fedlgd.core.net import Net
from fedlgd.data.federation import Federation
from fedlgd.engines.loop import Loop, Rounds
from fedlgd.engines.pool import Pool
from fedlgd.engines.process import usable_cores
from fedlgd.engines.settings import RoundSettings
from fedlgd.engines.storage import States, Storage
from fedlgd.methods.protocol import Method


class Engine(Protocol):
    """Passes messages between the two halves of a method; `Loop` documents the functions.

    `local`: whether the images and states of the sites are on this machine.
    """

    name: ClassVar[str]
    local: ClassVar[bool]

    @property
    def place(self) -> Place: ...

    def run(
        self,
        method: Method,
        federation: Federation,
        net: Net,
        plan: RoundSettings,
        memory: Storage,
        states: States,
    ) -> Rounds: ...

    def states(self) -> States: ...

    def threads(self) -> AbstractContextManager[None]: ...

    def processes(self, federation: Federation) -> int: ...

    def describe(self, federation: Federation) -> str: ...


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
