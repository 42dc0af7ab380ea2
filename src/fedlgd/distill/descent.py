r"""Optimisers of pixels. Each step adds a smoothed gradient (`distill/smooth.py`) to what it remembers.

sgd:   v <- m v + S g;  x <- x - lr v
adam:  v <- .5 v + .5 S g;  u <- .9 u + .1 (S g)^2;  x <- x - lr v' / (sqrt(u') + 1e-8),  v' = v / (1 - .5^i)
       and u' = u / (1 - .9^i) after i steps (Kingma and Ba, ICLR 2015). It remembers few steps, because the target
       of the gradient changes with every draw; lr is a change of pixels, whatever the scale of the features.
"""

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from fedlgd.distill.smooth import smoothed

Optimiser = Literal["sgd", "adam"]

BETAS = 0.5, 0.9
TINY = 1e-8


@dataclass(slots=True, eq=False)
class Descent:
    """The optimiser of one set of images, with its memory."""

    lr: float
    momentum: float = 0.0
    smooth: float = 0.0
    optimiser: Optimiser = "sgd"
    steps: int = 0
    velocity: Tensor = field(default_factory=lambda: torch.zeros(()))
    square: Tensor = field(default_factory=lambda: torch.zeros(()))

    def __call__(self, images: Tensor, gradient: Tensor) -> Tensor:
        """The images after one step."""
        gradient = smoothed(gradient, self.smooth)
        self.steps += 1
        if self.optimiser == "sgd":
            self.velocity = self.momentum * self.velocity + gradient
            return images - self.lr * self.velocity
        first, second = BETAS
        self.velocity = first * self.velocity + (1 - first) * gradient
        self.square = second * self.square + (1 - second) * gradient.square()
        mean = self.velocity / (1 - first**self.steps)
        size = (self.square / (1 - second**self.steps)).sqrt()
        return images - self.lr * mean / (size + TINY)
