"""The corruptions of CIFAR-10-C: noise, weather, colour and digital ones here, those that move pixels in `blur`."""

import io
from collections.abc import Callable

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from PIL import Image
from scipy import ndimage

from fedlgd.core.types import Stream
from fedlgd.data.arrays import Pixels, numpy_generator
from fedlgd.data.published import blur
from fedlgd.data.published.blur import Photos, Reals, filtered, gaussian_smoothed, trails, zoomed
from fedlgd.data.published.partition import SEVERITIES

BLOCK_SIZE = 100  # photographs that share a generator and are always corrupted together
LUMA = np.array((0.299, 0.587, 0.114), np.float32)
SHADE = np.array((0.16, 0.24, 0.33), np.float32)  # colour of thin frost
ICE = np.array((0.86, 0.93, 1.0), np.float32)
NEEDLES = ((3.0, 1.5), (5.0, 2.5), (8.0, 4.0))  # radius and sigma of the trails that make up frost

WATER = np.array((175, 238, 238), np.float32) / 255
MUD = np.array((63, 42, 20), np.float32) / 255
MAX_EDGE_DISTANCE = 20  # largest distance from an edge, in pixels
SLOPE = np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]], float)  # light from the upper left
SOBEL = np.array([[-1, 0, 1], [-2, 0, 2], [-1, 0, 1]], float)
WEAK_GRADIENT, STRONG_GRADIENT = 50, 150  # the two gradient thresholds of Canny
MIN_MUD = 0.8  # thinner mud is dropped
WITHIN_IMAGE = np.zeros((3, 3, 3), bool)
WITHIN_IMAGE[1] = True  # a pixel is connected only to pixels of its own image
RED = np.array((0, 1, 1), np.float32)  # 1 in the channels that a fully saturated red lacks


def gaussian_noise(photos: Photos, std: float, *, rng: Generator) -> Photos:
    """x + std n,  n ~ N(0, 1), independent for each pixel and channel."""
    return photos + np.float32(std) * rng.standard_normal(photos.shape, np.float32)


def shot_noise(photos: Photos, photons: float, *, rng: Generator) -> Photos:
    """Poisson(x photons) / photons: the mean is x, the variance x / photons."""
    return (rng.poisson(photos * photons) / photons).astype(np.float32)


def impulse_noise(photos: Photos, share: float, *, rng: Generator) -> Photos:
    """This share of the values becomes 0 or 1 with equal probability."""
    hit, salt = rng.random(photos.shape) <= share, rng.random(photos.shape) <= 0.5
    return np.where(hit, salt.astype(np.float32), photos)


def speckle_noise(photos: Photos, std: float, *, rng: Generator) -> Photos:
    """x + x std n,  n ~ N(0, 1)"""
    return photos + photos * np.float32(std) * rng.standard_normal(photos.shape, np.float32)


def snow(photos: Photos, *constants: float, rng: Generator) -> Photos:
    """Falling flakes, and the same flakes rotated by 180 degrees, over a paler photograph.

    Flakes are enlarged noise above a threshold; paler is share x + (1 - share) max(x, 1.5 grey + 0.5).
    """
    mean, std, zoom, threshold, radius, sigma, share = constants
    flakes = zoomed(rng.normal(mean, std, photos.shape[:3]).astype(np.float32), zoom)
    flakes = np.where(flakes < threshold, 0, np.clip(flakes, 0, 1)).astype(np.float32)
    falling = trails(flakes, radius, sigma, np.radians(rng.uniform(-135, -45, len(photos))))[..., None]
    grey = (photos @ LUMA)[..., None]
    paler: Photos = share * photos + (1 - share) * np.maximum(photos, 1.5 * grey + 0.5)
    return paler + falling + np.rot90(falling, 2, (1, 2))


def fog(photos: Photos, density: float, decay: float, *, rng: Generator) -> Photos:
    """(x + density cloud) m / (m + density),  m the image's largest value"""
    n, side = photos.shape[:2]
    cloud = plasma(n, side, decay, rng).astype(np.float32)[..., None]
    most: Photos = photos.max((1, 2, 3), keepdims=True)
    return (photos + density * cloud) * most / (most + density)


def plasma(n: int, side: int, decay: float, rng: Generator) -> Reals:
    """n height maps from 0 to 1 that repeat beyond their edges; `side` is a power of two.

    Diamond-square: a point halfway is the mean of the four around it plus noise, whose amplitude shrinks by decay^2
    from one grid to the next finer one.
    """
    heights: Reals = np.zeros((n, side, side))
    step, amplitude = side, 100.0

    def between(four: Reals) -> Reals:
        return four / 4 + rng.uniform(-(amplitude**2), amplitude**2, four.shape)

    while step >= 2:
        half, corners = step // 2, heights[:, ::step, ::step]
        pairs = corners + np.roll(corners, -1, 1)
        heights[:, half::step, half::step] = between(pairs + np.roll(pairs, -1, 2))
        middles = heights[:, half::step, half::step]
        for down, across in ((1, 2), (2, 1)):
            four = middles + np.roll(middles, 1, down) + corners + np.roll(corners, -1, across)
            where = (slice(None, None, step), slice(half, None, step))
            heights[(slice(None), *(where if down == 1 else where[::-1]))] = between(four)
        step, amplitude = half, amplitude / decay
    heights -= heights.min((1, 2), keepdims=True)
    heights /= heights.max((1, 2), keepdims=True)
    return heights


