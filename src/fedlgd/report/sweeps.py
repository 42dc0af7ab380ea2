"""Sweeps: accuracy over the values of one or two settings, found by the labels of the runs, drawn and tabulated."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

from fedlgd.report.figures import ACCURACY, Drawing, file_name
from fedlgd.report.formats import METHOD, Cell, Column, Table, share_cell
from fedlgd.report.groups import Group, SeedCurve, Stat, summarise
from fedlgd.report.plots import heat_map, line_plot, wrapped
from fedlgd.rundir.sweep import with_note, without_note

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Point = tuple[str, ...]
BUDGET_SETTINGS = ("distil.private.", "dp.")


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


def sweep_tables(sweeps: Sequence[Sweep]) -> Iterator[tuple[str, Table]]:
    """Title and table: methods by values for one axis, then values by values for two."""
    for axis in dict.fromkeys(each.axes[0] for each in sweeps if len(each.axes) == 1):
        same = [each for each in sweeps if each.axes == (axis,)]
        values = sorted({value for each in same for value in each.values(0)}, key=float)
        columns = (METHOD, *(Column(value, percent=True) for value in values))
        rows = ((Cell(wrapped(each.label, 60)), *map(share_cell, map(each.accuracy, values))) for each in same)
        yield f"Accuracy (%) by {axis}", Table(columns, tuple(rows))
    for each in (each for each in sweeps if len(each.axes) == 2):
        down, right = each.axes
        corner = Column(f"{down} ↓ {right} →", number=False)
        columns = (corner, *(Column(value, percent=True) for value in each.values(1)))
        rows = ((Cell(a), *(share_cell(each.accuracy(a, b)) for b in each.values(1))) for a in each.values(0))
        yield f"{each.label}: accuracy (%) by {down} (rows) and {right}", Table(columns, tuple(rows))


def sweep_figures(sweeps: Sequence[Sweep]) -> Iterator[Drawing]:
    """One figure with a line per method for each axis, and a heat map for each method with two axes."""
    for axis in dict.fromkeys(each.axes[0] for each in sweeps if len(each.axes) == 1):
        same = [each for each in sweeps if each.axes == (axis,)]
        values = sorted({value for each in same for value in each.values(0)}, key=float)
        curves = [_curve(each, values, style) for style, each in enumerate(same)]
        if figure := line_plot(curves, ACCURACY, axis, values):
            yield Drawing(f"sweep-{file_name(axis)}", f"Accuracy by {axis}", figure)
    for number, each in enumerate(each for each in sweeps if len(each.axes) == 2):
        about = f"Accuracy of {each.label} by {each.axes[0]} and {each.axes[1]}"
        yield Drawing(f"sweep{number}-{file_name(' '.join(each.axes))}", about, _heat_map(each))


def _curve(sweep: Sweep, values: Sequence[str], style: int) -> SeedCurve:
    """Accuracy over the values of one axis, at equal distances."""
    known = [(values.index(value), stat) for value in sweep.values(0) if (stat := sweep.accuracy(value))]
    shares = [Stat(100 * stat.mean, None if stat.std is None else 100 * stat.std) for _, stat in known]
    return SeedCurve(sweep.label, tuple(at for at, _ in known), tuple(shares), style)


def _heat_map(sweep: Sweep) -> "Figure":
    """A square for each pair of values, darker for higher accuracy."""
    rows, columns = sweep.values(0), sweep.values(1)
    pairs = product(enumerate(rows), enumerate(columns))
    found = {(y, x): 100 * stat.mean for (y, a), (x, b) in pairs if (stat := sweep.accuracy(a, b))}
    low, high = min(found.values()), max(found.values())
    cells = {
        at: (1 / 6 + 5 / 6 * (value - low) / (high - low) if high > low else 0.5, f"{value:.1f}")
        for at, value in found.items()
    }
    return heat_map(cells, rows, columns, f"{sweep.label}: {ACCURACY}", (sweep.axes[0], sweep.axes[1]))


def epsilon_figure(groups: Sequence[Group]) -> Drawing | None:
    """Accuracy against 1 / epsilon, a line for runs that differ in it; None unless some have several values."""
    alike: dict[str, list[Group]] = {}
    for group in groups:
        base, note = without_note(group.label)
        kept = {path: value for path, value in note.items() if not path.startswith(BUDGET_SETTINGS)}
        alike.setdefault(with_note(base, kept), []).append(group)
    curves = [_by_epsilon(label, same) for label, same in alike.items()]
    if not any(len(curve.x) > 1 for curve in curves):
        return None
    figure = line_plot(curves, ACCURACY, "1 / epsilon; 0: no noise", {"": 1.0})
    return Drawing("accuracy-by-epsilon", "Accuracy against the privacy budget", figure) if figure else None


def _by_epsilon(label: str, groups: Sequence[Group]) -> SeedCurve:
    """Mean accuracy at the epsilon that each run promises to single images; without a promise at 0."""
    found: dict[float, list[float]] = {}
    for run in (run for group in groups for run in group.counted):
        promised = run.manifest.promise
        inverse = 1 / promised.epsilon if promised and promised.protects == "image" else 0.0
        if run.final:
            found.setdefault(inverse, []).append(100 * run.final.accuracy)
    stats = (summarise(found[inverse]) for inverse in sorted(found))
    return SeedCurve(label, tuple(sorted(found)), tuple(stat for stat in stats if stat), groups[0].style)
