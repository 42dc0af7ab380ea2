"""FedDM (Xiong et al., CVPR 2023): sites send images that match theirs near the model, the server trains on all"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from fedlgd.core.net import Output
from fedlgd.core.types import Broadcast, Hello, Params, ServerState, Site, SiteState, Update
from fedlgd.distill.distribution import ParamsOf, check_finite, match, perturbed, random_networks
from fedlgd.distill.settings import Distil
from fedlgd.methods import common, union
from fedlgd.methods.protocol import Expected, Fit, Net, Presets, Stream, Updates, Visit, setting
from fedlgd.methods.registry import register

PUBLISHED = {
    "allow_copies": True,
    "distil.plan": "exact",
    "distil.steps": 1000,
    "distil.real_per_class": 256,
    "distil.width": 0,
    "distil.smooth": 0.0,
    "distil.start": "real",
    "images": "new",
    "local.epochs": 500,
}
"""1 000 networks and 256 real images per class in a round, images that start from real ones in every round."""


class WithLogits(nn.Module):
    """A network with [psi(x), z(x)] as its features: || . ||^2 of their means is the sum of both terms of FedDM."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body
        if hasattr(body, "per_image"):
            self.per_image = body.per_image

    def forward(self, x: Tensor) -> Output:
        features, logits = self.body(x)
        return Output(torch.cat([features, logits], 1), logits)

    @staticmethod
    def weights(params: Params) -> Params:
        """The weights of the network under their names here."""
        return {f"body.{name}": value for name, value in params.items()}


@register
@dataclass(frozen=True, kw_only=True)
class FedDM(union.Condensing):
    r"""Site c:  S_c <- S_c - lr dL/dS,  w on the sphere of radius rho around theta_t, a new one for each draw,
    L = sum_k || mean psi_w(D_k) - mean psi_w(S_k) ||^2 + || mean z_w(D_k) - mean z_w(S_k) ||^2  (z: logits).
    Server:  theta_{t+1} = SGD from theta_t on CE(union of S_c), with the settings `local`.

    In round 0 networks are random: theta_0 is no better than any other. Sites train no model and send none.
    """

    name: ClassVar[str] = "feddm"
    presets: ClassVar[Presets] = {
        "paper": PUBLISHED,
        "quick": {**common.TUNED, "local.steps": 100, "distil.steps": 50},
    }
    sends: ClassVar[Mapping[str, str]] = {f"trees/{union.TREE}": "images"}

    radius: float = setting(
        5.0, "Radius rho around theta_t at which networks are drawn; 0: theta_t itself.", least=0
    )
    logits: bool = setting(True, "Match the mean logits of each class, too.")
    images: Literal["keep", "new"] = setting(
        "keep",
        "Images before the steps of a round: `keep` those of the round before, or `new` from `distil.start`.",
    )

    def expects(self, msg: Broadcast, net: Net, hello: Hello) -> Expected:
        return union.expected_upload(net, self.distil.per_class)

    def networks(self, msg: Broadcast, net: Net, rng: Stream) -> tuple[Net, ParamsOf, Distil]:
        """What images are matched under: the network, the weights of its i-th draw, and the settings for it."""
        matched, distil = random_networks(net, self.distil) if msg.round == 0 else (net, self.distil)

        def drawn(i: int) -> Params:
            here = rng.at("net", i)
            return matched.init(here) if msg.round == 0 else perturbed(net, msg.params, self.radius, here)

        if not self.logits:
            return matched, drawn, distil
        both = matched.wrapped(lambda body, _: WithLogits(body), "logits")
        return both, lambda i: WithLogits.weights(drawn(i)), distil

    def site(
        self, msg: Broadcast, state: SiteState, site: Site, net: Net, rng: Stream, fit: Fit = common.fit
    ) -> Visit:
        """S_c after the steps of this round; `fit` is not used."""
        before = state if self.images == "keep" else SiteState()
        virtual = union.images_before(before, site, net, self.distil, msg.round, rng.at("start"))
        seen, drawn, distil = self.networks(msg, net, rng.at("refine"))
        images = match(virtual.images, virtual.labels, site.train, seen, drawn, distil, rng.at("refine"))
        check_finite(images, self.distil.lr, f"distillation at site {site.name!r}")
        virtual = replace(virtual, images=images, round=msg.round)
        tree = union.upload_of(virtual, net.classes, self.distil.per_class)
        return Update(site=site.name, params={}, weight=1.0, trees={union.TREE: tree}), SiteState(virtual=virtual)

    def server(self, state: ServerState, updates: Updates, net: Net, rng: Stream) -> ServerState:
        everyone = union.union_of(updates, self.distil.tiles)
        trained = common.fit_on(net, state.params, everyone, self.local, rng)
        return replace(state, params=trained.params, round=state.round + 1)
