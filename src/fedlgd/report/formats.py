"""Numbers and tables as text: for the page, a spreadsheet, a paper or a README.

Names of sites and methods are escaped in every format.
"""

import csv
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fedlgd.core.text import scaled
from fedlgd.report.groups import Stat

NONE = "–"
FLOPS = {f"{prefix}FLOP": 1000.0**power for power, prefix in enumerate(("", "k", "M", "G", "T", "P", "E"))}
_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "−": "$-$",
    "–": "--",
    "†": r"$\dagger$",
} | {letter: f"\\{letter}" for letter in "&%$#_{}"}
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
    """The text, its number (if any), whether it is the best of its column, and its standard deviation."""

    text: str
    value: float | None = None
    best: bool = False
    std: float | None = None


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
        return Table(tuple(self.columns[at] for at in columns), rows, self.notes)


def percent(share: float) -> str:
    """0.9123 -> "91.2"."""
    return f"{100 * share:.1f}"


def percent_stat(stat: Stat) -> str:
    """A mean with its standard deviation over seeds, in percent."""
    return percent(stat.mean) if stat.std is None else f"{percent(stat.mean)} ± {percent(stat.std)}"


def share_cell(stat: Stat | None) -> Cell:
    return Cell(percent_stat(stat), stat.mean, std=stat.std) if stat else Cell(NONE)


def percentage_points(difference: float) -> str:
    """A signed difference of two shares in percentage points; zero has no sign."""
    written = f"{100 * difference:+.1f}".replace("-", "−")
    return "0.0" if written in {"+0.0", "−0.0"} else written


def operations(value: float) -> str:
    return scaled(value, FLOPS)


def table_formats(table: Table) -> dict[str, str]:
    """The table in each format that the page offers for copying."""
    return {"CSV": as_csv(table), "LaTeX": as_latex(table), "Markdown": as_markdown(table)}


def as_csv(table: Table) -> str:
    """Numbers as numbers, shares in percent; a standard deviation has its own column."""
    with_std = [any(row[at].std is not None for row in table.rows) for at in range(len(table.columns))]
    writer = csv.writer(out := io.StringIO(), lineterminator="\n")
    names = zip((column.name for column in table.columns), with_std, strict=True)
    writer.writerow(_no_formula(each) for name, std in names for each in (name, f"{name} std")[: 1 + std])
    for row in table.rows:
        cells = zip(row, table.columns, with_std, strict=True)
        writer.writerow(value for cell, column, std in cells for value in _csv_values(cell, column, std))
    return out.getvalue()


def _csv_values(cell: Cell, column: Column, with_std: bool) -> Iterator[str]:
    def number(value: float | None) -> str:
        return "" if value is None else f"{100 * value:.4f}" if column.percent else f"{value:g}"

    yield number(cell.value) if column.number else _no_formula(cell.text)
    if with_std:
        yield number(cell.std)


def _no_formula(text: str) -> str:
    """A name that a spreadsheet would evaluate as a formula gets a leading quote."""
    return f"'{text}" if text.startswith(_FORMULA) else text


def as_latex(table: Table) -> str:
    """A `tabular` for the package booktabs; the best of a column is bold. Notes are a paragraph below it."""
    sides = "".join("r" if column.number else "l" for column in table.columns)
    heading = [_latex(column.name) for column in table.columns]
    rows = ([f"\\textbf{{{_latex(c.text)}}}" if c.best else _latex(c.text) for c in row] for row in table.rows)
    top, *lines = (f"{' & '.join(cells)} \\\\" for cells in (heading, *rows))
    begin, end = (f"\\begin{{tabular}}{{{sides}}}", r"\toprule"), (r"\bottomrule", r"\end{tabular}")
    notes = (f"\n{_latex(note)}" for note in table.notes)
    return "\n".join((*begin, top, r"\midrule", *lines, *end, *notes, ""))


def _latex(text: str) -> str:
    return "".join(_LATEX.get(letter, letter) for letter in " ".join(text.split()))


def as_markdown(table: Table) -> str:
    heading = [_markdown(column.name) for column in table.columns]
    sides = ["---:" if column.number else "---" for column in table.columns]
    rows = ([f"**{_markdown(c.text)}**" if c.best else _markdown(c.text) for c in row] for row in table.rows)
    lines = (f"| {' | '.join(line)} |\n" for line in (heading, sides, *rows))
    return "".join((*lines, *(f"\n{_markdown(note)}\n" for note in table.notes)))


def _markdown(text: str) -> str:
    return re.sub(r"([\\`*_\[\]<>|#&~])", r"\\\1", " ".join(text.split()))
