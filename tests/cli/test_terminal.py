"""Tables in a terminal of 80 columns, and logs."""

import json
import re
import sys
import warnings
from dataclasses import replace

import pytest

from fedlgd.cli import deploy
from fedlgd.cli.terminal import complain, plain_warnings, table_text, two_classes
from fedlgd.report.groups import group_runs
from fedlgd.report.tables import Cell, Column, Table
from fedlgd.rundir.read import read_runs
from tests.cli.conftest import TINY, tiny_run
from tests.report.fake import write_run

SMALL = [f"--set={k}={v}" for k, v in TINY.items() if not k.startswith(("refine", "anchors"))]


SITES = ["mnist", "scans", "photos", "fonts", "street"]


def too_wide(text: str) -> list[str]:
    """Lines of a table that are wider than the terminal; sentences and paths may be."""
    return [line for line in text.splitlines() if len(line) > 80 and re.search(r"  |[│┃━]", line)]


@pytest.mark.parametrize(
    "words",
    [["methods"], ["methods", "fedavg+anchors"], ["nets"], ["data", "list"], ["data", "show"]],
    ids=" ".join,
)
def test_lists_fit_80_columns(words, fedlgd, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    done = fedlgd(*words)
    assert done.code == 0
    assert too_wide(done.out) == []
    assert "…" not in done.out


def test_the_result_of_a_run_and_its_estimate_fit_80_columns(fedlgd, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    for more in (["--estimate"], ["--quiet"]):
        done = fedlgd(*tiny_run(tmp_path / "run", *more, rounds=1))
        assert done.code == 0, done.err
        assert too_wide(done.out) == []
    names = [line.split()[0] for line in done.out.splitlines()]
    assert [name for name in names if name in SITES] == SITES


def test_a_comparison_fits_80_columns_with_every_site(fedlgd, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    methods = "fedavg,fedavg+noise,fedprox+proximal"
    done = fedlgd(
        "compare", "--methods", methods, "--seeds", "2", "--rounds", "1", "-q", "-o", str(tmp_path), *SMALL
    )
    assert done.code == 0, done.err
    assert too_wide(done.out) == []
    heads = done.out.strip().splitlines()[0].split()
    assert heads == ["method", "seeds", "rounds", *SITES, "mean", "spread"]
    assert "setup" in done.out


def table(*labels: str) -> Table:
    columns = (Column("method", number=False), *map(Column, ("here", "there", "spread")))
    return Table(columns, tuple((Cell(label), *(Cell("12.3 ± 4.5") for _ in range(3))) for label in labels))


def test_the_best_has_a_star_and_notes_are_below():
    rows = ((Cell("a"), Cell("1.0", best=True)), (Cell("b"), Cell("22.0")))
    lines = table_text(Table((Column("method", number=False), Column("x")), rows, ("a note",))).splitlines()
    assert lines == ["method     x", "────────────", "a       1.0*", "b       22.0", "a note"]


def test_a_long_name_continues_below_and_numbers_keep_their_words_whole(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    lines = table_text(table("FedAvg + noise images on virtual data")).splitlines()
    assert max(map(len, lines)) <= 40
    assert [line.split()[-2:] for line in lines[2:4]] == [["12.3", "12.3"], ["±4.5", "±4.5"]]
    assert "virtual" in lines[-1]


def test_a_line_separates_the_rows_of_controls(monkeypatch):
    made = replace(table("a", "b", "c"), line=2)
    assert [line[0] for line in table_text(made).splitlines()] == ["m", "─", "a", "b", "─", "c"]


def test_a_pipe_is_not_bounded(fedlgd, tmp_path, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    done = fedlgd(
        "compare", "--methods", "fedavg", "--seeds", "2", "--rounds", "1", "-q", "-o", str(tmp_path), *SMALL
    )
    assert "spread" in done.out.strip().splitlines()[0]
    assert json.loads(fedlgd("methods", "--json").out)


UNKNOWN = ("run", "--set", "local.learning-rate-of-the-first-of-all-rounds=1", "--rounds", "1", "-o", "out")


def test_an_error_is_one_line_where_it_is_not_read_in_a_terminal(fedlgd, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    done = fedlgd(*UNKNOWN)
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert len(done.err) > 80


def test_a_long_error_fits_the_terminal_with_options_and_paths_in_one_piece(fedlgd, monkeypatch):
    expected = fedlgd(*UNKNOWN).err
    for name, value in (("COLUMNS", "60"), ("TERM", "xterm")):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    first, *rest = fedlgd(*UNKNOWN).err.splitlines()
    assert first.startswith("fedlgd: unknown setting")
    assert max(map(len, (first, *rest))) <= 60
    assert all(line.startswith("  ") for line in rest)
    assert " ".join((first, *(line.strip() for line in rest))) == expected.strip()


def test_an_error_of_several_lines_keeps_them_and_warnings_are_folded_too(capsys, monkeypatch):
    for name, value in (("COLUMNS", "30"), ("TERM", "xterm")):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    complain("first line\nAll problems are listed above, in order")
    plain_warnings()
    warnings.showwarning(UserWarning("files that cannot be read are skipped"), UserWarning, "x.py", 1)
    assert capsys.readouterr().err.splitlines() == [
        "fedlgd: first line",
        "All problems are listed above,",
        "  in order",
        "fedlgd: files that cannot be",
        "  read are skipped",
    ]


def test_a_log_is_private_has_times_and_does_not_grow_without_end(tmp_path, monkeypatch):
    monkeypatch.setattr(deploy, "MAX_LOG_BYTES", 1000)
    file, old = tmp_path / "server.log", tmp_path / "server.log.1"
    for start in range(2):
        with deploy.logged(file) as log:
            for i in range(40):
                log(f"start {start} line {i}")
        log("after the end")
    for each in (file, old):
        assert each.stat().st_size < 1100
        assert each.stat().st_mode & 0o777 == 0o600
    lines = (old.read_text() + file.read_text()).splitlines()
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC  start 1 line 39", lines[-1])
    assert len(list(tmp_path.iterdir())) == 2


def test_the_table_of_two_classes_fits_80_columns(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    names = ("FedAvg on virtual data (train_on=virtual)", "Scaffold + anchors on virtual data")
    runs = [
        write_run(
            tmp_path / str(at), label=name, classes=("ill", "well"), auc=0.9, final={"a": 0.5, "the clinic": 0.6}
        )
        for at, name in enumerate(names)
    ]
    text = two_classes(group_runs(read_runs(runs)[0]))
    assert max(map(len, text.splitlines())) <= 80
    assert {"method", "site", "AUC"} <= set(text.split())
