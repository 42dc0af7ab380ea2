"""FedBN (Li et al., ICLR 2021): each site keeps its own normalisation layers, the rest is averaged"""

from dataclasses import dataclass, replace
from typing import ClassVar

from fedlgd.core.tree import only
from fedlgd.core.types import Broadcast, Hello, Params, ServerState, Site, SiteState
from fedlgd.methods import common
from fedlgd.methods.common import fit
from fedlgd.methods.protocol import Fit, Hellos, Net, Stream, Visit
from fedlgd.methods.registry import register


@register
@dataclass(frozen=True, kw_only=True)
class FedBN(common.Training):
    r"""theta_c = (shared, own_c):  shared_{t+1} = sum_c p_c shared_c; norm layers and buffers, own_c, stay at c.

    Each site is evaluated with the shared model and its own normalisation layers: personalised accuracy.
    """

    name: ClassVar[str] = "fedbn"
    personal: ClassVar[bool] = True
    stackable: ClassVar[tuple[str, ...]] = ("regulariser", "momentum", "robust", "fedopt")

    def enrol(self, site: Site, net: Net, rng: Stream) -> tuple[SiteState, Hello]:
        state, hello = common.enrol(self, site, net, rng)
        return replace(state, trees={"own": only(common.first_model(net, rng), net.own)}), hello

    def start(self, params: Params, hellos: Hellos, net: Net, rng: Stream) -> ServerState:
        return ServerState(params={name: value for name, value in params.items() if name not in net.own})

    broadcast = common.broadcast

    def site(self, msg: Broadcast, state: SiteState, site: Site, net: Net, rng: Stream, fit: Fit = fit) -> Visit:
        trained = fit(self, {**msg.params, **state.trees["own"]}, state, site, net, rng)
        sent = common.update(site, state, trained)
        shared = only(trained.params, frozenset(msg.params))
        return replace(sent, params=shared), replace(state, trees={"own": only(trained.params, net.own)})

    server = common.average

    def model_at(self, params: Params, kept: SiteState) -> Params:
        return {**params, **kept.trees["own"]}
