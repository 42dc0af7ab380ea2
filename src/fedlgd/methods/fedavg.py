"""FedAvg (McMahan et al., AISTATS 2017): train at the sites, average at the server."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from fedlgd.core.net import Net
from fedlgd.core.rng import Stream
from fedlgd.core.train import Local
from fedlgd.core.types import Broadcast, Site, SiteState, Update
from fedlgd.distill.distribution import Distil
from fedlgd.methods import common
from fedlgd.methods.registry import register


@register
@dataclass(frozen=True, kw_only=True)
class FedAvg:
    r"""theta_{t+1} = sum_c p_c theta_c, each theta_c after E epochs of SGD on cross-entropy from theta_t.

    train_on: "real" images (p_c by number of images) or the site's "virtual" set (p_c uniform).
    """

    name: ClassVar[str] = "fedavg"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"paper": {}, "quick": common.QUICK_DISTIL}

    train_on: common.TrainOn = "real"
    local: Local = Local()
    distil: Distil = Distil()

    enrol = common.enrol
    start = common.from_params
    broadcast = common.send_params

    def site(self, msg: Broadcast, state: SiteState, site: Site, net: Net, rng: Stream) -> tuple[Update, SiteState]:
        data = common.training_set(state, site)
        objective = common.cross_entropy_on(net, data)
        trained = common.fit(net, msg.params, len(data), objective, self.local, rng)
        return common.update(site, state, trained), state

    server = common.average
