"""Figures are SVG text that is the same every time and takes its colours from the page."""

import math
import xml.etree.ElementTree as ET
from itertools import pairwise

import pytest

from fedlgd.core.text import BYTES, TIME
from fedlgd.report.groups import SeedCurve, Stat
from fedlgd.report.plots import dodge, line_plot, matrix_plot, scatter_plot, svg, wrapped
from fedlgd.rundir.results import Cloud

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
    assert wrapped(label).split("\n") == ["FedAvg + anchors +", "refine on virtual data"]
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
        matrix_plot(((0.0, 1.0), (1.0, 0.0)), [label, "b"], "MMD", top=1.0),
        scatter_plot([Cloud("real", label, ((0.0, 1.0),))], "map"),
    )
    assert all("<script" not in svg(figure, "a") for figure in figures)


def test_a_diverged_loss_leaves_a_gap() -> None:
    assert "<svg" in svg(line_plot([SeedCurve("A", (0, 1), (Stat(1.0), Stat(math.nan)))], "loss"), "a")


def test_dodge_keeps_order_and_makes_room() -> None:
    placed = dodge([5.0, 5.1, 9.0, 5.05], [1.0] * 4, 0.0, 10.0)
    assert placed[0] < placed[3] < placed[1] < placed[2]
    assert all(above - below >= 1.0 - 1e-9 for below, above in pairwise(sorted(placed)))
    assert dodge([1.0, 5.0], [1.0] * 2, 0.0, 10.0) == [1.0, 5.0]
    assert dodge([], [], 0.0, 10.0) == []


def test_labels_of_lines_that_end_at_the_top_stay_inside() -> None:
    assert dodge([9.8, 9.9, 10.0], [1.0, 1.0, 2.0], 0.0, 10.0) == pytest.approx([6.5, 7.5, 9.0])
