r"""Membership inference: arrays in, numbers out. Higher scores mean "this image was in the training set".

`scores[f, u]` belong to image u attacked in federation f, `members[f, u]` says whether it was trained on there.
"""

import math
import warnings
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp, ndtr
from scipy.stats import binom, binomtest

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

BOOTSTRAP_DRAWS = 1000
CONFIDENCE_LEVEL = 0.95
PRIOR_WEIGHT = 8.0  # of the pooled variance, in observations
MIN_FALSE_POSITIVES = 10.0  # expected ones, below which a true positive rate is not reported
MIN_LOG_DENSITY = math.log(1e-300)
FPR_GRID = np.concatenate([[0.0], np.geomspace(1e-3, 1, 100)])  # false positive rates of a stored curve


def log_density(sample: Array, at: Array) -> Array:
    r"""Gaussian kernel density estimate with Scott's bandwidth h = s n^{-1/5}, s with n - 1 in the denominator:

    log p(x) = logsumexp_i( -(x - x_i)^2 / 2 h^2 ) - log(n h sqrt(2 pi))
    """
    h = max(float(np.std(sample, ddof=1)) * len(sample) ** -0.2, 1e-12)
    kernels = -0.5 * ((at[:, None] - sample[None]) / h) ** 2
    return np.asarray(logsumexp(kernels, axis=1) - math.log(len(sample) * h * math.sqrt(2 * math.pi)))


def kde_ratio(members: Array, others: Array, at: Array) -> Array:
    """log p_in(x) - log p_out(x); 0 where both densities underflow."""
    both = log_density(members, at), log_density(others, at)
    unknown = np.maximum(*both) < MIN_LOG_DENSITY
    return np.where(unknown, 0.0, both[0] - both[1])


def kde(members: Array, others: Array, in_sample: bool = False) -> tuple[Array, Array]:
    """Scores of members and others by the ratio of densities that were fitted on the other half of each side.

    in_sample: fitted on the same points, which finds "leaks" in pure noise.
    """
    if in_sample:
        return kde_ratio(members, others, members), kde_ratio(members, others, others)
    scores = np.empty(len(members)), np.empty(len(others))
    for fold in (0, 1):
        reference = members[1 - fold :: 2], others[1 - fold :: 2]
        for part, values in zip(scores, (members, others), strict=True):
            part[fold::2] = kde_ratio(*reference, values[fold::2])
    return scores


def lira(statistic: Array, members: Mask, target: int, online: bool = True) -> Array:
    r"""Likelihood ratio of every image in federation `target`, with the other federations as shadows
    (Carlini et al., 2022). `statistic[f, u, q]` of the queries q of an image.

    online:   mean_q log N(s; mu_in, var_in) - log N(s; mu_out, var_out)
    offline:  mean_q Phi((s - mu_out) / std_out)
    mu: median over the shadows of that side;   var: (8 var_pooled + sum of squares) / (8 + shadows of that side)
    """
    shadows = np.arange(len(members)) != target
    others, side = statistic[shadows], members[shadows][:, :, None]
    (mu_in, var_in), (mu_out, var_out) = _fitted(others, side), _fitted(others, ~side)
    gaps = mu_in - mu_out
    known = gaps[~np.isnan(gaps)]
    gap = float(known.mean()) if len(known) else 0.0
    mu_in = np.where(np.isnan(mu_in), mu_out + gap, mu_in)
    mu_out = np.where(np.isnan(mu_out), mu_in - gap, mu_out)
    seen = statistic[target]
    if not online:
        return np.asarray(ndtr((seen - mu_out) / np.sqrt(var_out)).mean(1))
    ratio = (seen - mu_out) ** 2 / var_out - (seen - mu_in) ** 2 / var_in + np.log(var_out / var_in)
    return np.asarray(ratio.mean(1) / 2)


def _fitted(statistic: Array, side: Mask) -> tuple[Array, Array]:
    """Median (NaN without a shadow) and variance over the shadows of one side, for each image and query."""
    kept = np.where(side, statistic, np.nan)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # an image without a shadow of this side
        middle = np.nanmedian(kept, axis=0)
    squares, count = np.nansum((kept - middle) ** 2, axis=0), side.sum(0)
    free = np.maximum(count - 1, 0).sum()
    pooled = squares.sum(0) / free if free else np.nanvar(statistic, axis=(0, 1))
    return middle, (PRIOR_WEIGHT * pooled + squares) / (PRIOR_WEIGHT + count) + 1e-12


