"""FedPer (Arivazhagan et al., 2019): sites share all layers but the last, which stays at each site.

fedlgd run builtin-digits --method own_head:OwnHead --rounds 10
"""

from dataclasses import dataclass, replace
from typing import ClassVar

from fedlgd import methods
from fedlgd.methods import Broadcast, Fit, Hello, Net, Params, ServerState, Site, SiteState, Stream, Visit, tree


@dataclass(frozen=True, kw_only=True)
class OwnHead(methods.Training):
    """theta_c = (body, head_c):  body_{t+1} = sum_c p_c body_c,  and head_c never leaves site c."""

    name: ClassVar[str] = "own-head"
    personal: ClassVar[bool] = True
    stackable: ClassVar[tuple[str, ...]] = ("regulariser",)

    head: str = methods.setting("head.", "Parameters whose names begin with this stay at their site.")

    broadcast, server = methods.broadcast, methods.average

    def enrol(self, site: Site, net: Net, rng: Stream) -> tuple[SiteState, Hello]:
        state, hello = methods.enrol(self, site, net, rng)
        first = methods.first_model(net, rng)
        return replace(state, trees={"head": tree.only(first, self.kept(first))}), hello

    def start(self, params: Params, hellos: methods.Hellos, net: Net, rng: Stream) -> ServerState:
        return ServerState(params=tree.only(params, params.keys() - self.kept(params)))

    def site(
        self, msg: Broadcast, state: SiteState, site: Site, net: Net, rng: Stream, fit: Fit = methods.fit
    ) -> Visit:
        trained = fit(self, self.model_at(msg.params, state), state, site, net, rng)
        sent = replace(methods.update(site, state, trained), params=tree.only(trained.params, msg.params.keys()))
        return sent, replace(state, trees={"head": tree.only(trained.params, self.kept(trained.params))})

    def model_at(self, params: Params, kept: SiteState) -> Params:
        return {**params, **kept.trees["head"]}

    def kept(self, params: Params) -> set[str]:
        """The names of what stays at a site."""
        return {name for name in params if name.startswith(self.head)}
