"""The result in words: the headline of a report, and what limits a comparison."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from fedlgd.report.formats import percent, percent_stat, plural, points
from fedlgd.report.groups import Group, Stat, site_names
from fedlgd.report.run import Run

RULE = (
    "Accuracy on the real test images of every site after the last round, as the unweighted mean over sites. "
    "With several seeds: the mean over seeds ± the sample standard deviation. "
    "Differences are computed before rounding."
)


@dataclass(frozen=True, slots=True)
class Headline:
    """One sentence with the result, and one more for each comparison with the first method."""

    title: str
    comparisons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Result:
    group: Group
    accuracy: Stat

    @property
    def label(self) -> str:
        return self.group.label


def headline(groups: Sequence[Group]) -> Headline:
    """The result over all groups that compete and have an evaluated round."""
    competing = [group for group in groups if group.competes] or groups
    results = [_Result(group, group.accuracy) for group in competing if group.accuracy]
    if not results:
        return Headline("No round has been evaluated yet.")
    first, *others = results
    verb = "ends" if all(each.group.finished for each in results) else "stands"
    if not others:
        return Headline(f"{first.label} {verb} at {percent_stat(first.accuracy)} %.")
    title = _title(first, others[0], verb) if len(others) == 1 else _title_of_many(results, verb)
    return Headline(title, tuple(_comparison(first, other) for other in others))


def _title(first: _Result, second: _Result, verb: str) -> str:
    """The second method is the subject, whether it is higher or lower."""
    numbers = f"{percent_stat(second.accuracy)} % against {percent_stat(first.accuracy)} %"
    return f"{second.label} {verb} {_gap(second, first)}: {numbers}."


def _title_of_many(results: Sequence[_Result], verb: str) -> str:
    best, runner_up, *_ = sorted(results, key=lambda each: -each.accuracy.mean)
    place = f"{verb} highest of {len(results)} methods at {percent_stat(best.accuracy)} %"
    return f"{best.label} {place}, {_gap(best, runner_up)}."


def _gap(subject: _Result, other: _Result) -> str:
    difference = subject.accuracy.mean - other.accuracy.mean
    size = percent(abs(difference))
    if size == percent(0.0):
        return f"level with {other.label}"
    noun = "point" if size == "1.0" else "points"
    return f"{size} {noun} {'above' if difference > 0 else 'below'} {other.label}"


def _comparison(first: _Result, other: _Result) -> str:
    difference = other.accuracy.mean - first.accuracy.mean
    parts = [f"{other.label} against {first.label}: {points(difference)} points on the mean"]
    parts += _by_site(first.group, other.group)
    stds = [stat.std for stat in (first.accuracy, other.accuracy) if stat.std is not None]
    if stds and abs(difference) <= max(stds):
        parts.append(f"no more than the standard deviation over seeds ({percent(max(stds))})")
    return "; ".join(parts) + "."


def _by_site(first: Group, other: Group) -> Iterator[str]:
    """The number of common sites at which the other method is higher, and the two extremes."""
    pairs = ((site, first.accuracy_at(site), other.accuracy_at(site)) for site in site_names((first, other)))
    gaps = {site: after.mean - before.mean for site, before, after in pairs if before and after}
    if gaps:
        low, high = min(gaps, key=gaps.__getitem__), max(gaps, key=gaps.__getitem__)
        higher = sum(points(gap).startswith("+") for gap in gaps.values())
        extremes = f"from {points(gaps[low])} at {low} to {points(gaps[high])} at {high}"
        yield f"higher at {higher} of {plural(len(gaps), 'site')}, {extremes}"


def caveats(groups: Sequence[Group]) -> tuple[str, ...]:
    """One sentence for each reason why the numbers may not be comparable, the most serious first."""
    return (*_unequal(groups), *_incomplete(groups), *_mixed(groups), *_seeds(groups))


def _unequal(groups: Sequence[Group]) -> Iterator[str]:
    """What must be the same in all runs."""
    task: dict[str, Callable[[Run], str]] = {
        "data": lambda run: run.manifest.data.digest,
        "network": lambda run: run.manifest.net.label,
        "number of rounds": lambda run: str(run.planned),
        "share of sites per round": lambda run: str(run.settings.get("ratio")),
    }
    for name, value in task.items():
        if len({value(run) for group in groups for run in group.runs}) > 1:
            yield f"The runs do not all have the same {name}: the differences are not due to the method alone."


def _incomplete(groups: Sequence[Group]) -> Iterator[str]:
    runs = [(group, run) for group in groups for run in group.runs]
    for group, run in runs:
        if not run.finished:
            use = "is not counted" if group.finished else "is shown up to its last round"
            yield f"{group.label}, seed {run.seed}, is unfinished ({progress(run)}) and {use}."
    for group, run in runs:
        yield from (f"{group.label}, seed {run.seed}: {what}; it is not shown." for what in run.damage)


def progress(run: Run) -> str:
    return f"{run.done} of {plural(run.planned, 'round')}"


def _mixed(groups: Sequence[Group]) -> Iterator[str]:
    """Runs with the same label that differ in more than their seed."""
    for group in groups:
        seeds = [run.seed for run in group.runs]
        if len(set(seeds)) < len(seeds):
            yield f"{group.label} has several runs with the same seed; each is counted as a separate seed."
        settings = [{**run.settings, "seed": None} for run in group.runs]
        if any(each != settings[0] for each in settings):
            yield f"The runs of {group.label} differ in more than their seed; see their settings below."


def _seeds(groups: Sequence[Group]) -> Iterator[str]:
    seeds = {group.label: tuple(run.seed for run in group.counted) for group in groups}
    if len(set(seeds.values())) > 1:
        listed = "; ".join(f"{label}: {', '.join(map(str, own))}" for label, own in seeds.items())
        yield f"The methods were not run with the same seeds ({listed})."
    elif len(next(iter(seeds.values()))) == 1:
        yield "There is only one seed: the variation over seeds is unknown."
