"""Lines with their names at their ends."""

import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from math import isfinite
from typing import TYPE_CHECKING

from fedlgd.report.groups import Curve
from fedlgd.report.style import canvas, look, short, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def curve_figure(
    curves: Sequence[Curve], title: str, along: str = "round", show: Callable[[float], str] | None = None
) -> "Figure | None":
    """A line per curve with a band of one standard deviation and its name at the end.

    `along` says what runs along the axis, `show` how it is written (whole numbers if left out).
    Nothing when no curve has a point."""
    if not any(curve.x for curve in curves):
        return None
    with styled():
        figure, axes = canvas(3.3, left=["0.000"], right=[short(curve.label) for curve in curves], bottom=0.5)
        for number, curve in enumerate(curves):
            _draw_curve(axes, curve, number)
        _name_ends(axes, curves)
        axes.set_title(title, loc="left", fontsize="medium")
        axes.set_xlabel(along)
        _mark_axis(axes, show)
        return figure


def _mark_axis(axes: "Axes", show: Callable[[float], str] | None) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=show is None, nbins=6 if show is None else 4))
    if show:
        axes.set_xlim(left=0)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _round_number(show(value))))


def _round_number(text: str) -> str:
    """An axis is marked at round numbers: "2.00 MB" is "2 MB" there."""
    return re.sub(r"\.0+(?= )", "", text)


def dodge(heights: Sequence[float], gap: float) -> list[float]:
    """The same heights in the same order, moved apart so that none is nearer than `gap` to the next."""
    order = sorted(range(len(heights)), key=heights.__getitem__)
    placed = list(heights)
    for below, above in pairwise(order):
        placed[above] = max(placed[above], placed[below] + gap)
    drift = sum(placed) / len(placed) - sum(heights) / len(heights) if placed else 0.0
    return [height - drift for height in placed]


def _draw_curve(axes: "Axes", curve: Curve, number: int) -> None:
    colour, dashes = look(number)
    means = [stat.mean for stat in curve.stats]
    axes.plot(curve.x, means, color=colour, linestyle=dashes, linewidth=1.6)
    axes.plot(curve.x[-1:], means[-1:], color=colour, marker="o", markersize=3.5)
    if any(stat.std is not None for stat in curve.stats):
        stds = [stat.std or 0.0 for stat in curve.stats]
        low = [mean - std for mean, std in zip(means, stds, strict=True)]
        high = [mean + std for mean, std in zip(means, stds, strict=True)]
        axes.fill_between(curve.x, low, high, color=colour, alpha=0.15, linewidth=0)


def _name_ends(axes: "Axes", curves: Sequence[Curve]) -> None:
    """Names to the right of the axes, each joined to the end of its line by dots."""
    ended = [(at, curve) for at, curve in enumerate(curves) if curve.stats and isfinite(curve.stats[-1].mean)]
    low, high = axes.get_ylim()
    edge = axes.get_xlim()[1]
    heights = dodge([curve.stats[-1].mean for _, curve in ended], 0.075 * (high - low))
    for (number, curve), height in zip(ended, heights, strict=True):
        axes.annotate(
            short(curve.label),
            xy=(curve.x[-1], curve.stats[-1].mean),
            xytext=(edge, height),
            va="center",
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                "color": look(number)[0],
                "linestyle": ":",
                "linewidth": 0.8,
                "shrinkA": 1,
                "shrinkB": 0,
            },
        )
