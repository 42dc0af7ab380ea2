"""ResNet18 as in the released code (default) and as printed in the paper."""

from typing import ClassVar, Literal

from torch import Tensor, nn
from torch.nn import functional as F

from fedlgd.core.net import Output
from fedlgd.nets.convnet import Norm, norm_layer

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
        same = stride == 1 and channels == out
        self.shortcut: nn.Module = nn.Identity()
        if not same:
            self.shortcut = nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), norm_layer(norm, out))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.shortcut(x), inplace=True)


class ResNet18(nn.Module):
    """`code`: 3x3 stride-1 stem, instance norm, 4x4 average pool, two-layer head on large images.
    `printed`: 7x7 stride-2 stem, batch norm, global average pool."""

    help: ClassVar[dict[str, str]] = {
        "version": "As in the released code (instance norm), or as printed in the paper (batch norm).",
        "width": "Channels of the stem and the first stage; those of the others are 2, 4 and 8 times as many.",
    }

    def __init__(
        self,
        shape: tuple[int, int, int],
        classes: int,
        version: Literal["code", "printed"] = "code",
        width: int = 64,
    ) -> None:
        super().__init__()
        printed = version == "printed"
        norm: Norm = "batch" if printed else "instance"
        stem = (
            nn.Conv2d(shape[0], width, 7, 2, padding=3, bias=False)
            if printed
            else nn.Conv2d(shape[0], width, 3, padding=1, bias=False)
        )
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
