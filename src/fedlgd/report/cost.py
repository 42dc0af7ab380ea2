"""The cost of a run: bytes, time and FLOPs by phase, the break-even with training on real images, and their tables.

Break-even compares the FLOPs at the sites:

    real, per round:  3 F sum_c E n_c      (steps times batch size in place of E n_c if a run counts steps)
    own, so far:      the recorded FLOPs of the phases distil and train

F is the forward pass of one image, E the local epochs, n_c the real images of a sampled site. Rounds after the last
recorded one are assumed to cost as much as the recorded rounds of their kind: selected by the schedule, or not.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import fmean

from fedlgd.core.text import duration, enumeration, number_of_bytes, plural
from fedlgd.report.claims import without_training
from fedlgd.report.groups import Group
from fedlgd.report.tables import METHOD, NONE, Cell, Column, Row, Table, operations
from fedlgd.rundir.read import Run
from fedlgd.rundir.records import RoundRecord

SETUP = "setup"
PHASES = (SETUP, "distil", "train", "server", "evaluate")
SITE_PHASES = ("distil", "train")
LAST_ROUND = 100_000  # selected rounds after this one are ignored

Cost = Mapping[tuple[str, str], float]
"""Amounts by item: ("bytes", "up"), ("bytes", "down"), ("seconds", phase), ("cpu", phase), ("flops", phase).
All phases before the first round are one phase, the setup."""


@dataclass(frozen=True, slots=True)
class Clock:
    """The time that is compared: the field of a record that has it, its name, and what it means."""

    kind: str
    name: str
    note: str


CPU = Clock(
    "cpu", "CPU time", "CPU time of all processes and threads; waiting for other programs is not part of it."
)
WALL = Clock(
    "seconds",
    "wall time",
    "Wall time, summed over the sites: CPU time is unknown (older records) or does not measure the work (GPU). "
    "On a busy machine, wall time includes waiting for other programs.",
)


@dataclass(frozen=True, slots=True)
class BreakEven:
    """FLOPs of all sites in a mean round, and the round after which the total stays lower (None: never)."""

    label: str
    real: float
    own: float
    enrolment: float
    without_enrolment: int | None
    with_enrolment: int | None


def clock(groups: Iterable[Group]) -> Clock:
    """CPU time if all runs have it, else wall time for all of them: the two cannot be compared."""
    return CPU if all(run.has_cpu_time for group in groups for run in group.counted) else WALL


def group_cost(group: Group) -> Cost:
    """Mean over the counted runs of a group."""
    totals: dict[tuple[str, str], float] = defaultdict(float)
    runs = group.counted
    for record in (record for run in runs for record in run.records):
        for item, amount in _items(record):
            totals[item] += amount / len(runs)
    return totals


def _items(record: RoundRecord) -> Iterator[tuple[tuple[str, str], float]]:
    yield ("bytes", "up"), record.bytes_up
    yield ("bytes", "down"), record.bytes_down
    for kind, amounts in (("seconds", record.seconds), ("cpu", record.cpu), ("flops", record.flops)):
        for phase, amount in amounts.items():
            yield (kind, phase if record.round >= 0 else SETUP), amount


def cumulative_bytes(run: Run) -> dict[int, float]:
    """Bytes in both directions up to the end of each round, including the setup."""
    return _cumulative(run, lambda record: record.bytes_up + record.bytes_down)


def cumulative_time(run: Run, by: Clock) -> dict[int, float]:
    """Seconds up to the end of each round, including the setup but not the evaluation."""

    def spent(record: RoundRecord) -> float:
        seconds = record.cpu if by is CPU else record.seconds
        return sum(s for phase, s in seconds.items() if phase != "evaluate")

    return _cumulative(run, spent)


def total(group: Group, kind: str) -> float:
    """The bytes, seconds or FLOPs of a mean run, including the setup and the evaluation."""
    return sum(amount for (found, _), amount in group_cost(group).items() if found == kind)


def _cumulative(run: Run, cost: Callable[[RoundRecord], float]) -> dict[int, float]:
    totals = accumulate(map(cost, run.records))
    return {record.round: total for record, total in zip(run.records, totals, strict=True)}


def phases(groups: Iterable[Group]) -> tuple[str, ...]:
    """The setup and the four phases of a round in their order, then any other phase in the records."""
    items = {item for group in groups for item in group_cost(group)}
    return (*PHASES, *sorted({name for kind, name in items if kind != "bytes"}.difference(PHASES)))


def break_evens(groups: Sequence[Group]) -> tuple[BreakEven, ...]:
    """One for each method that trains on virtual data, from its counted run with the lowest seed."""
    return tuple(filter(None, (_break_even(group.counted[0]) for group in groups)))


def _break_even(run: Run) -> BreakEven | None:
    """None without training on virtual sets, without a round, or if the work on real images is not known."""
    enrolment = [record for record in run.records if record.round < 0]
    rounds = [record for record in run.records if record.round >= 0]
    method, work = run.manifest.method, {site.name: site.real_work for site in run.manifest.data.sites}
    if not rounds or method.train_on != "virtual" or None in work.values():
        return None
    images = (sum(work.get(name) or 0 for name in record.sampled) for record in rounds)
    real = fmean(3 * run.manifest.net.flops * each for each in images)
    selected = {t for each in method.selected.values() for t in each.until(LAST_ROUND)}
    own, later = _projected(rounds, selected)
    first = sum(map(_site_flops, enrolment))
    without, including = (break_even_round(start, own, later, real) for start in (0.0, first))
    return BreakEven(run.label, real, fmean(map(_site_flops, rounds)), first, without, including)


def break_even_round(enrolment: float, own: Sequence[float], later: float, real: float) -> int | None:
    """The smallest T from which on  enrolment + own_0 + ... + own_{T-1} < T real;  later rounds cost `later`."""
    if later >= real:
        return None
    gaps = [total - rounds * real for rounds, total in enumerate(accumulate(own, initial=enrolment))]
    if gaps[-1] >= 0:
        return len(own) + int(gaps[-1] / (real - later)) + 1
    return max(rounds for rounds, gap in enumerate((0.0, *gaps[1:])) if gap >= 0) + 1


def _site_flops(record: RoundRecord) -> float:
    return sum(record.flops.get(phase, 0) for phase in SITE_PHASES)


def _projected(rounds: Sequence[RoundRecord], selected: set[int]) -> tuple[list[float], float]:
    """The cost of every round up to the last selected one, and of a round after it."""
    spent = {record.round: _site_flops(record) for record in rounds}
    overall = fmean(spent.values())
    chosen = fmean([cost for t, cost in spent.items() if t in selected] or [overall])
    others = fmean([cost for t, cost in spent.items() if t not in selected] or [overall])
    ahead = range(max(*spent, *selected, -1) + 1)
    return [spent.get(t, chosen if t in selected else others) for t in ahead], others


def cost_table(groups: Sequence[Group]) -> Table:
    """Bytes between the server and all sites, CPU time by phase (else wall time), and floating-point operations."""
    names, time, rows = phases(groups), clock(groups), list[Row]()
    for group in groups:
        cost, flops = group_cost(group), total(group, "flops")
        moved = [cost.get(("bytes", way), 0.0) for way in ("up", "down")]
        spent = [cost.get((time.kind, name), 0.0) for name in names]
        sizes = (Cell(number_of_bytes(amount), amount) for amount in moved)
        times = (Cell(duration(seconds) if seconds else NONE, seconds) for seconds in (*spent, sum(spent)))
        rows.append((Cell(group.label), *sizes, *times, Cell(operations(flops) if flops else NONE, flops)))
    heads = ("bytes up", "bytes down", *names, time.name, "operations")
    idle = without_training(groups)
    notes = (
        (f"The sites train no model in {enumeration(idle)}: the phase train is their other work.",) if idle else ()
    )
    return Table((METHOD, *map(Column, heads)), tuple(rows), (time.note, *notes))


def break_even_table(found: Sequence[BreakEven]) -> Table:
    """The number of rounds after which the sites have spent fewer FLOPs than on their real images."""
    flops = ("real images, per round", "this method, per round", "setup")
    names = (*flops, "cheaper without setup", "cheaper with setup")

    def after(rounds: int | None) -> Cell:
        return Cell("never") if rounds is None else Cell(f"after {plural(rounds, 'round')}", rounds)

    def row(each: BreakEven) -> Row:
        amounts = (Cell(operations(amount), amount) for amount in (each.real, each.own, each.enrolment))
        return (Cell(each.label), *amounts, after(each.without_enrolment), after(each.with_enrolment))

    return Table((METHOD, *map(Column, names)), tuple(map(row, found)))
