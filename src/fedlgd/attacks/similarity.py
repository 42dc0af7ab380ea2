"""How alike pictures are: tensors (n, c, h, w) with values 0..1 in, numbers out.

Networks with instance norm do not see contrast: the gradient of a x is that of x for a > 0. So distances that rank
images ignore the contrast and the brightness of each channel.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn
from torch.nn import functional as F

from fedlgd.core.types import LabelledSet, Stream
from fedlgd.nets.builtin import AvgPool2x2
from fedlgd.nets.registry import build_net

SSIM_WINDOW, SSIM_SIGMA, SSIM_K1, SSIM_K2 = 11, 1.5, 0.01, 0.03
RANDOM_NETS, RANDOM_NET_WIDTH = 8, 32  # of the feature distance
CHUNK_SIZE = 1024  # images that are compared at once


def psnr(a: Tensor, b: Tensor) -> Tensor:
    """10 log10(1 / mean (a - b)^2) of each pair, in dB."""
    return -10 * (a.double() - b.double()).square().flatten(1).mean(1).log10()


def aligned(a: Tensor, b: Tensor) -> Tensor:
    """s a + o with s >= 0 and o for each image and channel that are closest to b."""
    a, b = a.double().flatten(2), b.double().flatten(2)
    ca, cb = a - a.mean(2, keepdim=True), b - b.mean(2, keepdim=True)
    slope = ((ca * cb).sum(2, keepdim=True) / ca.square().sum(2, keepdim=True)).nan_to_num(0.0).clamp(min=0)
    return slope * ca + b.mean(2, keepdim=True)


def psnr_aligned(a: Tensor, b: Tensor) -> Tensor:
    """PSNR after the best contrast and brightness of a for each channel."""
    return psnr(aligned(a, b), b.flatten(2))


def ssim(a: Tensor, b: Tensor) -> Tensor:
    """Structural similarity (Wang et al. 2004) of each pair: Gaussian window 11x11, valid region, mean of channels.

    (2 m_a m_b + c1)(2 s_ab + c2) / ((m_a^2 + m_b^2 + c1)(s_a^2 + s_b^2 + c2))
    """
    a, b = a.double(), b.double()
    offsets = torch.arange(SSIM_WINDOW, dtype=torch.float64) - SSIM_WINDOW // 2
    line = torch.exp(-offsets.square() / (2 * SSIM_SIGMA**2))
    window = (line[:, None] * line / line.sum() ** 2)[None, None]

    def smooth(x: Tensor) -> Tensor:
        return F.conv2d(x.flatten(0, 1)[:, None], window).view(*x.shape[:2], -1)

    ma, mb = smooth(a), smooth(b)
    va, vb, both = smooth(a * a) - ma * ma, smooth(b * b) - mb * mb, smooth(a * b) - ma * mb
    c1, c2 = SSIM_K1**2, SSIM_K2**2
    index = (2 * ma * mb + c1) * (2 * both + c2) / ((ma * ma + mb * mb + c1) * (va + vb + c2))
    return index.mean((1, 2))


def feature_distance(a: Tensor, b: Tensor) -> Tensor:
    """mean_l mean_ij |u_l(a)_ij - u_l(b)_ij|^2 of each pair, averaged over random ConvNets.

    u_l are the activations after block l with length 1 over channels. It is not LPIPS, whose networks were trained.
    """
    with torch.no_grad():
        found = []
        for blocks in _random_blocks(tuple(a.shape[1:])):
            pairs = zip(_activations(blocks, a), _activations(blocks, b), strict=True)
            found.append(torch.stack([(u - v).square().sum(1).mean((1, 2)) for u, v in pairs]).mean(0))
        return torch.stack(found).mean(0)


def _activations(blocks: nn.Sequential, x: Tensor) -> Iterator[Tensor]:
    h = 2 * x.float() - 1
    for layer in blocks:
        h = layer(h)
        if isinstance(layer, AvgPool2x2):
            yield F.normalize(h, dim=1)


@cache
def _random_blocks(shape: tuple[int, int, int]) -> list[nn.Sequential]:
    depth = min(3, min(shape[1:]).bit_length() - 1)
    net = build_net("convnet", shape, 2, {"width": RANDOM_NET_WIDTH, "depth": depth})
    made = [net.module(net.init(Stream(0).at("feature distance", i))).blocks for i in range(RANDOM_NETS)]
    return [blocks for blocks in made if isinstance(blocks, nn.Sequential)]


def correlation_distances(a: Tensor, b: Tensor) -> Tensor:
    """(n, m): 1 - mean over channels of the correlation of pixels. 0: equal up to contrast and brightness."""
    here = _standardised(a)
    return torch.cat([1 - here @ _standardised(part).T for part in b.split(CHUNK_SIZE)], 1)


def _standardised(x: Tensor) -> Tensor:
    """Each channel with mean 0 and length 1, divided so that a product of rows is the mean over channels."""
    centred = x.double().flatten(2)
    centred = centred - centred.mean(2, keepdim=True)
    return F.normalize(centred, dim=2).flatten(1) / math.sqrt(x.shape[1])


def best_order(found: Tensor, true: Tensor, labels: Tensor) -> Tensor:
    """The order of `found` that fits `true` best within each label: images of a batch have no order."""
    order = torch.arange(len(labels))
    for k in labels.unique():
        rows = (labels == k).nonzero().flatten()
        truth, mine = linear_sum_assignment(correlation_distances(true[rows], found[rows]).numpy())
        order[rows[truth]] = rows[mine]
    return order


def rank(found: Tensor, candidates: Tensor) -> int:
    """The rank, from 1, of the first candidate by distance to a picture; equally near ones come before it."""
    row = correlation_distances(found[None], candidates)[0]
    return int((row <= row[0]).sum())


@dataclass(frozen=True, eq=False)
class Neighbours:
    """The nearest training and held-out image of the same class of each picture in `rows`: indices and distances.

    expected: the probability that the nearest image of a picture is a training image by chance.
    """

    rows: Tensor
    training: Tensor
    held_out: Tensor
    near: Tensor
    far: Tensor
    expected: Tensor

    @property
    def share(self) -> float:
        """The share of pictures that are nearer to a training image than to every held-out image."""
        return float((self.near < self.far).double().mean())

    @property
    def p_value(self) -> float:
        """The probability of so many by chance, if training and held-out images are alike."""
        return tail(self.expected.tolist(), int((self.near < self.far).sum()))


def neighbours(pictures: Tensor, labels: Tensor, training: LabelledSet, held_out: LabelledSet) -> Neighbours:
    """Memorisation: by chance, the nearest of n + m images is a training image with probability n / (n + m).

    Pictures of classes without training or held-out images are left out.
    """
    empty = torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.float64)
    parts = [(empty[0], empty[0], empty[0], empty[1], empty[1], empty[1])]
    for k in labels.unique().tolist():
        inside, outside, rows = training.of_class(k), held_out.of_class(k), (labels == k).nonzero().flatten()
        if len(inside) and len(outside):
            near, i = _nearest(pictures[rows], training, inside)
            far, j = _nearest(pictures[rows], held_out, outside)
            chance = torch.full_like(near, len(inside) / (len(inside) + len(outside)))
            parts.append((rows, i, j, near, far, chance))
    joined = [torch.cat(part) for part in zip(*parts, strict=True)]
    order = joined[0].argsort()
    return Neighbours(*(part[order] for part in joined))


def _nearest(pictures: Tensor, data: LabelledSet, index: Tensor) -> tuple[Tensor, Tensor]:
    best = correlation_distances(pictures, data.pixels(index)).min(1)
    return best.values, index[best.indices]


def tail(chances: list[float], least: int) -> float:
    """P(at least `least` successes) of independent trials with these chances (Poisson binomial)."""
    weights = np.ones(1)
    for p in chances:
        weights = np.convolve(weights, [1 - p, p])
    return float(min(1.0, weights[least:].sum()))
