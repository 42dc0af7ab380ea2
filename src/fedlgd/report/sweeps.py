"""Sweeps: accuracy over the values of one or two settings, found by the labels of the runs, drawn and tabulated."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedlgd.report.formats import METHOD, Cell, Column, Table, share_cell
from fedlgd.report.groups import Group, Stat
from fedlgd.report.plots import SERIES, canvas, series_style, styled, wrapped
from fedlgd.rundir.sweep import without_note

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Point = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Sweep:
    """The runs of one method over the settings `axes`, by their values."""

    label: str
    axes: tuple[str, ...]
    groups: Mapping[Point, Group]

    def values(self, axis: int) -> tuple[str, ...]:
        """In ascending order if all are numbers, else in the order of the runs."""
        found = dict.fromkeys(point[axis] for point in self.groups)
        return tuple(sorted(found, key=float) if all(map(is_number, found)) else found)

    def accuracy(self, *point: str) -> Stat | None:
        return self.groups[point].accuracy if point in self.groups else None


def is_number(text: str) -> bool:
    return text.replace(".", "", 1).replace("-", "").replace("e", "", 1).isdecimal()


def find_sweeps(groups: Sequence[Group]) -> tuple[Sweep, ...]:
    """Groups whose labels differ in the values of the same settings: one axis of numbers, or any two axes."""
    alike: dict[tuple[str, Point], dict[Point, Group]] = {}
    for group in groups:
        base, note = without_note(group.label)
        if note and group.accuracy:
            alike.setdefault((base, tuple(note)), {})[tuple(note.values())] = group
    found = (_varied(label, paths, members) for (label, paths), members in alike.items())
    return tuple(
        each
        for each in found
        if len(each.axes) == 2 or (len(each.axes) == 1 and all(map(is_number, each.values(0))))
    )


def _varied(label: str, paths: Point, members: Mapping[Point, Group]) -> Sweep:
    """Without settings that have one value, which become a part of the name, or the values of an earlier one."""
    columns = [tuple(point[at] for point in members) for at in range(len(paths))]
    varied = [at for at, own in enumerate(columns) if len(set(own)) > 1 and own not in columns[:at]]
    fixed = [f"{path}={own[0]}" for path, own in zip(paths, columns, strict=True) if len(set(own)) == 1]
    name = f"{label} ({', '.join(fixed)})" if fixed else label
    by_point = {tuple(point[at] for at in varied): group for point, group in members.items()}
    return Sweep(name, tuple(paths[at] for at in varied), by_point)


def sweep_tables(sweeps: Sequence[Sweep]) -> tuple[tuple[str, Table], ...]:
    """Methods by values for one axis; values by values for two."""
    lines: dict[str, list[Sweep]] = {}
    for each in sweeps:
        if len(each.axes) == 1:
            lines.setdefault(each.axes[0], []).append(each)
    flat = ((f"Accuracy (%) by {axis}", _line_table(same)) for axis, same in lines.items())
    square = (
        (f"{each.label}: accuracy (%) by {each.axes[0]} (rows) and {each.axes[1]}", _square_table(each))
        for each in sweeps
        if len(each.axes) == 2
    )
    return (*flat, *square)


def _line_table(sweeps: Sequence[Sweep]) -> Table:
    values = sorted({value for each in sweeps for value in each.values(0)}, key=float)
    columns = (METHOD, *(Column(value, percent=True) for value in values))
    rows = (
        (Cell(wrapped(each.label, 60)), *(share_cell(each.accuracy(value)) for value in values)) for each in sweeps
    )
    return Table(columns, tuple(rows))


def _square_table(sweep: Sweep) -> Table:
    corner = Column(f"{sweep.axes[0]} ↓ {sweep.axes[1]} →", number=False)
    columns = (corner, *(Column(value, percent=True) for value in sweep.values(1)))
    rows = ((Cell(a), *(share_cell(sweep.accuracy(a, b)) for b in sweep.values(1))) for a in sweep.values(0))
    return Table(columns, tuple(rows))


@styled()
def line_figure(sweeps: Sequence[Sweep], title: str) -> "Figure":
    """A line per method over the values of one axis, at equal distances, with a band of one standard deviation."""
    labels = [wrapped(each.label) for each in sweeps]
    values = sorted({value for each in sweeps for value in each.values(0)}, key=float)
    figure, axes = canvas(title, 3.3, left=["0.000"], right=labels, bottom=0.5)
    line = 0
    for number, each in enumerate(sweeps):
        known = [(values.index(v), stat) for v in each.values(0) if (stat := each.accuracy(v))]
        x, mean = [at for at, _ in known], [100 * stat.mean for _, stat in known]
        std, colour = [100 * (stat.std or 0.0) for _, stat in known], series_style(number)[0]
        axes.plot(x, mean, color=colour, marker="o", markersize=3.5, linewidth=1.6)
        low, high = ([m + way * s for m, s in zip(mean, std, strict=True)] for way in (-1, 1))
        axes.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
        place = (1.02, 1 - 0.07 * line)
        axes.annotate(labels[number], place, xycoords="axes fraction", va="top", color=colour)
        line += labels[number].count("\n") + 1
    axes.set_xticks(range(len(values)), values)
    axes.set_xlabel(sweeps[0].axes[0])
    return figure


@styled()
def heat_map(sweep: Sweep) -> "Figure":
    """A square for each pair of values, darker for higher accuracy."""
    from matplotlib.patches import Rectangle

    rows, columns = sweep.values(0), sweep.values(1)
    found = {(a, b): 100 * stat.mean for a in rows for b in columns if (stat := sweep.accuracy(a, b))}
    low, high = min(found.values()), max(found.values())
    figure, axes = canvas(
        f"{sweep.label}: accuracy, %",
        0.55 * len(rows) + 1.1,
        left=[f"000{row}" for row in rows],
        right=[""],
        bottom=0.6,
    )
    for (a, b), value in found.items():
        x, y = columns.index(b), rows.index(a)
        strength = 0.1 + 0.5 * (value - low) / (high - low) if high > low else 0.3
        axes.add_patch(Rectangle((x - 0.48, y - 0.48), 0.96, 0.96, color=SERIES[0], alpha=strength, linewidth=0))
        axes.annotate(f"{value:.1f}", (x, y), ha="center", va="center", fontsize="small")
    axes.set_xlim(-0.5, len(columns) - 0.5)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xticks(range(len(columns)), columns)
    axes.set_yticks(range(len(rows)), rows)
    axes.set_xlabel(sweep.axes[1])
    axes.set_ylabel(sweep.axes[0])
    axes.grid(visible=False)
    return figure
