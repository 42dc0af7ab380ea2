"""A metric for pictures: steps in which neighbouring pixels move together.

Gradients of matching are as large in single pixels as in shapes, but it is shapes that have far to go. Weighing
frequencies as they occur in natural images, where amplitude falls with frequency, conditions the problem: the same
loss in about half of the steps.
"""

from functools import cache

import torch
from torch import Tensor

FLOOR = 1.4  # cycles per image, below which frequencies count alike
UNCHANGED = 3.9  # cycles per image, whose weight is 1


def smoothed(gradient: Tensor, strength: float) -> Tensor:
    r"""F^-1 [ ((f + f_0) / (f_1 + f_0))^-strength  F g ], f the frequency in cycles per image; 0: as it is."""
    if not strength:
        return gradient
    sides = (gradient.shape[-2], gradient.shape[-1])
    spectrum = torch.fft.rfft2(gradient) * weights(sides, strength).to(gradient)
    smooth: Tensor = torch.fft.irfft2(spectrum, s=sides)
    return smooth


@cache
def weights(sides: tuple[int, int], strength: float) -> Tensor:
    """One for every frequency that `rfft2` has."""
    down = torch.fft.fftfreq(sides[0], 1 / sides[0], dtype=torch.float64)
    right = torch.fft.rfftfreq(sides[1], 1 / sides[1], dtype=torch.float64)
    frequency = torch.hypot(down[:, None], right)
    return ((frequency + FLOOR) / (UNCHANGED + FLOOR)) ** -strength
