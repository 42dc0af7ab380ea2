"""Evaluation of a model on a labelled set: eval mode, large batches, no gradients."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from fedlgd.core.device import to_cpu
from fedlgd.core.meter import phase
from fedlgd.core.net import Net
from fedlgd.core.score import Score
from fedlgd.core.types import LabelledSet, Params


def score(
    net: Net, params: Params, data: LabelledSet, classes: int, batch: int = 256, most: float = math.inf
) -> Score:
    """Accuracy, mean cross-entropy and per-class counts; with two classes also the area under the ROC curve.

    Only the first `classes` logits are used. most: the largest loss of an image.
    """
    margins: list[Tensor] = []
    correct = torch.zeros(classes, dtype=torch.int64)
    loss = torch.zeros((), dtype=torch.float64)
    with phase("evaluate"), torch.inference_mode():
        for start in range(0, len(data), batch):
            part = data.take(slice(start, start + batch))
            logits = net.frozen(params, part.x).logits[:, :classes]
            loss += to_cpu(_loss(logits, part.y, most).double())
            correct += to_cpu(torch.bincount(part.y[logits.argmax(1) == part.y], minlength=classes))
            if classes == 2:
                margins.append(to_cpu(logits[:, 1].double() - logits[:, 0].double()))
    total = data.counts(classes)
    return Score(
        accuracy=int(correct.sum()) / len(data),
        loss=loss.item() / len(data),
        correct=tuple(correct.tolist()),
        total=tuple(total.tolist()),
        auc=area(torch.cat(margins), data.y == 1) if margins else None,
    )


def _loss(logits: Tensor, y: Tensor, most: float) -> Tensor:
    if most == math.inf:
        return F.cross_entropy(logits, y, reduction="sum")
    return F.cross_entropy(logits, y, reduction="none").nan_to_num(most).clamp(max=most).sum()


def area(scores: Tensor, positive: Tensor) -> float | None:
    """Area under the ROC curve,  P(s+ > s-) + P(s+ = s-) / 2,  from mean ranks:

    (sum of the ranks of the positive - n+ (n+ + 1) / 2) / (n+ n-).  None without both classes, or with NaN.
    """
    ours, others = int(positive.sum()), int((~positive).sum())
    if not (ours and others and bool(torch.isfinite(scores).all())):
        return None
    _, place, ties = torch.unique(scores, return_inverse=True, return_counts=True)
    rank = ties.cumsum(0).double() - (ties.double() - 1) / 2
    total = float(rank[place[positive]].sum())
    return (total - ours * (ours + 1) / 2) / (ours * others)
