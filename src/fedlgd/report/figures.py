"""All figures of a report by name: the page shows them, and `--figures` writes them to files."""

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import TYPE_CHECKING

from fedlgd.core.score import Score
from fedlgd.core.text import BYTES, TIME, plural
from fedlgd.report.cost import clock, cumulative_bytes, cumulative_time
from fedlgd.report.groups import Group, SeedCurve, Stat, curves, site_names
from fedlgd.report.plots import CLASSES, heat_map, line_plot, scatter_plot, svg
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

    return _drawings(
        ("accuracy", "Accuracy by round", line_plot(curves(groups, _accuracy), ACCURACY)),
        ("loss", "Test loss by round", line_plot(curves(groups, mean_loss), LOSS)),
    )


def site_figures(groups: Sequence[Group]) -> Iterator[Section]:
    """Accuracy and loss by round at each of the first sites."""

    def plot(site: str, value: Callable[[Score], float | None], title: str) -> "Figure | None":
        at_site = curves(groups, lambda record: value(record.scores[site]) if site in record.scores else None)
        return line_plot(at_site, title)

    for number, site in enumerate(site_names(groups)[:MAX_SITES_DRAWN]):
        accuracy = plot(site, lambda score: 100 * score.accuracy, ACCURACY)
        loss = plot(site, lambda score: None if math.isnan(score.loss) else score.loss, LOSS)
        stem = f"site{number}-{file_name(site)}"
        both = _drawings(
            (f"{stem}-accuracy", f"Accuracy at {site} by round", accuracy),
            (f"{stem}-loss", f"Test loss at {site} by round", loss),
        )
        yield Section(site, both)


def cost_figures(groups: Sequence[Group]) -> tuple[Drawing, ...]:
    """Accuracy against the bytes and the time that it took."""
    time = clock(groups)
    by_bytes = curves(groups, _accuracy, cumulative_bytes)
    by_time = curves(groups, _accuracy, partial(cumulative_time, by=time))
    bytes_plot = line_plot(by_bytes, ACCURACY, "bytes up and down", BYTES)
    return _drawings(
        ("accuracy-by-bytes", "Accuracy against bytes", bytes_plot),
        ("accuracy-by-time", "Accuracy against time", line_plot(by_time, ACCURACY, time.name, TIME)),
    )


def _drawings(*parts: "tuple[str, str, Figure | None]") -> tuple[Drawing, ...]:
    return tuple(Drawing(name, about, figure) for name, about, figure in parts if figure is not None)


def _accuracy(record: RoundRecord) -> float:
    return 100 * record.accuracy


def similarity_figures(groups: Sequence[Group]) -> tuple[Section, ...]:
    """One for each method with an analysis, from its counted run with the lowest seed; most figures first."""
    found = []
    for number, group in enumerate(groups):
        run = group.counted[0]
        if run.analysis:
            stem = f"sites{number}-{file_name(group.label)}"
            data = run.manifest.data
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
    if distances := line_plot(_distance_curves(analysis), "distance to the anchors"):
        about = "Distance of virtual sets to the anchors by round"
        yield Drawing(f"{stem}-distance", about, distances, DISTANCE)


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
    found = []
    for style, site in enumerate(dict.fromkeys(site for each in analysis.distances for site in each.sites)):
        known = [(each.round + 1, each.sites[site]) for each in analysis.distances if site in each.sites]
        found.append(SeedCurve(site, tuple(t for t, _ in known), tuple(Stat(value) for _, value in known), style))
    return found


def file_name(name: str) -> str:
    """A safe part of a file name for any name of a site or a method."""
    return re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-")[:40].lower()
