"""The figures of a report as SVG text to stand inside a page.

Colours are written as CSS variables with a fallback, so that one figure serves the light and the dark page.
"""

import io
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from math import isfinite
from typing import TYPE_CHECKING, Any

from fedlgd.report.cost import Bar
from fedlgd.report.format import NONE
from fedlgd.report.groups import Curve

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK = "#1d1d20"
FAINT = "#c9c7c2"
SERIES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
DASHES = ("-", "--", ":")

_VARIABLES = {INK: "--ink", FAINT: "--rule"} | {
    colour: f"--series-{number}" for number, colour in enumerate(SERIES, start=1)
}
_WIDTH, _POINTS, _FONT_SIZE = 5.6, 72, 9.5
_LETTER, _LONGEST_LABEL = 0.58, 26
_NO_METADATA = dict.fromkeys(("Date", "Creator", "Format", "Type"))
_STYLE: Any = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.size": _FONT_SIZE,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": FAINT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.5,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "ytick.major.size": 0,
}


def curve_figure(curves: Sequence[Curve], axis: str) -> str:
    """A line per method over the rounds, with a band of one standard deviation and its name at the end.

    Empty when no method has an evaluated round."""
    from matplotlib.ticker import MaxNLocator

    if not any(curve.rounds for curve in curves):
        return ""
    with _style(salt=axis):
        figure, axes = _canvas(3.3, left=["100"], right=[_short(curve.label) for curve in curves], bottom=0.5)
        for number, curve in enumerate(curves):
            _draw_curve(axes, curve, number)
        _name_ends(axes, curves)
        axes.set_title(axis, loc="left", fontsize="medium")
        axes.set_xlabel("round")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        return _svg(figure)


def bar_figure(phases: Mapping[str, Sequence[Bar]], title: str, show: Callable[[float], str]) -> str:
    """A bar per method in every phase, with name and amount at its end; the enrolment is the paler part.

    Empty when no phase cost anything."""
    if not phases:
        return ""
    ends = [_end_of_bar(bar, show) for own in phases.values() for bar in own]
    with _style(salt=title):
        figure, axes = _canvas(0.5 + 0.22 * (len(ends) + len(phases)), left=list(phases), right=ends, bottom=0.1)
        for (place, number, bar), end in zip(_places(phases), ends, strict=True):
            _draw_bar(axes, bar, place, number)
            axes.annotate(end, (bar.total, place), xytext=(4, 0), textcoords="offset points", va="center")
        _name_phases(axes, phases)
        axes.set_title(title, loc="left", fontsize="medium")
        return _svg(figure)


def dodge(heights: Sequence[float], gap: float) -> list[float]:
    """The same heights in the same order, moved apart so that none is nearer than `gap` to the next."""
    order = sorted(range(len(heights)), key=heights.__getitem__)
    placed = list(heights)
    for below, above in pairwise(order):
        placed[above] = max(placed[above], placed[below] + gap)
    drift = sum(placed) / len(placed) - sum(heights) / len(heights) if placed else 0.0
    return [height - drift for height in placed]


def _draw_curve(axes: "Axes", curve: Curve, number: int) -> None:
    colour, dashes = _look(number)
    means = [stat.mean for stat in curve.stats]
    axes.plot(curve.rounds, means, color=colour, linestyle=dashes, linewidth=1.6)
    axes.plot(curve.rounds[-1:], means[-1:], color=colour, marker="o", markersize=3.5)
    if any(stat.std is not None for stat in curve.stats):
        stds = [stat.std or 0.0 for stat in curve.stats]
        low = [mean - std for mean, std in zip(means, stds, strict=True)]
        high = [mean + std for mean, std in zip(means, stds, strict=True)]
        axes.fill_between(curve.rounds, low, high, color=colour, alpha=0.15, linewidth=0)


def _name_ends(axes: "Axes", curves: Sequence[Curve]) -> None:
    """Names to the right of the axes, each joined to the end of its line."""
    ended = [(at, curve) for at, curve in enumerate(curves) if curve.stats and isfinite(curve.stats[-1].mean)]
    low, high = axes.get_ylim()
    edge = axes.get_xlim()[1]
    heights = dodge([curve.stats[-1].mean for _, curve in ended], 0.075 * (high - low))
    for (number, curve), height in zip(ended, heights, strict=True):
        axes.annotate(
            _short(curve.label),
            xy=(curve.rounds[-1], curve.stats[-1].mean),
            xytext=(edge, height),
            va="center",
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                "color": _look(number)[0],
                "linewidth": 0.8,
                "shrinkA": 1,
                "shrinkB": 0,
            },
        )


def _places(phases: Mapping[str, Sequence[Bar]]) -> Iterator[tuple[float, int, Bar]]:
    """Where each bar stands from the top down, with one empty line between phases."""
    place = 0
    for own in phases.values():
        for number, bar in enumerate(own):
            yield place, number, bar
            place += 1
        place += 1


def _draw_bar(axes: "Axes", bar: Bar, place: float, number: int) -> None:
    colour, _ = _look(number)
    axes.barh(place, bar.rounds, height=0.72, color=colour)
    axes.barh(place, bar.enrolment, left=bar.rounds, height=0.72, color=colour, alpha=0.4)


def _name_phases(axes: "Axes", phases: Mapping[str, Sequence[Bar]]) -> None:
    methods = max(map(len, phases.values()))
    axes.set_yticks([at * (methods + 1) + (methods - 1) / 2 for at in range(len(phases))], list(phases))
    axes.set_xticks([])
    axes.invert_yaxis()
    axes.grid(visible=False)
    axes.spines["bottom"].set_visible(False)


def _end_of_bar(bar: Bar, show: Callable[[float], str]) -> str:
    return f"{_short(bar.label)}, {show(bar.total) if bar.total else NONE}"


def _look(number: int) -> tuple[str, str]:
    """Colour and dashes of the method with this number; dashes tell apart what repeats a colour."""
    return SERIES[number % len(SERIES)], DASHES[number // len(SERIES) % len(DASHES)]


def _short(label: str) -> str:
    return label if len(label) <= _LONGEST_LABEL else label[: _LONGEST_LABEL - 1] + "…"


@contextmanager
def _style(salt: str) -> Iterator[None]:
    """The look of all figures. The salt makes the names inside the SVG the same every time."""
    import matplotlib

    with matplotlib.rc_context(_STYLE | {"svg.hashsalt": salt}), warnings.catch_warnings():
        # The reader's browser has the fonts: a name in a script that matplotlib's own font lacks is no problem.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield


def _canvas(height: float, left: Sequence[str], right: Sequence[str], bottom: float) -> "tuple[Figure, Axes]":
    """One pair of axes with a line for a title above and room for these texts on either side."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_WIDTH, height))
    start, end = _room(left), 1 - _room(right)
    return figure, figure.add_axes((start, bottom / height, end - start, 1 - (bottom + 0.3) / height))


def _room(texts: Sequence[str]) -> float:
    """The share of the width that the longest of these texts takes, with a little air."""
    letters = max(map(len, texts), default=0)
    return (_LETTER * letters + 0.8) * _FONT_SIZE / (_WIDTH * _POINTS)


def _svg(figure: "Figure") -> str:
    """Without the numbered group names, which would be the same in every figure of a page."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata=_NO_METADATA)
    written = buffer.getvalue()
    svg = re.sub(r'<g id="[^"]*"', "<g", written[written.index("<svg") :])
    for colour, variable in _VARIABLES.items():
        svg = svg.replace(colour, f"var({variable}, {colour})")
    return svg
