"""The score of a model on a set of test images. Records have it, so this module does not import torch."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Score:
    """The score of a model on one labelled set, with correct and total images per class.

    `auc` is the area under the ROC curve of the second of two classes; None for more classes, or if one is absent.
    """

    accuracy: float
    loss: float
    correct: tuple[int, ...]
    total: tuple[int, ...]
    auc: float | None = None

    @property
    def balanced(self) -> float:
        """Balanced accuracy: the mean accuracy over the classes that have images."""
        shares = [right / all_ for right, all_ in zip(self.correct, self.total, strict=True) if all_]
        return sum(shares) / len(shares)
