"""Text and tables that fit the terminal: tables of results, and the table of a live view. Without torch."""

import json
import math
import os
import shutil
import sys
import textwrap
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, Literal

import typer
from rich import box
from rich import table as rich_table
from rich.console import Console
from rich.console import Group as Stack
from rich.segment import Segments
from rich.text import Text

from fedlgd.core.text import number_of_bytes, plural, tied
from fedlgd.report.accuracy import LEAD, accuracy_table
from fedlgd.report.classes import binary_table
from fedlgd.report.groups import Group
from fedlgd.report.tables import Cell, Column, Table, percent
from fedlgd.rundir.intervals import USUAL_ACCURACY, detectable_gap
from fedlgd.rundir.records import RoundRecord

UNBOUNDED = 10_000
MAX_SITE_COLUMNS = 8
MAX_TWO_CLASS_ROWS = 24
MAX_ROWS = 12
MAX_NAMED = 5  # lowest sites that are named when not every site has a column
FINAL_ACCURACY = "Accuracy (%) on the test images of each site after the last round"
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


def print_json(result: Any) -> None:
    typer.echo(json.dumps(result))


def plain_warnings() -> None:
    """Print warnings without the line of code that they come from."""
    warnings.showwarning = lambda message, *_: complain(message)


def show_table(
    heads: Sequence[str],
    rows: Iterable[Sequence[str]],
    title: str = "",
    numbers: Sequence[str] | None = None,
    notes: Sequence[str] = (),
    line: int = 0,
) -> None:
    """Print a table below its title. All columns but the first are of numbers, unless these are named."""
    right = heads[1:] if numbers is None else numbers
    cells = tuple(tuple(map(Cell, row)) for row in rows)
    table = Table(tuple(Column(head, number=head in right) for head in heads), cells, tuple(notes), line)
    typer.echo("\n".join((*map(folded, title.splitlines()), table_text(table))))


def table_text(table: Table) -> str:
    """The table in lines that fit the terminal: what is too long continues on the next line. Notes are below it.

    In a table that is too wide, columns of numbers are as narrow as their longest word, and names have the rest.
    """
    console = Console(width=terminal_width(), color_system=None)
    shown = _rich(table)
    if console.measure(shown, options=console.options.update_width(UNBOUNDED)).maximum > console.width:
        shown = _rich(table, narrow=any(column.number for column in table.columns))
    with console.capture() as captured:
        console.print(shown)
    lines = [line.rstrip() for line in captured.get().splitlines()]
    return "\n".join((*lines, *map(folded, table.notes)))


def _rich(table: Table, narrow: bool = False) -> rich_table.Table:
    made = rich_table.Table(box=box.HORIZONTALS, show_edge=False, pad_edge=False, padding=(0, 0 if narrow else 1))
    made.collapse_padding = True
    rows = [[f"{cell.text}*" if cell.best else cell.text for cell in row] for row in table.rows]
    if narrow:
        rows = [[text.replace(" ± ", " ±") for text in row] for row in rows]
    for at, column in enumerate(table.columns):
        words = [word for text in (column.name, *(row[at] for row in rows)) for word in tied(text).split(" ")]
        width = max(map(len, words)) if narrow and column.number else None
        side: Literal["left", "right"] = "right" if column.number else "left"
        made.add_column(Text(column.name), justify=side, overflow="fold", width=width)
    for at, row in enumerate(rows, 1):
        made.add_row(*map(Text, row), end_section=at == table.line)
    return made


def two_classes(groups: Sequence[Group]) -> str:
    """Sensitivity, specificity and AUC at each site for data with two classes; many rows are in the report only.

    Without what stands above it: the name of the only method, or the accuracy of several.
    """
    table = binary_table(groups)
    if table is None or len(table.rows) > MAX_TWO_CLASS_ROWS:
        return ""
    known = "method" if len(groups) == 1 else "accuracy"
    kept = [at for at, column in enumerate(table.columns) if column.name != known]
    rows = [row if row[0] != before[0] else (Cell(""), *row[1:]) for before, row in pairwise(table.rows)]
    return table_text(replace(table, rows=(table.rows[0], *rows)).pick(kept))


