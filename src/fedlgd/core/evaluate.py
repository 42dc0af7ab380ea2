"""Scoring a model on a labelled set: eval mode, large batches, no graph."""

import torch
from torch.nn import functional as F

from fedlgd.core.meter import phase
from fedlgd.core.net import Net
from fedlgd.core.types import LabelledSet, Params, Score


def score(net: Net, params: Params, data: LabelledSet, classes: int, batch: int = 256) -> Score:
    """Accuracy, mean cross-entropy and per-class counts. Only the first `classes` logits compete."""
    correct = torch.zeros(classes, dtype=torch.int64)
    loss = torch.zeros((), dtype=torch.float64)
    with phase("evaluate"), torch.inference_mode():
        for start in range(0, len(data), batch):
            part = data.take(slice(start, start + batch))
            logits = net.frozen(params, part.x).logits[:, :classes]
            loss += F.cross_entropy(logits, part.y, reduction="sum").double()
            correct += torch.bincount(part.y[logits.argmax(1) == part.y], minlength=classes)
    total = data.counts(classes)
    return Score(
        accuracy=int(correct.sum()) / len(data),
        loss=loss.item() / len(data),
        correct=tuple(correct.tolist()),
        total=tuple(total.tolist()),
    )
