r"""Gradient inversion (Geiping et al., NeurIPS 2020): images whose gradient points in the direction of an update.

The server knows theta_t and theta_c, so after one local step it knows  G = (theta_t - theta_c) / eta.  It also
knows the network, the labels, and the anchors that it sent. It looks for images x that minimise

    1 - <g(x), G> / (|g(x)| |G|)  +  tv * mean(|dx| + |dy|),   g(x) = grad_theta of the site's loss at theta_t

with one cosine over all parameters together. Biases before a normalisation have no gradient and do not count.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from fedlgd.core.errors import check
from fedlgd.core.meter import track
from fedlgd.core.net import Net
from fedlgd.core.train import Local, sgd
from fedlgd.core.types import LabelledSet, Params, Scale, Stream
from fedlgd.distill.gradient import pseudo_gradient
from fedlgd.methods.common import AnchorLoss, Criterion, Term, batch_loss

LR_DROPS = (3 / 8, 5 / 8, 7 / 8)  # of the iterations, after which the learning rate is divided by 10
ADAM_BETAS = (0.9, 0.999)
LBFGS_ITERATIONS = 20  # of one call

Gradients = list[Tensor]


@dataclass(frozen=True, kw_only=True)
class Attack:
    """How an update is inverted. `l2` is Deep Leakage from Gradients: squared distance and L-BFGS."""

    iterations: int = 1000
    restarts: int = 1
    lr: float = 0.1
    tv: float = 0.2
    loss: Literal["cosine", "l2"] = "cosine"

    def __post_init__(self) -> None:
        check(self.iterations > 0, "iterations", self.iterations, "use 1 or more")
        check(self.restarts > 0, "restarts", self.restarts, "use 1 or more")
        check(self.tv >= 0, "tv", self.tv, "use 0 or more")


QUICK_ATTACK, THOROUGH_ATTACK = Attack(iterations=300), Attack(iterations=24_000, restarts=4)


@dataclass(frozen=True, kw_only=True, eq=False)
class Step:
    """One local step as the server sees it: everything but the images of the site.

    `index` are the rows of the batch: first the images of the site, then anchors.
    """

    net: Net
    params: Params
    labels: Tensor
    index: Tensor
    terms: Sequence[Term] = ()
    anchors_in_loss: AnchorLoss | None = None
    criterion: Criterion | None = None

    def loss(self, weights: Params, images: Tensor) -> Tensor:
        """The loss of the site if these were its images."""
        data = LabelledSet(images, self.labels)
        objective = batch_loss(self.net, data, self.terms, self.anchors_in_loss, self.criterion)[1]
        return objective(weights, self.index)

    def gradient(self, images: Tensor) -> Gradients:
        """g(x), with a graph."""
        weights = {name: p.detach().requires_grad_(name in self.net.trainable) for name, p in self.params.items()}
        leaves = [weights[name] for name in self.names]
        loss = self.loss(weights, images)
        return list(torch.autograd.grad(loss, leaves, create_graph=True, materialize_grads=True))

    def update(self, images: Tensor, lr: float) -> Gradients:
        """G = (theta_t - theta_c) / eta after the step of SGD that the site takes on its images."""
        local = Local(steps=1, batch=1, lr=lr)
        trained = sgd(self.net, self.params, 1, lambda weights, _: self.loss(weights, images), local, Stream(0))
        moved = pseudo_gradient(self.params, trained.params, lr)
        return [moved[name] for name in self.names]

    @property
    def names(self) -> list[str]:
        return [name for name in self.params if name in self.net.trainable]


class Reconstruction(NamedTuple):
    """Images in network input, and their cost without total variation."""

    images: Tensor
    cost: float


def cosine_cost(trial: Gradients, target: Gradients) -> Tensor:
    """1 - <g, G> / (|g| |G|) over all parameters together."""
    inner, here, there = (
        torch.stack([(a * b).sum() for a, b in zip(s, t, strict=True)]).sum()
        for s, t in ((trial, target), (trial, trial), (target, target))
    )
    return 1 - inner / (here.sqrt() * there.sqrt()).clamp(min=1e-30)


def squared_cost(trial: Gradients, target: Gradients) -> Tensor:
    """|g - G|^2"""
    return torch.stack([(a - b).square().sum() for a, b in zip(trial, target, strict=True)]).sum()


def total_variation(x: Tensor) -> Tensor:
    """mean |dx| + mean |dy|, the absolute differences of neighbouring pixels."""
    return x.diff(dim=3).abs().mean() + x.diff(dim=2).abs().mean()


def invert(
    gradient: Callable[[Tensor], Gradients],
    target: Gradients,
    shape: tuple[int, ...],
    scale: Scale,
    attack: Attack,
    rng: Stream,
) -> Reconstruction:
    """The reconstruction with the lowest cost of all restarts."""
    costs = {"cosine": cosine_cost, "l2": squared_cost}[attack.loss]
    box = [scale.to_input(torch.full(shape[1:], level)) for level in (0.0, 255.0)]

    def cost(x: Tensor) -> Tensor:
        return costs(gradient(x), target)

    follow = _signed_adam if attack.loss == "cosine" else _l_bfgs
    starts = (torch.randn(shape, generator=rng.generator("start", r)) for r in range(attack.restarts))
    found = [follow(cost, start, box, attack) for start in starts]
    return min(
        (Reconstruction(x, cost(x).item()) for x in found),
        key=lambda each: each.cost if math.isfinite(each.cost) else math.inf,
    )


def _signed_adam(cost: Callable[[Tensor], Tensor], start: Tensor, box: list[Tensor], attack: Attack) -> Tensor:
    """Adam on the signs of the gradient; lr / 10 at 3/8, 5/8 and 7/8 of the iterations; pixels stay in range."""
    x = start.clone().requires_grad_()
    adam = torch.optim.Adam([x], attack.lr, ADAM_BETAS)
    drops = torch.optim.lr_scheduler.MultiStepLR(adam, [math.ceil(part * attack.iterations) for part in LR_DROPS])
    for _ in track("invert", attack.iterations):
        (slope,) = torch.autograd.grad(cost(x) + attack.tv * total_variation(x), x)
        x.grad = slope.sign()
        adam.step()
        drops.step()
        x.data.clamp_(*box)
    return x.detach()


def _l_bfgs(cost: Callable[[Tensor], Tensor], start: Tensor, box: list[Tensor], attack: Attack) -> Tensor:
    """L-BFGS as published for DLG, with the pixels in range after each call."""
    x = start.clone().requires_grad_()
    calls = math.ceil(attack.iterations / LBFGS_ITERATIONS)
    optimiser = torch.optim.LBFGS([x], max_iter=LBFGS_ITERATIONS, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        loss = cost(x) + attack.tv * total_variation(x)
        (x.grad,) = torch.autograd.grad(loss, x)
        return loss.detach()

    for _ in track("invert", calls):
        optimiser.step(closure)
        x.data.clamp_(*box)
    return x.detach()
