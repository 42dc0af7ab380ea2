"""Marks of differences in LaTeX tables, and the points of the curves."""

import csv
import io

from fedlgd.report.marks import MARK, curve_table, marked_accuracy
from fedlgd.report.tables import as_csv, as_latex
from tests.errors import refuses
from tests.report.conftest import run_of

SPREAD = (0.0, 0.01, -0.01)


def seeds_of(label, seeds=3, **final):
    """Runs whose accuracies vary together over seeds."""
    return [run_of(label, seed, **{s: v + SPREAD[seed] for s, v in final.items()}) for seed in range(seeds)]


def noisy(label, **final):
    """The same, but each seed varies on its own."""
    return [run_of(label, seed, **{s: v - SPREAD[seed] for s, v in final.items()}) for seed in range(3)]


def marks_of(table):
    """By method: the columns with a mark."""
    names = [column.name for column in table.columns]
    return {
        row[0].text: [name for name, cell in zip(names, row, strict=True) if cell.text.endswith(MARK)]
        for row in table.rows
    }


def test_what_differs_from_the_best_of_its_column_is_marked(make_groups):
    runs = (*seeds_of("low", a=0.5, b=0.9), *seeds_of("high", a=0.8, b=0.7), *noisy("near", a=0.795, b=0.5))
    table = marked_accuracy(make_groups(*runs))
    # `near` has the differences (-0.005, -0.025, 0.015) to `high` at a: mean -0.005, interval -0.055 to 0.045
    assert marks_of(table) == {"low": ["a", "mean"], "high": ["b"], "near": ["b", "mean"]}
    assert as_latex(table).count("$^{*}$ ") == 5 + 1
    assert r"\textbf{80.0 $\pm$ 1.0}" in as_latex(table)


def test_differences_to_a_named_method_are_marked_instead(make_groups):
    groups = make_groups(*seeds_of("low", a=0.5), *seeds_of("high", a=0.8), *seeds_of("same", a=0.5))
    table = marked_accuracy(groups, "low")
    assert marks_of(table) == {"low": [], "high": ["a", "mean"], "same": []}
    assert "differs from low" in table.notes[-1]
    with refuses("no-such-baseline", baseline="hihg", hint="; did you mean 'high'?"):
        marked_accuracy(groups, "hihg")


def test_nothing_is_marked_with_fewer_than_three_seeds(make_groups):
    groups = make_groups(*seeds_of("low", 2, a=0.5), *seeds_of("high", 2, a=0.8))
    table = marked_accuracy(groups)
    assert marks_of(table) == {"low": [], "high": []}
    assert "too few seeds" in table.notes[-1]


def test_a_method_with_too_few_seeds_among_others_is_named(make_groups):
    groups = make_groups(*seeds_of("low", a=0.5), *seeds_of("high", a=0.8), *seeds_of("new", 2, a=0.1))
    table = marked_accuracy(groups)
    assert marks_of(table) == {"low": ["a", "mean"], "high": [], "new": []}
    assert table.notes[-1].endswith("Not marked, too few seeds: new.")


def test_curves_have_a_row_for_each_round_of_each_run_at_each_site(make_groups):
    groups = make_groups(
        {"label": "low", "seed": 1, "rounds": 3, "final": {"a": 0.5, "b": 0.25}},
        {"label": "high", "seed": 0, "rounds": 3, "final": {"a": 0.75, "b": 0.5}, "done": 2},
    )
    rows = list(csv.DictReader(io.StringIO(as_csv(curve_table(groups)))))
    assert [*rows[0]] == ["round", "method", "seed", "site", "accuracy", "loss"]
    assert [(row["round"], row["method"], row["seed"], row["site"]) for row in rows] == [
        *((str(t), "low", "1", site) for t in (1, 2, 3) for site in "ab"),
        *((str(t), "high", "0", site) for t in (1, 2) for site in "ab"),
    ]
    assert [row["accuracy"] for row in rows[4:6]] == ["50.0000", "25.0000"]
    records = groups[0].runs[0].evaluated
    assert float(rows[0]["loss"]) == float(f"{records[0].scores['a'].loss:g}")
