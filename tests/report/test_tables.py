"""The tables hold the numbers of the records, and mark the best of a column."""

from dataclasses import replace

import pytest

from fedlgd.core.score import Score
from fedlgd.report.cost import CPU, WALL, cost_table
from fedlgd.report.groups import Group
from fedlgd.report.tables import (
    MANY_CLASS_NOTE,
    MEAN_NOTE,
    TWO_CLASS_NOTE,
    Cell,
    Column,
    Table,
    accuracy_table,
    as_csv,
    as_latex,
    as_markdown,
    binary_table,
    data_table,
    mark_best,
    mean_first,
    wilson,
    without_sites,
)
from fedlgd.rundir.records import RoundRecord
from tests.report.conftest import MakeGroups, run_of


def test_accuracy_per_site_with_mean_and_spread(make_groups: MakeGroups) -> None:
    table = accuracy_table(make_groups(run_of("A", x=0.9, y=0.5)))
    assert [column.name for column in table.columns] == ["method", "seeds", "rounds", "x", "y", "mean", "spread"]
    assert [cell.text for cell in table.rows[0]] == ["A", "1", "4", "90.0", "50.0", "70.0", "40.0"]


def test_several_seeds_give_mean_and_standard_deviation(make_groups: MakeGroups) -> None:
    table = accuracy_table(make_groups(run_of("A", 0, x=0.6), run_of("A", 1, x=0.7), run_of("A", 2, x=0.8)))
    assert [cell.text for cell in table.rows[0]] == ["A", "3", "4", "70.0 ± 10.0", "70.0 ± 10.0", "0.0"]


def test_the_best_of_every_score_is_marked_and_ties_share_the_mark(make_groups: MakeGroups) -> None:
    table = accuracy_table(make_groups(run_of("A", x=0.9, y=0.50001), run_of("B", x=0.8, y=0.50004)))
    assert [[cell.best for cell in row[3:]] for row in table.rows] == [
        [True, True, True, False],
        [False, True, False, False],
    ]


def test_a_missing_value_is_never_the_best() -> None:
    rows = mark_best([(Cell("–"),), (Cell("0.0", 0.0),)], [0])
    assert [row[0].best for row in rows] == [False, True]
    assert not mark_best([(Cell("–"),)], [0])[0][0].best


def test_a_run_without_scores_keeps_its_row(make_groups: MakeGroups) -> None:
    table = accuracy_table(make_groups(run_of("A", x=0.9), run_of("B", x=0.9) | {"done": 0}))
    assert [cell.text for cell in table.rows[1]] == ["B", "1", "0 of 4", "–", "–", "–"]


def test_sites_that_only_some_runs_have_are_left_blank(make_groups: MakeGroups) -> None:
    table = accuracy_table(make_groups(run_of("A", x=0.9), run_of("B", y=0.8)))
    assert [[cell.text for cell in row[3:5]] for row in table.rows] == [["90.0", "–"], ["–", "80.0"]]


def test_cost_of_the_setup_of_each_phase_and_of_all(make_groups: MakeGroups) -> None:
    """By hand from the fake records: 4 rounds, and 6 s, 1200 B and 4 GFLOP before them."""
    table = cost_table(make_groups(run_of("A", x=0.9)))
    assert [column.name for column in table.columns] == [
        "method", "bytes up", "bytes down", "setup", "distil", "train", "server", "evaluate",
        "wall time", "operations",
    ]  # fmt: skip
    (row,) = table.rows
    assert [cell.value for cell in row[1:]] == pytest.approx(
        [4.0012e6, 6e6, 6.0, 8.0, 20.0, 2.0, 4.0, 40.0, 21.8e9]
    )
    assert [cell.text for cell in row[1:4]] == ["4.00 MB", "6.00 MB", "6.00 s"]


def test_one_method_is_not_the_best(make_groups: MakeGroups) -> None:
    (row,) = accuracy_table(make_groups(run_of("A", x=0.9, y=0.5))).rows
    assert not any(cell.best for cell in row)


def test_a_page_has_the_mean_beside_the_method(make_groups: MakeGroups) -> None:
    table = mean_first(accuracy_table(make_groups(run_of("A", x=0.9, y=0.5))))
    assert [column.name for column in table.columns] == ["method", "mean", "x", "y", "spread", "seeds", "rounds"]
    assert [cell.text for cell in table.rows[0]] == ["A", "70.0", "90.0", "50.0", "40.0", "1", "4"]


def test_time_is_cpu_time_where_it_is_known_and_the_heading_says_so(make_groups: MakeGroups) -> None:
    """A machine so busy that an hour of wall time was a minute of work."""
    wall, cpu = (cost_table(make_groups(run_of("A", x=0.9) | more)) for more in ({}, {"cpu": 1 / 60}))
    assert [table.columns[-2].name for table in (wall, cpu)] == ["wall time", "CPU time"]
    assert cpu.rows[0][-2].value == pytest.approx(40 / 60)
    assert (wall.notes, cpu.notes) == ((WALL.note,), (CPU.note,))


