"""ConvNet of dataset condensation: `depth` x [conv 3x3, norm, ReLU, pool 2x2], flatten, linear."""

import math
from typing import ClassVar, Literal

from torch import Tensor, nn

from fedlgd.core.net import Output
from fedlgd.nets.fast import AvgPool2x2, Conv3x3

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
    """Features are the flattened output of the last block: 1 152 values for 28x28 images by default."""

    help: ClassVar[dict[str, str]] = {
        "depth": "Blocks of convolution, normalisation, ReLU and pooling.",
        "width": "Channels of each block.",
        "norm": "Normalisation: of each channel (instance), of groups of channels, of the batch, or none.",
        "pooling": "Pooling by 2 after each block: average, maximum, or none.",
    }

    def __init__(
        self,
        shape: tuple[int, int, int],
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
