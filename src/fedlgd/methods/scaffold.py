"""SCAFFOLD (Karimireddy et al., ICML 2020), option II: control variates against drift."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedlgd.core.errors import SettingError, check
from fedlgd.core.net import Net
from fedlgd.core.rng import Stream
from fedlgd.core.tree import Mean, add, dot, only, scale, sub, zeros
from fedlgd.core.types import Broadcast, Hello, Params, ServerState, Site, SiteState, Update
from fedlgd.methods import common
from fedlgd.methods.objective import Batch
from fedlgd.methods.registry import register


@register
@dataclass(frozen=True, kw_only=True)
class Scaffold(common.Averaging):
    r"""Site:    y <- y - eta (g(y) - c_i + c);   c_i+ = c_i - c + (theta_t - y) / (K eta), the mean local gradient.
    Server:  theta_{t+1} = theta_t + eta_g mean_S (y - theta_t);   c <- c + 1/N sum_S (c_i+ - c_i), N all sites.

    server_lr: eta_g. Momentum and weight decay would break the identity of c_i+ and are refused.
    """

    name: ClassVar[str] = "scaffold"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = common.AVERAGING_PRESETS

    server_lr: float = 1.0

    def __post_init__(self) -> None:
        if self.local.momentum or self.local.weight_decay:
            raise SettingError("scaffold needs plain SGD: set local.momentum=0 and local.weight_decay=0")
        check(self.server_lr > 0, "server_lr", self.server_lr, "use a positive step such as 1.0")

    enrol = common.enrol

    def start(self, params: Params, hellos: Sequence[Hello], net: Net, rng: Stream) -> ServerState:
        state = common.start(self, params, hellos, net, rng)
        trees = {"variate": zeros(only(params, net.trainable)), "federation": {"sites": torch.tensor(len(hellos))}}
        return replace(state, trees=trees)

    def broadcast(self, state: ServerState, site: str) -> Broadcast:
        return replace(common.broadcast(self, state, site), trees={"variate": state.trees["variate"]})

    def site(self, msg: Broadcast, state: SiteState, site: Site, net: Net, rng: Stream) -> tuple[Update, SiteState]:
        c = msg.trees["variate"]
        mine = state.trees.get("variate") or zeros(c)
        drift = sub(c, mine)

        def corrected(w: Params, batch: Batch) -> Tensor:
            return dot(drift, w)

        trained, state = common.train(self, msg, state, site, net, rng, [corrected])
        new = new_variate(mine, c, msg.params, trained.params, trained.steps * self.local.lr)
        update = replace(common.update(site, state, trained), weight=1.0, trees={"variate": sub(new, mine)})
        return update, replace(state, trees={"variate": new})

    def server(self, state: ServerState, updates: Iterable[Update], net: Net, rng: Stream) -> ServerState:
        def combine(before: ServerState, sent: Iterable[Update]) -> ServerState:
            models, changes = Mean(), Mean()
            for update in sent:
                models.add(update.params)
                changes.add(update.trees["variate"])
            n = int(before.trees["federation"]["sites"])
            share = changes.weight / n
            c = add(before.trees["variate"], scale(changes.value(), share))
            params = models.value()
            if self.server_lr != 1:
                old, new = only(before.params, net.trainable), only(params, net.trainable)
                params = {**params, **add(old, scale(sub(new, old), self.server_lr))}
            return replace(before, params=params, trees={**before.trees, "variate": c})

        return common.aggregate(self, state, updates, net, combine)


def new_variate(mine: Params, c: Params, start: Params, end: Params, distance: float) -> Params:
    """c_i+ = c_i - c + (theta_t - y) / (K eta);  `distance` is K eta."""
    names = frozenset(mine)
    gradient = scale(sub(only(start, names), only(end, names)), 1 / distance)
    return add(sub(mine, c), gradient)
