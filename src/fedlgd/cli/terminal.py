"""Text and tables that fit the terminal: tables of results, and the table of a live view. Without torch."""

import math
import os
import shutil
import statistics
import string
import sys
import textwrap
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, zip_longest

import typer
from rich import box
from rich import table as rich_table
from rich.console import Console
from rich.console import Group as Stack
from rich.markup import escape
from rich.segment import Segments
from rich.text import Text

from fedlgd.core.text import number_of_bytes
from fedlgd.report.formats import Cell, Column, Table, as_text, percent
from fedlgd.report.groups import Group
from fedlgd.report.tables import Missing, binary_table, marked
from fedlgd.rundir.records import RoundRecord

UNBOUNDED = 10_000
LEAST_LABEL = 12  # columns for names, of methods or attacks, before the table is wider than the terminal
MAX_SITE_COLUMNS = 8
MAX_TWO_CLASS_ROWS = 24
MAX_ROWS = 12
MAX_NAMED = 5  # lowest sites that are named when not every site has a column
SITES, MEAN = "every site", "mean"
LAYOUTS = (
    ("round", SITES, MEAN, "loss", "sent", "time"),
    ("round", SITES, MEAN, "loss"),
    ("round", MEAN, "lowest", "highest", "loss", "sent", "time"),
    ("round", MEAN, "lowest", "highest", "loss"),
    ("round", MEAN, "lowest"),
)
"""Columns, widest first; the first layout that fits is used. `loss` is the training loss, regularisers included."""


def terminal_width() -> int:
    """The columns of the terminal, or COLUMNS; output to a file or a pipe is not bounded."""
    bounded = sys.stdout.isatty() or "COLUMNS" in os.environ
    return shutil.get_terminal_size().columns if bounded else UNBOUNDED


