"""All figures of a report by name: the page shows them, and `--figures` writes them to files.

A sweep is accuracy over the values of one or two settings, found by the labels of the runs.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from statistics import fmean
from typing import TYPE_CHECKING, Any

from fedlgd.core.score import Score
from fedlgd.core.text import BYTES, TIME, plural
from fedlgd.report.cost import clock, cumulative_bytes, cumulative_time
from fedlgd.report.groups import Group, SeedCurve, Stat, curves, site_names, summarise
from fedlgd.report.plots import CLASSES, heat_map, line_plot, scatter_plot, svg, wrapped
from fedlgd.report.tables import METHOD, Cell, Column, Table, share_cell
from fedlgd.rundir.manifest import with_note, without_note
from fedlgd.rundir.records import RoundRecord
from fedlgd.rundir.results import Analysis, Cloud

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_SITES_DRAWN = 24  # only the first sites have figures of their own
ACCURACY, LOSS = "accuracy, %", "test loss"
MMD = "Squared maximum mean discrepancy, five Gaussian kernels, unbiased estimate: close to 0 for similar sites."
MAP = (
    "Dots are real images, diamonds virtual images, crosses anchors. Neighbouring points have similar features; "
    "distances between clusters are not meaningful."
)
DISTANCE = (
    "Squared distance between the class means of unit features of each virtual set and of the anchors, averaged "
    "over classes, under the model of that round. Measured when virtual sets or anchors change; 0 is the setup."
)


@dataclass(frozen=True, slots=True, eq=False)
class Drawing:
    """A figure with its file name, its alternative text, and a caption."""

    name: str
    about: str
    figure: "Figure"
    note: str = ""

    @property
    def svg(self) -> str:
        return svg(self.figure, self.name)


@dataclass(frozen=True, slots=True, eq=False)
class Section:
    """Figures under a heading."""

    heading: str
    drawings: tuple[Drawing, ...]


def round_figures(groups: Sequence[Group]) -> tuple[Drawing, ...]:
    """Mean accuracy and loss over the sites, by round."""

    def mean_loss(record: RoundRecord) -> float:
        losses = [score.loss for score in record.scores.values()]
        return fmean(losses) if all(map(math.isfinite, losses)) else math.nan

    accuracy = _lines("accuracy", "Accuracy by round", curves(groups, _accuracy), ACCURACY)
    return (*accuracy, *_lines("loss", "Test loss by round", curves(groups, mean_loss), LOSS))


def site_figures(groups: Sequence[Group]) -> Iterator[Section]:
    """Accuracy and loss by round at each of the first sites."""

    def at(site: str, value: Callable[[Score], float | None]) -> Sequence[SeedCurve]:
        return curves(groups, lambda record: value(record.scores[site]) if site in record.scores else None)

    for number, site in enumerate(site_names(groups)[:MAX_SITES_DRAWN]):
        stem, accuracy = f"site{number}-{file_name(site)}", at(site, lambda score: 100 * score.accuracy)
        loss = at(site, lambda score: None if math.isnan(score.loss) else score.loss)
        first = _lines(f"{stem}-accuracy", f"Accuracy at {site} by round", accuracy, ACCURACY)
        yield Section(site, (*first, *_lines(f"{stem}-loss", f"Test loss at {site} by round", loss, LOSS)))


def cost_figures(groups: Sequence[Group]) -> tuple[Drawing, ...]:
    """Accuracy against the bytes and the time that it took."""
    time = clock(groups)
    sent = curves(groups, _accuracy, cumulative_bytes)
    spent = curves(groups, _accuracy, partial(cumulative_time, by=time))
    return (
        *_lines("accuracy-by-bytes", "Accuracy against bytes", sent, ACCURACY, "bytes up and down", BYTES),
        *_lines("accuracy-by-time", "Accuracy against time", spent, ACCURACY, time.name, TIME),
    )


def _lines(name: str, about: str, curves: Sequence[SeedCurve], *axes: Any, note: str = "") -> Iterator[Drawing]:
    """The plot of these curves, if one has a point."""
    if figure := line_plot(curves, *axes):
        yield Drawing(name, about, figure, note)


def _accuracy(record: RoundRecord) -> float:
    return 100 * record.accuracy


def similarity_figures(groups: Sequence[Group]) -> tuple[Section, ...]:
    """One for each method with an analysis, from its counted run with the lowest seed; most figures first."""
    found = []
    for number, group in enumerate(groups):
        run = group.counted[0]
        if run.analysis:
            stem, data = f"sites{number}-{file_name(group.label)}", run.manifest.data
            analysis = run.analysis.ordered([site.name for site in data.sites])
            drawings = _analysis_figures(analysis, stem, data.classes)
            found.append(Section(f"{group.label}, seed {run.seed}", tuple(drawings)))
    return tuple(sorted((each for each in found if each.drawings), key=lambda each: -len(each.drawings)))


def _analysis_figures(analysis: Analysis, stem: str, classes: Sequence[str]) -> Iterator[Drawing]:
    top = max((value for rows in analysis.mmd.values() for row in rows for value in row), default=0.0)
    for kind, rows in analysis.mmd.items():
        title, note = f"MMD between sites, {kind} images", f"{MMD} {plural(analysis.images, 'image')} of each site."
        cells = {
            (y, x): (max(0.0, value) / top if top > 0 else 0.0, "" if x == y else f"{value:.2f}".replace("-", "−"))
            for y, row in enumerate(rows)
            for x, value in enumerate(row)
        }
        yield Drawing(f"{stem}-mmd-{kind}", title, heat_map(cells, analysis.sites, analysis.sites, title), note)
    if features := scatter_plot(analysis.map, "features, t-SNE"):
        yield Drawing(f"{stem}-map", "Map of features", features, MAP)
    if by_class := scatter_plot(_by_class(analysis.map, classes), "features by class, t-SNE", CLASSES):
        yield Drawing(f"{stem}-map-classes", "Map of features by class", by_class, MAP)
    about = "Distance of virtual sets to the anchors by round"
    yield from _lines(
        f"{stem}-distance", about, _distance_curves(analysis), "distance to the anchors", note=DISTANCE
    )


def _by_class(clouds: Sequence[Cloud], classes: Sequence[str]) -> list[Cloud]:
    """The same points, by class in place of site; none if classes were not recorded for every point."""
    if any(len(cloud.labels) != len(cloud.points) or max(cloud.labels) >= len(classes) for cloud in clouds):
        return []
    found: dict[tuple[int, str], list[tuple[float, float]]] = {}
    for cloud in clouds:
        for label, point in zip(cloud.labels, cloud.points, strict=True):
            found.setdefault((label, cloud.kind), []).append(point)
    return [Cloud(kind, classes[label], tuple(found[label, kind])) for label, kind in sorted(found)]  # type: ignore[arg-type]


def _distance_curves(analysis: Analysis) -> list[SeedCurve]:
    found: dict[str, list[tuple[float, Stat]]] = {}
    for each in analysis.distances:
        for site, value in each.sites.items():
            found.setdefault(site, []).append((each.round + 1, Stat(value)))
    return [SeedCurve.of(site, points, style) for style, (site, points) in enumerate(found.items())]


def file_name(name: str) -> str:
    """A safe part of a file name for any name of a site or a method."""
    return re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-")[:40].lower()


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
    return re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", text, re.IGNORECASE) is not None


def find_sweeps(groups: Sequence[Group]) -> tuple[Sweep, ...]:
    """Groups whose labels differ in the values of the same settings: one axis of numbers, or any two axes."""
    alike: dict[tuple[str, Point], dict[Point, Group]] = {}
    for group in groups:
        base, note = without_note(group.label)
        base, *_ = base.split(" without ")  # what a value of the sweep switches off is no other method
        if note and group.accuracy:
            alike.setdefault((base, tuple(note)), {})[tuple(note.values())] = group
    found = (_varied(label, paths, members) for (label, paths), members in alike.items())

    def shown(sweep: Sweep) -> bool:
        return len(sweep.axes) == 2 or (len(sweep.axes) == 1 and all(map(is_number, sweep.values(0))))

    return tuple(filter(shown, found))


def _varied(label: str, paths: Point, members: Mapping[Point, Group]) -> Sweep:
    """Without settings that have one value, which become a part of the name, or the values of an earlier one."""
    columns = [tuple(point[at] for point in members) for at in range(len(paths))]
    varied = [at for at, own in enumerate(columns) if len(set(own)) > 1 and own not in columns[:at]]
    fixed = [f"{path}={own[0]}" for path, own in zip(paths, columns, strict=True) if len(set(own)) == 1]
    name = f"{label} ({', '.join(fixed)})" if fixed else label
    by_point = {tuple(point[at] for at in varied): group for point, group in members.items()}
    return Sweep(name, tuple(paths[at] for at in varied), by_point)


def _single_axes(sweeps: Sequence[Sweep]) -> Iterator[tuple[str, list[Sweep], list[str]]]:
    """Each setting that is the only axis of sweeps, these sweeps, and all their values."""
    for axis in dict.fromkeys(each.axes[0] for each in sweeps if len(each.axes) == 1):
        same = [each for each in sweeps if each.axes == (axis,)]
        yield axis, same, sorted({value for each in same for value in each.values(0)}, key=float)


def sweep_tables(sweeps: Sequence[Sweep]) -> Iterator[tuple[str, Table]]:
    """Title and table: methods by values for one axis, then values by values for two."""
    for axis, same, values in _single_axes(sweeps):
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
    for axis, same, values in _single_axes(sweeps):
        curves = [_curve(each, values, style) for style, each in enumerate(same)]
        yield from _lines(f"sweep-{file_name(axis)}", f"Accuracy by {axis}", curves, ACCURACY, axis, values)
    for number, each in enumerate(each for each in sweeps if len(each.axes) == 2):
        about = f"Accuracy of {each.label} by {each.axes[0]} and {each.axes[1]}"
        yield Drawing(f"sweep{number}-{file_name(' '.join(each.axes))}", about, _heat_map(each))


def _curve(sweep: Sweep, values: Sequence[str], style: int) -> SeedCurve:
    """Accuracy over the values of one axis, at equal distances."""
    known = [(values.index(value), stat) for value in sweep.values(0) if (stat := sweep.accuracy(value))]
    shares = ((at, Stat(100 * stat.mean, None if stat.std is None else 100 * stat.std)) for at, stat in known)
    return SeedCurve.of(sweep.label, shares, style)


def _heat_map(sweep: Sweep) -> "Figure":
    """A square for each pair of values, darker for higher accuracy."""
    rows, columns = sweep.values(0), sweep.values(1)
    pairs = product(enumerate(rows), enumerate(columns))
    found = {(y, x): 100 * stat.mean for (y, a), (x, b) in pairs if (stat := sweep.accuracy(a, b))}
    low, high = min(found.values()), max(found.values())

    def share(value: float) -> float:
        return 1 / 6 + 5 / 6 * (value - low) / (high - low) if high > low else 0.5

    cells = {at: (share(value), f"{value:.1f}") for at, value in found.items()}
    return heat_map(cells, rows, columns, f"{sweep.label}: {ACCURACY}", (sweep.axes[0], sweep.axes[1]))


def epsilon_figures(groups: Sequence[Group]) -> Iterator[Drawing]:
    """Accuracy against 1 / epsilon, a line for runs that differ in it; nothing unless some have several values."""
    alike: dict[str, list[Group]] = {}
    for group in groups:
        base, note = without_note(group.label)
        kept = {path: value for path, value in note.items() if not path.startswith(BUDGET_SETTINGS)}
        alike.setdefault(with_note(base, kept), []).append(group)
    curves = [_by_epsilon(label, same) for label, same in alike.items()]
    if any(len(curve.x) > 1 for curve in curves):
        about, axis = "Accuracy against the privacy budget", "1 / epsilon; 0: no noise"
        yield from _lines("accuracy-by-epsilon", about, curves, ACCURACY, axis, {"": 1.0})


def _by_epsilon(label: str, groups: Sequence[Group]) -> SeedCurve:
    """Mean accuracy at the epsilon that each run promises to single images; without a promise at 0."""
    found: dict[float, list[float]] = {}
    for run in (run for group in groups for run in group.counted):
        promised = run.manifest.promise
        inverse = 1 / promised.epsilon if promised and promised.protects == "image" else 0.0
        if run.final:
            found.setdefault(inverse, []).append(100 * run.final.accuracy)
    return SeedCurve.of(label, ((x, summarise(found[x])) for x in sorted(found)), groups[0].style)
