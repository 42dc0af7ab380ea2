"""Tables that fit the terminal: columns are left out by importance, or rows and columns are exchanged."""

import os
import shutil
import string
import sys
import textwrap
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from fedlgd.report.formats import Cell, Column, Table, as_text

UNBOUNDED = 10_000
LEAST_LABEL = 12  # columns for the name of a method before the table is wider than the terminal


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
