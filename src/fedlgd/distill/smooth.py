"""Smoothed image gradients: a preconditioner that favours low frequencies.

Gradients of matching are as large at high frequencies as at low frequencies, but low frequencies need larger
changes. Frequency weights like the amplitudes of natural images, which decrease with frequency, improve the
conditioning: the same loss is reached in fewer steps (docs/results/speed.md says in how many).
"""

from functools import cache

import torch
from torch import Tensor

FLOOR = 1.4  # cycles per image; lower frequencies have similar weights
UNCHANGED = 3.9  # cycles per image, whose weight is 1


def smoothed(gradient: Tensor, strength: float) -> Tensor:
    r"""F^-1 [ ((f + f_0) / (f_1 + f_0))^-strength  F g ], f the frequency in cycles per image; strength 0: g."""
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
    return ((frequency + FLOOR) / (UNCHANGED + FLOOR)) ** -strength
