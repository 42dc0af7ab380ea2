"""Five kinds of blur."""

import math
from functools import cache

import numpy as np
from numpy.random import Generator

from fedlgd.data.corrupt.sampling import Photos, filtered, smoothed, trails, zoom_matrix

ZOOM_STEP = 0.01


def gaussian_blur(photos: Photos, sigma: float, *, rng: Generator) -> Photos:
    return smoothed(photos, sigma)


def glass_blur(photos: Photos, sigma: float, reach: float, passes: float, *, rng: Generator) -> Photos:
    """Smoothed; each pixel takes the place of a near one; smoothed again.

    The original means to swap pixels but, swapping views of one array, it copies: a pixel becomes the one
    `down` and `right` of it, both from -reach to reach - 1. It goes from the last pixel to the first and its
    reach is 1, so that what is copied is never a copy of the same pass.
    """
    assert reach == 1
    n, side = photos.shape[:2]
    pixels = whole(smoothed(photos, sigma))
    inner = np.arange(2, side)
    for _ in range(int(passes)):
        right, down = rng.integers(-1, 1, (2, n, side - 2, side - 2))
        near = pixels[np.arange(n)[:, None, None], inner[:, None] + down, inner + right]
        pixels = pixels.copy()
        pixels[:, 2:, 2:] = near
    return smoothed(pixels, sigma)


def whole(photos: Photos) -> Photos:
    """As they are when kept as bytes: the level below."""
    return np.asarray(np.floor(photos * 255 + np.float32(1e-3)) / 255, np.float32)


def defocus_blur(photos: Photos, radius: float, softness: float, *, rng: Generator) -> Photos:
    return filtered(photos, disk(radius, softness))


def disk(radius: float, softness: float) -> Photos:
    """An even disk whose edge is softened by a Gaussian of 3 x 3 pixels."""
    reach = math.floor(radius) + 2  # nothing comes back from the border
    away = np.arange(-reach, reach + 1)
    flat = (away[:, None] ** 2 + away**2 <= radius**2).astype(np.float32)
    bell = np.exp(-(np.arange(-1, 2) ** 2) / (2 * softness**2))
    soft = filtered(flat[None], np.outer(bell, bell))
    return np.asarray(soft[0] / soft.sum(), np.float32)


def motion_blur(photos: Photos, radius: float, sigma: float, *, rng: Generator) -> Photos:
    """A trail up to 45 degrees from the horizontal."""
    return trails(photos, radius, sigma, np.radians(rng.uniform(-45, 45, len(photos))))


def zoom_blur(photos: Photos, most: float, *, rng: Generator) -> Photos:
    """The mean of the photograph and of its enlargements by 1, 1.01, ... below `most`."""
    n, side = photos.shape[:2]
    planes = photos.transpose(0, 3, 1, 2).reshape(-1, side * side) @ mean_zoom(side, most)
    return planes.reshape(n, -1, side, side).transpose(0, 2, 3, 1)


@cache
def mean_zoom(side: int, most: float) -> Photos:
    """The matrix that does it, from all pixels of a plane to all pixels: mean of Z (x) Z, of 1 and all zooms Z."""
    factors = np.arange(1, most, ZOOM_STEP)
    lines = np.stack([np.eye(side), *(zoom_matrix(side, factor).T for factor in factors)])
    flat = lines.reshape(len(lines), -1)
    pairs = (flat.T @ flat / len(lines)).reshape(side, side, side, side)
    return pairs.swapaxes(1, 2).reshape(side * side, -1).astype(np.float32)
