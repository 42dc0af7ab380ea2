"""The result in words, computed from the records."""

from collections.abc import Sequence
from dataclasses import dataclass

from fedlgd.report.format import percent, percent_stat, plural, points
from fedlgd.report.groups import Group, Stat, site_names

RULE = (
    "Accuracy on the real test images of every site, at the last round, as the unweighted mean over sites. "
    "With several seeds: the mean over seeds ± the sample standard deviation. "
    "Differences are taken before rounding."
)


@dataclass(frozen=True, slots=True)
class Headline:
    """One sentence to remember, and one more per comparison with the first method."""

    title: str
    comparisons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Standing:
    group: Group
    accuracy: Stat


def headline(groups: Sequence[Group]) -> Headline:
    """The outcome over all groups that compete and have an evaluated round."""
    rivals = [group for group in groups if group.competes] or groups
    standings = [_Standing(group, group.accuracy) for group in rivals if group.accuracy]
    if not standings:
        return Headline("No round has been evaluated yet.")
    if len(standings) == 1:
        return Headline(_alone(standings[0]))
    first, *others = standings
    title = _duel(first, others[0]) if len(others) == 1 else _contest(standings)
    return Headline(title, tuple(_comparison(first, other) for other in others))


def _alone(only: _Standing) -> str:
    return f"{only.group.label} {_verb(only)} at {percent_stat(only.accuracy)} %."


def _duel(first: _Standing, second: _Standing) -> str:
    """The later method is the subject, whether it wins or loses."""
    numbers = f"{percent_stat(second.accuracy)} % against {percent_stat(first.accuracy)} %"
    gap = _gap(second.accuracy.mean - first.accuracy.mean)
    return f"{second.group.label} {_verb(first, second)} {gap} {first.group.label}: {numbers}."


def _contest(standings: Sequence[_Standing]) -> str:
    best, runner_up, *_ = sorted(standings, key=lambda each: -each.accuracy.mean)
    place = f"{_verb(*standings)} highest of {len(standings)} methods at {percent_stat(best.accuracy)} %"
    gap = _gap(best.accuracy.mean - runner_up.accuracy.mean)
    return f"{best.group.label} {place}, {gap} {runner_up.group.label}."


def _comparison(first: _Standing, other: _Standing) -> str:
    difference = other.accuracy.mean - first.accuracy.mean
    opening = f"{other.group.label} against {first.group.label}: {points(difference)} points on the mean"
    details = (
        _over_sites(first.group, other.group),
        _over_seeds(difference, (first.accuracy, other.accuracy)),
    )
    return "; ".join((opening, *(detail for detail in details if detail))) + "."


def _over_sites(first: Group, other: Group) -> str:
    """At how many sites the other is higher, and the two extremes."""
    gaps = _site_gaps(first, other)
    if not gaps:
        return ""
    low, high = min(gaps, key=gaps.__getitem__), max(gaps, key=gaps.__getitem__)
    higher = sum(points(gap).startswith("+") for gap in gaps.values())
    extremes = f"from {points(gaps[low])} at {low} to {points(gaps[high])} at {high}"
    return f"higher at {higher} of {plural(len(gaps), 'site')}, {extremes}"


def _site_gaps(first: Group, other: Group) -> dict[str, float]:
    pairs = ((site, first.accuracy_at(site), other.accuracy_at(site)) for site in site_names((first, other)))
    return {site: after.mean - before.mean for site, before, after in pairs if before and after}


def _over_seeds(difference: float, stats: Sequence[Stat]) -> str:
    """Says so when the seeds alone move the result as much as the method does."""
    stds = [stat.std for stat in stats if stat.std is not None]
    if not stds or abs(difference) > max(stds):
        return ""
    return f"no more than the standard deviation over seeds ({percent(max(stds))})"


def _gap(difference: float) -> str:
    size = percent(abs(difference))
    if size == percent(0.0):
        return "level with"
    noun = "point" if size == "1.0" else "points"
    return f"{size} {noun} {'above' if difference > 0 else 'below'}"


def _verb(*standings: _Standing) -> str:
    return "ends" if all(each.group.finished for each in standings) else "stands"
