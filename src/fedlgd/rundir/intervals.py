"""How sure an accuracy, an AUC or a difference is: 95 % intervals, and what test images can show. Without torch.

All treat test images as independent draws from what a site will see: several images of one patient count too much.
"""

from collections.abc import Sequence
from math import ceil, hypot, inf, sqrt
from statistics import stdev

Z_95 = 1.959964  # 95 % of a normal distribution lie within this many standard deviations
Z_POWER = 0.841621  # 80 % of it lie below this many
MIN_SEEDS = 3  # of an interval over seeds: with two, Student's quantile is 12.7, and the interval says nothing
BISECTIONS = 60  # halvings of an interval in [0, 1], to the last bit of a float
USUAL_ACCURACY = 0.8  # that both models are assumed to have before anything is trained


Ends = tuple[float, float]
"""The low and the high end of an interval."""


def wilson(share: float, size: int) -> Ends:
    """Wilson's interval:  (p + z^2/2n  -+  z sqrt(p(1-p)/n + z^2/4n^2)) / (1 + z^2/n)."""
    square = Z_95 * Z_95 / size
    half = Z_95 * sqrt(share * (1 - share) / size + square / (4 * size))
    ends = (share + square / 2 - half) / (1 + square), (share + square / 2 + half) / (1 + square)
    return max(0.0, ends[0]), min(1.0, ends[1])  # rounding


def mean_interval(shares: Sequence[float], sizes: Sequence[int]) -> Ends:
    """Of the unweighted mean m of shares p_i of independent images, from their Wilson intervals (l_i, u_i):

        m - sqrt(sum (p_i - l_i)^2) / k,   m + sqrt(sum (u_i - p_i)^2) / k

    (Newcombe 1998; Zou and Donner 2008). The mean over sites and balanced accuracy are such means.
    """
    count, mean = len(shares), sum(shares) / len(shares)
    ends = [wilson(share, size) for share, size in zip(shares, sizes, strict=True)]
    below = hypot(*(share - low for share, (low, _) in zip(shares, ends, strict=True))) / count
    above = hypot(*(high - share for share, (_, high) in zip(shares, ends, strict=True))) / count
    return mean - below, mean + above


def auc_interval(auc: float, positives: int, negatives: int) -> Ends:
    """Of an area under the ROC curve: the areas A within z standard errors of it (Newcombe 2006, method 5):

        |auc - A| <= z sqrt(A (1 - A) (1 + N ((1 - A) / (2 - A) + A / (1 + A))) / (n+ n-)),   N = (n+ + n-) / 2 - 1

    the standard error of Hanley and McNeil (1982), symmetric in the classes. Unlike theirs it is not 0 at 100 %.
    """
    more = (positives + negatives) / 2 - 1

    def outside(area: float) -> bool:
        spread = 1 + more * ((1 - area) / (2 - area) + area / (1 + area))
        return abs(auc - area) > Z_95 * sqrt(area * (1 - area) * spread / (positives * negatives))

    def end(limit: float) -> float:
        inner, outer = auc, limit
        for _ in range(BISECTIONS):
            middle = (inner + outer) / 2
            inner, outer = (inner, middle) if outside(middle) else (middle, outer)
        return inner

    return end(0.0), end(1.0)


def seed_noise(values: Sequence[float]) -> float | None:
    """Half of the t interval of a mean over n seeds,  t_{n-1} s / sqrt(n);  None for fewer than MIN_SEEDS."""
    return half_width(len(values)) * stdev(values) if len(values) >= MIN_SEEDS else None


def half_width(seeds: int, tests: int = 1) -> float:
    """Half of the t interval of a mean over n seeds, in standard deviations:  t_{n-1} / sqrt(n).

    It is the 95 % interval; if it is the k-th test of the same, that of 1 - 5 % / k. All k together then err in at
    most 5 % (1 + 1/2 + ... + 1/k) of the cases.
    """
    from scipy.special import stdtrit  # what needs no interval does not wait for its import

    return float(stdtrit(seeds - 1, 1 - 0.025 / tests)) / sqrt(seeds)


def gap_interval(first: float, second: float, size: int, noise: float = 0.0) -> Ends:
    """`difference_interval` of the accuracies of two models on the same number of test images."""
    return difference_interval(first, wilson(first, size), second, wilson(second, size), noise)


def difference_interval(first: float, own: Ends, second: float, other: Ends, noise: float = 0.0) -> Ends:
    """The interval of d = p - q, with the intervals of both over test images and half of their t interval h:

        d - sqrt((p - l_p)^2 + (u_q - q)^2 + h^2)   to   d + sqrt((u_p - p)^2 + (q - l_q)^2 + h^2)

    l and u are Wilson's limits: Newcombe (1998), method 10, for independent images. Both models have the same
    images, and what is hard for one is hard for the other, so the interval is wider than one of pairs would be.
    Test images and seeds vary independently: their parts add in squares (Zou and Donner, 2008).
    """
    gap = first - second
    below = hypot(first - own[0], other[1] - second, noise)
    return gap - below, gap + hypot(own[1] - first, second - other[0], noise)


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
