"""The privacy budget of a site: how it is divided, what a list of releases adds up to, and what it promises.

Releases of sums over all images are Gaussian mechanisms, whose composition is exact (`accounting`). Sums over a
random part of the images (`rate` below 1) are composed by the PRV accountant of Opacus (extra `dp`). The
settings of a budget are in `distill.settings`.
"""

import math
import warnings
from collections.abc import Iterable
from functools import cache
from typing import Any, NamedTuple

from fedlgd.core.errors import SettingError, check
from fedlgd.distill.settings import Adjacency, Budget, Private
from fedlgd.dp import accounting
from fedlgd.rundir.manifest import Promise

BUDGET_SLACK = 1e-6  # relative: rounding of a budget that is spent completely
STATISTICS_SHARE = 0.01  # of a start from class statistics: two numbers per channel


class Level(NamedTuple):
    """Several releases with noise `sigma`, in units of the clipping norm, of a random part `rate` of the images.

    each: noisy steps in one release.
    """

    sigma: float
    rate: float = 1.0
    releases: int = 1
    each: int = 1


def budget_mu(budget: Budget, epsilon: float = 0.0) -> float:
    """The Gaussian-DP parameter of the whole budget, or of an `epsilon`, in units of one image added or removed.

    Replacing an image moves a sum by at most 2 C: twice the noise.
    """
    mu = accounting.mu_for(epsilon or budget.epsilon, budget.delta)
    return mu / (2 if budget.adjacency == "replace" else 1)


def budget_shares(private: Private, start: str) -> dict[str, float]:
    """The parts of mu^2 by their purpose, for virtual sets with such initial images."""
    opening = {"mean-image": private.start, "statistics": STATISTICS_SHARE}.get(start, 0.0)
    rest = 1 - private.counts - opening - private.refine
    return {"counts": private.counts, "start": opening, "refine": private.refine, "distil": rest}


def noise_levels(private: Private, start: str, refinements: int = 0) -> dict[str, Level]:
    """The noise of each part: sigma^2 = releases / (share mu^2)."""
    total = budget_mu(private)
    check(
        private.refine > 0 or not refinements,
        "distil.private.refine",
        private.refine,
        "but the method refines its virtual sets; give refinement a share, or turn it off with refine.steps=0",
    )
    shares = budget_shares(private, start)
    rest = shares["distil"]
    full = {"counts": (private.counts, 1), "start": (shares["start"], 1), "refine": (private.refine, refinements)}
    parts = {
        name: Level(math.sqrt(count / share) / total, 1.0, count)
        for name, (share, count) in full.items()
        if share and count
    }
    if private.rate == 1:
        return parts | {"distil": Level(math.sqrt(private.releases / rest) / total, 1.0, private.releases)}
    others = Level(1 / (total * math.sqrt(1 - rest)))
    sigma = noise_for(private.epsilon, private.delta, private.rate, private.releases, others)
    return parts | {"distil": Level(sigma, private.rate, private.releases)}


def spent_epsilon(levels: Iterable[Level], delta: float, adjacency: Adjacency = "add-remove") -> float:
    """The epsilon of all these releases together."""
    parts = [level for level in levels if level.releases]
    mu = math.sqrt(sum(part.releases * part.each / part.sigma**2 for part in parts if part.rate == 1))
    drawn = [part for part in parts if part.rate < 1]
    if not drawn:
        return accounting.epsilon(mu * (2 if adjacency == "replace" else 1), delta)
    if adjacency == "replace":
        raise SettingError("replace-after-rate")
    full = [(1 / mu, 1.0, 1)] if mu else []
    return _prv((*full, *((part.sigma, part.rate, part.releases * part.each) for part in drawn)), delta)


def noise_for(epsilon: float, delta: float, rate: float, steps: int, others: Level | None = None) -> float:
    """The smallest sigma, within 0.5 %, of `steps` releases at `rate` that fit in the budget with `others`."""
    if rate == 1:
        used = 1 / others.sigma**2 if others else 0.0
        return math.sqrt(steps / (accounting.mu_for(epsilon, delta) ** 2 - used))

    def fits(sigma: float) -> bool:
        mine = Level(sigma, rate, steps)
        return spent_epsilon([mine, others] if others else [mine], delta) <= epsilon

    high = max(0.4, rate * math.sqrt(steps) / accounting.mu_for(epsilon, delta))  # the limit of many small parts
    low = 0.4
    while not fits(high):
        low, high = high, 1.3 * high
        check(high < 1e6, "epsilon", epsilon, f"no noise is enough for {steps} releases at rate {rate:g}; raise it")
    low = max(low, high / 2)
    while high > low * 1.005:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


@cache
def _prv(history: tuple[tuple[float, float, int], ...], delta: float) -> float:
    try:
        from opacus.accountants import PRVAccountant  # here, because its import takes seconds
    except ImportError as error:
        raise SettingError("opacus-missing-for-rate") from error
    accountant = PRVAccountant()
    accountant.history = list(history)
    with warnings.catch_warnings():  # about orders of a first guess, and log 0
        warnings.simplefilter("ignore")
        return float(accountant.get_epsilon(delta=delta))


def guarantee(method: Any) -> Promise:
    """What a method with a budget promises, and how the budget is spent."""
    budget: Budget = method.budget
    spent: dict[str, Any] = {}
    if isinstance(budget, Private):
        refine = getattr(method, "refine", None)
        spent = {
            "releases": budget.releases,
            "refinements": refine.private_releases(method.distil) if refine else 0,
            "gaussian": budget.rate == 1,
            "shares": budget_shares(budget, method.distil.start),
        }
    return Promise(
        epsilon=budget.epsilon,
        delta=budget.delta,
        mu=budget_mu(budget),
        simulation=bool(budget.test_key),
        protects=budget.protects,
        adjacency=budget.adjacency,
        scores=budget.scores,
        **spent,
    )
