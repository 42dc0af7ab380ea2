"""Four kinds of noise, each value (pixel and channel) for itself."""

import numpy as np
from numpy.random import Generator

from fedlgd.data.corrupt.sampling import Photos


def gaussian_noise(photos: Photos, std: float, *, rng: Generator) -> Photos:
    """x + std n,  n ~ N(0, 1)"""
    return photos + np.float32(std) * rng.standard_normal(photos.shape, np.float32)


def shot_noise(photos: Photos, photons: float, *, rng: Generator) -> Photos:
    """Poisson(x photons) / photons: the mean is x, the variance x / photons."""
    return (rng.poisson(photos * photons) / photons).astype(np.float32)


def impulse_noise(photos: Photos, share: float, *, rng: Generator) -> Photos:
    """This share of the values becomes 0 or 1, either as likely."""
    hit, salt = rng.random(photos.shape) <= share, rng.random(photos.shape) <= 0.5
    return np.where(hit, salt.astype(np.float32), photos)


def speckle_noise(photos: Photos, std: float, *, rng: Generator) -> Photos:
    """x + x std n,  n ~ N(0, 1)"""
    return photos + photos * np.float32(std) * rng.standard_normal(photos.shape, np.float32)
