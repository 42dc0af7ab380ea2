"""Bars by phase, with name and amount at their ends."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from fedlgd.report.cost import Bar
from fedlgd.report.format import NONE
from fedlgd.report.style import canvas, look, short, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def bar_figure(phases: Mapping[str, Sequence[Bar]], title: str, show: Callable[[float], str]) -> "Figure | None":
    """A bar per method in every phase; the enrolment is the fainter part. Nothing when no phase cost anything."""
    if not phases:
        return None
    ends = [_end_of_bar(bar, show) for own in phases.values() for bar in own]
    with styled():
        figure, axes = canvas(0.5 + 0.22 * (len(ends) + len(phases)), left=list(phases), right=ends, bottom=0.1)
        for (place, number, bar), end in zip(_places(phases), ends, strict=True):
            _draw_bar(axes, bar, place, number)
            axes.annotate(end, (bar.total, place), xytext=(4, 0), textcoords="offset points", va="center")
        _name_phases(axes, phases)
        axes.set_title(title, loc="left", fontsize="medium")
        return figure


def _places(phases: Mapping[str, Sequence[Bar]]) -> Iterator[tuple[float, int, Bar]]:
    """Where each bar stands from the top down, with one empty line between phases."""
    place = 0
    for own in phases.values():
        for number, bar in enumerate(own):
            yield place, number, bar
            place += 1
        place += 1


def _draw_bar(axes: "Axes", bar: Bar, place: float, number: int) -> None:
    colour, _ = look(number)
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
    return f"{short(bar.label)}, {show(bar.total) if bar.total else NONE}"
