"""Scores of pictures against their slow versions."""

import pytest
import torch

from fedlgd.attacks.similarity import ssim
from tests.oracle import pictures


@pytest.mark.parametrize("shape", [(3, 14, 13), (1, 11, 11)])
def test_ssim_is_the_mean_over_windows(shape):
    a, b = torch.rand(2, 2, *shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    b = 0.7 * a + 0.3 * b
    expected = [pictures.ssim(x.numpy(), y.numpy()) for x, y in zip(a, b, strict=True)]
    torch.testing.assert_close(ssim(a, b), torch.tensor(expected, dtype=torch.float64), rtol=1e-9, atol=1e-9)
