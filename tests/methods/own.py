"""Nets whose loss has a closed form, and regularisers of a user's own."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedlgd.core.net import Net
from fedlgd.core.settings import setting
from fedlgd.core.tree import only, sqnorm
from fedlgd.core.types import LabelledSet, Site
from fedlgd.methods.common import Embedded
from fedlgd.methods.regularisers import Pull, Regulariser, contrastive
from fedlgd.nets.registry import build_net


class Quadratic(nn.Module):
    """Cross-entropy of label 0 is 1 + 1/2 sum a (w - b)^2, an image being the numbers a and b.

    -log softmax(0, s)[0] = log(1 + e^s), which is q for s = log(e^q - 1).
    """

    def __init__(self, shape: tuple[int, int, int], classes: int) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(shape[2] // 2))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = x.flatten(1)
        a, b = features.chunk(2, dim=1)
        q = 1 + 0.5 * (a * (self.w - b).square()).sum(1)
        s = torch.expm1(q).log()
        return features, torch.stack([torch.zeros_like(s), s], dim=1)


@dataclass(frozen=True, kw_only=True)
class Heavy(Regulariser):
    """weight * sum w^2"""

    weight: float = setting(1.0, "How heavy weights are.", least=0)

    def term(self, msg, state, net):
        return lambda w, _: self.weight * sqnorm(only(w, net.trainable))


def half_contrastive(z: Embedded, pull: Pull) -> Tensor:
    return contrastive(z, pull) / 2


def quadratic_net(dimensions: int) -> Net:
    return build_net("tests.methods.own:Quadratic", (1, 1, 2 * dimensions), 2)


def quadratic_site(a: Tensor, b: Tensor, copies: int, name: str = "ape") -> Site:
    """One function, as often as there are to be steps in an epoch of batch 1."""
    image = torch.cat([a, b]).view(1, 1, 1, -1)
    data = LabelledSet(image.repeat(copies, 1, 1, 1), torch.zeros(copies, dtype=torch.int64))
    return Site(name, data, data, ("yes", "no"))
