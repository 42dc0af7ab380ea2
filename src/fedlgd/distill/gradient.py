"""Federated gradient matching (GM): anchors whose gradient points where the federation went.

The server knows the model before and after a round, nothing else:  G = (theta_t - theta_{t+1}) / eta.
It moves the anchors so that  g = grad_theta CE(anchors; theta_t)  matches G in every row of every weight.
"""

from dataclasses import replace

import torch
from torch import Tensor

from fedlgd.core import meter
from fedlgd.core.losses import cross_entropy
from fedlgd.core.net import Net
from fedlgd.core.tree import scale, sub
from fedlgd.core.types import Params, VirtualSet

EPSILON = 1e-6
GM_PASSES = 8  # forward passes one GM step is worth: a gradient (3) and a backward through it (5)


def pseudo_gradient(old: Params, new: Params, lr: float) -> Params:
    """G = (theta_t - theta_{t+1}) / eta: the averaged sum of the sites' minibatch gradients."""
    return scale(sub(old, new), 1 / lr)


def distance(a: list[Tensor], b: list[Tensor]) -> Tensor:
    """Dist = sum_l sum_i ( 1 - a_i.b_i / (||a_i|| ||b_i|| + 1e-6) ), i the rows of tensor l as (out, -1)."""
    return torch.stack([_row_distance(s.flatten(1), t.flatten(1)) for s, t in zip(a, b, strict=True)]).sum()


def _row_distance(s: Tensor, t: Tensor) -> Tensor:
    norms = torch.linalg.vector_norm(s, dim=1) * torch.linalg.vector_norm(t, dim=1)
    cosine: Tensor = (s * t).sum(1) / (norms + EPSILON)
    return (1 - cosine).sum()


def matched_names(params: Params, net: Net) -> list[str]:
    """The tensors Dist looks at: weights with rows. Biases and norm vectors are skipped."""
    return [name for name, value in params.items() if name in net.trainable and value.ndim > 1]


def image_gradient(
    net: Net, params: Params, images: Tensor, labels: Tensor, target: list[Tensor], names: list[str]
) -> tuple[Tensor, float]:
    """dDist(grad_theta CE_mean(images), target)/d images, and Dist itself."""
    leaf = images.detach().requires_grad_()
    weights = {n: p.detach().requires_grad_(n in names) for n, p in params.items()}
    loss = cross_entropy(net(weights, leaf).logits, labels)
    gradients = torch.autograd.grad(loss, [weights[n] for n in names], create_graph=True, materialize_grads=True)
    dist = distance(list(gradients), target)
    (gradient,) = torch.autograd.grad(dist, leaf)
    meter.spend((GM_PASSES - 3) * len(images) * net.flops)
    return gradient, dist.item()


def match_gradient(
    anchors: VirtualSet,
    net: Net,
    params: Params,
    target: Params,
    steps: int,
    lr: float,
    momentum: float,
    round: int,
) -> tuple[VirtualSet, list[float]]:
    """`steps` of SGD on the anchors' pixels under the old model; also Dist at every step."""
    names = matched_names(params, net)
    wanted = [target[n] for n in names]
    images, velocity = anchors.images.clone(), torch.zeros_like(anchors.images)
    distances = []
    for _ in meter.track("match", steps):
        gradient, dist = image_gradient(net, params, images, anchors.labels, wanted, names)
        velocity = momentum * velocity + gradient
        images -= lr * velocity
        distances.append(dist)
    return replace(anchors, images=images, round=round), distances
