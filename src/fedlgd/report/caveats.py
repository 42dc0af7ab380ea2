"""What a reader must know before comparing the numbers of a report."""

from collections.abc import Callable, Hashable, Iterable, Sequence

from fedlgd.report.format import plural
from fedlgd.report.groups import Group
from fedlgd.report.run import Run


def caveats(groups: Sequence[Group]) -> tuple[str, ...]:
    """One sentence for each reason to be careful, the gravest first."""
    found = (*_unequal(groups), *_unfinished(groups), *_damaged(groups), *_mixed(groups), *_seeds(groups))
    return tuple(found)


def _unequal(groups: Sequence[Group]) -> Iterable[str]:
    """Methods that were not given the same task."""
    task: dict[str, Callable[[Run], Hashable]] = {
        "data": lambda run: run.manifest.data.digest,
        "network": lambda run: run.manifest.net.label,
        "number of rounds": lambda run: run.planned,
        "share of sites per round": lambda run: run.settings.get("ratio"),
    }
    for name, value in task.items():
        if len({value(run) for group in groups for run in group.runs}) > 1:
            yield f"The runs do not all have the same {name}: the differences are not due to the method alone."


def _unfinished(groups: Sequence[Group]) -> Iterable[str]:
    for group in groups:
        for run in group.runs:
            if not run.finished:
                fate = "is not counted" if group.finished else "is shown as far as it is"
                yield f"{group.label}, seed {run.seed}, is unfinished ({progress(run)}) and {fate}."


def _damaged(groups: Sequence[Group]) -> Iterable[str]:
    for group in groups:
        for run in group.runs:
            yield from (f"{group.label}, seed {run.seed}: {what}; it is left out here." for what in run.damage)


def _mixed(groups: Sequence[Group]) -> Iterable[str]:
    """Runs under one label that are more than seeds of one another."""
    for group in groups:
        seeds = [run.seed for run in group.runs]
        if len(set(seeds)) < len(seeds):
            yield f"{group.label} has several runs with the same seed; each is counted as a seed of its own."
        settings = [{**run.settings, "seed": None} for run in group.runs]
        if any(each != settings[0] for each in settings):
            yield f"The runs called {group.label} differ in more than their seed; see their settings below."


def _seeds(groups: Sequence[Group]) -> Iterable[str]:
    seeds = {group.label: tuple(run.seed for run in group.counted) for group in groups}
    if len(set(seeds.values())) > 1:
        listed = "; ".join(f"{label}: {', '.join(map(str, own))}" for label, own in seeds.items())
        yield f"The methods were not run with the same seeds ({listed})."
    elif len(next(iter(seeds.values()))) == 1:
        yield "There is one seed only: how much the numbers move from seed to seed is not known."


def progress(run: Run) -> str:
    """How far a run is, and whether it was interrupted in the middle of a line."""
    done = f"{run.done} of {plural(run.planned, 'round')}"
    return f"{done}, last line cut off" if run.cut else done
