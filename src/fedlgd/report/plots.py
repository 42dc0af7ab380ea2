"""The plots of a report (lines, heat map, scatter), their style, and how they are saved.

In a page a figure is SVG and its colours are CSS variables; files are PDF and PNG. The colours are Okabe and Ito's,
distinct for all kinds of colour vision. Every legend stands to the right of its axes.
"""

import io
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
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
WIDTH, _LINE_HEIGHT = 5.6, 0.2  # inches, of a figure and of a line of its legend
MAX_MARKED_POINTS = 7  # of a line; of a longer one only the last point is marked
MAX_SITE_LETTERS = 16  # in a line
MAX_NUMBERED_ROWS = 8  # larger heat maps show colours only
_NO_METADATA = {
    "svg": dict.fromkeys(("Date", "Creator", "Format", "Type")),
    "pdf": dict.fromkeys(("CreationDate", "Creator", "Producer")),
    "png": {"Software": None},
}
_STYLE: Any = {
    "svg.fonttype": "none",
    "pdf.fonttype": 42,
    "text.parse_math": False,
    "font.size": 9.5,
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
    "legend.frameon": False,
    "legend.handlelength": 1.4,
    "legend.labelspacing": 0.3,
}
ROUNDS = {"": 1.0}
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


def canvas(title: str, height: float, labels: Sequence[str] = ()) -> "tuple[Figure, Axes]":
    """A figure with one pair of axes and a title above; it is as high as a legend of these labels needs."""
    from matplotlib.figure import Figure

    lines = sum(label.count("\n") + 1 for label in labels)
    figure = Figure(figsize=(WIDTH, max(height, 0.4 + _LINE_HEIGHT * lines)))
    figure.set_layout_engine("constrained", rect=(0.025, 0, 0.925 if labels else 0.975, 1))  # phones: larger text
    axes = figure.add_subplot()
    axes.set_title(title, loc="left", fontsize="medium")
    return figure, axes


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
    curves: Sequence[SeedCurve],
    title: str,
    along: str = "round",
    units: Mapping[str, float] | Sequence[str] = ROUNDS,
) -> "Figure | None":
    """A line per curve with a band of one standard deviation; the legend has their order. None without a point.

    `along` is the label of the x-axis, `units` the size of each unit that its ticks can have, or their names if x
    counts them."""
    drawn = [curve for curve in curves if curve.x]
    if not drawn:
        return None
    figure, axes = canvas(title, 3.3, [wrapped(curve.label) for curve in drawn])
    lines = [_draw_line(axes, curve) for curve in drawn]
    if title.endswith("%"):  # a band can be wider
        low, high = axes.get_ylim()
        axes.set_ylim(max(low, -1.0), min(high, 100 + (100 - low) / 50))
    _add_legend(axes, lines, [wrapped(curve.label) for curve in drawn])
    axes.set_xlabel(along)
    if isinstance(units, Mapping):
        _set_ticks(axes, units)
    else:
        axes.set_xticks(range(len(units)), units)
    return figure


def _draw_line(axes: "Axes", curve: SeedCurve) -> Any:
    colour, dashes = series_style(curve.style)
    means = [stat.mean for stat in curve.stats]
    marked = slice(None) if len(means) <= MAX_MARKED_POINTS else slice(-1, None)
    (line,) = axes.plot(curve.x, means, color=colour, linestyle=dashes, linewidth=1.6)
    axes.plot(curve.x[marked], means[marked], color=colour, linestyle="", marker="o", markersize=3.5)
    if any(stat.std is not None for stat in curve.stats):
        low = [stat.mean - (stat.std or 0.0) for stat in curve.stats]
        high = [stat.mean + (stat.std or 0.0) for stat in curve.stats]
        axes.fill_between(curve.x, low, high, color=colour, alpha=0.15, linewidth=0)
    return line


def _add_legend(axes: "Axes", handles: Sequence[Any], labels: Sequence[str], **style: Any) -> None:
    """Matplotlib leaves out labels that begin with an underscore, so the texts are set afterwards."""
    legend = axes.legend(handles, ["label"] * len(labels), loc="upper left", bbox_to_anchor=(1, 1), **style)
    for text, label in zip(legend.get_texts(), labels, strict=True):
        text.set_text(label)


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
def heat_map(
    cells: Mapping[tuple[int, int], tuple[float, str]],
    rows: Sequence[str],
    columns: Sequence[str],
    title: str,
    names: tuple[str, str] = ("", ""),
) -> "Figure":
    """A square for each pair of a row and a column, with its text: the darker, the nearer its share is to 1.

    `names` are those of the two axes."""
    from matplotlib.patches import Rectangle

    rows, columns = ([wrapped(name, MAX_SITE_LETTERS) for name in side] for side in (rows, columns))
    figure, axes = canvas(title, min(WIDTH - 1.5, 0.55 * len(rows)) + (1.1 if any(names) else 0.75))
    for (y, x), (share, text) in cells.items():
        corner = (x - 0.48, y - 0.48)
        axes.add_patch(Rectangle(corner, 0.96, 0.96, color=SERIES[0], alpha=0.6 * share, linewidth=0))
        if len(rows) <= MAX_NUMBERED_ROWS:
            axes.annotate(text, (x, y), ha="center", va="center", fontsize="small")
    axes.set_xlim(-0.5, len(columns) - 0.5)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    crowded = max(map(len, columns)) * len(columns) > 48 or "\n" in "".join(columns)
    axes.set_xticks(range(len(columns)), ["" for _ in columns] if crowded else columns)
    axes.set_yticks(range(len(rows)), rows)
    axes.set_ylabel(names[0])
    axes.set_xlabel(names[1])
    axes.tick_params(length=0)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    return figure


@styled()
def scatter_plot(clouds: Sequence[Cloud], title: str, colours: Sequence[str] = SERIES) -> "Figure | None":
    """Real images are dots, virtual ones diamonds, anchors crosses; each site has a colour. None without points."""
    if not any(cloud.points for cloud in clouds):
        return None
    from matplotlib.lines import Line2D

    sites = list(dict.fromkeys(cloud.site for cloud in clouds if cloud.kind != "anchors"))
    names = [wrapped(site, MAX_SITE_LETTERS) for site in sites]
    shades = [colours[number % len(colours)] for number in range(len(sites))]
    figure, axes = canvas(title, 4.0, names)
    for cloud in clouds:
        marker, size, alpha, edge = _MARKERS[cloud.kind]
        colour = INK if cloud.kind == "anchors" else shades[sites.index(cloud.site)]
        x, y = zip(*cloud.points, strict=True)
        axes.scatter(x, y, s=size, marker=marker, color=colour, alpha=alpha, linewidth=edge)
    dots = [Line2D([], [], color=colour, linestyle="", marker="o") for colour in shades]
    _add_legend(axes, dots, names, labelcolor=shades, handletextpad=0.1)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.grid(visible=False)
    axes.spines[:].set_visible(True)
    return figure
