"""The tables of a report: cells and columns, how a table is written, and those of data and presence.

A table is written for the page, a spreadsheet, a paper or a README; names of sites and methods are escaped in every
format. The tables of accuracy are in `accuracy` and `classes`, those of cost in `cost`.
"""

import csv
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from fedlgd.core.text import scaled
from fedlgd.report.groups import Group, Stat
from fedlgd.rundir.intervals import Ends
from fedlgd.rundir.manifest import DataInfo
from fedlgd.rundir.read import Run
from fedlgd.rundir.records import RoundRecord

NONE = "–"
FLOPS = {f"{prefix}FLOP": 1000.0**power for power, prefix in enumerate(("", "k", "M", "G", "T", "P", "E"))}
_LATEX = {letter: f"\\{letter}" for letter in "&%$#_{}"}
_LATEX |= {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
_LATEX |= {"±": r"$\pm$", "−": "$-$", "–": "--", "†": r"$\dagger$", "‡": r"$\ddagger$", "∗": "$^{*}$"}
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence of the page, and the kind of fact that it states, for programs."""

    kind: str
    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Cell:
    """The text, its number (if any), whether it is the best of its column, its standard deviation over seeds, and
    its interval over test images."""

    text: str
    value: float | None = None
    best: bool = False
    std: float | None = None
    ends: Ends | None = None


@dataclass(frozen=True, slots=True)
class Column:
    """A heading. Numbers are aligned to the right, words to the left. Shares are shown in percent."""

    name: str
    number: bool = True
    percent: bool = False


METHOD = Column("method", number=False)
Row = tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells under columns; every row has one cell for each column. Notes stand below the rows.

    line: the number of rows above a line; 0: no line.
    """

    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    line: int = 0

    def pick(self, columns: Sequence[int]) -> "Table":
        """These columns in this order."""
        rows = tuple(tuple(row[at] for at in columns) for row in self.rows)
        return replace(self, columns=tuple(self.columns[at] for at in columns), rows=rows)


def percent(share: float) -> str:
    """0.9123 -> "91.2"."""
    return f"{100 * share:.1f}"


def percent_stat(stat: Stat | None) -> str:
    """A mean with its standard deviation over seeds, in percent; a dash if it is not known."""
    return f"{percent(stat.mean)}{'' if stat.std is None else f' ± {percent(stat.std)}'}" if stat else NONE


def share_cell(stat: Stat | None) -> Cell:
    return Cell(percent_stat(stat), stat.mean if stat else None, std=stat.std if stat else None)


def operations(value: float) -> str:
    return scaled(value, FLOPS)


def table_formats(table: Table) -> dict[str, str]:
    """The table in each format that the page offers for copying."""
    return {"CSV": as_csv(table), "LaTeX": as_latex(table), "Markdown": as_markdown(table)}


def as_csv(table: Table) -> str:
    """Numbers as numbers, shares in percent; a standard deviation and an interval have columns of their own."""
    columns = [*zip(*table.rows, strict=True)] or [()] * len(table.columns)
    with_std = [any(cell.std is not None for cell in cells) for cells in columns]
    with_ends = [any(cell.ends for cell in cells) for cells in columns]
    writer = csv.writer(out := io.StringIO(), lineterminator="\n")
    heads: list[str] = []
    for column, std, ends in zip(table.columns, with_std, with_ends, strict=True):
        more = (("std",) if std else ()) + (("low", "high") if ends else ())
        heads += [_no_formula(column.name), *(f"{_no_formula(column.name)} {word}" for word in more)]
    writer.writerow(heads)
    for row in table.rows:
        cells = zip(row, table.columns, with_std, with_ends, strict=True)
        writer.writerow(value for each in cells for value in _csv_values(*each))
    return out.getvalue()


def _csv_values(cell: Cell, column: Column, with_std: bool, with_ends: bool) -> Iterator[str]:
    def number(value: float | None) -> str:
        return "" if value is None else f"{100 * value:.4f}" if column.percent else f"{value:g}"

    yield number(cell.value) if column.number else _no_formula(cell.text)
    if with_std:
        yield number(cell.std)
    if with_ends:
        yield from map(number, cell.ends or (None, None))


def _no_formula(text: str) -> str:
    """A name that a spreadsheet would evaluate as a formula gets a leading quote."""
    return f"'{text}" if text.startswith(_FORMULA) else text


def as_latex(table: Table) -> str:
    """A `tabular` for the package booktabs; the best of a column is bold. Notes are a paragraph below it."""
    sides = "".join("r" if column.number else "l" for column in table.columns)
    heading = [_latex(column.name) for column in table.columns]
    rows = ([_latex(c.text, c.best) for c in row] for row in table.rows)
    top, *lines = (f"{' & '.join(cells)} \\\\" for cells in (heading, *rows))
    begin, end = (f"\\begin{{tabular}}{{{sides}}}", r"\toprule"), (r"\bottomrule", r"\end{tabular}")
    notes = (f"\n{_latex(note)}" for note in table.notes)
    return "\n".join((*begin, top, r"\midrule", *lines, *end, *notes, ""))


def _latex(text: str, bold: bool = False) -> str:
    escaped = "".join(_LATEX.get(letter, letter) for letter in " ".join(text.split()))
    return f"\\textbf{{{escaped}}}" if bold else escaped


def as_markdown(table: Table) -> str:
    heading = [_markdown(column.name) for column in table.columns]
    sides = ["---:" if column.number else "---" for column in table.columns]
    rows = ([f"**{_markdown(c.text)}**" if c.best else _markdown(c.text) for c in row] for row in table.rows)
    lines = (f"| {' | '.join(line)} |\n" for line in (heading, sides, *rows))
    return "".join((*lines, *(f"\n{_markdown(note)}\n" for note in table.notes)))


def _markdown(text: str) -> str:
    return re.sub(r"([\\`*_\[\]<>|#&~])", r"\\\1", " ".join(text.split()))


def data_table(data: DataInfo) -> Table:
    """The sites, their numbers of training and test images if known, and the origin of these images."""
    columns = (Column("site", number=False), Column("train"), Column("test"), Column("note", number=False))
    rows = (
        (Cell(site.name), count_cell(site.train), count_cell(site.test), Cell(site.note)) for site in data.sites
    )
    return Table(columns, tuple(rows))


def count_cell(number: int) -> Cell:
    """A dash for none."""
    return Cell(str(number), number) if number else Cell(NONE)


MAX_ROUNDS_SHOWN = 60  # rounds shown one by one
VALID, MISSED, JOINED, IDLE = "■", "□", "+", "·"
PRESENCE_LEGEND = f"{VALID} valid update, {MISSED} none, {JOINED} enrolled late or again, {IDLE} not sampled"


def presence_tables(groups: Sequence[Group]) -> Iterator[tuple[str, int, Table]]:
    """Label, seed and table of every run in which a site was absent or refused, or enrolled late or again."""
    for run in (run for group in groups for run in group.runs):
        if not any(record.refused or record.unscored or record.joined for record in run.records):
            continue
        hidden = max(0, run.done - MAX_ROUNDS_SHOWN)
        head = f"rounds {hidden + 1} to {run.done}" if hidden else "rounds"
        names = ("site", "valid updates", head, "without an update or a score")
        rounds = [record for record in run.records if record.round >= 0]
        rows = []
        for site in (site.name for site in run.manifest.data.sites):
            sampled = [record for record in rounds if site in record.sampled]
            valid = sum(site not in record.refused for record in sampled)
            marks = "".join(_presence_mark(record, site) for record in rounds[-MAX_ROUNDS_SHOWN:])
            texts = (site, f"{valid} of {len(sampled)}", marks, "; ".join(_reasons(run, site)))
            rows.append(tuple(map(Cell, texts)))
        columns = tuple(Column(name, number=False) for name in names)
        yield run.label, run.seed, Table(columns, tuple(rows), (PRESENCE_LEGEND,))


def _presence_mark(record: RoundRecord, site: str) -> str:
    if site not in record.sampled:
        return IDLE
    if site in record.refused:
        return MISSED
    return JOINED if site in record.joined else VALID


def _reasons(run: Run, site: str) -> Iterator[str]:
    """rounds 3 to 5: it is not connected; round 9 (score): it sent no score"""
    for kind, word in (("refused", ""), ("unscored", " (score)")):
        found = [(r.round, getattr(r, kind)[site]) for r in run.records if site in getattr(r, kind)]
        for (reason, _), same in groupby(enumerate(found), lambda each: (each[1][1], each[1][0] - each[0])):
            numbers = [t for _, (t, _) in same]
            yield f"{_span(numbers[0], numbers[-1])}{word}: {reason}"


def _span(first: int, last: int) -> str:
    if last < 0:
        return "enrolment"
    start = "enrolment" if first < 0 else str(first + 1)
    return f"round {last + 1}" if first == last else f"rounds {start} to {last + 1}"
