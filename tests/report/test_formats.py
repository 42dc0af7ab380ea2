"""Numbers as text; tables for a spreadsheet, a paper and a README, whatever a site is called."""

import csv
import io

import pytest

from fedlgd.core import text
from fedlgd.report import tables
from fedlgd.report.accuracy import accuracy_table
from fedlgd.report.groups import Stat
from fedlgd.report.tables import Cell, Column, Table, as_csv, as_latex, as_markdown, table_formats
from tests.report.conftest import MakeGroups, run_of


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (tables.percent(0.9123), "91.2"),
        (tables.percent_stat(Stat(0.5, 0.0123)), "50.0 ± 1.2"),
        (text.percentage_points(-0.012), "−1.2"),
        (text.percentage_points(0.012), "+1.2"),
        (text.percentage_points(-0.0001), "0.0"),
        (tables.operations(1.234e14), "123 TFLOP"),
        (tables.operations(1e25), "10000000 EFLOP"),
        (text.duration(0.125), "0.12 s"),
        (text.duration(119.0), "119 s"),
        (text.duration(150.0), "2.50 min"),
        (text.duration(36000.0), "10.0 h"),
    ],
)
def test_numbers(written: str, expected: str) -> None:
    assert written == expected


@pytest.fixture
def table(make_groups: MakeGroups) -> Table:
    """By hand: FedAvg 80 and 90 at x, so 85.0 +- 7.1; FedLGD 90 at x and 70 at y."""
    runs = (run_of("FedAvg", 0, x=0.8, y=0.5), run_of("FedAvg", 1, x=0.9, y=0.5), run_of("FedLGD", 0, x=0.9, y=0.7))
    return accuracy_table(make_groups(*runs))


def named(name: str) -> Table:
    return Table(
        (Column("method", number=False), Column(name, percent=True)), ((Cell(name), Cell("90.0", 0.9, True)),)
    )


def test_csv_has_numbers_in_percent_and_deviations_in_columns_of_their_own(table: Table) -> None:
    heading, fedavg, fedlgd = csv.reader(io.StringIO(as_csv(table)))
    assert heading == ["method", "seeds", "rounds", "x", "x std", "y", "y std", "mean", "mean std", "spread"]
    assert fedavg == ["FedAvg", "2", "4", "85.0000", "7.0711", "50.0000", "0.0000", "67.5000", "3.5355", "35.0000"]
    assert fedlgd == ["FedLGD", "1", "4", "90.0000", "", "70.0000", "", "80.0000", "", "20.0000"]


def test_latex_has_the_best_in_bold(table: Table) -> None:
    lines = as_latex(table).splitlines()
    assert lines[0] == r"\begin{tabular}{lrrrrrr}"
    assert lines[4] == r"FedAvg & 2 & 4 & 85.0 $\pm$ 7.1 & 50.0 $\pm$ 0.0 & 67.5 $\pm$ 3.5 & 35.0 \\"
    assert lines[5].startswith(r"FedLGD & 1 & 4 & \textbf{90.0} & \textbf{70.0} & \textbf{80.0} &")


def test_markdown_has_the_best_in_bold(table: Table) -> None:
    assert as_markdown(table).splitlines() == [
        "| method | seeds | rounds | x | y | mean | spread |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
        "| FedAvg | 2 | 4 | 85.0 ± 7.1 | 50.0 ± 0.0 | 67.5 ± 3.5 | 35.0 |",
        "| FedLGD | 1 | 4 | **90.0** | **70.0** | **80.0** | 20.0 |",
    ]


@pytest.mark.parametrize("name", ["=cmd|' /C calc'!A0", "+1", "-1", "@sum", "\tx"])
def test_a_spreadsheet_takes_no_name_for_a_formula(name: str) -> None:
    rows = list(csv.reader(io.StringIO(as_csv(named(name)))))
    assert rows[0][1] == rows[1][0] == "'" + name


def test_a_name_cannot_leave_its_cell() -> None:
    hostile = r"a & b \\ \input{/etc/passwd} | c_1 <b> `x` 50% $y$ #z {w}" + "\nnext"
    latex = as_latex(named(hostile))
    assert r"a \& b \textbackslash{}\textbackslash{} \textbackslash{}input\{/etc/passwd\}" in latex
    assert r"50\% \$y\$ \#z \{w\} next" in latex
    assert len(latex.splitlines()) == 7
    (heading, _, _) = as_markdown(named(hostile)).splitlines()
    assert r"\| c\_1 \<b\> \`x\` 50% $y$ \#z {w} next |" in heading
    assert [row[0] for row in csv.reader(io.StringIO(as_csv(named(hostile))))] == ["method", hostile]


def test_three_formats_are_offered(table: Table) -> None:
    assert list(table_formats(table)) == ["CSV", "LaTeX", "Markdown"]
