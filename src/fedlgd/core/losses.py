"""The losses of the paper, each with its formula."""

import torch
from torch import Tensor
from torch.nn import functional as F

SMALLEST_STD = 1e-6  # below it the square root has no useful gradient


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


def class_moments(features: Tensor, labels: Tensor, classes: Tensor) -> Tensor:
    """[mean, std] of psi(x) over the members of each class: one row per class, of twice the length.

    The std is that of the members themselves: 0 for a single one, and without gradient where it is 0.
    """
    means = class_means(features, labels, classes)
    own = (labels[:, None] == classes).to(features) @ means
    variances = class_means((features - own).square(), labels, classes)
    return torch.cat([means, variances.clamp(min=SMALLEST_STD**2).sqrt()], 1)


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


def scaled_mmd(a: Tensor, b: Tensor, kernels: int = 5, width: float = 0.0) -> Tensor:
    r"""s / c * mmd_rbf(a, b),  c = sum_i 2 s / s_i = 8 sum_i 2^-i;  s as in `mmd_rbf`.

    With s far above all distances this is || mean a - mean b ||^2, a term of Eq. 1. So the learning rate of Eq. 1
    suits this loss, too. Distances come from one matrix product, which is fast, and exact to rounding of the norms.
    """
    rows, n, m = torch.cat([a, b]), len(a) + len(b), len(a)
    rows = rows - rows.detach().mean(0)
    norms = rows.square().sum(1)
    square = (norms[:, None] + norms - 2 * rows @ rows.T).clamp(min=0)
    s = width or (square.detach().sum() / (n * n - n)).clamp(min=torch.finfo(square.dtype).tiny * 4)
    sign = torch.cat([rows.new_full((m,), 1 / m), rows.new_full((n - m,), 1 / (m - n))])
    kernel = sum((torch.exp(square / (-s * 2**i / 4)) for i in range(kernels)), start=torch.zeros_like(square))
    return s * (sign @ kernel @ sign) / (8 * sum(2.0**-i for i in range(kernels)))


def means_gap(target: Tensor, features: Tensor, labels: Tensor, classes: Tensor) -> Tensor:
    """Eq. 1:  sum_k || m_k - mean_{v in V_k} psi(A v) ||^2,  m_k the target: the same mean of real images."""
    return mean_gap(target, class_means(features, labels, classes))


def moments_gap(target: Tensor, features: Tensor, labels: Tensor, classes: Tensor) -> Tensor:
    """Eq. 1 + sum_k || s_k - std_{v in V_k} psi(A v) ||^2;  the target has the rows [m_k, s_k] of real images.

    A class with one picture has std 0, from which no gradient comes.
    """
    return mean_gap(target, class_moments(features, labels, classes))


def kernel_gap(target: Tensor, features: Tensor, labels: Tensor, classes: Tensor, owners: Tensor) -> Tensor:
    """sum_k s_k / c MMD^2(psi(A D_k), psi(A V_k)) with kernels as in `scaled_mmd`.

    The target has the features of the real images, of class `owners`. Its value for a wide kernel is that of Eq. 1.
    """
    gaps = [scaled_mmd(target[owners == k], features[labels == k]) for k in classes]
    return torch.stack(gaps).sum()
