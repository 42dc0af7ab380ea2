"""The three kinds of plots in a report (lines, matrix, scatter), their style, and how they are saved.

In a page a figure is SVG and its colours are CSS variables; files are PDF and PNG. Series are labelled directly.
The colours are Okabe and Ito's, distinct for all kinds of colour vision.
"""

import io
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from math import isfinite
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from fedlgd.report.groups import SeedCurve
from fedlgd.rundir.results import Cloud

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK = "#1d1d20"
FAINT = "#c9c7c2"
SERIES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
CLASSES = (*SERIES, "#999999", "#882255", "#332288", "#ddcc77")
DASHES = ("-", "--", ":")
FORMATS = ("pdf", "png")

_VARIABLES = {INK: "--ink", FAINT: "--rule"} | {
    colour: f"--series-{number}" for number, colour in enumerate(SERIES, start=1)
}
WIDTH = 5.6
_POINTS, _FONT_SIZE = 72, 9.5
FEW = 8  # points of a line; below, each is marked
_LETTER, _LINE = 0.66, 0.19  # the width of a letter in em, the height of a line in inches
_NO_METADATA = {
    "svg": dict.fromkeys(("Date", "Creator", "Format", "Type")),
    "pdf": dict.fromkeys(("CreationDate", "Creator", "Producer")),
    "png": {"Software": None},
}
_STYLE: Any = {
    "svg.fonttype": "none",
    "pdf.fonttype": 42,
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
ROUNDS = {"": 1.0}
_SITE_NAME = 16  # letters
_LARGEST_WITH_NUMBERS = 8  # larger matrices show colours only
_MARKERS = {"real": ("o", 7, 0.45, 0.0), "virtual": ("D", 20, 0.95, 0.0), "anchors": ("x", 22, 0.9, 1.0)}


def series_style(number: int) -> tuple[str, str]:
    """Colour and line style of the series with this number; the line style changes when the colours repeat."""
    return SERIES[number % len(SERIES)], DASHES[number // len(SERIES) % len(DASHES)]


def wrapped(label: str, letters: int = 22) -> str:
    """The label in lines of at most this many letters; more than three lines are cut."""
    lines = wrap(label, letters)
    return "\n".join(lines if len(lines) <= 3 else (*lines[:2], lines[2][: letters - 1] + "…"))


@contextmanager
def styled() -> Iterator[None]:
    """A context, or decorator, in which figures are drawn and saved in the style of this module."""
    import matplotlib

    with matplotlib.rc_context(_STYLE), warnings.catch_warnings():
        # The browser has fonts for the scripts that matplotlib's own font lacks.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield


def canvas(
    title: str, height: float, left: list[str], right: list[str], bottom: float = 0.1, top_ticks: bool = False
) -> "tuple[Figure, Axes]":
    """A figure with one pair of axes, a title above, and room for these texts on either side."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, height))
    top, pad = (0.65, 10) if top_ticks else (0.3, 6)
    start, end = text_width(left), 1 - text_width(right)
    axes = figure.add_axes((start, bottom / height, end - start, 1 - (bottom + top) / height))
    axes.set_title(title, loc="left", fontsize="medium", pad=pad)
    return figure, axes


def text_width(texts: Sequence[str]) -> float:
    """The share of the figure's width that the longest of these texts takes, with some padding."""
    letters = max((len(line) for text in texts for line in text.split("\n")), default=0)
    return (_LETTER * letters + 0.8) * _FONT_SIZE / (WIDTH * _POINTS)


def svg(figure: "Figure", salt: str) -> str:
    """SVG text for a page, without group ids, which would repeat in every figure.

    The salt makes the remaining ids reproducible, and different in every figure."""
    import matplotlib

    buffer = io.StringIO()
    with styled(), matplotlib.rc_context({"svg.hashsalt": salt}):
        figure.savefig(buffer, format="svg", transparent=True, metadata=_NO_METADATA["svg"])
    written = buffer.getvalue()
    inside = re.sub(r'<g id="[^"]*"', "<g", written[written.index("<svg") :])
    for colour, variable in _VARIABLES.items():
        inside = inside.replace(colour, f"var({variable}, {colour})")
    return inside


def save(figure: "Figure", stem: Path) -> list[Path]:
    """Writes `<stem>.pdf` and `<stem>.png`; the same figure gives the same bytes."""
    files = [stem.with_name(f"{stem.name}.{kind}") for kind in FORMATS]
    with styled():
        for file, kind in zip(files, FORMATS, strict=True):
            figure.savefig(file, format=kind, dpi=200, facecolor="white", metadata=_NO_METADATA[kind])
    return files


@styled()
def line_plot(
    curves: Sequence[SeedCurve], title: str, along: str = "round", units: Mapping[str, float] = ROUNDS
) -> "Figure | None":
    """A line per curve, with a band of one standard deviation and its label at its end. None without a point.

    `along` is the label of the x-axis, `units` the size of each unit that its ticks can have."""
    if not any(curve.x for curve in curves):
        return None
    labels = [wrapped(curve.label) for curve in curves]
    height = max(3.3, 0.8 + _LINE * sum(label.count("\n") + 1 for label in labels))
    figure, axes = canvas(title, height, left=["0.000"], right=labels, bottom=0.5)
    for curve in curves:
        _draw_line(axes, curve)
    if title.endswith("%"):  # a band can be wider
        low, high = axes.get_ylim()
        axes.set_ylim(max(low, -1.0), min(high, 100 + (100 - low) / 50))
    _label_lines(axes, curves, _LINE / (height - 0.8))
    axes.set_xlabel(along)
    _set_ticks(axes, units)
    return figure


def _draw_line(axes: "Axes", curve: SeedCurve) -> None:
    colour, dashes = series_style(curve.style)
    means = [stat.mean for stat in curve.stats]
    shown = slice(None) if len(means) < FEW else slice(-1, None)
    axes.plot(curve.x, means, color=colour, linestyle=dashes, linewidth=1.6)
    axes.plot(curve.x[shown], means[shown], color=colour, linestyle="", marker="o", markersize=3.5)
    if any(stat.std is not None for stat in curve.stats):
        low = [stat.mean - (stat.std or 0.0) for stat in curve.stats]
        high = [stat.mean + (stat.std or 0.0) for stat in curve.stats]
        axes.fill_between(curve.x, low, high, color=colour, alpha=0.15, linewidth=0)


def _label_lines(axes: "Axes", curves: Sequence[SeedCurve], line: float) -> None:
    """Labels to the right of the axes, each connected to its curve; `line` is the share of the height of a line."""
    ended = [curve for curve in curves if curve.stats and isfinite(curve.stats[-1].mean)]
    low, high = axes.get_ylim()
    axes.set_ylim(low, high)
    edge = axes.get_xlim()[1]
    sizes = [line * (high - low) * (wrapped(curve.label).count("\n") + 1) for curve in ended]
    heights = dodge([curve.stats[-1].mean for curve in ended], sizes, low, high)
    connector = {
        "arrowstyle": "-",
        "linestyle": ":",
        "linewidth": 0.8,
        "shrinkA": 1,
        "shrinkB": 0,
        "relpos": (0, 0.5),
    }
    for curve, height in zip(ended, heights, strict=True):
        axes.annotate(
            wrapped(curve.label),
            xy=(curve.x[-1], curve.stats[-1].mean),
            xytext=(edge, height),
            va="center",
            annotation_clip=False,
            arrowprops=connector | {"color": series_style(curve.style)[0]},
        )


def dodge(heights: Sequence[float], sizes: Sequence[float], low: float, high: float) -> list[float]:
    """The same heights in the same order, moved so that labels of these sizes fit between `low` and `high`."""
    order = sorted(range(len(heights)), key=heights.__getitem__)
    placed = [max(height, low + size / 2) for height, size in zip(heights, sizes, strict=True)]
    for below, above in pairwise(order):
        placed[above] = max(placed[above], placed[below] + (sizes[below] + sizes[above]) / 2)
    placed = [min(height, high - size / 2) for height, size in zip(placed, sizes, strict=True)]
    for above, below in pairwise(reversed(order)):
        placed[below] = min(placed[below], placed[above] - (sizes[below] + sizes[above]) / 2)
    return placed


def _set_ticks(axes: "Axes", units: Mapping[str, float]) -> None:
    """Round numbers from 0, all in the largest unit that fits the axis."""
    from matplotlib.ticker import MaxNLocator

    high = axes.get_xlim()[1]
    unit = max((name for name in units if units[name] <= high), key=units.__getitem__, default=next(iter(units)))
    locator = MaxNLocator(nbins=5, steps=[1, 2, 5, 10], integer=units is ROUNDS)
    places = [at for at in locator.tick_values(0, high / units[unit]) if at * units[unit] <= high]
    axes.set_xticks([at * units[unit] for at in places], [f"{at:g} {unit}".rstrip() for at in places])
    axes.set_xlim(0, high)


@styled()
def matrix_plot(rows: Sequence[Sequence[float]], names: Sequence[str], title: str, top: float) -> "Figure":
    """A square for each pair, darker for larger values; `top` is the value of the darkest."""
    labels = [wrapped(name, _SITE_NAME) for name in names]
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
    crowded = max(map(len, labels)) * len(labels) > 48 or "\n" in "".join(labels)
    axes.set_xticks(places, ["" for _ in labels] if crowded else labels)
    axes.set_yticks(places, labels)
    axes.tick_params(length=0)
    _set_frame(axes, visible=False)


@styled()
def scatter_plot(clouds: Sequence[Cloud], title: str, colours: Sequence[str] = SERIES) -> "Figure | None":
    """Real images are dots, virtual ones diamonds, anchors crosses; each site has a colour. None without points."""
    if not any(cloud.points for cloud in clouds):
        return None
    sites = list(dict.fromkeys(cloud.site for cloud in clouds if cloud.kind != "anchors"))
    names = [wrapped(site, _SITE_NAME) for site in sites]
    figure, axes = canvas(title, 4.0, left=[""], right=[name + "  " for name in names])
    for cloud in clouds:
        marker, size, alpha, edge = _MARKERS[cloud.kind]
        colour = INK if cloud.kind == "anchors" else colours[sites.index(cloud.site) % len(colours)]
        x, y = zip(*cloud.points, strict=True)
        axes.scatter(x, y, s=size, marker=marker, color=colour, alpha=alpha, linewidth=edge)
    _list_names(axes, names, colours)
    axes.set_xticks([])
    axes.set_yticks([])
    _set_frame(axes, visible=True)
    return figure


def _list_names(axes: "Axes", names: Sequence[str], colours: Sequence[str]) -> None:
    """A legend to the right of the axes, each name in its colour."""
    step = min(0.07, 1 / max(1, len(names)))
    for number, name in enumerate(names):
        place, colour = (1.02, 0.97 - number * step), colours[number % len(colours)]
        axes.annotate(name, place, xycoords="axes fraction", va="center", weight="bold", color=colour)


def _set_frame(axes: "Axes", *, visible: bool) -> None:
    axes.grid(visible=False)
    for spine in axes.spines.values():
        spine.set_visible(visible)
