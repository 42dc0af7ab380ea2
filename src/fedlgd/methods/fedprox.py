"""FedProx (Li et al., MLSys 2020): FedAvg and a proximal term to the received model"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedlgd.core.tree import only, sqnorm, sub
from fedlgd.core.types import Broadcast, Params, Site, SiteState
from fedlgd.methods import common
from fedlgd.methods.common import Batch, fit
from fedlgd.methods.protocol import Fit, Net, Stream, Visit, setting
from fedlgd.methods.registry import register


@register
@dataclass(frozen=True, kw_only=True)
class FedProx(common.Training):
    r"""min_w F_c(w) + mu/2 ||w - theta_t||^2 at each site (Eq. 2), then FedAvg's average."""

    name: ClassVar[str] = "fedprox"
    stackable: ClassVar[tuple[str, ...]] = (*common.Training.stackable, "robust", "fedopt")

    mu: float = setting(0.01, "Weight of the proximal term; 0 is FedAvg.", least=0)

    enrol, start, broadcast, server = common.enrol, common.start, common.broadcast, common.average

    def site(self, msg: Broadcast, state: SiteState, site: Site, net: Net, rng: Stream, fit: Fit = fit) -> Visit:
        def proximal(w: Params, batch: Batch) -> Tensor:
            return self.mu / 2 * sqnorm(sub(only(w, net.trainable), only(msg.params, net.trainable)))

        trained = fit(self, msg.params, state, site, net, rng, terms=[proximal] if self.mu else [])
        return common.update(site, state, trained), state