def test_stand_ins_are_said_to_be_stand_ins(make_groups: MakeGroups) -> None:
    (group,) = make_groups(run_of("A", mnist=0.9, svhn=0.5))
    rows = data_table(group.runs[0].manifest.data).rows
    assert [cell.text for cell in rows[0]] == ["mnist", "2000", "500", "real MNIST images"]
    assert rows[1][3].text.startswith("a stand-in")


def test_a_table_of_many_sites_can_be_summed_up():
    names = ["method", "seeds", "rounds", *(f"site {i}" for i in range(9)), "mean", "spread"]
    table = Table(tuple(Column(name) for name in names), (tuple(Cell(name) for name in names),))
    assert without_sites(table, 9) is table
    short = without_sites(table, 8)
    assert [column.name for column in short.columns] == ["method", "seeds", "rounds", "mean", "spread"]
    assert [cell.text for cell in short.rows[0]] == [column.name for column in short.columns]


# Two classes


@pytest.mark.parametrize(
    ("share", "size", "low", "high"), [(0.5, 10, 0.2366, 0.7634), (1.0, 20, 0.8389, 1.0), (0.0, 20, 0.0, 0.1611)]
)
def test_the_interval_is_wilsons(share: float, size: int, low: float, high: float) -> None:
    """Known values of the interval without continuity correction."""
    assert wilson(share, size) == pytest.approx((low, high), abs=5e-5)


def test_a_site_without_counts_has_no_balanced_accuracy_and_no_interval(make_groups: MakeGroups) -> None:
    (group,) = make_groups(run_of("A", x=0.8) | {"classes": ("no", "yes")})
    scores = {"x": Score(0.8, 0.1, (0, 0), (0, 0))}
    (run,) = (replace(run, records=(RoundRecord(round=3, scores=scores),)) for run in group.runs)
    table = binary_table([Group("A", (run,))])
    assert table is not None
    assert [cell.text for cell in table.rows[0]] == ["A", "x", "–", "80.0", "–", "–", "–"]


def test_a_row_for_each_method_and_site(make_groups: MakeGroups) -> None:
    runs = [run_of("A", seed, x=0.8, y=0.6) | {"classes": ("no", "yes"), "auc": 0.75} for seed in (0, 1)]
    table = binary_table(make_groups(*runs))
    assert table is not None
    assert [column.name for column in table.columns][2:] == [
        "test images", "accuracy", "95 % interval", "balanced accuracy", "AUC"
    ]  # fmt: skip
    assert [cell.text for cell in table.rows[0]] == [
        "A", "x", "500", "80.0 ± 0.0", "76.3 to 83.3", "80.0 ± 0.0", "75.0 ± 0.0"
    ]  # fmt: skip


def test_a_copy_as_csv_has_both_ends_of_the_interval(make_groups: MakeGroups) -> None:
    table = binary_table(make_groups(run_of("A", x=0.5) | {"classes": ("no", "yes"), "totals": {"x": (10, 10)}}))
    assert table is not None
    (interval,) = (row[4].text for row in table.rows)
    assert " to " in interval
    assert f",{interval}," in as_csv(table)


def test_old_records_have_no_auc(make_groups: MakeGroups) -> None:
    table = binary_table(make_groups(run_of("A", x=0.8) | {"classes": ("no", "yes")}))
    assert table is not None
    assert [cell.text for cell in table.rows[0]][-2:] == ["80.0", "–"]


LACKS = {"classes": ("no", "yes"), "totals": {"x": (0, 40)}}


def test_a_site_that_lacks_a_class_is_marked_and_explained(make_groups: MakeGroups) -> None:
    groups = make_groups(run_of("A", x=0.5, y=0.6) | LACKS)
    table, accuracy = binary_table(groups), accuracy_table(groups)
    assert table is not None
    assert [cell.text for cell in table.rows[0]][-2:] == ["50.0†", "–†"]
    assert [row[1].text for row in table.rows] == ["x†", "y"]
    assert [column.name for column in accuracy.columns][3:5] == ["x†", "y"]
    assert table.notes == accuracy.notes == without_sites(accuracy, 1).notes
    (note,) = accuracy.notes
    assert note.startswith("† No test images: x of class 'no'.")
    assert note.endswith(f"{TWO_CLASS_NOTE} {MEAN_NOTE}")
    assert note in as_markdown(accuracy)
    assert r"$\dagger$ No test images" in as_latex(accuracy)


def test_of_many_sites_that_lack_classes_some_are_listed(make_groups: MakeGroups) -> None:
    sites = {f"s{i}": 0.5 for i in range(8)}
    lacks = {"classes": ("a", "b", "c"), "totals": dict.fromkeys(sites, (0, 0, 9))}
    (note,) = accuracy_table(make_groups(run_of("A", **sites) | lacks)).notes
    assert "s4 of classes 'a', 'b'; and 3 more sites." in note
    assert note.endswith(f"{MANY_CLASS_NOTE} {MEAN_NOTE}")


def test_no_note_where_every_class_is_tested(make_groups: MakeGroups) -> None:
    assert accuracy_table(make_groups(run_of("A", x=0.5) | {"classes": ("no", "yes")})).notes == ()


def test_more_classes_have_no_such_table(make_groups: MakeGroups) -> None:
    assert binary_table(make_groups(run_of("A", x=0.8))) is None
