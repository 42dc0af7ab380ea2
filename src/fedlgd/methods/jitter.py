"""Augmentation of training batches: every image has its own draw, and borders are repeated."""

import math
from collections.abc import Collection

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from fedlgd.distill.augment import color

DEGREES, ZOOM, SHIFT = 15.0, 1.2, 1 / 8  # largest turn, largest factor of the size, largest shift in sides


def jittered(x: Tensor, operations: Collection[str], generator: Generator) -> Tensor:
    """Each image with its own random affine map and colours; the same images if there are no operations.

    rotate: a ~ U(-15, 15) degrees; zoom: log z ~ U(-log 1.2, log 1.2); shift: d ~ U(-1/8, 1/8) of each side.
    color: brightness, saturation and contrast as in `distill.augment.color`.
    """
    if not operations or not len(x):  # a batch can consist of anchors alone
        return x
    u = torch.rand(len(x), 7, generator=generator).to(x)
    if {"rotate", "zoom", "shift"} & set(operations):
        x = F.grid_sample(x, _grid(x, u, operations), padding_mode="border", align_corners=False)
    return color(x, *u[:, 4:, None, None, None].unbind(1)) if "color" in operations else x


def _grid(x: Tensor, u: Tensor, operations: Collection[str]) -> Tensor:
    """Where each output pixel is sampled: z R(a) p + d in coordinates of [-1, 1], for square pixels."""
    angle = (2 * u[:, 0] - 1) * (math.radians(DEGREES) if "rotate" in operations else 0.0)
    zoom = ((2 * u[:, 1] - 1) * (math.log(ZOOM) if "zoom" in operations else 0.0)).exp()
    shift = (2 * u[:, 2:4] - 1) * (2 * SHIFT if "shift" in operations else 0.0)
    aspect = x.shape[2] / x.shape[3]
    c, s = zoom * angle.cos(), zoom * angle.sin()
    rows = torch.stack([c, -s * aspect, shift[:, 0]], 1), torch.stack([s / aspect, c, shift[:, 1]], 1)
    return F.affine_grid(torch.stack(rows, 1), list(x.shape), align_corners=False)
