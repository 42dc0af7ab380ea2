"""The loss of one step: cross-entropy of a batch, plus the terms of a method."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from fedlgd.core.losses import cross_entropy
from fedlgd.core.net import Net
from fedlgd.core.train import Objective
from fedlgd.core.types import LabelledSet, Params


class Batch(NamedTuple):
    """Images, labels, and features under the model in training."""

    x: Tensor
    y: Tensor
    features: Tensor


Term = Callable[[Params, Batch], Tensor]
"""A term that is added to the cross-entropy of a batch."""


class Embedded(NamedTuple):
    """Features and labels of the local part of a batch (the first `local` rows), followed by all anchors.

    `batch` has the indices of the rows that are in the batch; it can include anchors.
    """

    features: Tensor
    labels: Tensor
    local: int
    batch: Tensor


class BatchSource(Protocol):
    """A source of batches."""

    def __len__(self) -> int: ...

    def take(self, index: Tensor) -> LabelledSet: ...


@dataclass(frozen=True, slots=True)
class Batches:
    """Images of a site as its method trains on them."""

    data: LabelledSet
    prepare: Callable[[LabelledSet], LabelledSet]

    def __len__(self) -> int:
        return len(self.data)

    def take(self, index: Tensor) -> LabelledSet:
        return self.prepare(self.data.take(index))


@dataclass(frozen=True, slots=True)
class Joined:
    """Two sets as one without copying; the images of the first set come first."""

    first: BatchSource
    second: LabelledSet

    def __len__(self) -> int:
        return len(self.first) + len(self.second)

    def take(self, index: Tensor) -> LabelledSet:
        here = index < len(self.first)
        a, b = self.first.take(index[here]), self.second.take(index[~here] - len(self.first))
        order = torch.cat([here.nonzero().flatten(), (~here).nonzero().flatten()]).argsort()
        return LabelledSet(torch.cat([a.x, b.x])[order], torch.cat([a.y, b.y])[order])


class AnchorLoss(NamedTuple):
    """Anchors in local training: whether they are in the cross-entropy, and the regulariser."""

    images: LabelledSet
    in_loss: bool
    pull: Callable[[Embedded], Tensor] | None


def batch_loss(
    net: Net, data: BatchSource, terms: Sequence[Term], anchors: AnchorLoss | None
) -> tuple[int, Objective]:
    """The number of images that batches are drawn from, anchors last, and the loss of a batch."""
    if anchors is None:
        return len(data), plain(net, data, terms)
    n = len(data) + (len(anchors.images) if anchors.in_loss else 0)
    if anchors.pull:
        return n, pulled(net, data, anchors.images, anchors.pull, terms)
    return n, plain(net, Joined(data, anchors.images), terms)


def plain(net: Net, data: BatchSource, terms: Sequence[Term] = ()) -> Objective:
    """mean CE over a batch of `data` + terms"""

    def loss(w: Params, index: Tensor) -> Tensor:
        part = data.take(index)
        out = net(w, part.x)
        return cross_entropy(out.logits, part.y) + _sum(terms, w, Batch(part.x, part.y, out.features))

    return loss


def pulled(
    net: Net,
    local: BatchSource,
    anchors: LabelledSet,
    pull: Callable[[Embedded], Tensor],
    terms: Sequence[Term] = (),
) -> Objective:
    """CE(batch) + terms + pull(Z) over batches of V^c + V^g; an index from len(local) on is an anchor.

    Z = (local part of the batch) + all anchors. The features of each image are computed once, with gradient.
    """
    n = len(local)

    def loss(w: Params, index: Tensor) -> Tensor:
        mine, drawn = local.take(index[index < n]), index[index >= n] - n
        m = len(mine)
        x, y = torch.cat([mine.x, anchors.x]), torch.cat([mine.y, anchors.y])
        out = net(w, x)
        rows = torch.cat([torch.arange(m), m + drawn])
        batch = Batch(x[rows], y[rows], out.features[rows])
        ce = cross_entropy(out.logits[rows], batch.y)
        return ce + _sum(terms, w, batch) + pull(Embedded(out.features, y, m, rows))

    return loss


def _sum(terms: Sequence[Term], w: Params, batch: Batch) -> Tensor | float:
    return sum((term(w, batch) for term in terms), start=0.0)
