"""The corruptions of CIFAR-10-C. Noise, blur and digital corruptions are in this module, weather in `weather`."""

import io
import math
from collections.abc import Callable
from functools import cache

import numpy as np
from numpy.random import PCG64, Generator
from PIL import Image

from fedlgd.core.rng import Stream
from fedlgd.data.arrays import Pixels
from fedlgd.data.published.cifar10c import SEVERITIES
from fedlgd.data.published.sampling import (
    Photos,
    Reals,
    displaced,
    filtered,
    mirrored,
    reflected,
    smoothed,
    trails,
    zoom_matrix,
)
from fedlgd.data.published.weather import fog, frost, snow, spatter

BLOCK = 100  # photographs that share a generator and are always corrupted together
ZOOM_STEP = 0.01
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


def gaussian_blur(photos: Photos, sigma: float, *, rng: Generator) -> Photos:
    return smoothed(photos, sigma)


def glass_blur(photos: Photos, sigma: float, reach: float, passes: float, *, rng: Generator) -> Photos:
    """Smoothed; each pixel replaced by a neighbour; smoothed again.

    The original intends to swap pixels but, because it swaps views of one array, it copies: a pixel becomes the one
    `down` and `right` of it, both from -reach to reach - 1. It goes from the last pixel to the first and its
    reach is 1, so a copied pixel is never itself a copy of the same pass.
    """
    assert reach == 1
    n, side = photos.shape[:2]
    pixels = np.floor(smoothed(photos, sigma) * 255 + np.float32(1e-3)) / 255  # rounded down, as in uint8
    inner = np.arange(2, side)
    for _ in range(int(passes)):
        right, down = rng.integers(-1, 1, (2, n, side - 2, side - 2))
        near = pixels[np.arange(n)[:, None, None], inner[:, None] + down, inner + right]
        pixels = pixels.copy()
        pixels[:, 2:, 2:] = near
    return smoothed(pixels, sigma)


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


def elastic_transform(photos: Photos, strength: float, sigma: float, shift: float, *, rng: Generator) -> Photos:
    """A random affine map, then displacement by smoothed noise; all three parameters are relative to the side."""
    n, side = photos.shape[:2]
    rows, columns = affine(n, side, shift * side, rng)
    photos = displaced(photos, rows, columns, mirrored)
    if not strength:
        return photos
    noise = rng.uniform(-1, 1, (2, n, side, side)).astype(np.float32)
    down, right = (strength * side * smoothed(layer, sigma * side, 3, "reflect") for layer in noise)
    here = np.arange(side)
    return displaced(photos, here[:, None] + down, here + right, reflected)


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


_FUNCTIONS: tuple[Callable[..., Photos], ...] = (
    *(gaussian_noise, shot_noise, impulse_noise),
    *(defocus_blur, glass_blur, motion_blur, zoom_blur),
    *(snow, frost, fog),
    *(brightness, contrast, elastic_transform, pixelate, jpeg_compression),
    *(speckle_noise, gaussian_blur, spatter, saturate),
)
CORRUPTIONS = {function.__name__: function for function in _FUNCTIONS}
"""By name; their constants are in `SEVERITIES`."""


def corrupted(photos: Pixels, name: str, severity: int, wanted: range, seed: int = 0) -> Pixels:
    """The photographs numbered `wanted` of (n, 32, 32, 3), corrupted.

    They are corrupted in complete blocks, so the result for a photograph does not depend on the others wanted.
    """
    first = wanted.start - wanted.start % BLOCK
    rng = Stream(seed).at(name, severity)
    starts = range(first, wanted.stop, BLOCK)
    change, constants, blocks = CORRUPTIONS[name], SEVERITIES[name][severity - 1], []
    for start in starts:
        generator = Generator(PCG64(rng.at(start).number()))
        blocks.append(as_bytes(change(photos[start : start + BLOCK] / np.float32(255), *constants, rng=generator)))
    return np.concatenate(blocks)[wanted.start - first : wanted.stop - first]


def as_bytes(photos: Photos) -> Pixels:
    """Clipped to 0..1 and rounded down as in the original; 1e-3 protects exact levels from rounding errors."""
    return (np.clip(photos, 0, 1) * 255 + 1e-3).astype(np.uint8)
