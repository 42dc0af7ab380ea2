"""Resampling of many images at a time: zoom, displacement, trails and smoothing."""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

Photos = NDArray[np.float32]
"""Images (n, side, side, 3), or layers (n, side, side) to lay over them, from 0 to 1."""
Numbers = NDArray[np.intp]
Reals = NDArray[np.float64]
Fold = Callable[[Numbers, int], Numbers]

TRUNCATE = 4.0  # sigmas at which a Gaussian is cut off


def smoothed(photos: Photos, sigma: float, truncate: float = TRUNCATE, mode: str = "nearest") -> Photos:
    """Each image and channel convolved with a Gaussian."""
    sigmas = (0, sigma, sigma, 0)[: photos.ndim]
    return np.asarray(ndimage.gaussian_filter(photos, sigmas, mode=mode, truncate=truncate), np.float32)


def filtered(photos: Photos, kernel: Photos | Reals) -> Photos:
    """Each image and channel correlated with a kernel; borders are mirrored."""
    weights = kernel.reshape((1, *kernel.shape, 1)[: photos.ndim])
    return np.asarray(ndimage.correlate(photos, weights, mode="mirror"), np.float32)


def zoomed(photos: Photos, factor: float) -> Photos:
    """The centre of each image, enlarged."""
    matrix = zoom_matrix(photos.shape[1], factor).astype(np.float32)
    return np.asarray(np.einsum("ij,njk...,lk->nil...", matrix, photos, matrix, optimize=True), np.float32)


def zoom_matrix(side: int, factor: float) -> Reals:
    """Z, such that Z x is a linear enlargement of the centre of a line x of pixels.

    The crop has ceil(side / factor) pixels and is enlarged to round(crop factor) pixels, of which the central
    `side` are kept.
    """
    crop = math.ceil(side / factor)
    large = round(crop * factor)
    places = np.arange(large)[(large - side) // 2 :][:side] * (crop - 1) / (large - 1)
    distance = np.abs(places[:, None] + (side - crop) // 2 - np.arange(side))
    return np.asarray(np.clip(1 - distance, 0, None), np.float64)


def trails(photos: Photos, radius: float, sigma: float, angles: Reals) -> Photos:
    """sum_i k_i x(p + i u),  k_i ~ exp(-i^2 / 2 sigma^2),  i = 0 .. 2 radius: a one-sided trail.

    u is the direction at the image's angle in radians; steps are rounded to pixels, borders are repeated.
    """
    steps = np.arange(2 * math.ceil(radius) + 1)
    weights = np.exp(-(steps**2) / (2 * sigma**2))
    total: Photos = np.zeros_like(photos)
    for step, weight in zip(steps, weights / weights.sum(), strict=True):
        down, right = (np.ceil(step * along - 0.5).astype(np.intp) for along in (np.sin(angles), np.cos(angles)))
        total += np.float32(weight) * shifted(photos, down, right)
    return total


def shifted(photos: Photos, down: Numbers, right: Numbers) -> Photos:
    """x(row + down, column + right), with one shift per image; borders are repeated."""
    n, side = photos.shape[:2]
    rows, columns = (np.clip(np.arange(side) + by[:, None], 0, side - 1) for by in (down, right))
    return np.asarray(photos[np.arange(n)[:, None, None], rows[:, :, None], columns[:, None, :]], np.float32)


def displaced(photos: Photos, rows: Reals, columns: Reals, fold: Fold) -> Photos:
    """x(rows, columns), bilinear; `fold` maps a coordinate outside the image to one inside."""
    side, each = photos.shape[1], np.arange(len(photos))[:, None, None]
    top, left = np.floor(rows).astype(np.intp), np.floor(columns).astype(np.intp)
    below, beside = (rows - top)[..., None], (columns - left)[..., None]
    total = np.zeros(photos.shape)
    for row, share in ((top, 1 - below), (top + 1, below)):
        for column, part in ((left, 1 - beside), (left + 1, beside)):
            total += share * part * photos[each, fold(row, side), fold(column, side)]
    return total.astype(np.float32)


def mirrored(places: Numbers, side: int) -> Numbers:
    """... 2 1 | 0 1 2 ...: mirrored at the outermost pixel."""
    around: Numbers = np.abs(places) % (2 * side - 2)
    return np.minimum(around, 2 * side - 2 - around)


def reflected(places: Numbers, side: int) -> Numbers:
    """... 1 0 | 0 1 2 ...: mirrored at the edge of the image."""
    around = places % (2 * side)
    return np.minimum(around, 2 * side - 1 - around)
