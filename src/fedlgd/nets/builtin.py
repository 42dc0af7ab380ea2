"""The two networks of the paper: ConvNet and ResNet18."""

import math
from typing import ClassVar, Literal

from torch import Tensor, nn
from torch.nn import functional as F

from fedlgd.core.net import Output
from fedlgd.nets.fast import AvgPool2x2, Conv3x3
from fedlgd.nets.hooked import Shape

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