def folded(text: str, indent: str = "", width: int = 0) -> str:
    """Text in lines that fit the terminal, or `width`; those after the first are indented. Paths and options stay
    whole."""
    columns = width or terminal_width()
    return textwrap.fill(text, columns, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def complain(text: object) -> None:
    """Print an error or a warning: folded in a terminal; elsewhere its lines stay whole, for scripts."""
    message = f"fedlgd: {text}"
    if sys.stderr.isatty():
        width = Console(stderr=True).width
        message = "\n".join(folded(line, "  ", width) for line in message.splitlines())
    typer.echo(message, err=True)


def plain_warnings() -> None:
    """Print warnings without the line of code that they come from."""
    warnings.showwarning = lambda message, *_: complain(message)


def fitted(table: Table, width: int, drop: Sequence[str], turn: bool = False) -> str:
    """The table in at most `width` columns. `drop`: columns to leave out, the least important first; `turn`: then
    exchange rows and columns; at last, long names continue on the next line. Notes are wrapped."""
    for attempt in _attempts(table, drop, turn):
        text = as_text(replace(attempt, notes=()))
        if _width(text) <= width:
            break
    else:
        text = as_text(replace(_narrow(attempt, _width(text) - width), notes=()))
    kept = {column.name for column in attempt.columns} | {row[0].text for row in attempt.rows}
    hidden = [column.name for column in table.columns[1:] if column.name not in kept]
    more = (f"Not shown in {width} columns: {'; '.join(hidden)}.",) if hidden else ()
    return "\n".join((text, *(textwrap.fill(note, width) for note in (*attempt.notes, *more))))


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
    """Long texts in columns of words continue in rows of their own, indented; the longest give way first."""
    words = [at for at, column in enumerate(table.columns) if not column.number]
    widths = [max(len(row[at].text) for row in table.rows) for at in words]
    room, most = sum(widths) - excess, max(widths)
    while most > LEAST_LABEL and sum(min(width, most) for width in widths) > room:
        most -= 1
    rows = [list(_continued(row, words, most)) for row in table.rows]
    return replace(table, rows=tuple(chain(*rows)), line=sum(map(len, rows[: table.line])))


def _continued(row: Sequence[Cell], words: Collection[int], most: int) -> Iterator[tuple[Cell, ...]]:
    texts = [
        textwrap.wrap(cell.text, most, subsequent_indent="  ") if at in words else [cell.text]
        for at, cell in enumerate(row)
    ]
    first, *rest = zip_longest(*texts, fillvalue="")
    yield tuple(replace(cell, text=text) for cell, text in zip(row, first, strict=True))
    yield from (tuple(map(Cell, line)) for line in rest)


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


@dataclass(frozen=True, slots=True)
class Row:
    """One evaluation, with the accuracies of the evaluation before it. Accuracies are by site and `MEAN`."""

    round: int
    accuracy: Mapping[str, float]
    before: Mapping[str, float]
    loss: float
    sent: int
    time: str

    @property
    def sites(self) -> dict[str, float]:
        return {site: value for site, value in self.accuracy.items() if site != MEAN}


class Evaluations:
    """Collects evaluations and renders the latest ones."""

    def __init__(self, console: Console, other_lines: int) -> None:
        self._console, self._other_lines = console, other_lines
        self._signs = ("▲", "▼") if console.encoding.startswith("utf") else ("+", "-")
        self._rows: list[Row] = []
        self._best: dict[str, float] = {}
        self._cached: tuple[object, Segments] | None = None

    @property
    def mean(self) -> str:
        """Mean accuracy of the latest evaluation in percent; empty before the first."""
        return _percent(self._rows[-1].accuracy[MEAN]) if self._rows else ""

    def add(self, record: RoundRecord, sent: int, time: str) -> None:
        """Add a row if the round was evaluated; `sent`: total bytes so far."""
        if not record.scores:
            return
        accuracy = {site: score.accuracy for site, score in record.scores.items()} | {MEAN: record.accuracy}
        before = self._rows[-1].accuracy if self._rows else {}
        for name, value in accuracy.items():
            self._best[name] = max(value, self._best.get(name, 0.0))
        self._rows.append(Row(record.round + 1, accuracy, before, record.training_loss, sent, time))

    def render(self) -> list[Segments]:
        """The table; rendered once per evaluation and terminal size, because frames are drawn more often."""
        if not self._rows:
            return []
        key = (len(self._rows), self._console.size)
        if self._cached is None or self._cached[0] != key:
            self._cached = key, Segments(list(self._console.render(self._draw())))
        return [self._cached[1]]

    def _draw(self) -> Stack:
        """The widest layout that fits, with a legend, and the lowest sites if not every site has a column."""
        rows = self._rows[-max(1, min(MAX_ROWS, self._console.height - self._other_lines)) :]
        unbounded = self._console.options.update_width(10_000)
        for layout in LAYOUTS:
            table = self._table(layout, rows)
            if self._console.measure(table, options=unbounded).maximum <= self._console.width:
                break
        loss = "; loss: with regularisers" if "loss" in layout else ""
        notes = [f"{''.join(self._signs)} since the previous evaluation; bold: best so far{loss}"]
        if SITES not in layout:
            lowest = sorted(rows[-1].sites.items(), key=lambda item: item[1])[:MAX_NAMED]
            notes.append("lowest: " + ", ".join(f"{site} {_percent(value)}" for site, value in lowest))
        return Stack(table, *(Text(note, "dim", no_wrap=True, overflow="ellipsis") for note in notes))

    def _table(self, layout: Sequence[str], rows: Sequence[Row]) -> rich_table.Table:
        table = rich_table.Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True)
        columns: list[tuple[str, Callable[[Row], Text]]] = []
        for name in layout:
            if name in (SITES, MEAN):
                shown = rows[-1].sites if name == SITES else (MEAN,)
                columns += [(site, partial(self._accuracy, site=site)) for site in shown]
            else:
                columns.append((name, CELLS[name]))
        for head, _ in columns:
            table.add_column(Text(head), justify="right", no_wrap=True)
        for row in rows:
            table.add_row(*(cell(row) for _, cell in columns))
        return table

    def _accuracy(self, row: Row, site: str) -> Text:
        """In percent, with a sign for its change; a change that rounding hides has no sign."""
        now, before = row.accuracy.get(site, math.nan), row.before.get(site, math.nan)
        text = Text(_percent(now), "bold" if now == self._best[site] else "")
        if math.isnan(before) or _percent(now) == _percent(before):
            return text.append(" ")
        up, down = self._signs
        return text.append(up, "green") if now > before else text.append(down, "red")


CELLS: dict[str, Callable[[Row], Text]] = {
    "round": lambda row: Text(f"{row.round}", "dim"),
    "lowest": lambda row: Text(_percent(min(row.sites.values()))),
    "highest": lambda row: Text(_percent(max(row.sites.values()))),
    "loss": lambda row: Text("" if math.isnan(row.loss) else f"{row.loss:.3f}"),
    "sent": lambda row: Text(number_of_bytes(row.sent)),
    "time": lambda row: Text(row.time, "dim"),
}


def _percent(share: float) -> str:
    return "" if math.isnan(share) else percent(share)