def frost(photos: Photos, share: float, strength: float, *, rng: Generator) -> Photos:
    """share x + strength ice; the ice is drawn here, the original overlays photographs of frost."""
    return share * photos + strength * ice(len(photos), photos.shape[1], rng)


def ice(n: int, side: int, rng: Generator) -> Photos:
    """Drawn frost: needles in three directions, of varying thickness, from blue-grey to white."""
    needles = np.zeros((n, side, side), np.float32)
    for radius, sigma in NEEDLES:
        seeds = gaussian_smoothed(rng.standard_normal((n, side, side), np.float32), 0.5)
        needles = np.maximum(needles, _even(trails(seeds, radius, sigma, rng.uniform(0, 2 * np.pi, n))))
    cover = _even(gaussian_smoothed(rng.standard_normal((n, side, side), np.float32), side / 6, mode="wrap"))
    white = 1 / (1 + np.exp(1.2 - needles - cover))[..., None]
    return np.asarray(SHADE + white * (ICE - SHADE), np.float32)


def _even(layers: Photos) -> Photos:
    """Each layer with mean 0 and std 1."""
    even = (layers - layers.mean((1, 2), keepdims=True)) / layers.std((1, 2), keepdims=True)
    return np.asarray(even, np.float32)


def spatter(photos: Photos, *constants: float, rng: Generator) -> Photos:
    """Liquid where smoothed noise exceeds the threshold: mud covers, water brightens."""
    mean, std, sigma, threshold, strength, mud = constants
    liquid = gaussian_smoothed(rng.normal(mean, std, photos.shape[:3]).astype(np.float32), sigma)
    if mud:
        mud_layer = gaussian_smoothed((liquid > threshold).astype(np.float32), strength)
        cover = np.where(mud_layer < MIN_MUD, np.float32(0), mud_layer)[..., None]
        return np.asarray(photos * (1 - cover) + MUD * cover, np.float32)
    drops: Photos = np.where(liquid < threshold, 0, np.floor(np.clip(liquid, 0, 1) * 255)).astype(np.float32)
    return np.asarray(photos + strength * shine(drops) * WATER, np.float32)


def shine(drops: Photos) -> Photos:
    """Light on the drops, from 0 to 1: distance from the nearest edge, equalised and lit from the upper left."""
    distance = np.minimum(edge_distances(edges(drops)), MAX_EDGE_DISTANCE).astype(np.float32)
    even = equalised((_box(distance) + 1e-3).astype(np.uint8))  # protects integer means from rounding errors
    lit = drops * _box(np.clip(filtered(even, SLOPE), 0, 255)).round()
    most = lit.max((1, 2), keepdims=True)
    return np.asarray(lit / np.where(most > 0, most, 1), np.float32)[..., None]


def _box(layers: Photos) -> Photos:
    """The mean of 3 x 3 pixels."""
    return np.asarray(ndimage.uniform_filter(layers, (1, 3, 3), mode="mirror"), np.float32)


def edges(layers: Photos) -> NDArray[np.bool_]:
    """Canny: pixels steeper than both neighbours along the gradient, strong or connected to a strong one."""
    right, down = filtered(layers, SOBEL), filtered(layers, SOBEL.T)
    steep = np.abs(down) + np.abs(right)
    sector = np.round(np.arctan2(down, right) / (np.pi / 4)).astype(int) % 4
    ridge = np.zeros(layers.shape, bool)
    for number, (dy, dx) in enumerate(((0, 1), (1, 1), (1, 0), (1, -1))):
        ridge |= (sector == number) & (steep > _beside(steep, -dy, -dx)) & (steep >= _beside(steep, dy, dx))
    groups, count = ndimage.label(ridge & (steep > WEAK_GRADIENT), WITHIN_IMAGE)
    strong: NDArray[np.bool_] = np.zeros(count + 1, bool)
    strong[groups[ridge & (steep > STRONG_GRADIENT)]] = True
    return np.asarray(strong[groups], bool)


def _beside(layers: Photos, down: int, right: int) -> Photos:
    """x(row + down, column + right), 0 outside."""
    side = layers.shape[1]
    wide = np.pad(layers, ((0, 0), (1, 1), (1, 1)))
    return wide[:, 1 + down : 1 + down + side, 1 + right : 1 + right + side]


def edge_distances(marked: NDArray[np.bool_]) -> Reals:
    """Distance of each pixel to the nearest marked one of its own image; between images the distance is large.

    A fully marked image is appended, so that a marked pixel always exists.
    """
    free = np.concatenate([~marked, np.zeros_like(marked[:1])])
    return np.asarray(ndimage.distance_transform_edt(free, (10 * MAX_EDGE_DISTANCE, 1, 1))[:-1], np.float64)


