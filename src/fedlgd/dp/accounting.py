r"""Differential privacy of Gaussian noise, exactly (Balle and Wang, ICML 2018; Dong, Roth and Su, 2022).

A sum in which one record changes the value by at most C, released with noise N(0, (sigma C)^2), is mu-GDP with
mu = 1 / sigma. Releases compose by  mu^2 = sum_r 1 / sigma_r^2, even if each depends on the ones before. Then

    delta(epsilon) = Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu)
"""

import math

LARGEST = 600.0  # epsilon: e^600 is still a float


def normal_cdf(x: float) -> float:
    return math.erfc(-x / math.sqrt(2)) / 2


def delta(epsilon: float, mu: float) -> float:
    """The smallest delta for which mu-GDP is (epsilon, delta)-DP."""
    if mu <= 0:
        return 0.0
    return normal_cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * normal_cdf(-mu / 2 - epsilon / mu)


def epsilon(mu: float, at: float) -> float:
    """The smallest epsilon for which mu-GDP is (epsilon, `at`)-DP; infinite above `LARGEST`."""
    if delta(0.0, mu) <= at:
        return 0.0
    if delta(LARGEST, mu) > at:
        return math.inf
    low, high = 0.0, LARGEST
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if delta(middle, mu) > at else (low, middle)
    return high


def mu_for(epsilon: float, at: float) -> float:
    """The largest mu for which mu-GDP is (epsilon, `at`)-DP."""
    low, high = 0.0, 2 * math.sqrt(LARGEST)
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if delta(epsilon, middle) <= at else (low, middle)
    return low
