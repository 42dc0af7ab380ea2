"""How sure an accuracy or a difference of two is: 95 % intervals, and what test images can show. Without torch.

All treat test images as independent draws from what a site will see: several images of one patient count too much.
"""

from collections.abc import Sequence
from math import ceil, inf, sqrt
from statistics import stdev

Z_95 = 1.959964  # 95 % of a normal distribution lie within this many standard deviations
Z_POWER = 0.841621  # 80 % of it lie below this many
MIN_SEEDS = 3  # of an interval over seeds: with two, Student's quantile is 12.7, and the interval says nothing
USUAL_ACCURACY = 0.8  # that both models are assumed to have before anything is trained


def wilson(share: float, size: int) -> tuple[float, float]:
    """Wilson's interval:  (p + z^2/2n  -+  z sqrt(p(1-p)/n + z^2/4n^2)) / (1 + z^2/n)."""
    square = Z_95 * Z_95 / size
    half = Z_95 * sqrt(share * (1 - share) / size + square / (4 * size))
    return (share + square / 2 - half) / (1 + square), (share + square / 2 + half) / (1 + square)


def seed_noise(values: Sequence[float]) -> float | None:
    """Half of the t interval of a mean over n seeds,  t_{n-1} s / sqrt(n);  None for fewer than MIN_SEEDS."""
    if len(values) < MIN_SEEDS:
        return None
    from scipy.special import stdtrit  # what needs no interval does not wait for its import

    return float(stdtrit(len(values) - 1, 0.975)) * stdev(values) / sqrt(len(values))


def gap_interval(first: float, second: float, size: int, noise: float = 0.0) -> tuple[float, float]:
    """The interval of d = p - q, the accuracies of two models on n test images, with half of their t interval h:

        d - sqrt((p - l_p)^2 + (u_q - q)^2 + h^2)   to   d + sqrt((u_p - p)^2 + (q - l_q)^2 + h^2)

    l and u are Wilson's limits: Newcombe (1998), method 10, for independent images. Both models have the same
    images, and what is hard for one is hard for the other, so the interval is wider than one of pairs would be.
    Test images and seeds vary independently: their parts add in squares (Zou and Donner, 2008).
    """
    (low, high), (other_low, other_high), gap = wilson(first, size), wilson(second, size), first - second
    below = sqrt((first - low) ** 2 + (other_high - second) ** 2 + noise**2)
    return gap - below, gap + sqrt((high - first) ** 2 + (second - other_low) ** 2 + noise**2)


def detectable_gap(images: int, accuracy: float = USUAL_ACCURACY) -> float:
    """The smallest difference of two models that n test images show with a probability of 80 %:

    d = (z_0.975 + z_0.8) sqrt(2 p (1 - p) / n),  both models near the accuracy p, their errors independent.

    Infinite without images. Seeds are not part of it: a difference that varies over seeds takes more.
    """
    return (Z_95 + Z_POWER) * sqrt(2 * accuracy * (1 - accuracy) / images) if images else inf


def images_needed(first: float, second: float, noise: float = 0.0) -> int | None:
    """The test images that show the difference of two accuracies p and q with a probability of 80 %:

    n = (z_0.975 + z_0.8)^2 (p (1 - p) + q (1 - q)) / ((p - q)^2 - h^2),  h half of the t interval over seeds.

    None if no number does: the difference is not larger than h.
    """
    rest = (first - second) ** 2 - noise**2
    spread = first * (1 - first) + second * (1 - second)
    return ceil((Z_95 + Z_POWER) ** 2 * spread / rest) if rest > 0 else None
