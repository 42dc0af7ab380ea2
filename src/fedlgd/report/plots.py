"""The four kinds of plots in a report: lines, bars, matrix and scatter. Series are labelled directly."""

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from math import isfinite
from typing import TYPE_CHECKING

from fedlgd.report.cost import Bar
from fedlgd.report.formats import NONE
from fedlgd.report.groups import Curve
from fedlgd.report.run import Cloud
from fedlgd.report.style import INK, SERIES, WIDTH, canvas, series_style, shorten, styled, text_width

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SITE_NAME = 12  # letters
_LARGEST_WITH_NUMBERS = 8  # larger matrices show colours only
_MARKERS = {"real": ("o", 7, 0.45, 0.0), "virtual": ("D", 20, 0.95, 0.0), "anchors": ("x", 22, 0.9, 1.0)}


@styled()
def line_plot(
    curves: Sequence[Curve], title: str, along: str = "round", show: Callable[[float], str] | None = None
) -> "Figure | None":
    """A line per curve, with a band of one standard deviation and its label at its end. None without a point.

    `along` is the label of the x-axis, `show` formats its ticks (default: integers)."""
    if not any(curve.x for curve in curves):
        return None
    figure, axes = canvas(title, 3.3, left=["0.000"], right=[shorten(curve.label) for curve in curves], bottom=0.5)
    for number, curve in enumerate(curves):
        _draw_line(axes, curve, number)
    _label_lines(axes, curves)
    axes.set_xlabel(along)
    _format_ticks(axes, show)
    return figure


def _draw_line(axes: "Axes", curve: Curve, number: int) -> None:
    colour, dashes = series_style(number)
    means = [stat.mean for stat in curve.stats]
    axes.plot(curve.x, means, color=colour, linestyle=dashes, linewidth=1.6)
    axes.plot(curve.x[-1:], means[-1:], color=colour, marker="o", markersize=3.5)
    if any(stat.std is not None for stat in curve.stats):
        low = [stat.mean - (stat.std or 0.0) for stat in curve.stats]
        high = [stat.mean + (stat.std or 0.0) for stat in curve.stats]
        axes.fill_between(curve.x, low, high, color=colour, alpha=0.15, linewidth=0)


def _label_lines(axes: "Axes", curves: Sequence[Curve]) -> None:
    """Labels to the right of the axes, each connected to the end of its line."""
    ended = [(at, curve) for at, curve in enumerate(curves) if curve.stats and isfinite(curve.stats[-1].mean)]
    low, high = axes.get_ylim()
    edge = axes.get_xlim()[1]
    heights = dodge([curve.stats[-1].mean for _, curve in ended], 0.075 * (high - low))
    connector = {"arrowstyle": "-", "linestyle": ":", "linewidth": 0.8, "shrinkA": 1, "shrinkB": 0}
    for (number, curve), height in zip(ended, heights, strict=True):
        axes.annotate(
            shorten(curve.label),
            xy=(curve.x[-1], curve.stats[-1].mean),
            xytext=(edge, height),
            va="center",
            annotation_clip=False,
            arrowprops=connector | {"color": series_style(number)[0]},
        )


def dodge(heights: Sequence[float], gap: float) -> list[float]:
    """The same heights in the same order, moved apart so that neighbours differ by at least `gap`."""
    order = sorted(range(len(heights)), key=heights.__getitem__)
    placed = list(heights)
    for below, above in pairwise(order):
        placed[above] = max(placed[above], placed[below] + gap)
    drift = sum(placed) / len(placed) - sum(heights) / len(heights) if placed else 0.0
    return [height - drift for height in placed]


def _format_ticks(axes: "Axes", show: Callable[[float], str] | None) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=show is None, nbins=6 if show is None else 4))
    if show:
        axes.set_xlim(left=0)
        whole = re.compile(r"\.0+(?= )")  # ticks are round numbers: "2.00 MB" is "2 MB"
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: whole.sub("", show(value))))


