"""A table that grows while a run goes: accuracy per site, loss, bytes, time, and bars for what takes long."""

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.segment import Segments
from rich.table import Table
from rich.text import Text

from fedlgd.cli.pace import Pace, clock_time, time_left
from fedlgd.core.types import RoundRecord
from fedlgd.report.formats import number_of_bytes
from fedlgd.runs.track import training_loss

ROWS = 12  # evaluations on the screen at most
INNER = 4  # bars of steps inside a round at most: workers have one each
AROUND = 5 + INNER  # other lines that must fit
REFRESH = 4  # frames a second
BAR = 24
LOWEST = 5  # sites named where there is no room for all
SITES = "every site"
LAYOUTS = (
    ("round", SITES, "mean", "loss", "sent", "time"),
    ("round", SITES, "mean", "loss"),
    ("round", "mean", "lowest", "highest", "loss", "sent", "time"),
    ("round", "mean", "lowest", "highest", "loss"),
    ("round", "mean", "lowest"),
)
"""Columns, by falling width; the first layout that fits is taken. `loss` is the training loss."""


@dataclass(frozen=True, slots=True)
class Row:
    """One evaluation: accuracy by site, the one before it, and the run so far. No seconds: an earlier session."""

    round: int
    accuracy: Mapping[str, float]
    before: Mapping[str, float]
    loss: float
    sent: int
    seconds: float | None


