"""Figures are SVG text that is the same every time and takes its colours from the page."""

import math
import xml.etree.ElementTree as ET

import pytest

from fedlgd.core.text import BYTES, TIME
from fedlgd.report.groups import SeedCurve, Stat
from fedlgd.report.plots import heat_map, line_plot, scatter_plot, svg, wrapped
from fedlgd.rundir.results import Cloud

ENDS = (("low", 1.0), ("diverged", math.nan), ("_high", 3.0), ("middle", 2.0))
CURVES = (
    SeedCurve("FedAvg", (0, 1, 2), (Stat(10.0, 1.0), Stat(40.0, 2.0), Stat(60.0, 1.0))),
    SeedCurve("FedLGD", (0, 1, 2), (Stat(10.0), Stat(50.0), Stat(61.0)), style=1),
)


def test_curves_carry_their_names_and_the_colours_of_the_page() -> None:
    drawn = svg(line_plot(CURVES, "accuracy, %"), "a")
    assert ET.fromstring(drawn).tag.endswith("svg")
    for text in (">FedAvg<", ">FedLGD<", "var(--series-1, #0072b2)", "var(--series-2, #d55e00)", "var(--ink,"):
        assert text in drawn


@pytest.mark.parametrize(
    ("units", "end", "ticks"),
    [
        (TIME, 42.0, ["0 s", "10 s", "20 s", "30 s", "40 s"]),
        (TIME, 133.0, ["0 min", "0.5 min", "1 min", "1.5 min", "2 min"]),
        (TIME, 5.4 * 3600, ["0 h", "2 h", "4 h"]),
        (BYTES, 36.8e6, ["0 MB", "10 MB", "20 MB", "30 MB"]),
        (BYTES, 27_300, ["0 kB", "10 kB", "20 kB"]),
    ],
)
def test_ticks_are_round_numbers_in_one_unit(units: dict[str, float], end: float, ticks: list[str]) -> None:
    figure = line_plot([SeedCurve("A", (end / 3, end), (Stat(1.0), Stat(2.0)))], "accuracy, %", "cost", units)
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == ticks


@pytest.mark.parametrize("rounds", [1, 2, 7, 100])
def test_rounds_are_whole_numbers(rounds: int) -> None:
    figure = line_plot([SeedCurve("A", (rounds,), (Stat(1.0),))], "loss")
    assert all(label.get_text().isdecimal() for label in figure.axes[0].get_xticklabels())


def test_a_long_label_is_wrapped_and_not_cut() -> None:
    label = "FedAvg + anchors + refine on virtual data"
    drawn = svg(line_plot([SeedCurve(label, (1,), (Stat(1.0),))], "loss"), "a")
    assert [len(line) for line in wrapped(label).split("\n")] == [18, 22]
    assert all(f">{line}<" in drawn for line in wrapped(label).split("\n"))


def test_the_same_figure_is_the_same_text() -> None:
    assert svg(line_plot(CURVES, "loss"), "a") == svg(line_plot(CURVES, "loss"), "a")


def test_nothing_to_draw_is_no_figure() -> None:
    assert line_plot([SeedCurve("A", (), ())], "loss") is None


@pytest.mark.parametrize(
    "label",
    ["<script>alert(1)</script>", "--><script>", r"$\frac$", "联邦学习", "_hidden", "a" * 200, "two\nlines"],
)
def test_a_strange_label_neither_breaks_out_nor_breaks(label: str) -> None:
    figures = (
        line_plot([SeedCurve(label, (0,), (Stat(1.0),))], "loss"),
        heat_map({(0, 1): (1.0, "1.0")}, [label, "b"], [label, "b"], "MMD"),
        scatter_plot([Cloud("real", label, ((0.0, 1.0),))], "map"),
    )
    assert all("<script" not in svg(figure, "a") for figure in figures)


def test_a_diverged_loss_leaves_a_gap() -> None:
    assert "<svg" in svg(line_plot([SeedCurve("A", (0, 1), (Stat(1.0), Stat(math.nan)))], "loss"), "a")


def test_the_legend_has_the_order_of_the_methods_as_given() -> None:
    curves = [SeedCurve(name, (0, 1), (Stat(0.0), Stat(end)), style) for style, (name, end) in enumerate(ENDS)]
    figure = line_plot([*curves, SeedCurve("empty", (), ())], "accuracy, %")
    legend = figure.axes[0].get_legend()
    assert [text.get_text() for text in legend.get_texts()] == [name for name, _ in ENDS]
    drawn = [line for line in figure.axes[0].lines if len(line.get_xdata()) == 2 and line.get_marker() == "None"]
    colours = {curve.label: line.get_color() for curve, line in zip(curves, drawn, strict=True)}
    assert [handle.get_color() for handle in legend.legend_handles] == [
        colours[text.get_text()] for text in legend.get_texts()
    ]


def test_a_figure_grows_with_its_legend() -> None:
    few, many = (
        line_plot([SeedCurve(f"method {i}", (0,), (Stat(1.0),)) for i in range(count)], "loss") for count in (2, 30)
    )
    assert few.get_figheight() < 4 < many.get_figheight()


def test_the_squares_of_a_heat_map_are_darker_for_larger_shares() -> None:
    figure = heat_map({(0, 0): (0.0, "a"), (0, 1): (0.5, "b"), (1, 1): (1.0, "c")}, ["x", "y"], ["u", "v"], "t")
    (axes,) = figure.axes
    assert [patch.get_alpha() for patch in axes.patches] == pytest.approx([0.0, 0.3, 0.6])
    assert [(text.get_text(), text.xy) for text in axes.texts] == [("a", (0, 0)), ("b", (1, 0)), ("c", (1, 1))]
