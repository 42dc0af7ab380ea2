"""The privacy budget of a site: its settings, how it is divided, and what a list of releases adds up to.

Releases of sums over all images are Gaussian mechanisms, whose composition is exact (`core/gauss.py`). Sums over a
random part of the images (`rate` below 1) are composed by the PRV accountant of Opacus (extra `dp`).
"""

import math
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import ClassVar, Literal, NamedTuple

from fedlgd.core.errors import SettingError, check
from fedlgd.core.settings import Settings, setting
from fedlgd.dp import accounting

Adjacency = Literal["add-remove", "replace"]

SLACK = 1e-6  # relative: rounding of a budget that is spent completely
MOST = 100.0  # epsilon; larger values promise nothing
STATISTICS = 0.01  # share of a start from class statistics: two numbers per channel


class Level(NamedTuple):
    """Several releases with noise `sigma`, in units of the clipping norm, of a random part `rate` of the images.

    each: noisy steps in one release.
    """

    sigma: float
    rate: float = 1.0
    releases: int = 1
    each: int = 1


@dataclass(frozen=True, kw_only=True)
class Budget(Settings):
    """An (epsilon, delta) promise for each training image of a site.

    `total` is what a site may spend in all runs together, on each training image and on each test image.
    `test_key` replaces the secret of the site, for tests and simulations: anyone can compute the noise. Nothing is
    protected then, and no ledger is kept.
    """

    epsilon: float = setting(0.0, "Privacy budget of this run at each site; 0 or inf: no noise.", least=0)
    delta: float = setting(1e-5, "Probability of failure; below 1 / images of a site.", above=0, below=0.1)
    adjacency: Adjacency = setting(
        "add-remove", "What stays hidden: that an image was there (`add-remove`), or which one it was (`replace`)."
    )
    total: float = setting(0.0, "Budget of a site over all its runs; 0: the budget of this run.", least=0)
    counts: float = setting(0.01, "Share of the budget for the number of images per class.", above=0, below=0.5)
    scores: float = setting(
        0.0, "Privacy budget of each test image for all scores of a run; 0: scores are exact.", least=0, most=MOST
    )
    test_key: str = setting("", "For tests: a public key instead of the site's secret. No privacy, no ledger.")

    def __post_init__(self) -> None:
        super().__post_init__()
        path = f"{self.section}.epsilon"
        possible = self.epsilon <= MOST or math.isinf(self.epsilon)
        check(possible, path, self.epsilon, f"use {MOST:g} or less, or 0 for no noise")
        if self.on and self.total and self.total < self.epsilon:
            raise SettingError(
                f"{self.section}.total is {self.total:g}, less than {path}, which is {self.epsilon:g}; lower "
                f"epsilon, or leave total out"
            )
        known = not self.scores or (self.on and self.scores <= self.limit)
        check(known, f"{self.section}.scores", self.scores, f"use at most {path}, which is {self.epsilon:g}")

    @property
    def on(self) -> bool:
        return 0 < self.epsilon < math.inf

    @property
    def limit(self) -> float:
        return self.total or self.epsilon

    @property
    def mu(self) -> float:
        """The Gaussian-DP parameter of the whole budget, in units of one image added or removed."""
        return self.mu_for(self.epsilon)

    def mu_for(self, epsilon: float) -> float:
        """That of a part of it. Replacing an image moves a sum by at most 2 C: twice the noise."""
        return accounting.mu_for(epsilon, self.delta) / (2 if self.adjacency == "replace" else 1)

    @property
    def promise(self) -> str:
        """(epsilon, delta) = (4, 1e-05), add or remove one image"""
        relation = {"add-remove": "add or remove one image", "replace": "replace one image"}[self.adjacency]
        return f"(epsilon, delta) = ({self.epsilon:g}, {self.delta:g}), {relation}"


