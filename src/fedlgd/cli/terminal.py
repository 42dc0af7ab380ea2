"""Tables in the terminal: they fit by leaving out columns, or by exchanging rows and columns. Without torch."""

import os
import shutil
import statistics
import string
import sys
import textwrap
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from rich import table as rich_table
from rich.console import Console
from rich.markup import escape

from fedlgd.report.formats import Cell, Column, Table, as_text
from fedlgd.report.groups import Group
from fedlgd.report.tables import Missing, binary_table, marked

UNBOUNDED = 10_000
LEAST_LABEL = 12  # columns for the name of a method before the table is wider than the terminal
MAX_SITE_COLUMNS = 8
MAX_TWO_CLASS_ROWS = 24


def terminal_width() -> int:
    """The columns of the terminal, or COLUMNS; output to a file or a pipe is not bounded."""
    bounded = sys.stdout.isatty() or "COLUMNS" in os.environ
    return shutil.get_terminal_size().columns if bounded else UNBOUNDED


def folded(text: str, indent: str = "") -> str:
    """Text in lines that fit the terminal; those after the first are indented."""
    return textwrap.fill(text, terminal_width(), subsequent_indent=indent)


def fitted(table: Table, width: int, drop: Sequence[str], turn: bool = False) -> str:
    """The table in at most `width` columns. `drop`: columns to leave out, the least important first; `turn`: then
    exchange rows and columns; at last, names of methods continue on the next line. Notes are wrapped."""
    for attempt in _attempts(table, drop, turn):
        text = as_text(replace(attempt, notes=()))
        if _width(text) <= width:
            break
    else:
        text = as_text(replace(_narrow(attempt, _width(text) - width), notes=()))
    return "\n".join((text, *(textwrap.fill(note, width) for note in attempt.notes)))


def _attempts(table: Table, drop: Sequence[str], turn: bool) -> Iterator[Table]:
    yield table
    for count in range(1, len(drop) + 1):
        yield without(table, drop[:count])
    if turn:
        yield turned(without(table, drop))
        yield turned(without(table, drop), letters=True)


def without(table: Table, names: Collection[str]) -> Table:
    """The table without the columns of these names."""
    kept = [i for i, column in enumerate(table.columns) if column.name not in names]
    rows = tuple(tuple(row[i] for i in kept) for row in table.rows)
    return replace(table, columns=tuple(table.columns[i] for i in kept), rows=rows)


def turned(table: Table, letters: bool = False) -> Table:
    """One row per column and one column per row, under the first cell of a row or a letter for it."""
    names = [row[0].text for row in table.rows]
    heads = list(string.ascii_uppercase[: len(names)]) if letters and len(names) <= 26 else names
    notes = tuple(f"{head}: {name}" for head, name in zip(heads, names, strict=True) if head != name)
    columns = list(zip(*table.rows, strict=True))[1:]
    rows = ((Cell(head.name), *cells) for head, cells in zip(table.columns[1:], columns, strict=True))
    return Table((Column("", number=False), *map(Column, heads)), tuple(rows), (*notes, *table.notes))


def _narrow(table: Table, excess: int) -> Table:
    """Labels in the first column continue in rows of their own, indented."""
    longest = max(len(row[0].text) for row in table.rows)
    rows = []
    for row in table.rows:
        first, *rest = textwrap.wrap(row[0].text, max(LEAST_LABEL, longest - excess), subsequent_indent="  ")
        rows.append((replace(row[0], text=first), *row[1:]))
        rows += [(Cell(line), *(Cell("") for _ in row[1:])) for line in rest]
    return replace(table, rows=tuple(rows))


def _width(text: str) -> int:
    return max(map(len, text.splitlines()))


def two_classes(groups: Sequence[Group]) -> str:
    """Balanced accuracy and AUC at each site for data with two classes; many rows are in the report only.

    Long names of methods have a line of their own.
    """
    table = binary_table(groups)
    if table is None or len(table.rows) > MAX_TWO_CLASS_ROWS:
        return ""
    text = fitted(replace(table, notes=()), terminal_width(), ("95 % interval", "test images"))
    labels = [row[0].text for row in table.rows]
    if len(text.splitlines()) == 1 + len(labels):
        return text
    rows = without(replace(table, notes=()), ("method",))
    head, *lines = fitted(rows, terminal_width(), ("95 % interval", "test images")).splitlines()
    for at in (at for at in reversed(range(len(labels))) if labels[at] not in labels[:at]):
        lines.insert(at, f"{labels[at]}:")
    return "\n".join((head, *lines))


def print_accuracy(accuracies: Mapping[str, Mapping[str, float]], missing: Missing | None = None) -> None:
    """Final accuracy by method and site, with the unweighted mean; many sites are rows instead of columns."""
    sites = list(next(iter(accuracies.values())))
    rows = [["method", *(marked(site, missing or {}) for site in sites), "mean"]]
    for name, accuracy in accuracies.items():
        values = [accuracy[site] for site in sites]
        rows.append([name, *(f"{100 * v:.1f}" for v in (*values, statistics.fmean(values)))])
    console = Console()
    table, turned = _as_table(rows), [["site", *rows[0][1:]], *rows[1:]]
    width = console.measure(table, options=console.options.update_width(UNBOUNDED)).maximum
    if len(sites) > MAX_SITE_COLUMNS or width > console.width:
        table = _as_table([list(column) for column in zip(*turned, strict=True)])
    console.print("Accuracy (%) on the test images of each site after the last round", table, sep="\n")


def _as_table(rows: Sequence[Sequence[str]]) -> rich_table.Table:
    table = rich_table.Table()
    for i, column in enumerate(rows[0]):
        table.add_column(escape(column), justify="right" if i else "left")
    for row in rows[1:]:
        table.add_row(*map(escape, row))
    return table
