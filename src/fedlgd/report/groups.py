"""Runs with the same label are seeds of one another: grouping them, and means over seeds."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from fedlgd.report.run import Round, Run


@dataclass(frozen=True, slots=True)
class Stat:
    """A mean over seeds, with the sample standard deviation when there is more than one."""

    mean: float
    std: float | None = None


@dataclass(frozen=True, slots=True)
class Group:
    """All runs of one method variant, by seed."""

    label: str
    runs: tuple[Run, ...]

    @property
    def finished(self) -> bool:
        return any(run.finished for run in self.runs)

    @property
    def competes(self) -> bool:
        return all(run.manifest.competes for run in self.runs)

    @property
    def counted(self) -> tuple[Run, ...]:
        """The finished runs; while there is none, all of them as far as they are."""
        return tuple(run for run in self.runs if run.finished) or self.runs

    @property
    def finals(self) -> tuple[Round, ...]:
        """The last evaluated round of each counted run that has one."""
        return tuple(run.final for run in self.counted if run.final)

    @property
    def accuracy(self) -> Stat | None:
        """The headline number: last evaluated round, unweighted mean over sites, then over seeds."""
        return summarise(final.accuracy for final in self.finals)

    def accuracy_at(self, site: str) -> Stat | None:
        return summarise(final.scores[site].accuracy for final in self.finals if site in final.scores)


@dataclass(frozen=True, slots=True)
class Curve:
    """One quantity of one group at the rounds that all its counted runs evaluated, along rounds or along a cost."""

    label: str
    x: tuple[float, ...]
    stats: tuple[Stat, ...]


def group_runs(runs: Iterable[Run]) -> tuple[Group, ...]:
    """One group per label, in the order the labels first appear; inside a group by seed."""
    by_label: dict[str, list[Run]] = {}
    for run in runs:
        by_label.setdefault(run.label, []).append(run)
    return tuple(Group(label, tuple(sorted(same, key=lambda run: run.seed))) for label, same in by_label.items())


def summarise(values: Iterable[float]) -> Stat | None:
    """Mean and sample standard deviation sqrt(sum (x - mean)^2 / (n - 1)); None without values."""
    seen = list(values)
    if not seen:
        return None
    mean = fmean(seen)
    if len(seen) == 1:
        return Stat(mean)
    return Stat(mean, math.sqrt(sum((value - mean) ** 2 for value in seen) / (len(seen) - 1)))


def site_names(groups: Sequence[Group]) -> tuple[str, ...]:
    """Every site of every run, in the order they first appear."""
    runs = (run for group in groups for run in group.runs)
    return tuple(dict.fromkeys(site.name for run in runs for site in run.manifest.data.sites))


def by_round(run: Run) -> dict[int, float]:
    """Rounds along the axis as they are counted."""
    return {record.round: record.round for record in run.records}


def curves(
    groups: Sequence[Group],
    quantity: Callable[[Round], float | None],
    along: Callable[[Run], Mapping[int, float]] = by_round,
) -> tuple[Curve, ...]:
    """One curve per group, empty where its counted runs have no evaluated round with this quantity in common."""
    return tuple(_curve(group, quantity, along) for group in groups)


def _curve(
    group: Group, quantity: Callable[[Round], float | None], along: Callable[[Run], Mapping[int, float]]
) -> Curve:
    by_run = [
        {record.round: value for record in run.evaluated if (value := quantity(record)) is not None}
        for run in group.counted
    ]
    rounds = sorted(set.intersection(*map(set, by_run)))
    places = [along(run) for run in group.counted]
    stats = (summarise(values[each] for values in by_run) for each in rounds)
    x = (fmean(place[each] for place in places) for each in rounds)
    return Curve(group.label, tuple(x), tuple(stat for stat in stats if stat))
