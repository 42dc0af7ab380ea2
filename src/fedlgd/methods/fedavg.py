"""FedAvg (McMahan et al., AISTATS 2017): sites train, the server averages their models"""

from dataclasses import dataclass
from typing import ClassVar

from fedlgd.core.types import Broadcast, Site, SiteState
from fedlgd.methods import common
from fedlgd.methods.common import fit
from fedlgd.methods.protocol import Fit, Net, Stream, Visit
from fedlgd.methods.registry import register


@register
@dataclass(frozen=True, kw_only=True)
class FedAvg(common.Training):
    r"""theta_{t+1} = sum_c p_c theta_c, each theta_c after E epochs of SGD on cross-entropy from theta_t.

    p_c is proportional to the number of real images, or uniform on virtual sets.
    """

    name: ClassVar[str] = "fedavg"
    stackable: ClassVar[tuple[str, ...]] = (*common.Training.stackable, "robust", "fedopt", "dp-sgd", "dp-fedavg")

    enrol, start, broadcast, server = common.enrol, common.start, common.broadcast, common.average

    def site(self, msg: Broadcast, state: SiteState, site: Site, net: Net, rng: Stream, fit: Fit = fit) -> Visit:
        trained = fit(self, msg.params, state, site, net, rng)
        return common.update(site, state, trained), state
