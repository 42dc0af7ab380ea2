"""What a run cost: bytes moved, and seconds and FLOPs by phase."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from fedlgd.report.groups import Group
from fedlgd.report.run import Round, Run

PHASES = ("distil", "train", "server", "evaluate")

Cost = Mapping[tuple[str, str], float]
"""Amounts by item: ("bytes", "up"), ("bytes", "down"), ("seconds", phase), ("flops", phase)."""


@dataclass(frozen=True, slots=True)
class Bar:
    """What one phase of one method cost in the rounds, and before them at the enrolment."""

    label: str
    rounds: float
    enrolment: float

    @property
    def total(self) -> float:
        return self.rounds + self.enrolment


def group_cost(group: Group, *, enrolment: bool) -> Cost:
    """Mean over the counted runs of a group, with or without what happened before the first round."""
    totals: dict[tuple[str, str], float] = defaultdict(float)
    for run in group.counted:
        for record in run.records:
            if enrolment or record.round >= 0:
                for item, amount in _items(record):
                    totals[item] += amount
    return {item: total / len(group.counted) for item, total in totals.items()}


def bytes_until(run: Run) -> dict[int, float]:
    """Bytes in both directions until the end of each round, the enrolment included."""
    return _until(run, lambda record: record.bytes_up + record.bytes_down)


def seconds_until(run: Run) -> dict[int, float]:
    """Seconds of work until the end of each round, the enrolment included; scoring the model is no work."""
    return _until(run, lambda record: sum(s for phase, s in record.seconds.items() if phase != "evaluate"))


def _until(run: Run, spent: Callable[[Round], float]) -> dict[int, float]:
    totals = accumulate(map(spent, run.records))
    return {record.round: total for record, total in zip(run.records, totals, strict=True)}


def amounts(cost: Cost, kind: str, names: Iterable[str]) -> tuple[float, ...]:
    """The amounts of one kind in this order; what was never recorded cost nothing."""
    return tuple(cost.get((kind, name), 0.0) for name in names)


def phases(groups: Iterable[Group]) -> tuple[str, ...]:
    """The four phases in their order, then any other that a record names."""
    items = {item for group in groups for item in group_cost(group, enrolment=True)}
    return (*PHASES, *sorted({name for kind, name in items if kind != "bytes"}.difference(PHASES)))


def bars(groups: Sequence[Group], kind: str) -> dict[str, tuple[Bar, ...]]:
    """One bar per method for each phase that cost anything."""
    by_phase = {phase: tuple(_bar(group, (kind, phase)) for group in groups) for phase in phases(groups)}
    return {phase: own for phase, own in by_phase.items() if any(bar.total for bar in own)}


def _bar(group: Group, item: tuple[str, str]) -> Bar:
    rounds = group_cost(group, enrolment=False).get(item, 0.0)
    return Bar(group.label, rounds, group_cost(group, enrolment=True).get(item, 0.0) - rounds)


def _items(record: Round) -> Iterator[tuple[tuple[str, str], float]]:
    yield ("bytes", "up"), record.bytes_up
    yield ("bytes", "down"), record.bytes_down
    yield from ((("seconds", phase), amount) for phase, amount in record.seconds.items())
    yield from ((("flops", phase), amount) for phase, amount in record.flops.items())
