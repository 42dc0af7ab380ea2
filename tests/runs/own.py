"""Methods a user might bring as `tests.runs.own:Class`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from fedlgd.core.train import Local
from fedlgd.core.types import Broadcast, ServerState
from fedlgd.methods.common import fit
from fedlgd.methods.fedavg import FedAvg
from fedlgd.methods.protocol import Method


@dataclass(frozen=True, kw_only=True)
class Own(Method):
    """FedAvg on real images, with a setting that may be None and a section that has a default of its own."""

    name: ClassVar[str] = "own"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"bold": {"boldness": 2.0, "local.epochs": 3}}

    boldness: float = 1.0
    clip: float | None = None
    local: Local = Local(batch=8)

    def enrol(self, site, net, rng):
        return FedAvg().enrol(site, net, rng)

    def start(self, params, hellos, net, rng):
        return ServerState(params=params)

    def broadcast(self, state, site):
        return Broadcast(round=state.round, params=state.params)

    def site(self, msg, state, site, net, rng, fit=fit):
        return FedAvg(local=self.local).site(msg, state, site, net, rng, fit)

    def server(self, state, updates, net, rng):
        return FedAvg().server(state, updates, net, rng)


class NotADataclass(Method):
    """Has all five functions and no settings."""

    name = "no-dataclass"
    enrol, start, broadcast, site, server = Own.enrol, Own.start, Own.broadcast, Own.site, Own.server


@dataclass(frozen=True)
class Lacking:
    """Has two of the five functions, and inherits no defaults."""

    name: ClassVar[str] = "lacking"
    enrol, start = Own.enrol, Own.start
