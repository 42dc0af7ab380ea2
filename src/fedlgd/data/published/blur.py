"""Blur, zoom and displacement of many photographs at a time, and the corruptions of CIFAR-10-C made of them."""

import math
from functools import cache

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from scipy import ndimage

Photos = NDArray[np.float32]
"""Images (n, side, side, 3), or layers (n, side, side) to lay over them, from 0 to 1."""
Numbers = NDArray[np.intp]
Reals = NDArray[np.float64]

ZOOM_STEP = 0.01
CUT_OFF_SIGMAS = 4.0  # sigmas at which a Gaussian is cut off


def gaussian_smoothed(
    photos: Photos, sigma: float, truncate: float = CUT_OFF_SIGMAS, mode: str = "nearest"
) -> Photos:
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


def displaced(photos: Photos, rows: Reals, columns: Reals, mode: str) -> Photos:
    """x(rows, columns), bilinear; `mode` of scipy maps a coordinate outside the image to one inside."""
    made = np.empty_like(photos)
    for i, channel in np.ndindex(len(photos), photos.shape[3]):
        places = (rows[i], columns[i])
        made[i, ..., channel] = ndimage.map_coordinates(photos[i, ..., channel], places, order=1, mode=mode)
    return made


def gaussian_blur(photos: Photos, sigma: float, *, rng: Generator) -> Photos:
    return gaussian_smoothed(photos, sigma)


def glass_blur(photos: Photos, sigma: float, reach: float, passes: float, *, rng: Generator) -> Photos:
    """Smoothed; each pixel replaced by a neighbour; smoothed again.

    The original intends to swap pixels but, because it swaps views of one array, it copies: a pixel becomes the one
    `down` and `right` of it, both from -reach to reach - 1. It goes from the last pixel to the first and its
    reach is 1, so a copied pixel is never itself a copy of the same pass.
    """
    assert reach == 1
    n, side = photos.shape[:2]
    pixels = np.floor(gaussian_smoothed(photos, sigma) * 255 + np.float32(1e-3)) / 255  # rounded down, as in uint8
    inner = np.arange(2, side)
    for _ in range(int(passes)):
        right, down = rng.integers(-1, 1, (2, n, side - 2, side - 2))
        near = pixels[np.arange(n)[:, None, None], inner[:, None] + down, inner + right]
        pixels = pixels.copy()
        pixels[:, 2:, 2:] = near
    return gaussian_smoothed(pixels, sigma)


def defocus_blur(photos: Photos, radius: float, softness: float, *, rng: Generator) -> Photos:
    return filtered(photos, disk(radius, softness))


def disk(radius: float, softness: float) -> Photos:
    """A uniform disk with its edge softened by a Gaussian of 3 x 3 pixels."""
    reach = math.floor(radius) + 2  # wide enough that the mirrored border adds nothing
    away = np.arange(-reach, reach + 1)
    flat = (away[:, None] ** 2 + away**2 <= radius**2).astype(np.float32)
    bell = np.exp(-(np.arange(-1, 2) ** 2) / (2 * softness**2))
    soft = filtered(flat[None], np.outer(bell, bell))
    return np.asarray(soft[0] / soft.sum(), np.float32)


def motion_blur(photos: Photos, radius: float, sigma: float, *, rng: Generator) -> Photos:
    """A trail at an angle of up to 45 degrees to the horizontal."""
    return trails(photos, radius, sigma, np.radians(rng.uniform(-45, 45, len(photos))))


def zoom_blur(photos: Photos, most: float, *, rng: Generator) -> Photos:
    """The mean of the photograph and of its enlargements by 1, 1.01, ... below `most`."""
    n, side = photos.shape[:2]
    planes = photos.transpose(0, 3, 1, 2).reshape(-1, side * side) @ mean_zoom(side, most)
    return planes.reshape(n, -1, side, side).transpose(0, 2, 3, 1)


@cache
def mean_zoom(side: int, most: float) -> Photos:
    """Zoom blur as a matrix on the pixels of a plane: the mean of Z (x) Z over the identity and all zooms Z."""
    factors = np.arange(1, most, ZOOM_STEP)
    lines = np.stack([np.eye(side), *(zoom_matrix(side, factor).T for factor in factors)])
    flat = lines.reshape(len(lines), -1)
    pairs = (flat.T @ flat / len(lines)).reshape(side, side, side, side)
    return pairs.swapaxes(1, 2).reshape(side * side, -1).astype(np.float32)


def elastic_transform(photos: Photos, strength: float, sigma: float, shift: float, *, rng: Generator) -> Photos:
    """A random affine map, then displacement by smoothed noise; all three parameters are relative to the side."""
    n, side = photos.shape[:2]
    rows, columns = affine(n, side, shift * side, rng)
    photos = displaced(photos, rows, columns, "mirror")
    if not strength:
        return photos
    noise = rng.uniform(-1, 1, (2, n, side, side)).astype(np.float32)
    down, right = (strength * side * gaussian_smoothed(layer, sigma * side, 3, "reflect") for layer in noise)
    here = np.arange(side)
    return displaced(photos, here[:, None] + down, here + right, "reflect")


def affine(n: int, side: int, shift: float, rng: Generator) -> tuple[Reals, Reals]:
    """Source coordinates of each pixel of n images: three corners of a square move by up to `shift` pixels."""
    middle, half = side // 2, side // 3
    low, high = middle - half, middle + half
    corners = np.array([(high, high), (high, low), (low, low)], float)  # (column, row)
    moved = corners + rng.uniform(-shift, shift, (n, 3, 2))
    back = np.linalg.solve(np.concatenate([moved, np.ones((n, 3, 1))], 2), np.broadcast_to(corners, (n, 3, 2)))
    row, column = np.mgrid[:side, :side]
    places = np.stack([column, row, np.ones_like(row)], -1) @ back[:, None]
    return places[..., 1], places[..., 0]
