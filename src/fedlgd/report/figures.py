"""All figures of a report, by name: the page shows them, and `--figures` writes them to files."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fedlgd.report.bars import bar_figure
from fedlgd.report.cost import bars, bytes_until, seconds_until
from fedlgd.report.format import duration, number_of_bytes, operations
from fedlgd.report.groups import Curve, Group, Stat, curves, site_names
from fedlgd.report.lines import curve_figure
from fedlgd.report.maps import map_figure, matrix_figure
from fedlgd.report.run import Analysis, Round
from fedlgd.report.style import save, svg

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SITES = 24  # more sites than this are not drawn one by one
MMD = "Squared maximum mean discrepancy, five Gaussian kernels, unbiased: about 0 where two sites are alike."
MAP = (
    "Dots are real images, diamonds virtual ones, crosses anchors. Neighbours have similar features; "
    "how far apart groups lie means little."
)
DISTANCE = (
    "Of each virtual set: squared distance of the class means of unit features, mean over classes, under the model "
    "of that round. Taken when virtual sets or anchors moved; round −1 is the enrolment."
)


@dataclass(frozen=True, slots=True, eq=False)
class Drawing:
    """A figure, its file name, and what someone who does not see it is told."""

    name: str
    about: str
    figure: "Figure"
    note: str = ""

    @property
    def svg(self) -> str:
        return svg(self.figure, self.name)


@dataclass(frozen=True, slots=True, eq=False)
class AtSite:
    """The curves of one site."""

    site: str
    drawings: tuple[Drawing, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Likeness:
    """How alike the sites are under the model of one method, by so many images of each."""

    label: str
    seed: int
    images: int
    drawings: tuple[Drawing, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Figures:
    """What there is to draw; an empty part had no data. `hidden`: sites that are not drawn by themselves."""

    rounds: tuple[Drawing, ...]
    sites: tuple[AtSite, ...]
    phases: tuple[Drawing, ...]
    worth: tuple[Drawing, ...]
    likeness: tuple[Likeness, ...]
    hidden: int = 0

    @property
    def all(self) -> Iterator[Drawing]:
        yield from self.rounds
        for at in self.sites:
            yield from at.drawings
        yield from (*self.worth, *self.phases)
        for each in self.likeness:
            yield from each.drawings


def draw(groups: Sequence[Group]) -> Figures:
    accuracy = "accuracy, %"
    return Figures(
        rounds=_drawn(
            ("accuracy", "Accuracy by round", curve_figure(curves(groups, _accuracy), accuracy)),
            ("loss", "Test loss by round", curve_figure(curves(groups, lambda each: each.loss), "test loss")),
        ),
        sites=tuple(_at_site(groups, number, site) for number, site in enumerate(site_names(groups)[:SITES])),
        phases=_drawn(
            ("time", "Time by phase", bar_figure(bars(groups, "seconds"), "time", duration)),
            ("operations", "FLOPs by phase", bar_figure(bars(groups, "flops"), "operations", operations)),
        ),
        worth=_drawn(
            (
                "accuracy-by-bytes",
                "Accuracy against bytes",
                curve_figure(
                    curves(groups, _accuracy, bytes_until), accuracy, "bytes up and down", number_of_bytes
                ),
            ),
            (
                "accuracy-by-time",
                "Accuracy against time",
                curve_figure(curves(groups, _accuracy, seconds_until), accuracy, "time of work", duration),
            ),
        ),
        likeness=tuple(_likenesses(groups)),
        hidden=max(0, len(site_names(groups)) - SITES),
    )


def save_all(groups: Sequence[Group], folder: Path) -> list[Path]:
    """Every figure as PDF and PNG."""
    folder.mkdir(parents=True, exist_ok=True)
    return [file for each in draw(groups).all for file in save(each.figure, folder / each.name)]


def _accuracy(record: Round) -> float:
    return 100 * record.accuracy


def _drawn(*parts: "tuple[str, str, Figure | None]", note: str = "") -> tuple[Drawing, ...]:
    return tuple(Drawing(name, about, figure, note) for name, about, figure in parts if figure is not None)


def _at_site(groups: Sequence[Group], number: int, site: str) -> AtSite:
    stem = f"site{number}-{_harmless(site)}"

    def own(quantity: Callable[[Round], float | None], title: str) -> "Figure | None":
        return curve_figure(curves(groups, quantity), title)

    return AtSite(
        site,
        _drawn(
            (f"{stem}-accuracy", f"Accuracy at {site} by round", own(_accuracy_at(site), "accuracy, %")),
            (f"{stem}-loss", f"Test loss at {site} by round", own(_loss_at(site), "test loss")),
        ),
    )


def _accuracy_at(site: str) -> Callable[[Round], float | None]:
    return lambda record: 100 * record.scores[site].accuracy if site in record.scores else None


def _loss_at(site: str) -> Callable[[Round], float | None]:
    return lambda record: record.scores[site].loss if site in record.scores else None


def _likenesses(groups: Sequence[Group]) -> list[Likeness]:
    """One for each method with an analysis, from its counted run with the lowest seed; most to see first."""
    found = []
    for number, group in enumerate(groups):
        run = group.counted[0]
        if run.analysis and (drawings := tuple(_alike(run.analysis, f"sites{number}-{_harmless(group.label)}"))):
            found.append(Likeness(group.label, run.seed, run.analysis.images, drawings))
    return sorted(found, key=lambda each: -len(each.drawings))


def _alike(analysis: Analysis, stem: str) -> Iterator[Drawing]:
    top = max((value for rows in analysis.mmd.values() for row in rows for value in row), default=0.0)
    for kind, rows in analysis.mmd.items():
        title = f"MMD between sites, {kind} images"
        figure = matrix_figure(rows, analysis.sites, title, top)
        yield Drawing(f"{stem}-mmd-{kind}", title, figure, f"{MMD} {analysis.images} images of each site.")
    yield from _drawn((f"{stem}-map", "Map of features", map_figure(analysis.map, "features, t-SNE")), note=MAP)
    curve = curve_figure(_distance_curves(analysis), "distance to the anchors")
    yield from _drawn(
        (f"{stem}-distance", "Distance of virtual sets to the anchors by round", curve), note=DISTANCE
    )


def _distance_curves(analysis: Analysis) -> list[Curve]:
    sites = dict.fromkeys(site for each in analysis.distances for site in each.sites)
    return [_distance_curve(analysis, site) for site in sites]


def _distance_curve(analysis: Analysis, site: str) -> Curve:
    known = [(each.round, each.sites[site]) for each in analysis.distances if site in each.sites]
    return Curve(site, tuple(t for t, _ in known), tuple(Stat(value) for _, value in known))


def _harmless(name: str) -> str:
    """A part of a file name, whatever a site or a method is called."""
    return re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-")[:40].lower()
