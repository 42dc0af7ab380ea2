"""The engine `loop`: one process, one site after the other. Breakpoints work."""

from collections.abc import Generator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch

from fedlgd.core.device import Place
from fedlgd.core.errors import SettingError
from fedlgd.core.net import Net
from fedlgd.data.federation import Federation
from fedlgd.engines.server import Server, Work
from fedlgd.engines.settings import RoundSettings
from fedlgd.engines.site import Sites
from fedlgd.engines.storage import RamStates, States, Storage
from fedlgd.methods.protocol import Method
from fedlgd.rundir.records import RoundRecord

Rounds = Generator[RoundRecord, None, None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """Runs each task as a function call."""

    name: ClassVar[str] = "loop"
    local: ClassVar[bool] = True
    workers: int = 0
    place: Place = Place()

    def __post_init__(self) -> None:
        if self.workers:
            raise SettingError("loop-has-no-workers", workers=self.workers)

    def run(
        self,
        method: Method,
        federation: Federation,
        net: Net,
        plan: RoundSettings,
        memory: Storage,
        states: States,
    ) -> Rounds:
        """Run every round that is not committed yet."""
        net = method.adapt(net)
        sites = Sites(method, federation, net, plan, states, self.place)
        return serve(method, federation, net, plan, memory, partial(map, sites), self.place)

    def states(self) -> States:
        """The storage of site states for a run without a run folder."""
        return RamStates()

    def threads(self) -> AbstractContextManager[None]:
        return nullcontext()

    def processes(self, federation: Federation) -> int:
        """The number of processes for the sites' work."""
        return 1

    def describe(self, federation: Federation) -> str:
        """One line for the terminal."""
        return f"engine loop: one process, threads: {torch.get_num_threads()}" + device_note(self.place)


def serve(
    method: Method,
    federation: Federation,
    net: Net,
    plan: RoundSettings,
    memory: Storage,
    work: Work,
    place: Place,
) -> Rounds:
    """Run the server's half for sites on this machine."""
    names, tested = list(federation.by_name), [site.name for site in federation.tested]
    return Server(
        method=method, names=names, tested=tested, net=net, plan=plan, memory=memory, work=work, place=place
    ).run()


def device_note(place: Place) -> str:
    device = "" if place.in_memory else f"; device {place.device}"
    return device + ("; bfloat16 autocast" if place.autocast else "")
