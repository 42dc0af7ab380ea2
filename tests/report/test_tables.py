"""The tables hold the numbers of the records."""

import pytest

from fedlgd.report.cost import CPU, WALL, cost_table
from fedlgd.report.tables import data_table
from tests.report.conftest import MakeGroups, run_of


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
