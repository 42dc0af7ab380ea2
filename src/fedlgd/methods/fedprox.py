"""FedProx (Li et al., MLSys 2020): stay near the model you were sent."""

from dataclasses import dataclass
from typing import ClassVar

from fedlgd.core.net import Net
from fedlgd.core.rng import Stream
from fedlgd.core.settings import setting
from fedlgd.core.types import Broadcast, Site, SiteState, Update
from fedlgd.methods import common
from fedlgd.methods.protocol import Fit
from fedlgd.methods.registry import register
from fedlgd.methods.regularisers import Proximal


@register
@dataclass(frozen=True, kw_only=True)
class FedProx(common.Training):
    r"""min_w F_c(w) + mu/2 ||w - theta_t||^2 at each site, then FedAvg's average."""

    name: ClassVar[str] = "fedprox"

    mu: float = setting(0.01, "Weight of the proximal term; 0 is FedAvg.", least=0)

    enrol = common.enrol
    start = common.start
    broadcast = common.broadcast

    def site(
        self, msg: Broadcast, state: SiteState, site: Site, net: Net, rng: Stream, fit: Fit = common.fit
    ) -> tuple[Update, SiteState]:
        near = Proximal(mu=self.mu).term(msg, state, net)
        trained = fit(self, msg.params, state, site, net, rng, terms=[near] if near else [])
        return common.update(site, state, trained), state

    server = common.average
