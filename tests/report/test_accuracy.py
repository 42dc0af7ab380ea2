"""The table of accuracy, what is marked in it, and the points of the curves."""

import csv
import io
from dataclasses import replace

from fedlgd.report.accuracy import (
    MARK,
    accuracy_table,
    best_of,
    curve_table,
    marked_accuracy,
    mean_first,
    without_sites,
)
from fedlgd.report.classes import LARGEST
from fedlgd.report.tables import Cell, Column, Table, as_csv, as_latex
from tests.errors import refuses
from tests.report.conftest import MakeGroups, run_of

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


def test_accuracy_per_site_with_mean_and_spread(make_groups: MakeGroups) -> None:
    table = accuracy_table(make_groups(run_of("A", x=0.9, y=0.5)))
    assert [column.name for column in table.columns] == ["method", "seeds", "rounds", "x", "y", "mean", "spread"]
    assert [cell.text for cell in table.rows[0]] == ["A", "1", "4", "90.0", "50.0", "70.0", "40.0"]


def test_several_seeds_give_mean_and_standard_deviation(make_groups: MakeGroups) -> None:
    table = accuracy_table(make_groups(run_of("A", 0, x=0.6), run_of("A", 1, x=0.7), run_of("A", 2, x=0.8)))
    assert [cell.text for cell in table.rows[0]] == ["A", "3", "4", "70.0 ± 10.0", "70.0 ± 10.0", "0.0"]


def test_a_run_without_scores_keeps_its_row(make_groups: MakeGroups) -> None:
    table = accuracy_table(make_groups(run_of("A", x=0.9), run_of("B", x=0.9) | {"done": 0}))
    assert [cell.text for cell in table.rows[1]] == ["B", "1", "0 of 4", "–", "–", "–"]


def test_sites_that_only_some_runs_have_are_left_blank(make_groups: MakeGroups) -> None:
    table = accuracy_table(make_groups(run_of("A", x=0.9), run_of("B", y=0.8)))
    assert [[cell.text for cell in row[3:5]] for row in table.rows] == [["90.0", "–"], ["–", "80.0"]]


def test_one_method_is_not_the_best(make_groups: MakeGroups) -> None:
    (row,) = accuracy_table(make_groups(run_of("A", x=0.9, y=0.5))).rows
    assert not any(cell.best for cell in row)


def test_a_page_has_the_mean_beside_the_method(make_groups: MakeGroups) -> None:
    table = mean_first(accuracy_table(make_groups(run_of("A", x=0.9, y=0.5))))
    assert [column.name for column in table.columns] == ["method", "mean", "x", "y", "spread", "seeds", "rounds"]
    assert [cell.text for cell in table.rows[0]] == ["A", "70.0", "90.0", "50.0", "40.0", "1", "4"]


def test_a_table_of_many_sites_can_be_summed_up():
    names = ["method", "seeds", "rounds", *(f"site {i}" for i in range(9)), "mean", "spread"]
    table = Table(tuple(Column(name) for name in names), (tuple(Cell(name) for name in names),))
    assert without_sites(table, 9) is table
    short = without_sites(table, 8)
    assert [column.name for column in short.columns] == ["method", "seeds", "rounds", "mean", "spread"]
    assert [cell.text for cell in short.rows[0]] == [column.name for column in short.columns]


def test_the_best_is_marked_where_no_interval_reaches_another_method(make_groups):
    """One seed of 500 test images: 90 against 80 % is clear at x, 52 against 50 % at y is not."""
    table = accuracy_table(make_groups(run_of("A", x=0.9, y=0.5), run_of("B", x=0.8, y=0.52)))
    assert [[cell.best for cell in row[3:]] for row in table.rows] == [
        [True, False, True, False],
        [False, False, False, False],
    ]


def test_with_three_seeds_the_best_is_marked_by_their_differences(make_groups):
    """Differences of 1 point in every seed are clear; test images could not tell them apart."""
    close = [*seeds_of("low", a=0.8), *seeds_of("high", a=0.81)]
    assert best_of(make_groups(*close), "a").label == "high"
    assert best_of(make_groups(*close[:2], *close[3:5]), "a") is None
    assert best_of(make_groups(*seeds_of("low", a=0.8), *noisy("high", a=0.81)), "a") is None


