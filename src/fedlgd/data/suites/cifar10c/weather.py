"""Snow, frost and fog."""

import numpy as np
from numpy.random import Generator

from fedlgd.data.corrupt.sampling import Photos, Reals, smoothed, trails, zoomed

LUMA = np.array((0.299, 0.587, 0.114), np.float32)
SHADE = np.array((0.16, 0.24, 0.33), np.float32)  # glass behind thin frost
ICE = np.array((0.86, 0.93, 1.0), np.float32)
NEEDLES = ((3.0, 1.5), (5.0, 2.5), (8.0, 4.0))  # radius and sigma of the trails that frost is drawn with


def snow(
    photos: Photos,
    mean: float,
    std: float,
    zoom: float,
    threshold: float,
    radius: float,
    sigma: float,
    share: float,
    *,
    rng: Generator,
) -> Photos:
    """Falling flakes, once more turned by half a turn, over a paler photograph.

    Flakes are enlarged noise above a threshold; paler is share x + (1 - share) max(x, 1.5 grey + 0.5).
    """
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

    Diamond-square: the points halfway are the mean of the four around and noise, of an amplitude that
    shrinks by decay^2 from one grid to the next finer one.
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
    """share x + strength ice; the original lays photographs of frost over, here it is drawn."""
    return share * photos + strength * ice(len(photos), photos.shape[1], rng)


def ice(n: int, side: int, rng: Generator) -> Photos:
    """Drawn frost: needles in three directions, thick here and thin there, from blue-grey to white."""
    needles = np.zeros((n, side, side), np.float32)
    for radius, sigma in NEEDLES:
        seeds = smoothed(rng.standard_normal((n, side, side), np.float32), 0.5)
        needles = np.maximum(needles, _even(trails(seeds, radius, sigma, rng.uniform(0, 2 * np.pi, n))))
    cover = _even(smoothed(rng.standard_normal((n, side, side), np.float32), side / 6, mode="wrap"))
    white = 1 / (1 + np.exp(1.2 - needles - cover))[..., None]
    return np.asarray(SHADE + white * (ICE - SHADE), np.float32)


def _even(layers: Photos) -> Photos:
    """Every layer with mean 0 and std 1."""
    even = (layers - layers.mean((1, 2), keepdims=True)) / layers.std((1, 2), keepdims=True)
    return np.asarray(even, np.float32)
