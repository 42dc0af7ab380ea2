"""Faster CPU implementations of two PyTorch layers. They are differentiable any number of times.

Average pooling adds rows and columns, where PyTorch loops over windows. Pooling and its transpose are derivatives
of each other. The gradient of a convolution with respect to its input is one matrix product and a sum of patches.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn import functional as F

FEW = 4  # channels; with more input channels PyTorch's convolution is faster


class Conv3x3(nn.Conv2d):
    """3x3 convolution, padding 1. idle: the bias is unused, because a normalisation of each channel cancels it."""

    def __init__(self, channels: int, out: int, idle: bool) -> None:
        super().__init__(channels, out, 3, padding=1)
        self.idle = idle

    def forward(self, input: Tensor) -> Tensor:
        bias = None if self.idle else self.bias
        images_alone = input.requires_grad and not self.weight.requires_grad and self.in_channels <= FEW
        if not images_alone or torch.is_autocast_enabled(input.device.type):
            return F.conv2d(input, self.weight, bias, padding=1)
        y: Tensor = _ImageConv.apply(input, self.weight)  # type: ignore[no-untyped-call]
        return y if bias is None else y + bias[:, None, None]


class _ImageConv(Function):
    """y = W * x with fixed W;  dx is the sum of the patches W^T dy."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(weight)
        ctx.sides = x.shape[2:]
        return F.conv2d(x, weight, padding=1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (weight,), (dy,) = ctx.saved_tensors, gradients
        return F.fold(weight.flatten(1).T @ dy.flatten(2), ctx.sides, 3, padding=1), None


class AvgPool2x2(nn.Module):
    """Same as `nn.AvgPool2d(2)`: the mean of every 2x2 window; an odd last row or column is ignored."""

    def forward(self, x: Tensor) -> Tensor:
        return pool(x)


def pool(x: Tensor) -> Tensor:
    """(x[2i, 2j] + x[2i+1, 2j] + x[2i, 2j+1] + x[2i+1, 2j+1]) / 4"""
    pooled: Tensor = _Pool.apply(x)  # type: ignore[no-untyped-call]
    return pooled


def spread(y: Tensor, sides: tuple[int, int]) -> Tensor:
    """Add a quarter of each value to the four pixels of its window; 0 for pixels outside all windows."""
    x: Tensor = _Spread.apply(y, sides)  # type: ignore[no-untyped-call]
    return x


class _Pool(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.sides = height, side = x.shape[-2:]
        height, side = height // 2 * 2, side // 2 * 2
        rows = x[..., 0:height:2, :] + x[..., 1:height:2, :]
        return (rows[..., 0:side:2] + rows[..., 1:side:2]).mul_(0.25)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return spread(gradients[0], ctx.sides)


class _Spread(Function):
    @staticmethod
    def forward(_: Any, y: Tensor, sides: tuple[int, int]) -> Tensor:
        height, side = y.shape[-2] * 2, y.shape[-1] * 2
        covered = (height, side) == tuple(sides)
        x = (y.new_empty if covered else y.new_zeros)((*y.shape[:-2], *sides))
        upper, quarter = x[..., 0:height:2, :], y * 0.25
        upper[..., 0:side:2] = upper[..., 1:side:2] = quarter
        x[..., 1:height:2, :] = upper
        return x

    @staticmethod
    def backward(_: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return pool(gradients[0]), None