def print_accuracy(groups: Sequence[Group], title: str = FINAL_ACCURACY) -> None:
    """Accuracy by site and method with the unweighted mean, what two classes need beyond it, and its limits."""
    table = accuracy_table(groups)
    columns = [*zip(*table.rows, strict=True)]
    heads = ("site", *(cell.text for cell in columns[0]))
    texts = [
        (column.name, *(cell.text for cell in cells))
        for column, cells in zip(table.columns[len(LEAD) : -1], columns[len(LEAD) : -1], strict=True)
    ]
    show_table(heads, texts, title, notes=table.notes, line=len(texts) - 1)
    if two := two_classes(groups):
        typer.echo(f"\n{two}")


def show_power(tested: Mapping[str, int]) -> None:
    """Which difference between two models the test images of each site can show, the smallest sites first."""
    shown = sorted(tested.items(), key=lambda item: item[1])[:MAX_ROWS]
    gaps = {site: detectable_gap(count) for site, count in shown}
    rows = [(site, str(count), f"{100 * gaps[site]:.0f}" if gaps[site] < 1 else "none") for site, count in shown]
    more = len(tested) - len(rows)
    notes = [f"{plural(more, 'site')} with as many test images or more: --json"] if more else []
    assumed = f"both near {100 * USUAL_ACCURACY:.0f} % accuracy, found with a probability of 80 %"
    title = f"\nThe smallest difference between two models that test images show ({assumed}):"
    if rows:
        show_table(("site", "test images", "points"), rows, title, notes=notes)


@dataclass(frozen=True, slots=True)
class Row:
    """One evaluation, with the accuracies of the evaluation before it. Accuracies are by site and `MEAN`."""

    round: int
    accuracy: Mapping[str, float]
    before: Mapping[str, float]
    loss: float
    sent: int
    time: str
    limits: str = ""

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
        """Mean accuracy of the latest evaluation with its limits; empty before the first."""
        if not self._rows:
            return ""
        last = self._rows[-1]
        return f"mean {_percent(last.accuracy[MEAN])} %" + (f" ({last.limits})" if last.limits else "")

    def add(self, record: RoundRecord, sent: int, time: str) -> None:
        """Add a row if the round was evaluated; `sent`: total bytes so far."""
        if not record.scores:
            return
        accuracy = {site: score.accuracy for site, score in record.scores.items()} | {MEAN: record.accuracy}
        before = self._rows[-1].accuracy if self._rows else {}
        for name, value in accuracy.items():
            self._best[name] = max(value, self._best.get(name, 0.0))
        limits = record.limits_of_mean
        self._rows.append(Row(record.round + 1, accuracy, before, record.training_loss, sent, time, limits))

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
        notes += [f"* mean of round {row.round}: {row.limits}" for row in rows[-1:] if row.limits]
        if SITES not in layout:
            lowest = sorted(rows[-1].sites.items(), key=lambda item: item[1])[:MAX_NAMED]
            notes.append("lowest: " + ", ".join(f"{site} {_percent(value)}" for site, value in lowest))
        return Stack(table, *(Text(note, "dim", no_wrap=True, overflow="ellipsis") for note in notes))

    def _table(self, layout: Sequence[str], rows: Sequence[Row]) -> rich_table.Table:
        table = rich_table.Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True)
        columns: list[tuple[str, Callable[[Row], Text]]] = []
        for name in layout:
            if name in (SITES, MEAN):
                shown = dict.fromkeys(site for row in rows for site in row.sites) if name == SITES else (MEAN,)
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
        mark = "*" if site == MEAN and row.limits else ""
        text = Text(_percent(now) + mark, "bold" if now == self._best[site] else "")
        if math.isnan(now) or math.isnan(before) or _percent(now) == _percent(before):
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
