"""Structural similarity, window by window, from the formula of Wang et al. 2004."""

import math

import numpy as np


def ssim(a: np.ndarray, b: np.ndarray) -> float:
    """Of two images (channels, height, width) with values 0..1: the mean over channels and whole windows."""
    weights = np.array(
        [[math.exp(-((i - 5) ** 2 + (j - 5) ** 2) / (2 * 1.5**2)) for j in range(11)] for i in range(11)]
    )
    weights /= weights.sum()
    values = [
        _index(x[i : i + 11, j : j + 11], y[i : i + 11, j : j + 11], weights)
        for x, y in zip(a, b, strict=True)
        for i in range(x.shape[0] - 10)
        for j in range(x.shape[1] - 10)
    ]
    return float(np.mean(values))


def _index(x: np.ndarray, y: np.ndarray, weights: np.ndarray) -> float:
    mean_x, mean_y = (weights * x).sum(), (weights * y).sum()
    var_x, var_y = (weights * (x - mean_x) ** 2).sum(), (weights * (y - mean_y) ** 2).sum()
    both = (weights * (x - mean_x) * (y - mean_y)).sum()
    c1, c2 = 0.01**2, 0.03**2
    return ((2 * mean_x * mean_y + c1) * (2 * both + c2)) / ((mean_x**2 + mean_y**2 + c1) * (var_x + var_y + c2))
