"""Federated gradient matching (GM): anchors whose gradient matches the update of the federation.

The server knows the model before and after a round, nothing else:  G = (theta_t - theta_{t+1}) / eta.
It moves the anchors so that  g = grad_theta CE(anchors; theta_t)  matches G in every row of every weight.
Batch norm uses the statistics of the anchors, as the sites' gradients used those of their batches.
"""

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from fedlgd.core import meter, tree
from fedlgd.core.compile import Pass
from fedlgd.core.device import compiling, uncompiled
from fedlgd.core.losses import cross_entropy
from fedlgd.core.net import Net
from fedlgd.core.settings import Settings, setting
from fedlgd.core.types import LabelledSet, Params, VirtualSet
from fedlgd.distill.augment import Transform

NORM_FLOOR = 1e-6
LBFGS_MEMORY = 10  # history size of L-BFGS
MIN_CURVATURE = 1e-10  # pairs with s.y / y.y below this are skipped
MAX_STEP = 0.1  # maximum length of a step relative to the images
STALL_STEPS = 10  # early stopping: within so many steps the best Dist must fall ...
STALL_RATIO = 0.99  # ... to this fraction of its value
REAL_CHUNK = 256  # real images in memory
GM_PASSES = 8  # cost of a GM step in forward passes: a gradient (3) and its backward pass (5)


def pseudo_gradient(old: Params, new: Params, rate: float) -> Params:
    """G = (theta_t - theta_{t+1}) / rate: the averaged sum of the sites' minibatch gradients.

    The rate is eta_t for plain SGD, and `Local.rate` with momentum: then the sum is weighted, with mean weight 1.
    Dist does not depend on the scale of G but for its 1e-6, which is small beside a G of the size of gradients.
    """
    return tree.scale(tree.sub(old, new), 1 / rate)


def distance(a: list[Tensor], b: list[Tensor]) -> Tensor:
    """Dist = sum_l sum_i ( 1 - a_i.b_i / (||a_i|| ||b_i|| + 1e-6) ), i the rows of tensor l as (out, -1)."""
    parts = []
    for s, t in ((s.flatten(1), t.flatten(1)) for s, t in zip(a, b, strict=True)):
        norms = torch.linalg.vector_norm(s, dim=1) * torch.linalg.vector_norm(t, dim=1)
        parts.append((1 - (s * t).sum(1) / (norms + NORM_FLOOR)).sum())
    return torch.stack(parts).sum()


def row_distance(a: list[Tensor], b: list[Tensor], squared: float = 0.0) -> Tensor:
    """sum_l mean_i ( 1 - a_i.b_i / (||a_i|| ||b_i|| + 1e-6) ) + squared ||a - b||^2, i the rows of tensor l.

    A tensor with one dimension is one row. Of FedLAP; Dist of FedLGD is a sum over rows, without such tensors.
    """
    parts = []
    for one, other in zip(a, b, strict=True):
        s, t = (each.flatten(1) if each.ndim > 1 else each[None] for each in (one, other))
        norms = torch.linalg.vector_norm(s, dim=1) * torch.linalg.vector_norm(t, dim=1)
        parts.append((1 - (s * t).sum(1) / (norms + NORM_FLOOR)).mean() + squared * (s - t).square().sum())
    return torch.stack(parts).sum()


def matched_names(params: Params, net: Net) -> list[str]:
    """The tensors in Dist: weights with rows, without biases and normalisation vectors."""
    return [name for name, value in params.items() if name in net.trainable and value.ndim > 1]


def anchor_gradient(
    net: Net,
    params: Params,
    images: Tensor,
    labels: Tensor,
    target: list[Tensor],
    names: list[str],
    dist_of: Callable[[list[Tensor], list[Tensor]], Tensor] = distance,
    transform: Transform | None = None,
) -> tuple[Tensor, float]:
    """dDist(grad_theta CE_mean(A(images)), target)/d images, and Dist itself; A is the `transform`, if any."""
    meter.spend((GM_PASSES - 3) * len(images) * net.flops)
    if compiling() and net.per_image and dist_of is distance and transform is None:
        meter.spend(3 * len(images) * net.flops)
        gradient, dist = net.one_graph(dist_gradient, params, images, labels, target, names)
        return gradient, dist.item()
    leaf = images.detach().requires_grad_()
    weights = {n: p.detach().requires_grad_(n in names) for n, p in params.items()}
    x = transform(leaf) if transform else leaf
    with uncompiled():
        loss = cross_entropy(net.by_batch(weights, x).logits, labels)
    gradients = torch.autograd.grad(loss, [weights[n] for n in names], create_graph=True, materialize_grads=True)
    dist = dist_of(list(gradients), target)
    (gradient,) = torch.autograd.grad(dist, leaf)
    return gradient, dist.item()


def dist_gradient(
    run: Pass, params: Params, images: Tensor, labels: Tensor, target: list[Tensor], names: list[str]
) -> tuple[Tensor, Tensor]:
    """`anchor_gradient` as a pure function, both of whose gradients can be in one compiled graph."""

    def dist(images: Tensor) -> Tensor:
        def loss(matched: Params) -> Tensor:
            return cross_entropy(run({**params, **matched}, images).logits, labels)

        gradients = torch.func.grad(loss)({name: params[name] for name in names})
        return distance([gradients[name] for name in names], target)

    found: tuple[Tensor, Tensor] = torch.func.grad_and_value(dist)(images)
    return found


