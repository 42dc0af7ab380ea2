"""Two classes: balanced accuracy, AUC and Wilson's interval, from the counts on record."""

import pytest

from fedlgd.report.binary import balanced, binary_table, wilson
from fedlgd.report.run import Score
from tests.report.conftest import MakeGroups, run_of


@pytest.mark.parametrize(
    ("share", "size", "low", "high"), [(0.5, 10, 0.2366, 0.7634), (1.0, 20, 0.8389, 1.0), (0.0, 20, 0.0, 0.1611)]
)
def test_the_interval_is_wilsons(share: float, size: int, low: float, high: float) -> None:
    """Known values of the interval without continuity correction."""
    assert wilson(share, size) == pytest.approx((low, high), abs=5e-5)


def test_balanced_accuracy_counts_both_classes_alike() -> None:
    """By hand: 90 of 100 and 1 of 10 are (0.9 + 0.1) / 2, while 91 of 110 would be 0.83."""
    assert balanced(Score(91 / 110, correct=(90, 1), total=(100, 10))) == pytest.approx(0.5)
    assert balanced(Score(0.9, correct=(90, 0), total=(100, 0))) == pytest.approx(0.9)
    assert balanced(Score(0.9)) is None


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


def test_old_records_have_no_auc(make_groups: MakeGroups) -> None:
    table = binary_table(make_groups(run_of("A", x=0.8) | {"classes": ("no", "yes")}))
    assert table is not None
    assert [cell.text for cell in table.rows[0]][-2:] == ["80.0", "–"]


def test_more_classes_have_no_such_table(make_groups: MakeGroups) -> None:
    assert binary_table(make_groups(run_of("A", x=0.8))) is None
