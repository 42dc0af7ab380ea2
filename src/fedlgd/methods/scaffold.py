"""SCAFFOLD (Karimireddy et al., ICML 2020), option II: control variates correct the drift"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from fedlgd.core.errors import SettingError
from fedlgd.core.tree import Mean, add, dot, only, scale, sub, zeros
from fedlgd.core.types import Broadcast, Hello, Params, ServerState, Site, SiteState
from fedlgd.methods import common
from fedlgd.methods.common import Batch, fit
from fedlgd.methods.protocol import WEIGHTS, Expected, Fit, Hellos, Net, Presets, Stream, Updates, Visit, setting
from fedlgd.methods.registry import register


@register
@dataclass(frozen=True, kw_only=True)
class Scaffold(common.Training):
    r"""Site:    y <- y - eta (g(y) - c_i + c);   c_i+ = c_i - c + (theta_t - y) / (K eta), the mean local gradient.
    Server:  theta_{t+1} = theta_t + eta_g mean_S (y - theta_t);   c <- c + 1/N sum_S (c_i+ - c_i), N all sites.

    Momentum and weight decay are refused, because the formula for c_i+ does not hold with them.
    """

    name: ClassVar[str] = "scaffold"
    presets: ClassVar[Presets] = {
        preset: {**values, "local.momentum": 0.0} for preset, values in common.Training.presets.items()
    }

    stackable: ClassVar[tuple[str, ...]] = (*common.Training.stackable, "fedopt")
    sends: ClassVar[Mapping[str, str]] = {**WEIGHTS, "trees/variate": "control variates"}

    server_lr: float = setting(1.0, "Learning rate of the server, eta_g.", above=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.local.momentum or self.local.weight_decay or not self.local.plain:
            raise SettingError("scaffold-needs-plain-sgd")

    enrol = common.enrol

    def start(self, params: Params, hellos: Hellos, net: Net, rng: Stream) -> ServerState:
        trees = {"variate": zeros(only(params, net.trainable)), "federation": {"sites": torch.tensor(len(hellos))}}
        return ServerState(params=params, trees=trees)

    def broadcast(self, state: ServerState, site: str) -> Broadcast:
        return Broadcast(round=state.round, params=state.params, trees={"variate": state.trees["variate"]})

    def expects(self, msg: Broadcast, net: Net, hello: Hello) -> Expected:
        return Expected(msg.params, msg.trees)

    def site(self, msg: Broadcast, state: SiteState, site: Site, net: Net, rng: Stream, fit: Fit = fit) -> Visit:
        c = msg.trees["variate"]
        mine = state.trees.get("variate") or zeros(c)
        drift = sub(c, mine)

        def corrected(w: Params, batch: Batch) -> Tensor:
            return dot(drift, w)

        trained = fit(self, msg.params, state, site, net, rng, terms=[corrected])
        new = new_variate(mine, c, msg.params, trained.params, trained.steps * self.local.lr)
        sent = replace(common.update(site, state, trained), weight=1.0, trees={"variate": sub(new, mine)})
        return sent, replace(state, trees={"variate": new})

    def server(self, state: ServerState, updates: Updates, net: Net, rng: Stream) -> ServerState:
        models, changes = Mean(), Mean()
        for update in updates:
            models.add(update.params)
            changes.add(update.trees["variate"])
        share = changes.weight / int(state.trees["federation"]["sites"])
        c = add(state.trees["variate"], scale(changes.value(), share))
        params = models.value()
        if self.server_lr != 1:
            old, new = only(state.params, net.trainable), only(params, net.trainable)
            params = {**params, **add(old, scale(sub(new, old), self.server_lr))}
        return replace(state, params=params, trees={**state.trees, "variate": c}, round=state.round + 1)


def new_variate(mine: Params, c: Params, start: Params, end: Params, distance: float) -> Params:
    """c_i+ = c_i - c + (theta_t - y) / (K eta);  `distance` is K eta."""
    names = frozenset(mine)
    gradient = scale(sub(only(start, names), only(end, names)), 1 / distance)
    return add(sub(mine, c), gradient)
