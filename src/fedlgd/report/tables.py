"""The tables of a report as data."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from fedlgd.report.breakeven import BreakEven
from fedlgd.report.cost import Cost, amounts, group_cost, phases
from fedlgd.report.format import NONE, duration, number_of_bytes, operations, percent, percent_stat, plural
from fedlgd.report.groups import Group, Stat, site_names
from fedlgd.report.run import DataInfo


@dataclass(frozen=True, slots=True)
class Cell:
    """What is shown, the number behind it (if it is one), whether it is the best of its column, and how far it
    varies over seeds."""

    text: str
    value: float | None = None
    best: bool = False
    std: float | None = None


@dataclass(frozen=True, slots=True)
class Column:
    """A heading; numbers are set to the right, words to the left. Shares are shown in percent."""

    name: str
    number: bool = True
    percent: bool = False


Row = tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells under columns; every row has one cell for each column."""

    columns: tuple[Column, ...]
    rows: tuple[Row, ...]


def accuracy_table(groups: Sequence[Group]) -> Table:
    """Methods by sites, with the mean over sites and the spread from the worst to the best site."""
    sites = site_names(groups)
    lead = (Column("method", number=False), Column("seeds"), Column("rounds"))
    scores = range(len(lead), len(lead) + len(sites) + 1)
    rows = [_accuracy_row(group, sites) for group in groups]
    rival = [group.competes for group in groups]
    marked = iter(mark_best([row for row, competes in zip(rows, rival, strict=True) if competes], scores))
    shown = tuple(next(marked) if competes else row for row, competes in zip(rows, rival, strict=True))
    return Table((*lead, *(Column(name, percent=True) for name in (*sites, "mean", "spread"))), shown)


def without_sites(table: Table, most: int) -> Table:
    """An accuracy table for a narrow place: with more sites than `most`, only what sums them up."""
    kept = (0, 1, 2, -2, -1)
    if len(table.columns) - len(kept) <= most:
        return table
    rows = tuple(tuple(row[i] for i in kept) for row in table.rows)
    return Table(tuple(table.columns[i] for i in kept), rows)


def cost_table(groups: Sequence[Group]) -> Table:
    """Bytes between the server and all sites, and seconds by phase."""
    names = phases(groups)

    def cells(cost: Cost) -> Row:
        moved = (Cell(number_of_bytes(amount), amount) for amount in amounts(cost, "bytes", ("up", "down")))
        return (*moved, *_by_phase(amounts(cost, "seconds", names), duration))

    return _cost_table(groups, ("bytes up", "bytes down", *names, "all phases"), cells)


def flops_table(groups: Sequence[Group]) -> Table:
    """Floating-point operations by phase."""
    names = phases(groups)
    return _cost_table(
        groups, (*names, "all phases"), lambda cost: _by_phase(amounts(cost, "flops", names), operations)
    )


def data_table(data: DataInfo) -> Table:
    """The sites, how many images each trains and tests on, and what these images are."""
    columns = (Column("site", number=False), Column("train"), Column("test"), Column("note", number=False))
    rows = ((Cell(site.name), count(site.train), count(site.test), Cell(site.note)) for site in data.sites)
    return Table(columns, tuple(rows))


def break_even_table(found: Sequence[BreakEven]) -> Table:
    """When the sites have done less arithmetic than on their real images."""
    words = ("real images, a round", "this method, a round", "enrolment", "cheaper without it", "cheaper with it")
    rows = (
        (
            Cell(each.label),
            *(Cell(operations(amount), amount) for amount in (each.real, each.own, each.upfront)),
            _after(each.without),
            _after(each.including),
        )
        for each in found
    )
    return Table((Column("method", number=False), *map(Column, words)), tuple(rows))


def mark_best(rows: Sequence[Row], columns: Collection[int]) -> tuple[Row, ...]:
    """Marks the highest share of each of these columns; shares that read the same are equally best."""
    marked = [_mark(cells) if at in columns else cells for at, cells in enumerate(zip(*rows, strict=True))]
    return tuple(zip(*marked, strict=True))


def _accuracy_row(group: Group, sites: Sequence[str]) -> Row:
    at_sites = [group.accuracy_at(site) for site in sites]
    return (
        Cell(group.label),
        count(len(group.counted)),
        _rounds(group),
        *map(share, at_sites),
        share(group.accuracy),
        _spread([stat.mean for stat in at_sites if stat]),
    )


def _rounds(group: Group) -> Cell:
    """How many rounds are done, and of how many while unfinished."""
    least = min(group.counted, key=lambda run: run.done)
    return Cell(str(least.done) if group.finished else f"{least.done} of {least.planned}", least.done)


def share(stat: Stat | None) -> Cell:
    return Cell(percent_stat(stat), stat.mean, std=stat.std) if stat else Cell(NONE)


def _spread(means: Sequence[float]) -> Cell:
    if not means:
        return Cell(NONE)
    spread = max(means) - min(means)
    return Cell(percent(spread), spread)


def _after(rounds: int | None) -> Cell:
    return Cell("never") if rounds is None else Cell(f"after {plural(rounds, 'round')}", rounds)


def count(number: int) -> Cell:
    return Cell(str(number), number)


def _mark(cells: Sequence[Cell]) -> tuple[Cell, ...]:
    best = max((cell.value for cell in cells if cell.value is not None), default=0.0)
    return tuple(replace(cell, best=_reads(cell) == percent(best)) for cell in cells)


def _reads(cell: Cell) -> str:
    return NONE if cell.value is None else percent(cell.value)


def _cost_table(groups: Sequence[Group], names: Sequence[str], cells: Callable[[Cost], Row]) -> Table:
    """Two rows per method: the rounds alone, and together with the enrolment before them."""
    columns = (Column("method", number=False), Column("enrolment", number=False), *map(Column, names))
    rows = (
        (Cell(group.label), Cell(word), *cells(group_cost(group, enrolment=enrolment)))
        for group in groups
        for word, enrolment in (("without", False), ("with", True))
    )
    return Table(columns, tuple(rows))


def _by_phase(values: Sequence[float], show: Callable[[float], str]) -> Row:
    return tuple(Cell(show(value) if value else NONE, value) for value in (*values, sum(values)))
