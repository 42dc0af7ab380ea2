"""Steps in which neighbouring pixels move together."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlgd.distill.distribution import FREQUENCY_FLOOR, UNIT_FREQUENCY, smooth_gradient


def by_sums(image: torch.Tensor, strength: float) -> torch.Tensor:
    """The transform written out: every frequency by hand."""
    h, w = image.shape
    rows, columns = torch.arange(h).double(), torch.arange(w).double()
    total = torch.zeros(h, w, dtype=torch.complex128)
    for u in range(h):
        for v in range(w):
            wave = torch.exp(2j * math.pi * (u * rows[:, None] / h + v * columns / w))
            f = math.hypot(min(u, h - u), min(v, w - v))
            weight = ((f + FREQUENCY_FLOOR) / (UNIT_FREQUENCY + FREQUENCY_FLOOR)) ** -strength
            total += weight * (image * wave.conj()).sum() / (h * w) * wave
    return total.real


@pytest.mark.parametrize("sides", [(6, 6), (7, 4), (5, 9)])
def test_every_frequency_has_its_weight(sides):
    image = torch.randn(sides, dtype=torch.float64)
    torch.testing.assert_close(smooth_gradient(image, 1.5), by_sums(image, 1.5), rtol=1e-9, atol=1e-12)


def test_none_is_plain_sgd():
    g = torch.randn(2, 3, 8, 8)
    assert smooth_gradient(g, 0.0) is g


@settings(deadline=None, max_examples=60)
@given(st.floats(0.1, 3), st.integers(2, 12), st.integers(2, 12), st.integers(0, 99))
def test_it_is_linear_points_downhill_and_treats_images_alone(strength, height, side, seed):
    g = torch.randn(3, 2, height, side, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    smooth = smooth_gradient(g, strength)
    assert (smooth * g).sum() > 0
    torch.testing.assert_close(smooth_gradient(2 * g, strength), 2 * smooth)
    torch.testing.assert_close(smooth_gradient(g[1:2], strength), smooth[1:2])


def test_a_shape_goes_before_single_pixels():
    across = torch.arange(16)
    shape, checks = (
        torch.cos(2 * math.pi * across / 16).expand(16, 16),
        ((across[:, None] + across) % 2 * 2 - 1).float(),
    )
    longer = [smooth_gradient(wave, 1.5).norm() / wave.norm() for wave in (shape, checks)]
    assert longer[0] > 2
    assert longer[1] < 0.5
