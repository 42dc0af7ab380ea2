"""Lower and upper baselines: each site alone, and all images in one place."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from fedlgd.core.types import Broadcast, Hello, Params, ServerState, Site, SiteState
from fedlgd.methods import common
from fedlgd.methods.common import fit
from fedlgd.methods.protocol import Fit, Net, Stream, Updates, Visit
from fedlgd.methods.registry import register


@register
@dataclass(frozen=True, kw_only=True)
class LocalOnly(common.Training):
    """No federation: each site trains its own model from the same initial model, and sends its loss alone.

    Each site is evaluated with its own model: personalised accuracy.
    """

    name: ClassVar[str] = "local-only"
    about: ClassVar[str] = "lower baseline: each site trains alone, no model is sent"
    personal: ClassVar[bool] = True
    sends: ClassVar[Mapping[str, str]] = {"metrics/loss": "loss"}
    stackable: ClassVar[tuple[str, ...]] = ("regulariser", "momentum")

    enrol, start = common.enrol, common.start

    def broadcast(self, state: ServerState, site: str) -> Broadcast:
        return Broadcast(round=state.round, params={})

    def site(self, msg: Broadcast, state: SiteState, site: Site, net: Net, rng: Stream, fit: Fit = fit) -> Visit:
        model = state.trees.get("model") or common.first_model(net, rng)
        trained = fit(self, model, state, site, net, rng)
        sent = replace(common.update(site, state, trained), params={})
        return sent, replace(state, trees={"model": trained.params})

    def server(self, state: ServerState, updates: Updates, net: Net, rng: Stream) -> ServerState:
        for _ in updates:
            pass
        return replace(state, round=state.round + 1)

    def model_at(self, params: Params, kept: SiteState) -> Params:
        return kept.trees.get("model") or params


@register
@dataclass(frozen=True, kw_only=True)
class Pooled(common.Training):
    """Upper bound: plain SGD on the images (or virtual sets) of all sites in one place. Not federated.

    The runner joins the sites before the first round; the model is evaluated at every original site.
    """

    name: ClassVar[str] = "pooled"
    about: ClassVar[str] = "upper baseline, not federated: the images of all sites in one place"
    pooled: ClassVar[bool] = True
    stackable: ClassVar[tuple[str, ...]] = ("regulariser", "momentum")

    def enrol(self, site: Site, net: Net, rng: Stream) -> tuple[SiteState, Hello]:
        return SiteState(), Hello(site=site.name, counts=site.train.counts(net.classes))

    start, broadcast = common.start, common.broadcast

    def site(self, msg: Broadcast, state: SiteState, site: Site, net: Net, rng: Stream, fit: Fit = fit) -> Visit:
        trained = fit(self, msg.params, state, site, net, rng)
        return common.update(site, state, trained), state

    server = common.average
