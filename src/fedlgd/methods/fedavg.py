"""FedAvg (McMahan et al., AISTATS 2017): train at the sites, average at the server."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from fedlgd.core.net import Net
from fedlgd.core.rng import Stream
from fedlgd.core.types import Broadcast, Site, SiteState, Update
from fedlgd.methods import common
from fedlgd.methods.registry import register


@register
@dataclass(frozen=True, kw_only=True)
class FedAvg(common.Averaging):
    r"""theta_{t+1} = sum_c p_c theta_c, each theta_c after E epochs of SGD on cross-entropy from theta_t.

    p_c by number of images where sites train on real ones, uniform on virtual sets.
    """

    name: ClassVar[str] = "fedavg"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = common.AVERAGING_PRESETS

    enrol = common.enrol
    start = common.start
    broadcast = common.broadcast

    def site(self, msg: Broadcast, state: SiteState, site: Site, net: Net, rng: Stream) -> tuple[Update, SiteState]:
        trained, state = common.train(self, msg, state, site, net, rng)
        return common.update(site, state, trained), state

    server = common.average
