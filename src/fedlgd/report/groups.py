"""Runs with the same label are seeds of one method: grouping them, and statistics over seeds."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from fedlgd.core.score import Score
from fedlgd.core.settings import flat
from fedlgd.rundir.manifest import with_note, without_note
from fedlgd.rundir.read import Run
from fedlgd.rundir.records import RoundRecord

Quantity = Callable[[RoundRecord], float | None]
Axis = Callable[[Run], Mapping[int, float]]
STYLES = (
    *("fedlgd", "fedavg", "fedprox", "scaffold", "moon", "vhl"),
    *("fednova", "fedproto-avg", "fedproto-local", "fedbn", "local-only", "pooled"),
)

RECORDING_SETTINGS = ("seed", "evaluate_every", "real_samples", "analysis", "positive")  # no effect on the model
MAX_SETTINGS_IN_LABEL = 3


@dataclass(frozen=True, slots=True)
class Stat:
    """A mean over seeds, with the sample standard deviation if there is more than one seed."""

    mean: float
    std: float | None = None


@dataclass(frozen=True, slots=True)
class Group:
    """All runs of one method variant, by seed; `style` is the number of its colour and line style."""

    label: str
    runs: tuple[Run, ...]
    style: int = 0

    @property
    def finished(self) -> bool:
        return any(run.finished for run in self.runs)

    @property
    def competes(self) -> bool:
        return all(run.manifest.competes for run in self.runs)

    @property
    def counted(self) -> tuple[Run, ...]:
        """The finished runs, or all runs while none is finished."""
        return tuple(run for run in self.runs if run.finished) or self.runs

    @property
    def finals(self) -> tuple[RoundRecord, ...]:
        """The last evaluated round of each counted run that has one."""
        return tuple(run.final for run in self.counted if run.final)

    @property
    def accuracy(self) -> Stat | None:
        """The headline number: last evaluated round, unweighted mean over sites, then over seeds."""
        return summarise(final.accuracy for final in self.finals)

    @property
    def mean(self) -> float:
        """The mean of `accuracy`; NaN while no round is evaluated."""
        return self.accuracy.mean if self.accuracy else math.nan

    def scores_at(self, site: str) -> list[Score]:
        return [final.scores[site] for final in self.finals if site in final.scores]

    def accuracy_at(self, site: str) -> Stat | None:
        return summarise(score.accuracy for score in self.scores_at(site))


@dataclass(frozen=True, slots=True)
class SeedCurve:
    """One quantity of one group, at the rounds that all its counted runs evaluated."""

    label: str
    x: tuple[float, ...]
    stats: tuple[Stat, ...]
    style: int = 0

    @classmethod
    def of(cls, label: str, points: Iterable[tuple[float, Stat | None]], style: int) -> "SeedCurve":
        """Through these points, without those that are not known."""
        known = [(x, stat) for x, stat in points if stat]
        return cls(label, tuple(x for x, _ in known), tuple(stat for _, stat in known), style)


def label_variants(runs: Sequence[Run]) -> tuple[Run, ...]:
    """Runs with the same label and other settings have what differs in their label: `FedLGD (pull.weight=3)`.

    Seeds and what is only recorded do not count, nor settings that another version of fedlgd does not have. Of
    privacy budgets only epsilon is named if it differs. More than three differences are called a variant.
    """
    settings = {run.path: dict(flat(run.settings)) for run in runs}
    alike: dict[str, list[Run]] = {}
    for run in runs:
        alike.setdefault(run.label, []).append(run)
    return tuple(_told(run, [settings[each.path] for each in alike[run.label]], settings[run.path]) for run in runs)


def _told(run: Run, others: Sequence[Mapping[str, Any]], own: Mapping[str, Any]) -> Run:
    varied = (path for path, value in own.items() if any(each.get(path, value) != value for each in others))
    paths = [path for path in varied if path not in RECORDING_SETTINGS and not _idle(path, others)]
    label, note = without_note(run.label)
    if len(paths) > MAX_SETTINGS_IN_LABEL:
        kinds = list(dict.fromkeys(str([each.get(path) for path in paths]) for each in others))
        label = f"{run.label}, variant {kinds.index(str([own[path] for path in paths])) + 1}"
    elif paths:
        label = with_note(label, note | {path: short(path, own[path]) for path in paths})
    return replace(run, manifest=replace(run.manifest, label=label)) if paths else run


def _idle(path: str, others: Sequence[Mapping[str, Any]]) -> bool:
    """Whether this setting of a privacy budget needs no note: the budget is off, or the note gives its epsilon."""
    epsilon = f"{path.rpartition('.')[0]}.epsilon"
    found = {each[epsilon] for each in others if epsilon in each}
    return path != epsilon and (len(found) > 1 or found == {0})


def short(path: str, value: Any) -> str:
    """A value in a note, which has no commas; epsilon 0 is no noise, and would read as the smallest budget."""
    if path.endswith(".epsilon") and not value:
        return "none"
    if isinstance(value, list | tuple):
        return "+".join(map(str, value)) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


def group_runs(runs: Iterable[Run]) -> tuple[Group, ...]:
    """One group per label, in the order the labels first appear; the runs of a group are sorted by seed."""
    by_label: dict[str, list[Run]] = {}
    for run in label_variants(tuple(runs)):
        by_label.setdefault(run.label, []).append(run)
    styles = _styles({label: same[0].manifest.method.name for label, same in by_label.items()})
    seeds = {label: tuple(sorted(same, key=lambda run: run.seed)) for label, same in by_label.items()}
    return tuple(Group(label, same, styles[label]) for label, same in seeds.items())


def _styles(methods: Mapping[str, str]) -> dict[str, int]:
    """A number for each label in any order of runs: a method has its own, a variant the lowest free one."""
    found: dict[str, int] = {}
    for label in sorted(methods):
        if methods[label] in STYLES and (own := STYLES.index(methods[label])) not in found.values():
            found[label] = own
    for label in sorted(methods.keys() - found):
        found[label] = min(set(range(len(methods) + len(STYLES))) - set(found.values()))
    return found


def summarise(values: Iterable[float]) -> Stat | None:
    """Mean and sample standard deviation sqrt(sum (x - mean)^2 / (n - 1)); None without values."""
    seen = list(values)
    if len(seen) < 2:
        return Stat(*seen) if seen else None
    mean = fmean(seen)
    return Stat(mean, math.sqrt(sum((value - mean) ** 2 for value in seen) / (len(seen) - 1)))


def site_names(groups: Sequence[Group]) -> tuple[str, ...]:
    """Every site of every run, in the order they first appear."""
    runs = (run for group in groups for run in group.runs)
    return tuple(dict.fromkeys(site.name for run in runs for site in run.manifest.data.sites))


def by_round(run: Run) -> dict[int, float]:
    """The default x-axis: rounds from 1."""
    return {record.round: record.round + 1 for record in run.records}


def curves(groups: Sequence[Group], quantity: Quantity, along: Axis = by_round) -> tuple[SeedCurve, ...]:
    """One curve per group; empty if no round with this quantity was evaluated in all counted runs."""
    found = []
    for group in groups:
        runs = group.counted
        known = [{r.round: v for r in run.evaluated if (v := quantity(r)) is not None} for run in runs]
        rounds, places = sorted(set.intersection(*map(set, known))), [along(run) for run in runs]
        points = [(fmean(p[t] for p in places), summarise(values[t] for values in known)) for t in rounds]
        found.append(SeedCurve.of(group.label, points, group.style))
    return tuple(found)
