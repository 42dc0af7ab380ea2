"""Messages of a site as an attacker reads them: images, class means of features, and models.

It is recognised by its form. A declaration says what to expect, but it can be missing or false.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from fedlgd.core.losses import class_means
from fedlgd.core.net import Net
from fedlgd.core.types import Params, Scale

MASK = "present"  # the usual name of the tensor that says which classes a site has


class SentImages(NamedTuple):
    """Images as network input. labels: None if the message does not tell them."""

    x: Tensor
    labels: Tensor | None


def images_in(tensors: Params, net: Net, scale: Scale) -> SentImages | None:
    """All images in a part of a message: tensors whose last dimensions are those of an image.

    Rows without content are left out: they stand for classes that a site does not have.
    """
    found = [each for each in tensors.values() if tuple(each.shape[-3:]) == tuple(net.shape)]
    if not found:
        return None
    rows = [each.reshape(-1, *net.shape) for each in found]
    x = torch.cat([scale.to_input(each) if each.dtype == torch.uint8 else each.float() for each in rows])
    labels = [each for image in found if (each := _labels_of(image, tensors, net.classes)) is not None]
    there = x.flatten(1).amax(1) > x.flatten(1).amin(1)
    if not there.any():
        return None
    return SentImages(x[there], torch.cat(labels)[there] if len(labels) == len(found) else None)


def _labels_of(images: Tensor, tensors: Params, classes: int) -> Tensor | None:
    """The labels in the same part: as integers, as probabilities, or by rows that are sorted by class."""
    lead = images.shape[:-3]
    count = lead.numel()
    for each in (value for name, value in tensors.items() if name != MASK):
        whole = each.shape == (count,) and each.dtype in (torch.int64, torch.int32, torch.uint8)
        if whole and int(each.min()) >= 0 and int(each.max()) < classes:
            return each.long()
        if each.shape == (count, classes):
            return each.argmax(1)
    by_class = lead[:1] == (classes,) or (MASK in tensors and tensors[MASK].shape == (classes,))
    return torch.arange(classes).repeat_interleave(count // classes) if by_class and not count % classes else None


def class_means_in(tensors: Params, net: Net) -> Tensor | None:
    """The first tensor with a row of features for each class."""
    return next((each.double() for each in tensors.values() if each.shape == (net.classes, net.features)), None)


def agreement(sent: Tensor, features: Tensor, labels: Tensor) -> float:
    """The correlation of sent class means with those of known images, each without its mean over classes.

    Classes that are not on both sides do not count. With features of another network there is none.
    """
    means = class_means(features, labels, torch.arange(len(sent)))
    both = ~means.isnan().any(1) & (sent != 0).any(1)
    if both.sum() < 2:
        return 0.0
    a, b = ((each[both] - each[both].mean(0)).flatten() for each in (sent, means))
    return float(F.cosine_similarity(a, b, dim=0))


def is_whole(params: Params, model: Params) -> bool:
    """Whether these tensors are a whole model like `model`: a part of one has no logits."""
    return {name: value.shape for name, value in params.items()} == {k: value.shape for k, value in model.items()}
