"""Slow, obvious versions: loops over members, classes and rows, written from the formulas of the specification."""

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fedlgd.core.net import Net
from fedlgd.core.types import LabelledSet, Params

Rows = Sequence[Sequence[float]]


def contrastive(features: Rows, labels: Sequence[int], temperature: float) -> float:
    """The supervised contrastive loss, member by member, averaged over all members."""
    z = [[v / math.sqrt(sum(u * u for u in row)) for v in row] for row in features]
    total = 0.0
    for j in range(len(z)):
        others = [a for a in range(len(z)) if a != j]
        positives = [p for p in others if labels[p] == labels[j]]
        below = sum(math.exp(_dot(z[j], z[a]) / temperature) for a in others)
        terms = [-math.log(math.exp(_dot(z[j], z[p]) / temperature) / below) for p in positives]
        total += sum(terms) / len(terms) if terms else 0.0
    return total / len(z)


def contrastive_tensor(features: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """The same on tensors, so that a gradient can be taken through the loops."""
    z = [row / row.norm() for row in features]
    terms = []
    for j in range(len(z)):
        others = [a for a in range(len(z)) if a != j]
        positives = [p for p in others if labels[p] == labels[j]]
        below = torch.stack([(z[j] @ z[a] / temperature).exp() for a in others]).sum()
        logs = [-((z[j] @ z[p] / temperature).exp() / below).log() for p in positives]
        terms.append(torch.stack(logs).mean() if logs else torch.zeros((), dtype=features.dtype))
    return torch.stack(terms).mean()


def mmd_rbf(a: Rows, b: Rows, kernels: int = 5) -> float:
    joint = [*a, *b]
    n = len(joint)
    width = sum(_square(u, v) for u in joint for v in joint) / (n * n - n)

    def mean_kernel(left: Rows, right: Rows) -> float:
        values = [
            sum(math.exp(-_square(u, v) / (width * 2**i / 4)) for i in range(kernels)) for u in left for v in right
        ]
        return sum(values) / len(values)

    return mean_kernel(a, a) + mean_kernel(b, b) - 2 * mean_kernel(a, b)


def mmd_unbiased(a: Rows, b: Rows, width: float = 0.0, kernels: int = 5) -> float:
    """Pairs of a point with itself are left out of the means."""
    joint = [*a, *b]
    apart = [_square(u, v) for i, u in enumerate(joint) for j, v in enumerate(joint) if i != j]
    width = width or sum(apart) / len(apart)

    def kernel(u: Sequence[float], v: Sequence[float]) -> float:
        return sum(math.exp(-_square(u, v) / (width * 2**i / 4)) for i in range(kernels))

    def within(rows: Rows) -> float:
        values = [kernel(u, v) for i, u in enumerate(rows) for j, v in enumerate(rows) if i != j]
        return sum(values) / len(values)

    across = [kernel(u, v) for u in a for v in b]
    return within(a) + within(b) - 2 * sum(across) / len(across)


def class_mean_gap(real: np.ndarray, real_labels: np.ndarray, made: np.ndarray, made_labels: np.ndarray) -> float:
    """Eq. 1 on features."""
    total = 0.0
    for k in sorted(set(made_labels.tolist())):
        difference = real[real_labels == k].mean(axis=0) - made[made_labels == k].mean(axis=0)
        total += float((difference**2).sum())
    return total


def dist(a: Sequence[np.ndarray], b: Sequence[np.ndarray]) -> float:
    """Row by row; tensors of one dimension are skipped."""
    total = 0.0
    for s, t in zip(a, b, strict=True):
        if s.ndim == 1:
            continue
        for row in range(s.shape[0]):
            u, v = s[row].ravel(), t[row].ravel()
            total += 1 - float(u @ v) / (math.sqrt(float(u @ u)) * math.sqrt(float(v @ v)) + 1e-6)
    return total


def dist_tensor(a: Sequence[Tensor], b: Sequence[Tensor]) -> Tensor:
    total = torch.zeros((), dtype=a[0].dtype)
    for s, t in zip(a, b, strict=True):
        if s.ndim > 1:
            for u, v in zip(s, t, strict=True):
                u, v = u.reshape(-1), v.reshape(-1)
                total = total + 1 - (u @ v) / (u.square().sum().sqrt() * v.square().sum().sqrt() + 1e-6)
    return total


def dm_gradient(
    net: Net,
    params: Params,
    real: LabelledSet,
    images: Tensor,
    labels: Tensor,
    transforms: dict[int, Callable[[Tensor], Tensor]],
    gap: Callable[[Sequence[Tensor], Sequence[Tensor]], Tensor] | None = None,
) -> Tensor:
    """dL/d images of Eq. 1: class by class, one image at a time, all real images of the class.

    gap: another loss of the features of real images of a class and those of virtual ones.
    """
    leaf = images.clone().requires_grad_()
    total = torch.zeros((), dtype=images.dtype)
    for k in sorted(set(labels.tolist())):
        change = transforms[k]
        of_real = [net(params, change(x[None])).features[0] for x in real.x[real.y == k]]
        of_made = [net(params, change(leaf[i][None])).features[0] for i in range(len(leaf)) if labels[i] == k]
        total = total + (gap or _means_apart)([row.detach() for row in of_real], of_made)
    (gradient,) = torch.autograd.grad(total, leaf)
    return gradient


def _means_apart(real: Sequence[Tensor], made: Sequence[Tensor]) -> Tensor:
    return ((sum(real) / len(real) - sum(made) / len(made)) ** 2).sum()


def moments_apart(real: Sequence[Tensor], made: Sequence[Tensor]) -> Tensor:
    """|| difference of means ||^2 + || difference of stds ||^2"""

    def std(rows: Sequence[Tensor]) -> Tensor:
        mean = sum(rows) / len(rows)
        return (sum((row - mean) ** 2 for row in rows) / len(rows)).sqrt()

    return _means_apart(real, made) + ((std(real) - std(made)) ** 2).sum()


def kernels_apart(real: Sequence[Tensor], made: Sequence[Tensor], kernels: int = 5) -> Tensor:
    """MMD^2 with five Gaussian kernels, times s / 15.5; s is a number, through which no gradient goes."""
    joint = [*real, *made]
    apart = [
        float(((u - v) ** 2).sum().detach()) for i, u in enumerate(joint) for j, v in enumerate(joint) if i != j
    ]
    s = sum(apart) / len(apart)

    def mean_kernel(left: Sequence[Tensor], right: Sequence[Tensor]) -> Tensor:
        values = [
            sum((-((u - v) ** 2).sum() / (s * 2**i / 4)).exp() for i in range(kernels)) for u in left for v in right
        ]
        return sum(values) / len(values)

    factor = s / sum(2 / (2**i / 4) for i in range(kernels))
    return factor * (mean_kernel(real, real) + mean_kernel(made, made) - 2 * mean_kernel(real, made))


def feddm_gradient(
    net: Net,
    params: Params,
    real: LabelledSet,
    images: Tensor,
    labels: Tensor,
    transforms: dict[int, Callable[[Tensor], Tensor]],
) -> Tensor:
    """dL/d images of FedDM: the gap of mean features and that of mean logits, one image at a time."""
    leaf = images.clone().requires_grad_()
    total = torch.zeros((), dtype=images.dtype)
    for k in sorted(set(labels.tolist())):
        of_real = [net(params, transforms[k](x[None])) for x in real.x[real.y == k]]
        of_made = [net(params, transforms[k](leaf[i][None])) for i in range(len(leaf)) if labels[i] == k]
        for part in ("features", "logits"):
            means = [sum(getattr(out, part)[0] for out in outs) / len(outs) for outs in (of_real, of_made)]
            total = total + sum((a.detach() - b) ** 2 for a, b in zip(*means, strict=True))
    (gradient,) = torch.autograd.grad(total, leaf)
    return gradient


def trajectory_gap(
    net: Net,
    start: Params,
    target: Params,
    images: Tensor,
    labels: Tensor,
    rate: float,
    transforms: Sequence[Callable[[Tensor], Tensor]],
) -> float:
    """Steps of SGD on images with soft labels, the loss image by image; then the distance, number by number."""
    names = [name for name in start if name in net.trainable]
    w = {name: value.clone() for name, value in start.items()}
    for transform in transforms:
        leaf = {name: value.clone().requires_grad_(name in names) for name, value in w.items()}
        loss = torch.zeros((), dtype=images.dtype)
        for x, soft in zip(images, labels, strict=True):
            p = [math.exp(v) / sum(math.exp(u) for u in soft.tolist()) for v in soft.tolist()]
            z = net(leaf, transform(x[None])).logits[0]
            loss = loss - sum(share * (z[k] - z.logsumexp(0)) for k, share in enumerate(p)) / len(images)
        grads = torch.autograd.grad(loss, [leaf[name] for name in names], materialize_grads=True)
        w |= {name: w[name] - rate * grad for name, grad in zip(names, grads, strict=True)}

    def square(a: Params, b: Params) -> float:
        return sum((u - v) ** 2 for n in names for u, v in zip(a[n].flatten(), b[n].flatten(), strict=True))

    return float(square(w, target) / square(start, target))


def on_sphere(params: Params, names: Sequence[str], radius: float, generator: torch.Generator) -> Params:
    """theta + u min(1, radius / ||u||), number by number."""
    draws = {name: torch.randn(params[name].shape, generator=generator).double() for name in names}
    length = math.sqrt(sum(v * v for draw in draws.values() for v in draw.flatten().tolist()))
    return {name: v + draws[name] * min(1.0, radius / length) if name in draws else v for name, v in params.items()}


def dm_steps(
    net: Net,
    params: Params,
    real: LabelledSet,
    images: Tensor,
    labels: Tensor,
    steps: int,
    lr: float,
    momentum: float,
) -> Tensor:
    """Distribution matching without augmentation, the images under torch's own SGD."""
    leaf = images.clone().requires_grad_()
    optimiser = torch.optim.SGD([leaf], lr=lr, momentum=momentum)
    same = {int(k): (lambda x: x) for k in labels.unique()}
    for _ in range(steps):
        leaf.grad = dm_gradient(net, params, real, leaf.detach(), labels, same)
        optimiser.step()
    return leaf.detach()


def batch_norm_features(params: Params, x: Tensor, depth: int = 2) -> Tensor:
    """psi(x) of a ConvNet with batch norm: each channel by its mean and variance over all images and places."""
    for i in range(depth):
        name = f"blocks.{4 * i}", f"blocks.{4 * i + 1}"
        x = F.conv2d(x, params[f"{name[0]}.weight"], params[f"{name[0]}.bias"], padding=1)
        channels = []
        for c in range(x.shape[1]):
            h = x[:, c]
            mean = h.sum() / h.numel()
            variance = ((h - mean) ** 2).sum() / h.numel()
            channels.append(
                (h - mean) / (variance + 1e-5).sqrt() * params[f"{name[1]}.weight"][c]
                + params[f"{name[1]}.bias"][c]
            )
        x = torch.stack(channels, 1).clamp(min=0)
        x = (x[..., ::2, ::2] + x[..., 1::2, ::2] + x[..., ::2, 1::2] + x[..., 1::2, 1::2]) / 4
    return x.flatten(1)


def dm_gradient_batch_norm(
    params: Params,
    real: LabelledSet,
    images: Tensor,
    labels: Tensor,
    transforms: dict[int, Callable[[Tensor], Tensor]],
) -> Tensor:
    """dL/d images of Eq. 1: all real images in one batch, all virtual ones in another."""
    leaf = images.clone().requires_grad_()
    classes = sorted(set(labels.tolist()))

    def means(x: Tensor, y: Tensor) -> list[Tensor]:
        chosen = [i for k in classes for i in range(len(y)) if y[i] == k]
        features = batch_norm_features(params, torch.cat([transforms[int(y[i])](x[i][None]) for i in chosen]))
        return [
            torch.stack([f for f, i in zip(features, chosen, strict=True) if y[i] == k]).mean(0) for k in classes
        ]

    gaps = zip(means(real.x, real.y), means(leaf, labels), strict=True)
    (gradient,) = torch.autograd.grad(sum(((a.detach() - b) ** 2).sum() for a, b in gaps), leaf)
    return gradient


def gm_gradient_batch_norm(params: Params, images: Tensor, labels: Tensor, target: Params) -> tuple[Tensor, float]:
    """d Dist(grad_theta CE, target) / d images under the statistics of the images."""
    leaf = images.clone().requires_grad_()
    weights = {
        n: v.clone().requires_grad_() for n, v in params.items() if v.is_floating_point() and "running" not in n
    }
    logits = batch_norm_features(weights, leaf) @ weights["head.weight"].T + weights["head.bias"]
    loss = -sum(row.log_softmax(0)[y] for row, y in zip(logits, labels, strict=True)) / len(labels)
    grads = torch.autograd.grad(loss, list(weights.values()), create_graph=True)
    value = dist_tensor(grads, [target[name] for name in weights])
    (gradient,) = torch.autograd.grad(value, leaf)
    return gradient, value.item()


def gm_gradient(net: Net, params: Params, images: Tensor, labels: Tensor, target: Params) -> tuple[Tensor, float]:
    """d Dist(grad_theta CE, target) / d images, the cross-entropy as the mean over single images."""
    leaf = images.clone().requires_grad_()
    weights = {name: value.clone().requires_grad_() for name, value in params.items()}
    losses = [F.cross_entropy(net(weights, x[None]).logits, y[None]) for x, y in zip(leaf, labels, strict=True)]
    loss = sum(losses) / len(losses)
    grads = torch.autograd.grad(loss, list(weights.values()), create_graph=True, materialize_grads=True)
    value = dist_tensor(grads, [target[name] for name in weights])
    (gradient,) = torch.autograd.grad(value, leaf)
    return gradient, value.item()


def gm_steps(
    net: Net,
    params: Params,
    images: Tensor,
    labels: Tensor,
    target: Params,
    steps: int,
    lr: float,
    momentum: float,
) -> tuple[Tensor, list[float]]:
    leaf = images.clone().requires_grad_()
    optimiser = torch.optim.SGD([leaf], lr=lr, momentum=momentum)
    values = []
    for _ in range(steps):
        leaf.grad, value = gm_gradient(net, params, leaf.detach(), labels, target)
        optimiser.step()
        values.append(value)
    return leaf.detach(), values


def average(trees: Sequence[Params], weights: Sequence[float]) -> dict[str, list[float]]:
    """sum_i w_i theta_i / sum_i w_i, number by number."""
    total = sum(weights)
    flat = [{name: value.flatten().tolist() for name, value in tree.items()} for tree in trees]
    return {
        name: [
            sum(w * tree[name][i] for w, tree in zip(weights, flat, strict=True)) / total
            for i in range(len(flat[0][name]))
        ]
        for name in flat[0]
    }


def regularised(
    net: Net,
    params: Params,
    local: LabelledSet,
    anchors: LabelledSet,
    index: Tensor,
    weight: float,
    temperature: float,
    repeat: bool,
) -> Tensor:
    """CE(batch) + lambda L_Con(Z): batch and anchors embedded separately, image by image.

    Z = (local part of the batch) + all anchors; with `repeat` Z = (whole batch) + all anchors.
    """
    x, y = torch.cat([local.x, anchors.x]), torch.cat([local.y, anchors.y])
    chosen = index.tolist()
    batch = [net(params, x[i][None]) for i in chosen]
    every = [net(params, a[None]) for a in anchors.x]
    ce = sum(F.cross_entropy(out.logits, y[i][None]) for out, i in zip(batch, chosen, strict=True)) / len(chosen)
    members = [(out.features[0], y[i]) for out, i in zip(batch, chosen, strict=True) if repeat or i < len(local)]
    members += [(out.features[0], k) for out, k in zip(every, anchors.y, strict=True)]
    features, labels = torch.stack([m[0] for m in members]), torch.stack([m[1] for m in members])
    return ce + weight * contrastive_tensor(features, labels, temperature)


def _dot(a: Sequence[float], b: Sequence[float]) -> float:
    return sum(u * v for u, v in zip(a, b, strict=True))


def _square(a: Sequence[float], b: Sequence[float]) -> float:
    return sum((u - v) ** 2 for u, v in zip(a, b, strict=True))


def area(scores: Sequence[float], positive: Sequence[bool]) -> float:
    """Area under the ROC curve: the share of pairs (positive, other) in the right order, a tie counting half."""
    ours = [s for s, p in zip(scores, positive, strict=True) if p]
    others = [s for s, p in zip(scores, positive, strict=True) if not p]
    won = sum(1.0 if a > b else 0.5 if a == b else 0.0 for a in ours for b in others)
    return won / (len(ours) * len(others))
