r"""Optimisers of pixels. Each step adds a smoothed gradient (S g, see `smooth_gradient`) to what it remembers.

sgd:   v <- m v + S g;  x <- x - lr v
adam:  v <- .5 v + .5 S g;  u <- .9 u + .1 (S g)^2;  x <- x - lr v' / (sqrt(u') + 1e-8),  v' = v / (1 - .5^i)
       and u' = u / (1 - .9^i) after i steps (Kingma and Ba, ICLR 2015). It remembers few steps, because the target
       of the gradient changes with every draw; lr is a change of pixels, whatever the scale of the features.
"""

from dataclasses import dataclass, field
from functools import cache
from typing import Literal

import torch
from torch import Tensor

Optimiser = Literal["sgd", "adam"]

BETAS = 0.5, 0.9
ADAM_EPSILON = 1e-8
FREQUENCY_FLOOR = 1.4  # cycles per image; lower frequencies have similar weights
UNIT_FREQUENCY = 3.9  # cycles per image, whose weight is 1


@dataclass(slots=True, eq=False)
class PixelOptimiser:
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
        gradient = smooth_gradient(gradient, self.smooth)
        self.steps += 1
        if self.optimiser == "sgd":
            self.velocity = self.momentum * self.velocity + gradient
            return images - self.lr * self.velocity
        first, second = BETAS
        self.velocity = first * self.velocity + (1 - first) * gradient
        self.square = second * self.square + (1 - second) * gradient.square()
        mean = self.velocity / (1 - first**self.steps)
        size = (self.square / (1 - second**self.steps)).sqrt()
        return images - self.lr * mean / (size + ADAM_EPSILON)


def smooth_gradient(gradient: Tensor, strength: float) -> Tensor:
    r"""F^-1 [ ((f + f_0) / (f_1 + f_0))^-strength  F g ], f the frequency in cycles per image; strength 0: g.

    A preconditioner that favours low frequencies. Gradients of matching are as large at high frequencies as at low
    frequencies, but low frequencies need larger changes. Frequency weights like the amplitudes of natural images,
    which decrease with frequency, improve the conditioning: the same loss is reached in fewer steps
    (docs/results/speed.md says in how many).
    """
    if not strength:
        return gradient
    sides = (gradient.shape[-2], gradient.shape[-1])
    spectrum = torch.fft.rfft2(gradient) * weights(sides, strength).to(gradient)
    smooth: Tensor = torch.fft.irfft2(spectrum, s=sides)
    return smooth


@cache
def weights(sides: tuple[int, int], strength: float) -> Tensor:
    """The weight of each frequency of `rfft2`."""
    down = torch.fft.fftfreq(sides[0], 1 / sides[0], dtype=torch.float64)
    right = torch.fft.rfftfreq(sides[1], 1 / sides[1], dtype=torch.float64)
    frequency = torch.hypot(down[:, None], right)
    return ((frequency + FREQUENCY_FLOOR) / (UNIT_FREQUENCY + FREQUENCY_FLOOR)) ** -strength