@styled()
def bar_plot(phases: Mapping[str, Sequence[Bar]], title: str, show: Callable[[float], str]) -> "Figure | None":
    """A bar per method in every phase; the fainter part is the enrolment. None without a phase."""
    if not phases:
        return None
    methods = max(map(len, phases.values()))
    all_bars = [bar for bars in phases.values() for bar in bars]
    labels = [f"{shorten(bar.label)}, {show(bar.total) if bar.total else NONE}" for bar in all_bars]
    figure, axes = canvas(title, 0.5 + 0.22 * (len(labels) + len(phases)), left=[*phases], right=labels)
    for at, bars in enumerate(phases.values()):
        for number, bar in enumerate(bars):
            place, label = at * (methods + 1) + number, labels[at * methods + number]
            _draw_bar(axes, bar, place, series_style(number)[0], label)
    axes.set_yticks([at * (methods + 1) + (methods - 1) / 2 for at in range(len(phases))], list(phases))
    axes.set_xticks([])
    axes.invert_yaxis()
    axes.grid(visible=False)
    axes.spines["bottom"].set_visible(False)
    return figure


def _draw_bar(axes: "Axes", bar: Bar, place: int, colour: str, label: str) -> None:
    axes.barh(place, bar.rounds, height=0.72, color=colour)
    axes.barh(place, bar.enrolment, left=bar.rounds, height=0.72, color=colour, alpha=0.4)
    axes.annotate(label, (bar.total, place), xytext=(4, 0), textcoords="offset points", va="center")


@styled()
def matrix_plot(rows: Sequence[Sequence[float]], names: Sequence[str], title: str, top: float) -> "Figure":
    """A square for each pair, darker for larger values; `top` is the value of the darkest."""
    labels = [shorten(name, _SITE_NAME) for name in names]
    side = WIDTH * (1 - text_width(labels) - 0.05)
    figure, axes = canvas(title, min(side, 0.55 * len(rows)) + 0.75, left=labels, right=[""], top_ticks=True)
    for y, row in enumerate(rows):
        for x, value in enumerate(row):
            _draw_square(axes, x, y, value, top, number=len(rows) <= _LARGEST_WITH_NUMBERS and x != y)
    _label_matrix(axes, labels)
    return figure


def _draw_square(axes: "Axes", x: int, y: int, value: float, top: float, *, number: bool) -> None:
    from matplotlib.patches import Rectangle

    strength = 0.6 * max(0.0, value) / top if top > 0 else 0.0
    axes.add_patch(Rectangle((x - 0.48, y - 0.48), 0.96, 0.96, color=SERIES[0], alpha=strength, linewidth=0))
    if number:
        axes.annotate(f"{value:.2f}".replace("-", "−"), (x, y), ha="center", va="center", fontsize="small")


def _label_matrix(axes: "Axes", labels: Sequence[str]) -> None:
    places = range(len(labels))
    axes.set_xlim(-0.5, len(labels) - 0.5)
    axes.set_ylim(len(labels) - 0.5, -0.5)
    axes.xaxis.tick_top()
    crowded = max(map(len, labels)) * len(labels) > 48
    axes.set_xticks(places, ["" for _ in labels] if crowded else labels)
    axes.set_yticks(places, labels)
    axes.tick_params(length=0)
    _set_frame(axes, visible=False)


@styled()
def scatter_plot(clouds: Sequence[Cloud], title: str) -> "Figure | None":
    """Real images are dots, virtual ones diamonds, anchors crosses; each site has a colour. None without points."""
    if not any(cloud.points for cloud in clouds):
        return None
    sites = list(dict.fromkeys(cloud.site for cloud in clouds if cloud.kind != "anchors"))
    names = [shorten(site, _SITE_NAME) for site in sites]
    figure, axes = canvas(title, 4.0, left=[""], right=[name + "  " for name in names])
    for cloud in clouds:
        marker, size, alpha, edge = _MARKERS[cloud.kind]
        colour = INK if cloud.kind == "anchors" else series_style(sites.index(cloud.site))[0]
        x, y = zip(*cloud.points, strict=True)
        axes.scatter(x, y, s=size, marker=marker, color=colour, alpha=alpha, linewidth=edge)
    _list_names(axes, names)
    axes.set_xticks([])
    axes.set_yticks([])
    _set_frame(axes, visible=True)
    return figure


def _list_names(axes: "Axes", names: Sequence[str]) -> None:
    """A legend to the right of the axes, each name in its colour."""
    step = min(0.07, 1 / max(1, len(names)))
    for number, name in enumerate(names):
        place, colour = (1.02, 0.97 - number * step), series_style(number)[0]
        axes.annotate(name, place, xycoords="axes fraction", va="center", weight="bold", color=colour)


def _set_frame(axes: "Axes", *, visible: bool) -> None:
    axes.grid(visible=False)
    for spine in axes.spines.values():
        spine.set_visible(visible)