def equalised(layers: NDArray[np.uint8]) -> Photos:
    """Histogram equalisation of each image."""
    n, pixels = len(layers), layers[0].size
    level = layers + 256 * np.arange(n)[:, None, None]
    counts = np.bincount(level.ravel(), minlength=256 * n).reshape(n, 256)
    lowest = counts[np.arange(n), (counts > 0).argmax(1)][:, None]
    spread = (np.cumsum(counts, 1) - lowest) * 255 / np.maximum(pixels - lowest, 1)
    levels = np.where(lowest == pixels, np.arange(256), spread.round())
    return np.asarray(levels.ravel()[level], np.float32)


def contrast(photos: Photos, share: float, *, rng: Generator) -> Photos:
    """(x - m) share + m,  m the mean of the image's channel"""
    mean: Photos = photos.mean((1, 2), np.float64, keepdims=True).astype(np.float32)
    return (photos - mean) * np.float32(share) + mean


def brightness(photos: Photos, more: float, *, rng: Generator) -> Photos:
    """HSV value V = max(R, G, B) becomes V' = min(V + more, 1); hue and saturation stay: x V' / V."""
    value: Photos = photos.max(3, keepdims=True)
    brighter = np.minimum(value + np.float32(more), 1)
    return np.asarray(np.where(value > 0, photos * brighter / np.where(value > 0, value, 1), brighter), np.float32)


def saturate(photos: Photos, factor: float, offset: float, *, rng: Generator) -> Photos:
    """HSV saturation S = 1 - min / max becomes S' = S factor + offset within 0..1; hue and value stay.

    V - (V - x) S' / S; a grey has no hue and is treated as red, as in colour libraries.
    """
    value: Photos = photos.max(3, keepdims=True)
    least: Photos = photos.min(3, keepdims=True)
    saturation = (value - least) / np.where(value > 0, value, 1)
    wanted = np.clip(saturation * np.float32(factor) + np.float32(offset), 0, 1)
    missing = np.where(saturation > 0, (value - photos) / np.where(value > least, value - least, 1), RED)
    return np.asarray(value * (1 - wanted * missing), np.float32)


def jpeg_compression(photos: Photos, quality: float, *, rng: Generator) -> Photos:
    def compressed(image: Image.Image) -> Image.Image:
        buffer = io.BytesIO()
        image.save(buffer, "JPEG", quality=int(quality))
        return Image.open(buffer, formats=["JPEG"])

    return _each(photos, compressed)


def pixelate(photos: Photos, share: float, *, rng: Generator) -> Photos:
    """Reduced and enlarged again with box filters."""
    side = photos.shape[1]
    small = (int(side * share), int(side * share))

    def there_and_back(image: Image.Image) -> Image.Image:
        return image.resize(small, Image.Resampling.BOX).resize((side, side), Image.Resampling.BOX)

    return _each(photos, there_and_back)


def _each(photos: Photos, change: Callable[[Image.Image], Image.Image]) -> Photos:
    pixels = (photos * 255).round().astype(np.uint8)
    return np.stack([np.asarray(change(Image.fromarray(image)), np.float32) for image in pixels]) / np.float32(255)


_FUNCTIONS: tuple[Callable[..., Photos], ...] = (
    *(gaussian_noise, shot_noise, impulse_noise),
    *(blur.defocus_blur, blur.glass_blur, blur.motion_blur, blur.zoom_blur),
    *(snow, frost, fog),
    *(brightness, contrast, blur.elastic_transform, pixelate, jpeg_compression),
    *(speckle_noise, blur.gaussian_blur, spatter, saturate),
)
CORRUPTIONS = {function.__name__: function for function in _FUNCTIONS}
"""By name; their constants are in `SEVERITIES`."""


def corrupted(photos: Pixels, name: str, severity: int, wanted: range, seed: int = 0) -> Pixels:
    """The photographs numbered `wanted` of (n, 32, 32, 3), corrupted.

    They are corrupted in complete blocks, so the result for a photograph does not depend on the others wanted.
    """
    first = wanted.start - wanted.start % BLOCK_SIZE
    rng = Stream(seed).at(name, severity)
    change, constants, blocks = CORRUPTIONS[name], SEVERITIES[name][severity - 1], []
    for start in range(first, wanted.stop, BLOCK_SIZE):
        block, generator = photos[start : start + BLOCK_SIZE], numpy_generator(rng.at(start))
        blocks.append(as_bytes(change(block / np.float32(255), *constants, rng=generator)))
    return np.concatenate(blocks)[wanted.start - first : wanted.stop - first]


def as_bytes(photos: Photos) -> Pixels:
    """Clipped to 0..1 and rounded down as in the original; 1e-3 protects exact levels from rounding errors."""
    return (np.clip(photos, 0, 1) * 255 + 1e-3).astype(np.uint8)