def rmia(p: Array, members: Mask, target: int, population: Array, gamma: float = 1.0, a: float = 0.3) -> Array:
    r"""Robust membership inference, offline (Zarifzadeh, Liu and Shokri, 2024). `p[f, u]` is the probability of the
    true label of image u, `population[f, z]` that of images in no training set.

    P(x) = ((1 + a) mean over OUT shadows p(x) + 1 - a) / 2
    score(x) = share of z with  (p_t(x) / P(x)) / (p_t(z) / P(z)) >= gamma
    """
    ratio, reference = _ratios(p, members, target, population, a)
    below = np.searchsorted(np.sort(reference), ratio / gamma, side="right")
    return np.asarray(below / population.shape[1])


def rmia_untied(p: Array, members: Mask, target: int, population: Array, a: float = 0.3) -> Array:
    """`rmia`, with images of the same share in the order of p_t(x) / P(x), by less than a share of one z.

    Many images beat the whole population. With their ties, no threshold has a small false positive rate.
    """
    ratio, _ = _ratios(p, members, target, population, a)
    rank = np.searchsorted(np.sort(ratio), ratio) / (len(ratio) + 1)
    return np.asarray(rmia(p, members, target, population, a=a) + rank / population.shape[1])


def _ratios(p: Array, members: Mask, target: int, population: Array, a: float) -> tuple[Array, Array]:
    """p_t(x) / P(x) of the images, and of the population."""
    shadows = np.arange(len(members)) != target
    out = ~members[shadows]
    count = out.sum(0)
    sums = (p[shadows] * out).sum(0)
    mean = np.where(count > 0, sums / np.maximum(count, 1), sums.sum() / max(1, count.sum()))
    ratio = p[target] / (((1 + a) * mean + 1 - a) / 2)
    return ratio, population[target] / (((1 + a) * population[shadows].mean(0) + 1 - a) / 2)


class Curve(NamedTuple):
    """ROC: the true positive rate at the false positive rates of `FPR_GRID`, and the area under the whole curve."""

    auc: float
    tpr: Array


def roc(scores: Array, members: Mask) -> Curve:
    """The curve of these scores; equal scores are accepted or refused together.

    tpr(f) is that of the smallest threshold with a false positive rate of at most f; no point is interpolated.
    """
    order, last = _sorted(scores)
    return _curve(members[order].astype(float), (~members[order]).astype(float), last)


def _sorted(scores: Array) -> tuple[NDArray[np.int64], Mask]:
    """The order from the highest score down, and where each group of equal scores ends."""
    order = np.argsort(-scores, kind="stable")
    return order, np.append(np.diff(scores[order]) != 0, True)


def _curve(inside: Array, outside: Array, last: Mask) -> Curve:
    """From the weights of members and others in the order of their scores."""
    tp, fp = (np.append(0.0, np.cumsum(each)[last]) for each in (inside, outside))
    area = float(np.dot(np.diff(fp), tp[1:] + tp[:-1]) / (2 * tp[-1] * fp[-1]))
    return Curve(area, tp[np.searchsorted(fp, (FPR_GRID + 1e-12) * fp[-1], side="right") - 1] / tp[-1])


def at_fpr(scores: Array, members: Mask, rate: float) -> float | None:
    """True positive rate at this false positive rate; None if fewer than ten false positives are expected."""
    others = int((~members).sum())
    if others * rate < MIN_FALSE_POSITIVES - 1e-9:
        return None
    threshold = np.sort(scores[~members])[::-1][math.floor(others * rate + 1e-9)]
    return float((scores[members] > threshold).mean())


class Interval(NamedTuple):
    low: float
    middle: float
    high: float


class Bands(NamedTuple):
    """Intervals by a bootstrap over images."""

    auc: Interval
    tpr: dict[float, Interval | None]
    curve: Array
    low: Array
    high: Array


