"""Projection of complete runs from the cost of their parts, and the target ratios."""

from collections.abc import Mapping
from dataclasses import dataclass

from bench.phases import AGAIN
from bench.published import REAL_PER_CLASS
from bench.tools import ours
from bench.tools.scene import SITES
from fedlgd.runs.config import RunSettings

REFINE_STEPS, GM_STEPS = 100, 500  # as published

Costs = Mapping[str, float]
"""CPU seconds per unit of each phase"""


@dataclass(frozen=True)
class Run:
    """A run of the paper: 100 rounds, ten of them selected, all sites in every round."""

    name: str
    sites: int
    real_per_class: int
    tested: int
    again: float
    rounds: int = 100
    selected: int = 10

    def real_share(self, per_class: int) -> float:
        """The relative work of a draw of `per_class` real images if a class has fewer."""
        return min(1.0, self.real_per_class / per_class)


DIGITS = Run("DIGITS, 5 sites, IPC 10", 5, 700, 49_040, AGAIN)
CIFAR10C = Run("CIFAR10C, 57 sites of 2 000 images, IPC 10", 57, 200, 19_000, 1.0)


def theirs(run: Run, cost: Costs, initial_steps: int) -> dict[str, float]:
    """CPU seconds by phase. Real images are most of the cost of a matching step."""
    share = run.real_share(REAL_PER_CLASS)
    scored = run.rounds * run.tested / 1000 * cost["evaluation"]
    return {
        "dm-initial": run.sites * initial_steps * cost["dm-initial"] * share,
        "dm-iterative": run.selected * run.sites * REFINE_STEPS * cost["dm-iterative"] * share,
        "gm": run.selected * GM_STEPS * cost["gm"],
        "evaluation": scored * (1 + run.again) / (1 + AGAIN),
        **_rounds(run, cost),
        "save-load": run.rounds / 50 * cost["save-load"],
    }


def ours_(
    run: Run, cost: Costs, initial_steps: float, gm_steps: float, evaluate_every: int = 0
) -> dict[str, float]:
    """The same for ours: by default it evaluates ten times, each image once, and saves every round."""
    plan = RunSettings(rounds=run.rounds, evaluate_every=evaluate_every)
    return {
        "dm-initial": run.sites * initial_steps * cost["dm-initial"] * run.real_share(ours.INITIAL.real_per_class),
        "dm-iterative": run.selected * run.sites * ours.ITERATIVE.steps * cost["dm-iterative"],
        "gm": run.selected * gm_steps * cost["gm"],
        "evaluation": sum(map(plan.scores, range(run.rounds))) * run.tested / 1000 * cost["evaluation"],
        **_rounds(run, cost),
        "save-load": run.rounds * run.sites * cost["save-load"],
    }


def _rounds(run: Run, cost: Costs) -> dict[str, float]:
    return {
        "epoch-plain": run.selected * run.sites * cost["epoch-plain"],
        "epoch-regularised": (run.rounds - run.selected) * run.sites * cost["epoch-regularised"],
        "aggregation": run.rounds * run.sites / SITES * cost["aggregation"],
    }


@dataclass(frozen=True)
class Bar:
    """A target ratio and the measured ratio (None: not measured or not reached)."""

    name: str
    wanted: float
    measured: float | None

    @property
    def verdict(self) -> str:
        if self.measured is None:
            return "not measured or not reached"
        if self.measured >= self.wanted:
            return "met"
        return f"not met: {self.measured / self.wanted:.0%} of it"
