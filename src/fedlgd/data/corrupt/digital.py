"""What cameras and files do to images: tone, compression, resolution; and elastic displacement."""

import io
from collections.abc import Callable

import numpy as np
from numpy.random import Generator
from PIL import Image

from fedlgd.data.corrupt.sampling import Photos, Reals, displaced, mirrored, reflected, smoothed

RED = np.array((0, 1, 1), np.float32)  # 1 where a red of full saturation has nothing


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

    V - (V - x) S' / S; a grey has no hue and takes red's, as colour libraries have it.
    """
    value: Photos = photos.max(3, keepdims=True)
    least: Photos = photos.min(3, keepdims=True)
    saturation = (value - least) / np.where(value > 0, value, 1)
    wanted = np.clip(saturation * np.float32(factor) + np.float32(offset), 0, 1)
    missing = np.where(saturation > 0, (value - photos) / np.where(value > least, value - least, 1), RED)
    return np.asarray(value * (1 - wanted * missing), np.float32)


def jpeg_compression(photos: Photos, quality: float, *, rng: Generator) -> Photos:
    return _each(photos, lambda image: _compressed(image, int(quality)))


def pixelate(photos: Photos, share: float, *, rng: Generator) -> Photos:
    """Made smaller and large again, each pixel the mean of those it covers."""
    side = photos.shape[1]
    small = (int(side * share), int(side * share))

    def there_and_back(image: Image.Image) -> Image.Image:
        return image.resize(small, Image.Resampling.BOX).resize((side, side), Image.Resampling.BOX)

    return _each(photos, there_and_back)


def _compressed(image: Image.Image, quality: int) -> Image.Image:
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=quality)
    return Image.open(buffer, formats=["JPEG"])


def _each(photos: Photos, change: Callable[[Image.Image], Image.Image]) -> Photos:
    pixels = (photos * 255).round().astype(np.uint8)
    return np.stack([np.asarray(change(Image.fromarray(image)), np.float32) for image in pixels]) / np.float32(255)


def elastic_transform(photos: Photos, strength: float, sigma: float, shift: float, *, rng: Generator) -> Photos:
    """A random affine map, then every pixel displaced by smoothed noise; all three as shares of the side."""
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
    """Where each pixel of n images comes from: three corners of a square moved by up to `shift` pixels."""
    middle, half = side // 2, side // 3
    low, high = middle - half, middle + half
    corners = np.array([(high, high), (high, low), (low, low)], float)  # (column, row)
    moved = corners + rng.uniform(-shift, shift, (n, 3, 2))
    back = np.linalg.solve(np.concatenate([moved, np.ones((n, 3, 1))], 2), np.broadcast_to(corners, (n, 3, 2)))
    row, column = np.mgrid[:side, :side]
    places = np.stack([column, row, np.ones_like(row)], -1) @ back[:, None]
    return places[..., 1], places[..., 0]
