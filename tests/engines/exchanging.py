"""A method of a user's own with two exchanges in a round: first feature means, then training towards their mean."""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from fedlgd.core.types import Broadcast, Hello, Params, ServerState, Site, SiteState, Update
from fedlgd.methods import common
from fedlgd.methods.common import Batch, fit
from fedlgd.methods.fedproto import mean_prototypes, prototype_gap, site_prototypes
from fedlgd.methods.protocol import Expected, Fit, Net, Stream, Updates, Visit


@dataclass(frozen=True, kw_only=True)
class MeansFirst(common.Training):
    """Exchange 0: sites send the means of their features, and keep them; the server averages them.
    Exchange 1: sites train with a term towards the averaged means, and count their rounds."""

    name: ClassVar[str] = "means-first"
    exchanges: ClassVar[int] = 2
    sends: ClassVar[dict[str, str]] = {
        "params": "weights",
        "metrics/loss": "loss",
        "trees/means": "feature means",
    }
    weight: float = 0.5
    counted: bool = True
    """Whether sites change their state in exchange 1, too."""

    enrol, start = common.enrol, common.start

    def broadcast(self, state: ServerState, site: str) -> Broadcast:
        return Broadcast(round=state.round, params=state.params, trees=state.trees if state.exchange else {})

    def expects(self, msg: Broadcast, net: Net, hello: Hello) -> Expected:
        if msg.exchange:
            return Expected(msg.params)
        form = {"means": torch.empty(net.classes, net.features), "counts": torch.empty(net.classes)}
        return Expected({}, {"means": form})

    def site(self, msg: Broadcast, state: SiteState, site: Site, net: Net, rng: Stream, fit: Fit = fit) -> Visit:
        if msg.exchange == 0:
            own = site_prototypes(net, msg.params, common.training_set(state, site))
            sent = Update(site=site.name, params={}, weight=1.0, trees={"means": own})
            return sent, replace(state, trees={**state.trees, "own": own})
        means = msg.trees["means"]["means"]

        def near_means(w: Params, batch: Batch) -> Tensor:
            return self.weight * prototype_gap(batch.features, batch.y, means)

        trained = fit(self, msg.params, state, site, net, rng, terms=[near_means])
        if self.counted:
            times = state.trees.get("rounds", {"trained": torch.tensor(0)})["trained"]
            state = replace(state, trees={**state.trees, "rounds": {"trained": times + 1}})
        return common.update(site, state, trained), state

    def server(self, state: ServerState, updates: Updates, net: Net, rng: Stream) -> ServerState:
        if state.exchange == 0:
            uploads = [update.trees["means"] for update in updates]
            return replace(state, trees={"means": {"means": mean_prototypes(None, uploads, "uniform")}})
        return common.average(self, state, updates, net, rng)