class LiveTable:
    """Hears records and ticks. `lasting` leaves the table on the screen; else one line stays."""

    def __init__(
        self,
        rounds: int,
        title: str = "",
        earlier: Iterable[RoundRecord] = (),
        lasting: bool = True,
        console: Console | None = None,
    ) -> None:
        self._rounds, self._title, self._lasting = rounds, title, lasting
        self._console = console or Console(stderr=True)
        self._signs = ("▲", "▼") if self._console.encoding.startswith("utf") else ("+", "-")
        self._began = time.monotonic()
        self._pace = Pace()
        self._inner: dict[str, tuple[Pace, int]] = {}
        self._rows: list[Row] = []
        self._best: dict[str, float] = {}
        self._done = self._sent = 0
        self._ended = False
        self._kept: tuple[object, Segments] | None = None
        for record in earlier:
            self._add(record, None)
        self._live = Live(
            get_renderable=self.draw, console=self._console, refresh_per_second=REFRESH, transient=not lasting
        )
        self._live.start()

    def tick(self, label: str, done: int, total: int) -> None:
        pace, _ = self._inner.setdefault(label, (Pace(), total))
        pace.heard(done)
        if done == total:
            del self._inner[label]

    def round(self, record: RoundRecord) -> None:
        self._add(record, self._elapsed)
        if record.round >= 0:
            self._pace.heard(self._done)

    def close(self) -> None:
        self._ended = True
        self._live.stop()
        if not self._lasting:
            self._console.print(self._summary())

    def draw(self) -> RenderableType:
        """The whole picture at this moment."""
        title = [_line(self._title, "bold")] if self._title else []
        table = [self._kept_evaluations()] if self._rows else []
        return Group(*title, *table, self._summary() if self._ended else self._bars())

    @property
    def _elapsed(self) -> float:
        return time.monotonic() - self._began

    def _add(self, record: RoundRecord, seconds: float | None) -> None:
        self._done = record.round + 1
        self._sent += record.bytes_up + record.bytes_down
        if not record.scores:
            return
        accuracy = {site: score.accuracy for site, score in record.scores.items()}
        before = self._rows[-1].accuracy if self._rows else {}
        for name, value in (*accuracy.items(), ("", _mean(accuracy))):
            self._best[name] = max(value, self._best.get(name, 0.0))
        self._rows.append(Row(self._done, accuracy, before, training_loss(record), self._sent, seconds))

    def _kept_evaluations(self) -> Segments:
        """Rendered once for each evaluation and terminal size: frames come more often and cost time."""
        key = (len(self._rows), self._console.size)
        if self._kept is None or self._kept[0] != key:
            self._kept = key, Segments(list(self._console.render(Group(*self._evaluations()))))
        return self._kept[1]

    def _evaluations(self) -> list[RenderableType]:
        """The widest layout that fits, how to read it, and who is lowest where not all are shown."""
        rows = self._rows[-max(1, min(ROWS, self._console.height - AROUND)) :]
        unbounded = self._console.options.update_width(10_000)
        for layout in LAYOUTS:
            table = self._table(layout, rows)
            if self._console.measure(table, options=unbounded).maximum <= self._console.width:
                break
        up, down = self._signs
        notes = [f"{up}{down} since the evaluation before; bold: best so far"]
        notes += [] if SITES in layout else [_lowest(rows[-1])]
        return [table, *(_line(note, "dim") for note in notes)]

    def _table(self, layout: Sequence[str], rows: Sequence[Row]) -> Table:
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True)
        cells: list[Callable[[Row], Text]] = []
        for name in layout:
            columns = self._site_cells(rows[-1]) if name == SITES else {name: self._cells[name]}
            for head, cell in columns.items():
                table.add_column(Text(head), justify="right", no_wrap=True)
                cells.append(cell)
        for row in rows:
            table.add_row(*(cell(row) for cell in cells))
        return table

    def _site_cells(self, row: Row) -> dict[str, Callable[[Row], Text]]:
        return {site: partial(self._site_cell, site=site) for site in row.accuracy}

    @property
    def _cells(self) -> dict[str, Callable[[Row], Text]]:
        return {
            "round": lambda row: Text(f"{row.round}", "dim"),
            "mean": self._mean_cell,
            "lowest": lambda row: Text(_percent(min(row.accuracy.values()))),
            "highest": lambda row: Text(_percent(max(row.accuracy.values()))),
            "loss": lambda row: Text("" if math.isnan(row.loss) else f"{row.loss:.3f}"),
            "sent": lambda row: Text(number_of_bytes(row.sent)),
            "time": lambda row: Text("before" if row.seconds is None else clock_time(row.seconds), "dim"),
        }

    def _site_cell(self, row: Row, site: str) -> Text:
        return self._accuracy(row.accuracy.get(site, math.nan), row.before.get(site, math.nan), self._best[site])

    def _mean_cell(self, row: Row) -> Text:
        return self._accuracy(_mean(row.accuracy), _mean(row.before), self._best[""])

    def _accuracy(self, now: float, before: float, best: float) -> Text:
        """In percent, with the way it went: a change that the rounded number does not show is none."""
        text = Text(_percent(now), "bold" if now == best else "")
        if math.isnan(before) or _percent(now) == _percent(before):
            return text.append(" ")
        up, down = self._signs
        return text.append(up, "green") if now > before else text.append(down, "red")

    def _bars(self) -> Table:
        """The rounds, and inside a round whatever takes long, each with its time left."""
        lines = Table.grid(padding=(0, 1))
        clock = f"{clock_time(self._elapsed)} elapsed"
        left = self._pace.left(self._rounds) if self._done < self._rounds else None
        lines.add_row(*self._bar("round", self._done, self._rounds, clock, left))
        for label, (pace, total) in list(self._inner.items())[:INNER]:
            lines.add_row(*self._bar(label, pace.done, total, "", pace.left(total)))
        return lines

    def _bar(self, label: str, done: int, total: int, clock: str, left: float | None) -> list[RenderableType]:
        """In a narrow terminal the numbers stay and the bar goes."""
        width = min(BAR, self._console.width - 50)
        bar = [ProgressBar(total=total, completed=done, width=width)] if width > 5 else []
        times = [clock] if clock else []
        times += [] if left is None else [time_left(left)]
        return [_line(f"{label} {done}/{total}"), *bar, _line(", ".join(times), "dim")]

    def _summary(self) -> Text:
        """What stays at the end, in one line."""
        parts = [f"round {self._done}/{self._rounds}"]
        if self._rows:
            parts.append(f"mean {_percent(_mean(self._rows[-1].accuracy))} %")
        return _line(", ".join([*parts, f"{number_of_bytes(self._sent)} sent", clock_time(self._elapsed)]))


def _mean(accuracy: Mapping[str, float]) -> float:
    return sum(accuracy.values()) / len(accuracy) if accuracy else math.nan


def _percent(share: float) -> str:
    return "" if math.isnan(share) else f"{100 * share:.1f}"


def _lowest(row: Row) -> str:
    worst = sorted(row.accuracy, key=row.accuracy.__getitem__)[:LOWEST]
    return "lowest: " + ", ".join(f"{site} {_percent(row.accuracy[site])}" for site in worst)


def _line(text: str, style: str = "") -> Text:
    return Text(text, style, no_wrap=True, overflow="ellipsis")
