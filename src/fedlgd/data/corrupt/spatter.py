"""Drops of water or mud on the lens."""

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from scipy import ndimage

from fedlgd.data.corrupt.sampling import Photos, Reals, filtered, smoothed

WATER = np.array((175, 238, 238), np.float32) / 255
MUD = np.array((63, 42, 20), np.float32) / 255
FARTHEST = 20  # pixels from an edge, beyond which all are equally far
SLOPE = np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]], float)  # light from the upper left
SOBEL = np.array([[-1, 0, 1], [-2, 0, 2], [-1, 0, 1]], float)
WEAK, STRONG = 50, 150  # steepness of an edge that goes on, and of one that counts
OPAQUE = 0.8  # thinner mud does not stick
ALONE = np.zeros((3, 3, 3), bool)
ALONE[1] = True  # a pixel's neighbours are those in its own image


def spatter(
    photos: Photos,
    mean: float,
    std: float,
    sigma: float,
    threshold: float,
    strength: float,
    mud: float,
    *,
    rng: Generator,
) -> Photos:
    """Where smoothed noise is above the threshold there is liquid: mud covers, water shines."""
    liquid = smoothed(rng.normal(mean, std, photos.shape[:3]).astype(np.float32), sigma)
    if mud:
        cover = _stuck(smoothed((liquid > threshold).astype(np.float32), strength))
        return np.asarray(photos * (1 - cover) + MUD * cover, np.float32)
    drops: Photos = np.where(liquid < threshold, 0, np.floor(np.clip(liquid, 0, 1) * 255)).astype(np.float32)
    return np.asarray(photos + strength * shine(drops) * WATER, np.float32)


def _stuck(mud: Photos) -> Photos:
    return np.where(mud < OPAQUE, np.float32(0), mud)[..., None]


def shine(drops: Photos) -> Photos:
    """How much light drops catch, from 0 to 1: distance from the nearest edge, evened out and lit from one side."""
    distance = np.minimum(distances(edges(drops)), FARTHEST).astype(np.float32)
    even = equalised((_box(distance) + 1e-3).astype(np.uint8))  # a mean that is whole stays whole
    lit = drops * _box(np.clip(filtered(even, SLOPE), 0, 255)).round()
    most = lit.max((1, 2), keepdims=True)
    return np.asarray(lit / np.where(most > 0, most, 1), np.float32)[..., None]


def _box(layers: Photos) -> Photos:
    """The mean of 3 x 3 pixels."""
    return np.asarray(ndimage.uniform_filter(layers, (1, 3, 3), mode="mirror"), np.float32)


def edges(layers: Photos) -> NDArray[np.bool_]:
    """Canny: pixels steeper than both neighbours along the gradient, if strong or connected to a strong one."""
    right, down = filtered(layers, SOBEL), filtered(layers, SOBEL.T)
    steep = np.abs(down) + np.abs(right)
    sector = np.round(np.arctan2(down, right) / (np.pi / 4)).astype(int) % 4
    ridge = np.zeros(layers.shape, bool)
    for number, (dy, dx) in enumerate(((0, 1), (1, 1), (1, 0), (1, -1))):
        ridge |= (sector == number) & (steep > _beside(steep, -dy, -dx)) & (steep >= _beside(steep, dy, dx))
    groups, count = ndimage.label(ridge & (steep > WEAK), ALONE)
    strong: NDArray[np.bool_] = np.zeros(count + 1, bool)
    strong[groups[ridge & (steep > STRONG)]] = True
    return np.asarray(strong[groups], bool)


def _beside(layers: Photos, down: int, right: int) -> Photos:
    """x(row + down, column + right) with nothing outside."""
    side = layers.shape[1]
    wide = np.pad(layers, ((0, 0), (1, 1), (1, 1)))
    return wide[:, 1 + down : 1 + down + side, 1 + right : 1 + right + side]


def distances(marked: NDArray[np.bool_]) -> Reals:
    """From each pixel to the nearest marked one of its image; from there to the next image it is far.

    One image more, marked all over, stands at the end: there is always somewhere to go.
    """
    free = np.concatenate([~marked, np.zeros_like(marked[:1])])
    return np.asarray(ndimage.distance_transform_edt(free, (10 * FARTHEST, 1, 1))[:-1], np.float64)


def equalised(layers: NDArray[np.uint8]) -> Photos:
    """Levels spread so that each image has about as many pixels of one as of any other: its histogram, summed."""
    n, pixels = len(layers), layers[0].size
    level = layers + 256 * np.arange(n)[:, None, None]
    counts = np.bincount(level.ravel(), minlength=256 * n).reshape(n, 256)
    lowest = counts[np.arange(n), (counts > 0).argmax(1)][:, None]
    spread = (np.cumsum(counts, 1) - lowest) * 255 / np.maximum(pixels - lowest, 1)
    levels = np.where(lowest == pixels, np.arange(256), spread.round())
    return np.asarray(levels.ravel()[level], np.float32)