@dataclass(frozen=True, kw_only=True)
class Private(Budget):
    """Differentially private distillation: a site adds noise to sums of clipped features, once per sum.

    The budget is divided into shares of mu^2: `counts`, `start` (of the initial images `mean-image`), `refine`, and
    the rest for the first virtual set. A method that does not refine does not spend the share `refine`.
    """

    section: ClassVar[str] = "distil.private"

    start: float = setting(0.1, "Share of the budget for the initial images `mean-image`.", above=0, below=0.5)
    refine: float = setting(0.3, "Share of the budget for refinement; 0: none.", least=0, below=0.9)
    releases: int = setting(
        300, "Noisy sums for the first virtual set, each used again; at most `distil.steps`.", least=1, most=10_000
    )
    blocks: int = setting(10, "Blocks of steps; new sums are released before each.", least=1, most=10_000)
    clip: float = setting(0.6, "Clipping norm, relative to the feature norm of noise images.", above=0, most=100)
    rate: float = setting(1.0, "Part of the images in each sum, drawn at random in secret.", above=0, most=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        check(
            self.counts + self.start + self.refine < 1,
            "distil.private.refine",
            self.refine,
            f"with counts {self.counts:g} and start {self.start:g} nothing is left for the first virtual set",
        )
        if self.on and self.rate < 1 and self.adjacency == "replace":
            raise SettingError(
                "distil.private.rate is below 1, for which only add-remove is accounted; "
                "use distil.private.adjacency=add-remove or distil.private.rate=1"
            )

    def levels(self, start: str, refinements: int = 0) -> dict[str, Level]:
        """The noise of each part: sigma^2 = releases / (share mu^2)."""
        check(
            self.refine > 0 or not refinements,
            "distil.private.refine",
            self.refine,
            "but the method refines its virtual sets; give refinement a share, or turn it off with refine.steps=0",
        )
        opening = {"mean-image": self.start, "statistics": STATISTICS}.get(start, 0.0)
        rest = 1 - self.counts - opening - self.refine
        full = {"counts": (self.counts, 1), "start": (opening, 1), "refine": (self.refine, refinements)}
        parts = {
            name: Level(math.sqrt(count / share) / self.mu, 1.0, count)
            for name, (share, count) in full.items()
            if share and count
        }
        if self.rate == 1:
            return parts | {"distil": Level(math.sqrt(self.releases / rest) / self.mu, 1.0, self.releases)}
        beside = Level(1 / (self.mu * math.sqrt(1 - rest)))
        sigma = noise_for(self.epsilon, self.delta, self.rate, self.releases, beside)
        return parts | {"distil": Level(sigma, self.rate, self.releases)}


def spent(levels: Iterable[Level], delta: float, adjacency: Adjacency = "add-remove") -> float:
    """The epsilon of all these releases together."""
    parts = [level for level in levels if level.releases]
    mu = math.sqrt(sum(part.releases * part.each / part.sigma**2 for part in parts if part.rate == 1))
    drawn = [part for part in parts if part.rate < 1]
    if not drawn:
        return accounting.epsilon(mu * (2 if adjacency == "replace" else 1), delta)
    if adjacency == "replace":
        raise SettingError(
            "this site has made releases with a rate below 1, for which only add-remove is accounted; "
            "use adjacency=add-remove"
        )
    full = [(1 / mu, 1.0, 1)] if mu else []
    return _prv((*full, *((part.sigma, part.rate, part.releases * part.each) for part in drawn)), delta)


def noise_for(epsilon: float, delta: float, rate: float, steps: int, beside: Level | None = None) -> float:
    """The smallest sigma, within 0.5 %, of `steps` releases at `rate` that fit in the budget with `beside`."""
    if rate == 1:
        used = 1 / beside.sigma**2 if beside else 0.0
        return math.sqrt(steps / (accounting.mu_for(epsilon, delta) ** 2 - used))

    def fits(sigma: float) -> bool:
        mine = Level(sigma, rate, steps)
        return spent([mine, beside] if beside else [mine], delta) <= epsilon

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
        raise SettingError(
            "releases of a random part of the images are accounted by Opacus, which is not installed; install it "
            'with pip install "fedlgd[dp]", or use all images: distil.private.rate=1'
        ) from error
    accountant = PRVAccountant()
    accountant.history = list(history)
    with warnings.catch_warnings():  # about orders of a first guess, and log 0
        warnings.simplefilter("ignore")
        return float(accountant.get_epsilon(delta=delta))
