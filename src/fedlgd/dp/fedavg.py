r"""DP-FedAvg (McMahan et al., ICLR 2018): hides whether a whole site took part. The server is trusted.

    theta_{t+1} = theta_t + mean_c clip_S(theta_c - theta_t) + z S / m N(0, I),   m sites,  z = sqrt(rounds) / mu

The noise on each coordinate does not shrink with the size of a site, only with the number of sites: few hospitals
with a million patients each are few records. Below about 50 sites no model is left, and the method refuses.
The part that is stacked on a method is in `methods/private.py`.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedlgd.core.errors import PrivacyError, check
from fedlgd.core.net import Net
from fedlgd.core.settings import setting
from fedlgd.core.tree import Mean, cast, double, only, scale, sqnorm, sub
from fedlgd.core.types import Params, Update
from fedlgd.distill.settings import Budget
from fedlgd.dp.budget import budget_mu
from fedlgd.dp.ledger import gaussian, generator_for

MIN_SITES = 50


@dataclass(frozen=True, kw_only=True)
class SiteDp(Budget):
    """DP-FedAvg: one record is a site. Its budget is that of one run; there is no ledger."""

    section: ClassVar[str] = "site_dp"

    epsilon: float = setting(10.0, "Privacy budget of all rounds together for a site.", above=0, most=100)
    clip: float = setting(1.0, "Largest L2 norm of a site's change of the model.", above=0)
    rounds: int = setting(0, "Rounds that share the budget; 0: all rounds of the run.", least=0, most=1_000_000)

    def __post_init__(self) -> None:
        super().__post_init__()
        check(not self.scores, "site_dp.scores", self.scores, "but sites are hidden here, not images; leave it out")

    @property
    def multiplier(self) -> float:
        """z = sqrt(rounds) / mu: noise in units of the clipping norm."""
        return math.sqrt(max(1, self.rounds)) / budget_mu(self)

    @property
    def statement(self) -> str:
        if self.test_key:
            return super().statement
        return f"Privacy of each site in this run: (epsilon, delta) = ({self.epsilon:g}, {self.delta:g})."


def check_sites(sites: int, net: Net, budget: SiteDp) -> None:
    """Refuse a federation in which the noise would drown every update."""
    if sites < MIN_SITES:
        spread, rounds = budget.multiplier / sites, max(1, budget.rounds)
        values = {"spread": spread, "whole": spread * math.sqrt(net.size), "epsilon": budget.epsilon}
        raise PrivacyError("too-few-sites", sites=sites, wanted=MIN_SITES, rounds=rounds, size=net.size, **values)


def noisy_average(before: Params, updates: Iterable[Update], net: Net, budget: SiteDp, t: int) -> Params:
    """theta_{t+1} of the formula above; weights are equal, and only trainable tensors change."""
    mean, old = Mean(), double(only(before, net.trainable))
    for update in updates:
        change = sub(double(only(update.params, net.trainable)), old)
        mean.add(scale(change, min(1.0, budget.clip / max(float(sqnorm(change)) ** 0.5, 1e-12))))
    generator = generator_for(budget.test_key.encode(), str(t)) if budget.test_key else np.random.default_rng()
    deviation = budget.multiplier * budget.clip / mean.weight
    moved = {
        name: old[name] + change + deviation * gaussian(generator, tuple(change.shape)).to(change)
        for name, change in mean.value().items()
    }
    return {**before, **cast(moved, only(before, net.trainable))}
