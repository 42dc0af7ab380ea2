"""The table of a live view: one row per evaluation, with as many columns as fit the terminal."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from rich import box
from rich.console import Console, Group
from rich.segment import Segments
from rich.table import Table
from rich.text import Text

from fedlgd.core.records import RoundRecord
from fedlgd.report.formats import number_of_bytes
from fedlgd.runs.track import training_loss

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
        self._rows.append(Row(record.round + 1, accuracy, before, training_loss(record), sent, time))

    def render(self) -> list[Segments]:
        """The table; rendered once per evaluation and terminal size, because frames are drawn more often."""
        if not self._rows:
            return []
        key = (len(self._rows), self._console.size)
        if self._cached is None or self._cached[0] != key:
            self._cached = key, Segments(list(self._console.render(self._draw())))
        return [self._cached[1]]

    def _draw(self) -> Group:
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
        return Group(table, *(Text(note, "dim", no_wrap=True, overflow="ellipsis") for note in notes))

    def _table(self, layout: Sequence[str], rows: Sequence[Row]) -> Table:
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True)
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
    return "" if math.isnan(share) else f"{100 * share:.1f}"
