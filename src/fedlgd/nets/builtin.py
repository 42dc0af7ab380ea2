"""The two networks of the paper, ConvNet and ResNet18, and faster CPU implementations of two PyTorch layers.

The layers are differentiable any number of times. Average pooling adds rows and columns, where PyTorch loops over
windows. Pooling and its transpose are derivatives of each other. The gradient of a convolution with respect to its
input is one matrix product and a sum of patches. A compiled network does without both: its pooling is a mean over
windows, which the compiler joins with the layers around it, and that gradient has a convolution of its own.
"""

import math
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn import functional as F

from fedlgd.core.net import Output
from fedlgd.core.types import Shape

FEW = 4  # channels; with more input channels PyTorch's convolution is faster

Norm = Literal["instance", "group", "batch", "none"]
Pooling = Literal["avg", "max", "none"]


def norm_layer(kind: Norm, channels: int) -> nn.Module:
    """`instance` is an affine GroupNorm with one group per channel, GN(128) in the paper."""
    layers: dict[str, nn.Module] = {
        "instance": nn.GroupNorm(channels, channels),
        "group": nn.GroupNorm(math.gcd(8, channels), channels),
        "batch": nn.BatchNorm2d(channels),
        "none": nn.Identity(),
    }
    return layers[kind]


class ConvNet(nn.Module):
    """ConvNet of dataset condensation: `depth` x [conv 3x3, norm, ReLU, pool 2x2], flatten, linear.

    Features are the flattened output of the last block: 1 152 values for 28x28 images by default.
    """

    help: ClassVar[dict[str, str]] = {
        "depth": "Blocks of convolution, normalisation, ReLU and pooling.",
        "width": "Channels of each block.",
        "norm": "Normalisation: of each channel (instance), of groups of channels, of the batch, or none.",
        "pooling": "Pooling by 2 after each block: average, maximum, or none.",
    }

    def __init__(
        self,
        shape: Shape,
        classes: int,
        depth: int = 3,
        width: int = 128,
        norm: Norm = "instance",
        pooling: Pooling = "avg",
    ) -> None:
        super().__init__()
        channels, height, side = shape
        blocks: list[nn.Module] = []
        for i in range(depth):
            blocks += [Conv3x3(channels if i == 0 else width, width, norm == "instance"), norm_layer(norm, width)]
            blocks += [nn.ReLU(inplace=True)]
            if pooling != "none":
                blocks += [AvgPool2x2() if pooling == "avg" else nn.MaxPool2d(2)]
                height, side = height // 2, side // 2
        if not height or not side:
            allowed = min(shape[1:]).bit_length() - 1
            raise ValueError(
                f"images of shape {shape} allow {allowed} poolings by 2, but net.depth is {depth}; "
                f"use {f'net.depth={allowed} or ' if allowed else ''}net.pooling=none"
            )
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(width * height * side, classes)
        self.per_image = norm != "batch"

    def forward(self, x: Tensor) -> Output:
        features = self.blocks(x).flatten(1)
        return Output(features, self.head(features))


STAGES = ((1, 1), (2, 2), (4, 2), (8, 2))  # channels relative to the stem, and stride


class Block(nn.Module):
    """conv-norm-ReLU-conv-norm plus shortcut, then ReLU."""

    def __init__(self, channels: int, out: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, out, 3, stride, padding=1, bias=False),
            norm_layer(norm, out),
            nn.ReLU(inplace=True),
            nn.Conv2d(out, out, 3, padding=1, bias=False),
            norm_layer(norm, out),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != out:
            self.shortcut = nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), norm_layer(norm, out))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.shortcut(x), inplace=True)


