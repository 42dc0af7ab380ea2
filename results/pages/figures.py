"""Figures of result pages: dots with intervals in rows. They follow the colour scheme of the reader."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from fedlgd.report.plots import FAINT, SERIES, canvas, styled, svg, wrapped

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Interval = tuple[float, float, float]
"""Lower end, value, upper end."""
WIDTH = 4.7  # inches: letters stay readable on a phone
ROW, STEP = 0.15, 0.12  # inches between rows, and between the dots of a row
LEGEND = 48  # letters in a line
COLOURS = """<style>
@media (prefers-color-scheme: dark) {
  svg { --ink: #e6e3dd; --rule: #55565c; --series-1: #5aaee6; --series-2: #f2824a; --series-3: #35bf98; }
}
</style>"""


def dots(rows: Mapping[str, Mapping[str, Interval]], along: str, salt: str, reference: float | None = None) -> str:
    """SVG of a row of dots for each name, a colour for each series, and a line at the reference value."""
    with styled():
        series = list(dict.fromkeys(name for row in rows.values() for name in row))
        names = [wrapped(name, 24) for name in rows]
        tall = ROW + STEP * len(series)
        figure, axes = canvas("", 0.8 + (len(series) > 4) * ROW * len(series) + len(rows) * tall)
        figure.set_figwidth(WIDTH)
        for number, name in enumerate(series):
            shift = (number - (len(series) - 1) / 2) * STEP / tall
            found = [(place + shift, row[name]) for place, row in enumerate(rows.values()) if name in row]
            places, values = [place for place, _ in found], [value for _, (_, value, _) in found]
            ends = [[value - low for _, (low, value, _) in found], [high - value for _, (_, value, high) in found]]
            colour = SERIES[number % len(SERIES)]
            axes.errorbar(
                values, places, xerr=ends, fmt="o", markersize=3.5, color=colour, linewidth=1.4, label=name
            )
        if reference is not None:
            axes.axvline(reference, color=FAINT, linewidth=1.2, zorder=0)
        axes.set_yticks(range(len(rows)), names)
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.grid(visible=False)
        axes.set_xlabel(along)
        if len(series) > 1:
            wide = sum(map(len, series)) > LEGEND
            figure.legend(loc="outside upper left", ncols=1 if wide else len(series), fontsize="small")
    return svg(figure, salt)


def narrow(figure: "Figure", salt: str) -> str:
    """SVG of a figure that is as wide as the others."""
    figure.set_figwidth(WIDTH)
    return svg(figure, salt)


def themed(drawn: str) -> str:
    """The drawing with colours for a dark page."""
    at = drawn.index(">", drawn.index("<svg")) + 1
    return f"{drawn[:at]}\n{COLOURS}{drawn[at:]}"
