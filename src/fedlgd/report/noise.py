"""Whether two methods differ by more than the variation over seeds."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt
from statistics import fmean

from fedlgd.report.groups import Group, summarise

T95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
"""97.5 % quantiles of Student's t with 1, 2, ... degrees of freedom; the last one also serves for more."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The mean difference in accuracy over `seeds` pairs of runs, and its 95 % interval if there are several."""

    mean: float
    seeds: int
    interval: tuple[float, float] | None = None

    @property
    def clear(self) -> bool:
        """Is 0 outside the interval?"""
        return self.interval is not None and (self.interval[0] > 0 or self.interval[1] < 0)


def difference(subject: Group, other: Group) -> Difference | None:
    """Paired over the seeds that both have:  d ± t_{n-1} s / sqrt(n),  s the sample deviation of the n differences.

    None without a common seed: then nothing can be paired.
    """
    own, others = _by_seed(subject), _by_seed(other)
    gaps = [own[seed] - others[seed] for seed in own if seed in others]
    stat = summarise(gaps)
    if stat is None or stat.std is None:
        return Difference(stat.mean, 1) if stat else None
    half = T95[min(len(gaps) - 1, len(T95)) - 1] * stat.std / sqrt(len(gaps))
    return Difference(stat.mean, len(gaps), (stat.mean - half, stat.mean + half))


def _by_seed(group: Group) -> Mapping[int, float]:
    """Final accuracy by seed; runs with the same seed are one, their mean."""
    found: dict[int, list[float]] = {}
    for run in group.counted:
        if run.final:
            found.setdefault(run.seed, []).append(run.final.accuracy)
    return {seed: fmean(values) for seed, values in found.items()}