class ResNet18(nn.Module):
    """Released `code`: 3x3 stride-1 stem, instance norm, 4x4 average pool, two-layer head on large images.
    `printed` in the paper: 7x7 stride-2 stem, batch norm, global average pool."""

    help: ClassVar[dict[str, str]] = {
        "version": "As in the released code (instance norm), or as printed in the paper (batch norm).",
        "width": "Channels of the stem and the first stage; those of the others are 2, 4 and 8 times as many.",
    }

    def __init__(
        self, shape: Shape, classes: int, version: Literal["code", "printed"] = "code", width: int = 64
    ) -> None:
        super().__init__()
        printed = version == "printed"
        norm: Norm = "batch" if printed else "instance"
        side, stride, padding = (7, 2, 3) if printed else (3, 1, 1)
        stem = nn.Conv2d(shape[0], width, side, stride, padding, bias=False)
        stages: list[nn.Module] = []
        channels, sides = width, [(side + 1) // 2 if printed else side for side in shape[1:]]
        for times, stride in STAGES:
            out = times * width
            stages += [Block(channels, out, stride, norm), Block(out, out, 1, norm)]
            channels, sides = out, [(side + stride - 1) // stride for side in sides]
        if not printed and min(sides) < 4:
            raise ValueError(
                f"images of shape {shape} are too small for ResNet18, which needs 25 pixels a side; "
                "use net.version=printed, net=convnet, or larger images"
            )
        self.per_image = norm != "batch"
        self.stem = nn.Sequential(stem, norm_layer(norm, width), nn.ReLU(inplace=True))
        self.stages = nn.Sequential(*stages)
        self.pool = nn.AdaptiveAvgPool2d(1) if printed else nn.AvgPool2d(4)
        features = channels * (1 if printed else (sides[0] // 4) * (sides[1] // 4))
        self.head: nn.Module = nn.Linear(features, classes)
        if features > channels:
            hidden = nn.Linear(features, channels)
            self.head = nn.Sequential(hidden, nn.ReLU(inplace=True), nn.Linear(channels, classes))

    def forward(self, x: Tensor) -> Output:
        features = self.pool(self.stages(self.stem(x))).flatten(1)
        return Output(features, self.head(features))


class Conv3x3(nn.Conv2d):
    """3x3 convolution, padding 1. idle: the bias is unused, because a normalisation of each channel cancels it."""

    def __init__(self, channels: int, out: int, idle: bool) -> None:
        super().__init__(channels, out, 3, padding=1)
        self.idle = idle

    def forward(self, input: Tensor) -> Tensor:
        bias = None if self.idle else self.bias
        images_alone = input.requires_grad and not self.weight.requires_grad and self.in_channels <= FEW
        compiled = torch.compiler.is_compiling()
        if not images_alone or (torch.is_autocast_enabled(input.device.type) and not compiled):
            return F.conv2d(input, self.weight, bias, padding=1)
        y: Tensor = (_CompiledImageConv if compiled else _ImageConv).apply(input, self.weight)  # type: ignore[no-untyped-call]
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


class _CompiledImageConv(Function):
    """y = W * x with fixed W;  dx is made in windows of 2x2 pixels, each from 4x4 values of dy, by one convolution.

    The usual one has at most `FEW` output channels here, where a processor computes 16 at once. With the four
    pixels of a window there are four times as many, so that fewer operations are wasted.
    """

    @staticmethod
    def forward(x: Tensor, weight: Tensor) -> Tensor:
        return F.conv2d(x, weight, padding=1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], _: Tensor) -> None:
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (weight,), (dy,) = ctx.saved_tensors, gradients
        height, side = dy.shape[2:]
        turned = weight.to(dy.dtype).flip(2, 3).transpose(0, 1)
        pixels = [F.pad(turned, (right, 1 - right, down, 1 - down)) for down in (0, 1) for right in (0, 1)]
        even = F.pad(dy, (0, side % 2, 0, height % 2))
        windows = F.conv2d(even, torch.stack(pixels, 1).flatten(0, 1), stride=2, padding=1)
        return F.pixel_shuffle(windows, 2)[..., :height, :side].to(weight.dtype), None


class AvgPool2x2(nn.Module):
    """Same as `nn.AvgPool2d(2)`: the mean of every 2x2 window; an odd last row or column is ignored."""

    def forward(self, x: Tensor) -> Tensor:
        if torch.compiler.is_compiling():
            height, side = x.shape[-2] // 2, x.shape[-1] // 2
            windows = x[..., : height * 2, : side * 2].reshape(*x.shape[:-2], height, 2, side, 2)
            return windows.mean((-3, -1))
        pooled: Tensor = _Pool.apply(x)  # type: ignore[no-untyped-call]
        return pooled


class _Pool(Function):
    """(x[2i, 2j] + x[2i+1, 2j] + x[2i, 2j+1] + x[2i+1, 2j+1]) / 4"""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.sides = height, side = x.shape[-2:]
        height, side = height // 2 * 2, side // 2 * 2
        rows = x[..., 0:height:2, :] + x[..., 1:height:2, :]
        return (rows[..., 0:side:2] + rows[..., 1:side:2]).mul_(0.25)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return _Spread.apply(gradients[0], ctx.sides)  # type: ignore[no-untyped-call]


class _Spread(Function):
    """Adds a quarter of each value to the four pixels of its window; 0 for pixels outside all windows."""

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
        return _Pool.apply(gradients[0]), None  # type: ignore[no-untyped-call]
