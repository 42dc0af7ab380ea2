"""The page about what leaves a site: rows from stored runs, and a point of the figure for each method."""

import pytest

from fedlgd.core.text import number_of_bytes
from results.pages import family
from results.pages.comparisons import groups_of
from tests.report.fake import write_run


@pytest.fixture
def stored(tmp_path, monkeypatch):
    """Two methods with two seeds; the second sends no weights."""
    monkeypatch.setattr(family, "RECORDS", tmp_path)
    for label, method, accuracy in (("FedAvg", "fedavg", 0.6), ("FedProto", "fedproto-local", 0.8)):
        for seed in (0, 1):
            final = {"a": accuracy, "b": accuracy}
            write_run(tmp_path / "all" / method / f"seed{seed}", label=label, method=method, seed=seed, final=final)
    return tmp_path / "all"


def test_rows_have_the_best_first_with_the_bytes_of_a_site_and_what_it_sends(stored):
    head, _, *rows = family.leaves("all").splitlines()
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    assert [row[0] for row in cells] == ["FedProto", "FedAvg"]
    assert ["weights" in row[5].split(", ") for row in cells] == [False, True]
    assert "prototypes" in cells[0][5].split(", ")
    run = groups_of(stored)[0].runs[0]
    assert cells[1][3] == number_of_bytes(sum(record.bytes_up for record in run.records) / 2)
    assert cells[1][4] == f"{family.work(run):.2f}"
    assert head.count("|") == 8


def test_the_figure_names_every_method_in_the_colour_of_its_most_telling_message(stored):
    (drawn,) = family.figures("all", "missing").values()
    assert drawn.startswith("<svg")
    assert all(f">{word}<" in drawn for word in ("FedAvg", "FedProto", "prototypes", "weights"))
    assert [family.most_telling(group) for group in groups_of(stored)] == ["weights", "prototypes"]


def test_without_runs_it_says_so(stored):
    assert family.leaves("missing") == "No stored runs."
