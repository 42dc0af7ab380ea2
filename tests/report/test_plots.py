"""Figures are SVG text that is the same every time and takes its colours from the page."""

import math
import xml.etree.ElementTree as ET
from itertools import pairwise

import pytest

from fedlgd.report.cost import Bar
from fedlgd.report.formats import duration
from fedlgd.report.groups import Curve, Stat
from fedlgd.report.plots import bar_plot, dodge, line_plot, matrix_plot, scatter_plot
from fedlgd.report.run import Cloud
from fedlgd.report.style import svg

CURVES = (
    Curve("FedAvg", (0, 1, 2), (Stat(10.0, 1.0), Stat(40.0, 2.0), Stat(60.0, 1.0))),
    Curve("FedLGD", (0, 1, 2), (Stat(10.0), Stat(50.0), Stat(61.0))),
)
BARS = {"train": (Bar("FedAvg", 10.0, 0.0), Bar("FedLGD", 4.0, 2.0))}


def test_curves_carry_their_names_and_the_colours_of_the_page() -> None:
    drawn = svg(line_plot(CURVES, "accuracy, %"), "a")
    assert ET.fromstring(drawn).tag.endswith("svg")
    for text in (">FedAvg<", ">FedLGD<", "var(--series-1, #0072b2)", "var(--series-2, #d55e00)", "var(--ink,"):
        assert text in drawn


def test_bars_carry_name_and_total() -> None:
    drawn = svg(bar_plot(BARS, "time", duration), "a")
    assert "FedAvg, 10.0 s" in drawn
    assert "FedLGD, 6.00 s" in drawn


def test_a_phase_that_cost_a_method_nothing_has_no_amount() -> None:
    bars = (Bar("FedAvg", 0.0, 0.0), Bar("FedLGD", 4.0, 0.0))
    assert "FedAvg, –<" in svg(bar_plot({"distil": bars}, "time", duration), "a")


def test_the_same_figure_is_the_same_text() -> None:
    assert svg(line_plot(CURVES, "loss"), "a") == svg(line_plot(CURVES, "loss"), "a")
    assert svg(bar_plot(BARS, "time", duration), "a") == svg(bar_plot(BARS, "time", duration), "a")


def test_nothing_to_draw_is_no_figure() -> None:
    assert line_plot([Curve("A", (), ())], "loss") is None
    assert bar_plot({}, "time", duration) is None


@pytest.mark.parametrize(
    "label",
    ["<script>alert(1)</script>", "--><script>", r"$\frac$", "联邦学习", "_hidden", "a" * 200, "two\nlines"],
)
def test_a_strange_label_neither_breaks_out_nor_breaks(label: str) -> None:
    figures = (
        line_plot([Curve(label, (0,), (Stat(1.0),))], "loss"),
        bar_plot({"train": (Bar(label, 1.0, 0.0),)}, "time", duration),
        matrix_plot(((0.0, 1.0), (1.0, 0.0)), [label, "b"], "MMD", top=1.0),
        scatter_plot([Cloud("real", label, ((0.0, 1.0),))], "map"),
    )
    assert all("<script" not in svg(figure, "a") for figure in figures)


def test_a_diverged_loss_leaves_a_gap() -> None:
    assert "<svg" in svg(line_plot([Curve("A", (0, 1), (Stat(1.0), Stat(math.nan)))], "loss"), "a")


def test_dodge_keeps_order_and_makes_room() -> None:
    placed = dodge([5.0, 5.1, 9.0, 5.05], gap=1.0)
    assert placed[0] < placed[3] < placed[1] < placed[2]
    ordered = sorted(placed)
    assert all(above - below >= 1.0 - 1e-9 for below, above in pairwise(ordered))
    assert dodge([1.0, 5.0], gap=1.0) == [1.0, 5.0]
    assert dodge([], gap=1.0) == []
