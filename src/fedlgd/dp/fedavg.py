r"""DP-FedAvg (McMahan et al., ICLR 2018): hides whether a whole site took part. The server is trusted.

    theta_{t+1} = theta_t + mean_c clip_S(theta_c - theta_t) + z S / m N(0, I),   m sites,  z = sqrt(rounds) / mu

The noise on each coordinate does not shrink with the size of a site, only with the number of sites: few hospitals
with a million patients each are few records. Below about 50 sites no model is left, and the method refuses.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from fedlgd.core.errors import PrivacyError, check
from fedlgd.core.text import plural
from fedlgd.core.tree import Mean, cast, double, only, scale, sqnorm, sub
from fedlgd.core.types import Hello, Params, ServerState, Update
from fedlgd.dp.budget import Budget
from fedlgd.dp.ledger import gaussian, generator_for
from fedlgd.methods.parts import Part
from fedlgd.methods.protocol import Net, Stream, setting

LEAST_SITES = 50


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
        return math.sqrt(max(1, self.rounds)) / self.mu


@dataclass(frozen=True, kw_only=True)
class DpFedAvg(Part):
    """Averages clipped changes of the model with equal weights, and adds noise."""

    kind: ClassVar[str] = "dp-fedavg"
    allows: ClassVar[tuple[str, ...]] = ()

    site_dp: SiteDp = SiteDp()

    @property
    def title(self) -> str:
        return "DP-FedAvg"

    def start(self, params: Params, hellos: Sequence[Hello], net: Net, rng: Stream) -> ServerState:
        """Refuse a federation in which the noise would drown every update."""
        sites, how = len(hellos), self.site_dp
        if sites < LEAST_SITES:
            spread = how.multiplier / sites
            raise PrivacyError(
                f"dp-fedavg hides whole sites, and {sites} are too few: with {plural(max(1, how.rounds), 'round')} "
                f"at epsilon {how.epsilon:g} the noise on each of {net.size:,} coordinates is {spread:.2g} times "
                f"the largest norm of an update, {spread * math.sqrt(net.size):,.0f} times the update in all. "
                f"Use {LEAST_SITES} sites or more; or protect single images with fedavg+dp-sgd, or with "
                "distil.private.epsilon and "
                "train_on=virtual: a site with a million patients is not one person"
            )
        return self.method.start(params, hellos, net, rng)

    def server(self, state: ServerState, updates: Iterable[Update], net: Net, rng: Stream) -> ServerState:
        names, how, mean = net.trainable, self.site_dp, Mean()
        old = double(only(state.params, names))
        for update in updates:
            change = sub(double(only(update.params, names)), old)
            mean.add(scale(change, min(1.0, how.clip / max(float(sqnorm(change)) ** 0.5, 1e-12))))
        generator = (
            generator_for(how.test_key.encode(), str(state.round)) if how.test_key else np.random.default_rng()
        )
        deviation = how.multiplier * how.clip / mean.weight
        moved = {
            name: old[name] + change + deviation * gaussian(generator, tuple(change.shape)).to(change)
            for name, change in mean.value().items()
        }
        params = {**state.params, **cast(moved, only(state.params, names))}
        return replace(state, params=params, round=state.round + 1)