def test_a_method_that_does_not_compete_is_never_the_best(make_groups):
    groups = make_groups(run_of("own models", x=0.99), run_of("A", x=0.9), run_of("B", x=0.8))
    own, *others = groups
    (run,) = own.runs
    aside = replace(own, runs=(replace(run, manifest=replace(run.manifest, competes=False)),))
    assert best_of(groups, "x").label == "own models"
    assert best_of([aside, *others], "x").label == "A"


UNEQUAL = {"classes": ("well", "ill"), "totals": {"x": (60, 40), "y": (30, 20)}}
ALL_WELL = {"hits": {"x": (60, 0), "y": (30, 0)}}


def test_a_model_that_predicts_one_class_everywhere_is_never_the_best(make_groups):
    """It has 60 %, more than the other method at any number of seeds: but always the largest class has as much."""
    runs = [run_of("all well", seed, x=0.6, y=0.6) | UNEQUAL | ALL_WELL for seed in range(3)]
    worse = [
        run_of("worse", seed, x=0.3, y=0.3) | UNEQUAL | {"hits": {"x": (15, 15), "y": (8, 7)}} for seed in range(3)
    ]
    table = accuracy_table(make_groups(*runs, *worse))
    assert not any(cell.best for row in table.rows for cell in row)
    assert [cell.text for cell in table.rows[0]][3:6] == ["60.0 ± 0.0‡"] * 3
    assert [cell.text for cell in table.rows[-1]] == [LARGEST, "–", "–", "60.0", "60.0", "60.0", "0.0"]
    assert table.line == 2


def test_a_method_above_the_largest_class_is_the_best(make_groups):
    good = run_of("good", x=0.9, y=0.9) | UNEQUAL | {"hits": {"x": (55, 35), "y": (28, 17)}}
    table = accuracy_table(make_groups(run_of("all well", x=0.6, y=0.6) | UNEQUAL | ALL_WELL, good))
    assert [cell.best for cell in table.rows[1]][3:6] == [True, True, True]


def test_the_largest_class_has_a_row_if_classes_are_few_or_unequal(make_groups):
    """Ten classes have one if the largest has a fifth of the test images or more."""

    def last(classes, total):
        more = {"classes": [*map(str, range(classes))], "totals": {"x": total}}
        return accuracy_table(make_groups(run_of("A", x=0.5) | more)).rows[-1][0].text

    assert last(4, (10,) * 4) == last(10, (20, *(8,) * 9)) == LARGEST
    assert last(10, (10,) * 10) == last(10, (15, *(9,) * 9)) == "A"


def test_formats_of_a_table_have_the_largest_class_below_the_methods(make_groups):
    groups = make_groups(*(run_of(label, x=0.6, y=0.6) | UNEQUAL | ALL_WELL for label in "AB"))
    assert marked_accuracy(groups).rows[-1] == accuracy_table(groups).rows[-1]
    assert mean_first(accuracy_table(groups)).line == 2
    assert r"60.0$\ddagger$" in as_latex(accuracy_table(groups))
    assert as_csv(accuracy_table(groups)).splitlines()[-1] == f"{LARGEST},,,60.0000,60.0000,60.0000,0.0000"


def test_what_differs_from_the_best_of_its_column_is_marked(make_groups):
    runs = (*seeds_of("low", a=0.5, b=0.9), *seeds_of("high", a=0.8, b=0.7), *noisy("near", a=0.795, b=0.5))
    table = marked_accuracy(make_groups(*runs))
    # `near` has the differences (-0.005, -0.025, 0.015) to `high` at a: mean -0.005, interval -0.055 to 0.045
    assert marks_of(table) == {"low": ["a", "mean"], "high": ["b"], "near": ["b", "mean"]}
    assert as_latex(table).count("$^{*}$ ") == 5 + 1
    assert r"\textbf{90.0 $\pm$ 1.0}" in as_latex(table)


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
