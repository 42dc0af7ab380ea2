"""MOON (Li et al., CVPR 2021): contrasts features with the global and the previous local model"""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedlgd.core.net import Output
from fedlgd.core.types import Broadcast, Params, Site, SiteState
from fedlgd.methods import common
from fedlgd.methods.common import Batch, fit
from fedlgd.methods.protocol import Fit, Net, Stream, Visit, setting
from fedlgd.methods.registry import register


def model_contrastive(z: Tensor, z_global: Tensor, z_previous: Tensor, temperature: float) -> Tensor:
    r"""mean -log [ e^{cos(z, z_g)/T} / (e^{cos(z, z_g)/T} + e^{cos(z, z_p)/T}) ]"""
    near = F.cosine_similarity(z, z_global, dim=1) / temperature
    far = F.cosine_similarity(z, z_previous, dim=1) / temperature
    return F.softplus(far - near).mean()


class Projected(nn.Module):
    """The original projection head: features -> MLP -> 256, used by both the term and the classifier.

    It replaces the classifier, which the body calls `head`.
    """

    def __init__(self, body: nn.Module, shape: tuple[int, int, int], outputs: int, width: int = 256) -> None:
        super().__init__()
        with torch.no_grad():
            d = body.eval()(torch.zeros(1, *shape))[0].shape[1]
        self.body, self.per_image = body.train(), getattr(body, "per_image", None)
        if hasattr(body, "head"):
            body.head = nn.Identity()
        self.projection = nn.Sequential(nn.Linear(d, d), nn.ReLU(), nn.Linear(d, width))
        self.classifier = nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Output:
        z = self.projection(self.body(x)[0])
        return Output(z, self.classifier(z))


@register
@dataclass(frozen=True, kw_only=True)
class Moon(common.Training):
    r"""CE + mu * l_con(z, z_g, z_p): z_g by theta_t, z_p by the site's own model after its last participation.

    The term is off at the first participation of a site, because it has no previous model.
    """

    name: ClassVar[str] = "moon"
    stackable: ClassVar[tuple[str, ...]] = (*common.Training.stackable, "robust", "fedopt")

    mu: float = setting(1.0, "Weight of the contrastive term; 0 is FedAvg.", least=0)
    temperature: float = setting(0.5, "Temperature T of the term.", above=0)
    head: bool = setting(False, "Add the projection head of the original.")

    def adapt(self, net: Net) -> Net:
        if not self.head:
            return net
        return net.wrapped(lambda body, outputs: Projected(body, net.shape, outputs), "projected")

    enrol, start, broadcast, server = common.enrol, common.start, common.broadcast, common.average

    def site(self, msg: Broadcast, state: SiteState, site: Site, net: Net, rng: Stream, fit: Fit = fit) -> Visit:
        previous = state.trees.get("previous")

        def contrast(w: Params, batch: Batch) -> Tensor:
            assert previous is not None
            z_global = net.frozen(msg.params, batch.x).features
            z_previous = net.frozen(previous, batch.x).features
            return self.mu * model_contrastive(batch.features, z_global, z_previous, self.temperature)

        terms = [contrast] if previous and self.mu else []
        trained = fit(self, msg.params, state, site, net, rng, terms=terms)
        return common.update(site, state, trained), replace(state, trees={"previous": trained.params})
