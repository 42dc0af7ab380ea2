"""Networks a user might bring as `tests.nets.own:Class`: good ones, and one for each way to be wrong."""

import torch
from torch import Tensor, nn


class Linear(nn.Module):
    """Softmax regression: features are the pixels."""

    def __init__(self, shape: tuple[int, int, int], classes: int, bias: bool = True) -> None:
        super().__init__()
        self.head = nn.Linear(shape[0] * shape[1] * shape[2], classes, bias=bias)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = x.flatten(1)
        return features, self.head(features)


class Normed(Linear):
    """Linear on batch-normalised pixels: has float and integer buffers."""

    def __init__(self, shape: tuple[int, int, int], classes: int) -> None:
        super().__init__(shape, classes)
        self.norm = nn.BatchNorm2d(shape[0])

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return super().forward(self.norm(x))


class Dropping(Linear):
    """Linear on pixels of which half are dropped in training."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return super().forward(nn.functional.dropout(x, 0.5, self.training))


class Idle(Linear):
    """Has a matrix that no score depends on."""

    def __init__(self, shape: tuple[int, int, int], classes: int) -> None:
        super().__init__(shape, classes)
        self.idle = nn.Linear(2, 2)


class HalfFrozen(Linear):
    """Its bias is not to be trained."""

    def __init__(self, shape: tuple[int, int, int], classes: int) -> None:
        super().__init__(shape, classes)
        self.head.bias.requires_grad_(False)


class Stubborn(Linear):
    """Predicts the first class for every image, and barely learns."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features, scores = super().forward(x)
        return features, scores * 1e-3 + torch.eye(scores.shape[1])[0]


class Extra(Linear):
    """Has one score more than there are classes, and it wins always."""

    def __init__(self, shape: tuple[int, int, int], classes: int) -> None:
        super().__init__(shape, classes + 1)
        with torch.no_grad():
            self.head.bias[-1] = 1e3


class OtherArguments(nn.Module):
    def __init__(self, channels: int, outputs: int) -> None:
        super().__init__()


class Raises(Linear):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        raise RuntimeError("no such luck")


class LogitsOnly(Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)[1]


class Three(Linear):
    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return *super().forward(x), x


class WrongClasses(Linear):
    def __init__(self, shape: tuple[int, int, int], classes: int) -> None:
        super().__init__(shape, classes + 1)


class Maps(Linear):
    """Features are not flat."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, super().forward(x)[1]


class Pooled(Linear):
    """One row of features for the whole batch."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features, logits = super().forward(x)
        return features.mean(0, keepdim=True), logits


class NotTensors(Linear):
    def forward(self, x: Tensor) -> tuple[Tensor, str]:
        return x.flatten(1), "logits"


class NotAModule:
    def __init__(self, shape: tuple[int, int, int], classes: int) -> None: ...


def function(shape: tuple[int, int, int], classes: int) -> nn.Module:
    return Linear(shape, classes)