def bootstrap(
    scores: Array,
    members: Mask,
    rng: np.random.Generator,
    rates: Sequence[float] = (),
    draws: int = BOOTSTRAP_DRAWS,
    *,
    widened: float = 1.0,
) -> Bands:
    """95 % intervals over draws of images with replacement; all scores `[f, u]` of an image stay together.

    widened: the factor of the distance of both ends from the estimate.
    """
    images = scores.shape[1]
    flat, inside = scores.ravel(), members.ravel()
    order, last = _sorted(flat)
    image, sides = order % images, (inside[order], ~inside[order])
    best, areas, curves = roc(flat, inside), [], []
    for _ in range(draws):
        weights = np.bincount(rng.integers(images, size=images), minlength=images)[image]
        tp, fp = (np.where(side, weights, 0.0) for side in sides)
        if tp.any() and fp.any():
            drawn = _curve(tp, fp, last)
            areas.append(drawn.auc)
            curves.append(drawn.tpr)
    low, high = np.quantile(curves, [(1 - CONFIDENCE_LEVEL) / 2, (1 + CONFIDENCE_LEVEL) / 2], axis=0)
    ends = np.quantile(areas, [(1 - CONFIDENCE_LEVEL) / 2, (1 + CONFIDENCE_LEVEL) / 2])
    low, high = (np.clip(best.tpr + widened * (end - best.tpr), 0, 1) for end in (low, high))
    ends = np.clip(best.auc + widened * (ends - best.auc), 0, 1)
    tpr: dict[float, Interval | None] = {}
    for rate in rates:
        found, at = at_fpr(flat, inside, rate), int(np.argmin(np.abs(FPR_GRID - rate)))
        tpr[rate] = None if found is None else Interval(float(low[at]), found, float(high[at]))
    return Bands(Interval(float(ends[0]), best.auc, float(ends[1])), tpr, best.tpr, low, high)


def clopper_pearson(hits: int, of: int, level: float = CONFIDENCE_LEVEL) -> tuple[float, float]:
    """The exact interval of a binomial probability; everything without a trial."""
    if not of:
        return 0.0, 1.0
    found = binomtest(hits, of).proportion_ci(level, method="exact")
    return float(found.low), float(found.high)


def epsilon_from_rates(scores: Array, members: Mask, rate: float, delta: float, alpha: float = 0.05) -> float:
    r"""A lower bound of epsilon with confidence 1 - alpha from one run of independent images:

    epsilon >= ln((TPR_low - delta) / FPR_high),  Clopper-Pearson 1 - alpha/2 each, threshold from the other half
    """
    chosen, tested = slice(0, None, 2), slice(1, None, 2)
    outside = np.sort(scores[chosen][~members[chosen]])[::-1]
    if not len(outside):
        return 0.0
    positive = scores[tested] > outside[min(len(outside) - 1, math.floor(len(outside) * rate))]
    inside = members[tested]
    low, _ = clopper_pearson(int(positive[inside].sum()), int(inside.sum()), 1 - alpha)
    _, high = clopper_pearson(int(positive[~inside].sum()), int((~inside).sum()), 1 - alpha)
    return max(0.0, math.log((low - delta) / high)) if low > delta else 0.0


def one_run_p_value(m: int, r: int, v: int, epsilon: float, delta: float) -> float:
    r"""The probability that (epsilon, delta)-DP allows v of r guesses about m canaries to be right
    (Steinke, Nasr and Jagielski, 2023), with q = 1 / (1 + e^-epsilon):

    p = P[Bin(r, q) >= v] + 2 m delta max_{1 <= i <= v} P[v - i <= Bin(r, q) < v] / i
    """
    q = 1 / (1 + math.exp(-epsilon))
    below = binom.cdf(v - 1, r, q)
    i = np.arange(1, v + 1)
    most = float(((below - binom.cdf(v - i - 1, r, q)) / i).max()) if v else 0.0
    return min(1.0, float(1 - below) + 2 * m * delta * most)


def one_run(m: int, r: int, v: int, delta: float, alpha: float = 0.05) -> float:
    """The largest epsilon that v right guesses of r refute with confidence 1 - alpha; 0 if none."""
    if one_run_p_value(m, r, v, 0.0, delta) >= alpha:
        return 0.0
    low, high = 0.0, 50.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if one_run_p_value(m, r, v, middle, delta) < alpha else (low, middle)
    return low


def audited_epsilon(scores: Array, members: Mask, delta: float, alpha: float = 0.05) -> float:
    """`one_run` for one federation: guess "in" for the tenth of images with the highest scores, "out" for the tenth
    with the lowest. The number of guesses is fixed beforehand."""
    order = np.argsort(scores, kind="stable")
    k = len(scores) // 10
    right = int(members[order[len(order) - k :]].sum() + (~members[order[:k]]).sum())
    return one_run(len(scores), 2 * k, right, delta, alpha)
