"""FedNova (Wang et al., NeurIPS 2020): averages steps normalised by the local work"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from fedlgd.core.errors import check
from fedlgd.core.train import Local
from fedlgd.core.tree import Mean, cast, double, only, scale, sub
from fedlgd.core.types import Broadcast, Hello, Params, ServerState, Site, SiteState
from fedlgd.methods import common
from fedlgd.methods.common import fit
from fedlgd.methods.protocol import WEIGHTS, Expected, Fit, Net, Stream, Updates, Visit, setting
from fedlgd.methods.registry import register
from fedlgd.methods.regularisers import Proximal

LEAST_WORK = 1e-6  # d_c divides by the work: at 0 or below it has no meaning


def local_work(steps: int, how: Local, mu: float = 0.0) -> float:
    r"""a_c, the total weight of the gradients in a site's model.

    plain SGD: the number of steps;  momentum: `Local.work`;
    proximal term: a <- (1 - eta mu) a + 1 at each step.
    """
    if how.momentum:
        return how.work(steps)
    a = 0.0
    for _ in range(steps):
        a = (1 - how.lr * mu) * a + 1
    return a


@register
@dataclass(frozen=True, kw_only=True)
class FedNova(common.Training):
    r"""theta_{t+1} = theta_t - (sum_c p_c a_c) (sum_c p_c d_c),  d_c = (theta_t - theta_c) / a_c.

    With equal local work this is FedAvg.
    """

    name: ClassVar[str] = "fednova"
    stackable: ClassVar[tuple[str, ...]] = ("anchors", "noise", "refine", "redraw", "regulariser", "fedopt")
    """Not `momentum`, which a_c takes to be reset in every round."""

    sends: ClassVar[Mapping[str, str]] = {**WEIGHTS, "trees/nova": "work"}

    mu: float = setting(0.0, "Weight of the proximal term; 0: off.", least=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self.local.plain, "local.optimiser", self.local.optimiser, "a_c is known for SGD only; use fedavg")
        both = self.mu > 0 and self.local.momentum > 0
        check(not both, "mu", self.mu, f"with local.momentum={self.local.momentum} set; use one of the two")

    enrol, start, broadcast = common.enrol, common.start, common.broadcast

    def expects(self, msg: Broadcast, net: Net, hello: Hello) -> Expected:
        work = torch.empty((), dtype=torch.float64)
        return Expected(msg.params, {"nova": {"work": work}}, {"trees/nova/work": LEAST_WORK})

    def site(self, msg: Broadcast, state: SiteState, site: Site, net: Net, rng: Stream, fit: Fit = fit) -> Visit:
        near = Proximal(mu=self.mu).term(msg, state, net)
        trained = fit(self, msg.params, state, site, net, rng, terms=[near] if near else [])
        work = torch.tensor(local_work(trained.steps, self.local, self.mu), dtype=torch.float64)
        return replace(common.update(site, state, trained), trees={"nova": {"work": work}}), state

    def server(self, state: ServerState, updates: Updates, net: Net, rng: Stream) -> ServerState:
        params = normalised_average(state.params, updates, net.trainable)
        return replace(state, params=params, round=state.round + 1)


def normalised_average(before: Params, updates: Updates, trainable: frozenset[str]) -> Params:
    """theta_t - tau_eff * mean d, tau_eff = mean a, means weighted by p; buffers are averaged.

    Computed in float64, so that equal work gives the same bits as FedAvg.
    """
    directions, models, work = Mean(), Mean(), Mean()
    start = double(only(before, trainable))
    for update in updates:
        a = update.trees["nova"]["work"]
        step = scale(sub(start, double(only(update.params, trainable))), 1 / float(a))
        directions.add(step, update.weight)
        models.add(update.params, update.weight)
        work.add({"a": a}, update.weight)
    moved = scale(directions.value(), float(work.value()["a"]))
    return {**models.value(), **cast(sub(start, moved), before)}
