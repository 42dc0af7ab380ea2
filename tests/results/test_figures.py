"""Figures of result pages."""

import re

from results.pages.figures import dots, themed


def test_dots_name_rows_series_and_the_axis_and_missing_ones_are_left_out():
    rows = {"first": {"model": (0.4, 0.5, 0.6), "set": (0.5, 0.6, 0.7)}, "second": {"model": (0.3, 0.4, 0.5)}}
    drawn = dots(rows, "AUC", "salt", 0.5)
    assert [name for name in ("first", "second", "model", "set", "AUC") if f">{name}<" not in drawn] == []
    assert dots(rows, "AUC", "salt", 0.5) == drawn


def test_a_figure_has_colours_for_dark_pages_once():
    drawn = themed(dots({"a": {"b": (0.0, 1.0, 2.0)}}, "x", "salt"))
    assert len(re.findall("prefers-color-scheme: dark", drawn)) == 1
    assert drawn.startswith("<svg")
