"""The tables of a report as data, and as plain text for a terminal."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from fedlgd.report.cost import Cost, amounts, group_cost, phases
from fedlgd.report.format import NONE, duration, number_of_bytes, operations, percent, percent_stat
from fedlgd.report.groups import Group, Stat, site_names
from fedlgd.report.run import DataInfo


@dataclass(frozen=True, slots=True)
class Cell:
    """What is shown, the number behind it (if it is one), and whether it is the best of its column."""

    text: str
    value: float | None = None
    best: bool = False


@dataclass(frozen=True, slots=True)
class Column:
    """A heading; numbers are set to the right, words to the left."""

    name: str
    number: bool = True


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
    return Table((*lead, *map(Column, (*sites, "mean", "spread"))), shown)


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
    rows = ((Cell(site.name), _count(site.train), _count(site.test), Cell(site.note)) for site in data.sites)
    return Table(columns, tuple(rows))


def mark_best(rows: Sequence[Row], columns: Collection[int]) -> tuple[Row, ...]:
    """Marks the highest share of each of these columns; shares that read the same are equally best."""
    marked = [_mark(cells) if at in columns else cells for at, cells in enumerate(zip(*rows, strict=True))]
    return tuple(zip(*marked, strict=True))


def as_text(table: Table) -> str:
    """Aligned lines for a terminal; `*` marks the best of a column."""
    heading = [column.name for column in table.columns]
    lines = [heading, *([f"{cell.text}*" if cell.best else cell.text for cell in row] for row in table.rows)]
    widths = [max(map(len, texts)) for texts in zip(*lines, strict=True)]
    return "\n".join(_text_line(line, widths, table.columns) for line in lines)


def _accuracy_row(group: Group, sites: Sequence[str]) -> Row:
    at_sites = [group.accuracy_at(site) for site in sites]
    return (
        Cell(group.label),
        _count(len(group.counted)),
        _rounds(group),
        *map(_share, at_sites),
        _share(group.accuracy),
        _spread([stat.mean for stat in at_sites if stat]),
    )


def _rounds(group: Group) -> Cell:
    """How many rounds are done, and of how many while unfinished."""
    least = min(group.counted, key=lambda run: run.done)
    return Cell(str(least.done) if group.finished else f"{least.done} of {least.planned}", least.done)


def _share(stat: Stat | None) -> Cell:
    return Cell(percent_stat(stat), stat.mean if stat else None)


def _spread(means: Sequence[float]) -> Cell:
    if not means:
        return Cell(NONE)
    spread = max(means) - min(means)
    return Cell(percent(spread), spread)


def _count(number: int) -> Cell:
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


def _text_line(texts: Sequence[str], widths: Sequence[int], columns: Sequence[Column]) -> str:
    cells = zip(texts, widths, columns, strict=True)
    return "  ".join(f"{text:{'>' if column.number else '<'}{width}}" for text, width, column in cells).rstrip()