Gradients = Callable[[Params], Callable[[Transform], list[Tensor]]]
"""w -> (A -> the gradient of a batch of real images A(x) at w, for each trainable tensor)"""


def batch_gradients(net: Net, data: LabelledSet, rate: float, generator: Generator) -> Gradients:
    """g = sum_{i in B} grad_w CE(A(x_i)) / (q n),  each image in B with probability q = `rate`."""

    def at(w: Params) -> Callable[[Transform], list[Tensor]]:
        weights = {name: value.detach().requires_grad_(name in net.trainable) for name, value in w.items()}
        leaves = [value for name, value in weights.items() if name in net.trainable]

        def gradient(transform: Transform) -> list[Tensor]:
            chosen = (torch.rand(len(data), generator=generator) < rate).nonzero().flatten()
            total = [torch.zeros_like(leaf) for leaf in leaves]
            for index in chosen.split(REAL_CHUNK) if len(chosen) else ():
                part = data.take(index)
                logits = net.by_batch(weights, transform(part.x)).logits
                loss = F.cross_entropy(logits, part.y, reduction="sum") / (rate * len(data))
                more = torch.autograd.grad(loss, leaves, materialize_grads=True)
                total = [a + b for a, b in zip(total, more, strict=True)]
            return total

        return gradient

    return at


@dataclass(frozen=True, kw_only=True)
class Matching(Settings):
    """How anchors are optimised.

    Plan `exact` takes `steps` of SGD, as published. Plan `target` uses L-BFGS until the distance is within
    `tolerance` (1 - cosine, mean over rows), it no longer improves, or `steps` are done.
    """

    plan: Literal["target", "exact"] = setting("target", "`exact`: SGD, as published; `target`: L-BFGS.")
    tolerance: float = setting(0.02, "Plan `target` stops at this distance; 0: all steps.", least=0)
    steps: int = setting(50, "Steps of gradient matching; 0: anchors are never updated.", least=0, most=10_000_000)
    lr: float = setting(1.0, "Learning rate of the pixels; plan `target`: only of the first step.", above=0)
    momentum: float = setting(0.5, "Momentum of plan `exact`.", least=0, below=1)


def match_gradient(
    anchors: VirtualSet, net: Net, params: Params, target: Params, matching: Matching, round: int
) -> tuple[VirtualSet, list[float]]:
    """The anchors after gradient matching with the old model, and Dist at every step."""
    names = matched_names(params, net)
    wanted = [target[n] for n in names]

    def look(images: Tensor) -> tuple[Tensor, float]:
        return anchor_gradient(net, params, images, anchors.labels, wanted, names)

    if matching.plan == "exact":
        images, distances = _by_sgd(look, anchors.images, matching)
    else:
        images, distances = _to_target(look, anchors.images, matching, rows=sum(len(w) for w in wanted))
    return replace(anchors, images=images, round=round), distances


Look = Callable[[Tensor], tuple[Tensor, float]]
"""images -> gradient of Dist, and Dist"""


def _by_sgd(look: Look, start: Tensor, matching: Matching) -> tuple[Tensor, list[float]]:
    """v <- m v + g;  x <- x - lr v"""
    images, velocity, distances = start, torch.zeros_like(start), list[float]()
    for _ in meter.track("match", matching.steps):
        gradient, dist = look(images)
        velocity = matching.momentum * velocity + gradient
        images = images - matching.lr * velocity
        distances.append(dist)
    return images, distances


def _to_target(look: Look, start: Tensor, matching: Matching, rows: int) -> tuple[Tensor, list[float]]:
    """x <- x - H g by L-BFGS, stopped at the tolerance or when Dist no longer falls. Returns the best images.

    The objective is deterministic, so differences of gradients are valid curvature estimates.
    """
    seen: deque[Curvature] = deque(maxlen=LBFGS_MEMORY)
    images = best = start
    before = start, torch.zeros_like(start)
    distances: list[float] = []
    for _ in meter.track("match", matching.steps + 1):
        gradient, dist = look(images)
        if distances:
            seen.extend(_curvature(images - before[0], gradient - before[1]))
        distances.append(dist)
        if dist <= min(distances):
            best = images
        earlier = min(distances[:-STALL_STEPS], default=math.inf)  # infinite during the first steps
        if dist <= matching.tolerance * rows or min(distances) > STALL_RATIO * earlier:
            break
        before = images, gradient
        step = _inverse_curvature(gradient, seen, matching.lr)
        images = images - step * (MAX_STEP * images.norm() / step.norm()).clamp(max=1)
    return best, distances


class Curvature(NamedTuple):
    """A step s, the change y of the gradient along it, and s.y"""

    s: Tensor
    y: Tensor
    sy: Tensor


def _curvature(s: Tensor, y: Tensor) -> list[Curvature]:
    """The curvature pair of a step, if its curvature is positive."""
    sy = (s * y).sum()
    return [Curvature(s, y, sy)] if sy > MIN_CURVATURE * y.square().sum() else []


def _inverse_curvature(g: Tensor, seen: Sequence[Curvature], lr: float) -> Tensor:
    """H g by the two-loop recursion; without history, H is lr."""
    q, shares = g.clone(), []
    for s, y, sy in reversed(seen):
        shares.append((s * q).sum() / sy)
        q -= shares[-1] * y
    q *= lr if not seen else seen[-1].sy / seen[-1].y.square().sum()
    for (s, y, sy), share in zip(seen, reversed(shares), strict=True):
        q += s * (share - (y * q).sum() / sy)
    return q
