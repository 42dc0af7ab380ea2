"""The losses of the paper, each with its formula."""

import torch
from torch import Tensor
from torch.nn import functional as F


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """mean_i -log softmax(f(x_i))[y_i]"""
    return F.cross_entropy(logits, labels)


def supervised_contrastive(features: Tensor, labels: Tensor, temperature: float) -> Tensor:
    r"""mean_j -1/|P(j)| sum_{p in P(j)} log [ exp(z_j.z_p/T) / sum_{a != j} exp(z_j.z_a/T) ],  z = psi/||psi||.

    P(j): the other members with j's label. A member without positives contributes 0 and counts in the mean.
    """
    z = F.normalize(features, dim=1, eps=1e-6)
    itself = torch.eye(len(z), dtype=torch.bool, device=z.device)
    similarity = (z @ z.T / temperature).masked_fill(itself, -torch.inf)
    log_p = (similarity - similarity.logsumexp(dim=1, keepdim=True)).masked_fill(itself, 0)
    positive = (labels[:, None] == labels) & ~itself
    per_member = -(log_p * positive).sum(1) / positive.sum(1).clamp(min=1)
    return per_member.mean()


def class_means(features: Tensor, labels: Tensor, classes: Tensor) -> Tensor:
    """mean of psi(x) over the members of each class: one row per class in `classes`."""
    member = (labels == classes[:, None]).to(features)
    return (member @ features) / member.sum(1, keepdim=True)


def mean_gap(a: Tensor, b: Tensor) -> Tensor:
    """Eq. 1 on class means:  sum_k || a_k - b_k ||^2"""
    return (a - b).square().sum()


def mmd_rbf(a: Tensor, b: Tensor, kernels: int = 5, unbiased: bool = False, width: float = 0.0) -> Tensor:
    r"""mean k(a,a) + mean k(b,b) - 2 mean k(a,b),  k(u,v) = sum_i exp(-||u-v||^2 / s_i),  s_i = s 2^i / 4.

    s is `width`; if that is 0, the mean squared distance between two different members of the joint set, and no
    gradient goes through it. `unbiased` leaves k(u,u) out of the means: zero on average for two samples of one
    source, so single values can be negative.
    """
    joint = torch.cat([a, b])
    square = torch.cdist(joint, joint, compute_mode="donot_use_mm_for_euclid_dist").square()
    n, m = len(joint), len(a)
    s = width or (square.detach().sum() / (n * n - n)).clamp(min=torch.finfo(square.dtype).tiny * 4)
    kernel = torch.stack([torch.exp(-square / (s * 2**i / 4)) for i in range(kernels)]).sum(0)
    aa, bb, ab = kernel[:m, :m], kernel[m:, m:], kernel[:m, m:]
    if not unbiased:
        return aa.mean() + bb.mean() - 2 * ab.mean()
    within = sum((k.sum() - k.trace()) / (len(k) * (len(k) - 1)) for k in (aa, bb))
    return within - 2 * ab.mean()
