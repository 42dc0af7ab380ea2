"""Engines by name. The engine is not part of the configuration, because all engines give the same bits."""

import sys

import torch

from fedlgd.core.device import Place
from fedlgd.core.errors import SettingError
from fedlgd.core.suggest import did_you_mean
from fedlgd.data.federation import Federation
from fedlgd.engines.loop import Loop
from fedlgd.engines.pool import Pool
from fedlgd.engines.process import usable_cores

Engine = Loop | Pool
"""Passes messages between the two halves of a method; `Loop` documents the interface."""

ENGINES: dict[str, type[Engine]] = {"loop": Loop, "pool": Pool}


def engine(name: str = "loop", workers: int = 0, place: Place = Place()) -> Engine:
    """The engine with this name."""
    if name not in ENGINES:
        raise SettingError(f"engine is {name!r}; use {' or '.join(ENGINES)}{did_you_mean(name, ENGINES)}")
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
        raise SettingError(f"threads is {threads}, but workers of engine pool have one; use --engine loop")
    return engine(name, workers, place)


def facts(chosen: Engine, federation: Federation) -> dict[str, int | str | bool]:
    """The entries about the engine in the manifest."""
    return {
        "name": chosen.name,
        "workers": chosen.processes(federation),
        "threads": torch.get_num_threads(),
        "device": chosen.place.device,
        "autocast": chosen.place.autocast,
    }
