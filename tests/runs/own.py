"""Methods a user might bring as `tests.runs.own:Class`."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from fedlgd.core import tree
from fedlgd.core.settings import Settings, setting
from fedlgd.core.train import Local
from fedlgd.core.types import Broadcast, ServerState
from fedlgd.methods import common
from fedlgd.methods.common import fit
from fedlgd.methods.fedavg import FedAvg
from fedlgd.methods.parts import Part
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


@dataclass(frozen=True, kw_only=True)
class Momentous(common.Training):
    """FedAvg with momentum at the server:  v <- beta v + Delta,  theta <- theta + v"""

    name: ClassVar[str] = "momentous"

    beta: float = setting(0.9, "Momentum of the server.", least=0, below=1)

    enrol, start, broadcast, site = common.enrol, common.start, common.broadcast, FedAvg.site

    def server(self, state, updates, net, rng):
        mean = common.average(self, state, updates, net, rng)
        delta = tree.sub(mean.params, state.params)
        v = tree.add(tree.scale(state.trees.get("v") or tree.zeros(delta), self.beta), delta)
        return replace(mean, params=tree.add(state.params, v), trees={"v": v})


@dataclass(frozen=True, kw_only=True)
class NamedLocal(Momentous):
    """Has the name of a section."""

    name: ClassVar[str] = "local"

    lr: float = setting(7.0, "Not the learning rate of local training.", above=0)


@dataclass(frozen=True, kw_only=True)
class OnVirtual(common.Training):
    """Reads the virtual set of its site, whatever it was told to train on."""

    name: ClassVar[str] = "on-virtual"

    enrol, start, broadcast, server = common.enrol, common.start, common.broadcast, common.average

    def site(self, msg, state, site, net, rng, fit=fit):
        assert len(state.virtual.data.y)
        return common.update(site, state, fit(self, msg.params, state, site, net, rng)), state


@dataclass(frozen=True, kw_only=True)
class ShrinkSettings(Settings):
    section: ClassVar[str] = "shrink"

    by: float = setting(0.5, "Share of the move of a round that is kept.", least=0, most=1)


@dataclass(frozen=True, kw_only=True)
class Shrink(Part):
    """theta_{t+1} = theta_t + by (theta' - theta_t), theta' the new model of the method"""

    kind: ClassVar[str] = "robust"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"quick": {"shrink.by": 0.25}}

    shrink: ShrinkSettings = ShrinkSettings()

    def server(self, state, updates, net, rng):
        after = self.method.server(state, updates, net, rng)
        move = tree.scale(tree.sub(after.params, state.params), self.shrink.by)
        return replace(after, params=tree.add(state.params, move))


@dataclass(frozen=True, kw_only=True)
class Middle(Part):
    """An aggregation: the server takes the model of the first site, and the method does the rest."""

    kind: ClassVar[str] = "robust"

    def server(self, state, updates, net, rng):
        first = next(iter(updates)).params
        return self.method.server(state, [replace(update, params=first) for update in updates], net, rng)


@dataclass(frozen=True, kw_only=True)
class Unheard(Part):
    kind: ClassVar[str] = "unheard-of"


@dataclass(frozen=True, kw_only=True)
class Kindless(Part):
    pass


@dataclass(frozen=True, kw_only=True)
class Sectionless(Part):
    kind: ClassVar[str] = "robust"

    by: float = 0.5
