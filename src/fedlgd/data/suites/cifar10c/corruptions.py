"""Photographs in, corrupted photographs out."""

from collections.abc import Callable

import numpy as np
from numpy.random import PCG64, Generator
from numpy.typing import NDArray

from fedlgd.core.rng import Stream
from fedlgd.data.corrupt import blur, digital, noise, spatter, weather
from fedlgd.data.corrupt.constants import SEVERITIES
from fedlgd.data.corrupt.sampling import Photos

Corruption = Callable[..., Photos]
Pixels = NDArray[np.uint8]

BLOCK = 100  # photographs that share a generator and are always made together

CORRUPTIONS: dict[str, Corruption] = {
    "gaussian_noise": noise.gaussian_noise,
    "shot_noise": noise.shot_noise,
    "impulse_noise": noise.impulse_noise,
    "defocus_blur": blur.defocus_blur,
    "glass_blur": blur.glass_blur,
    "motion_blur": blur.motion_blur,
    "zoom_blur": blur.zoom_blur,
    "snow": weather.snow,
    "frost": weather.frost,
    "fog": weather.fog,
    "brightness": digital.brightness,
    "contrast": digital.contrast,
    "elastic_transform": digital.elastic_transform,
    "pixelate": digital.pixelate,
    "jpeg_compression": digital.jpeg_compression,
    "speckle_noise": noise.speckle_noise,
    "gaussian_blur": blur.gaussian_blur,
    "spatter": spatter.spatter,
    "saturate": digital.saturate,
}
"""By name; `SEVERITIES` has their constants."""


def corrupted(photos: Pixels, name: str, severity: int, wanted: range, seed: int = 0) -> Pixels:
    """The photographs numbered `wanted` of (n, 32, 32, 3), corrupted.

    They are made in whole blocks, so that a photograph becomes the same whichever others are wanted.
    """
    first = wanted.start - wanted.start % BLOCK
    rng = Stream(seed).at(name, severity)
    starts = range(first, wanted.stop, BLOCK)
    blocks = [_block(photos[start : start + BLOCK], name, severity, rng.at(start)) for start in starts]
    return np.concatenate(blocks)[wanted.start - first : wanted.stop - first]


def _block(photos: Pixels, name: str, severity: int, rng: Stream) -> Pixels:
    generator = Generator(PCG64(rng.number()))
    change = CORRUPTIONS[name]
    return as_bytes(change(photos / np.float32(255), *SEVERITIES[name][severity - 1], rng=generator))


def as_bytes(photos: Photos) -> Pixels:
    """Cut to 0..1, then to the level below as the original does; whole levels stay in spite of rounding errors."""
    return (np.clip(photos, 0, 1) * 255 + 1e-3).astype(np.uint8)
