"""The page about what leaves a site: rows from stored runs, and a point of the figure for each method."""

from dataclasses import replace
from itertools import combinations

import pytest

from fedlgd.core.text import number_of_bytes
from fedlgd.report.plots import canvas, styled
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
    assert ["weights" in row[6].split(", ") for row in cells] == [False, True]
    assert "prototypes" in cells[0][6].split(", ")
    run = groups_of(stored)[0].runs[0]
    assert cells[1][3] == number_of_bytes(sum(record.bytes_up for record in run.records) / 2)
    assert cells[1][4:6] == [f"{family.work(run):.3f}", f"{family.work(run, server=True):.3f}"]
    assert head.count("|") == 9
    assert [row[1] for row in cells] == ["2", "2"]


def test_the_work_of_a_site_is_that_of_its_phases_without_evaluation(stored):
    run = groups_of(stored)[0].runs[0]
    rows = [replace(run.records[0], flops={"train": 6e12, "distil": 2e12, "evaluate": 9e12, "server": 3e12})]
    counted = replace(run, records=tuple(rows))
    sites = len(run.manifest.data.sites)
    assert family.work(counted) == pytest.approx(8 / sites)
    assert family.work(counted, server=True) == pytest.approx(3)


def test_names_in_the_figure_hide_neither_each_other_nor_a_point():
    with styled():
        figure, axes = canvas("", 4)
        points = {f"a method of some length {i}": (1e5 * (1 + i % 3 / 50), 60 + i / 4) for i in range(9)}
        for x, y in points.values():
            axes.scatter([x], [y])
        axes.set_xscale("log")
        axes.set_xlim(1e3, 1e7)
        axes.set_ylim(40, 80)
        figure.draw_without_rendering()
        figure.set_layout_engine("none")
        boxes = [
            axes.annotate(label, **{**how, "arrowprops": None}).get_window_extent()
            for label, how in family.named(axes, points)
        ]
    where = [axes.transData.transform(point) for point in points.values()]
    assert not any(a.overlaps(b) for a, b in combinations(boxes, 2))
    assert not any(box.contains(*point) for box in boxes for point in where)


def test_a_name_without_a_line_is_nearest_to_its_own_point():
    with styled():
        figure, axes = canvas("", 4)
        points = {"left": (1e4, 60.0), "beside it": (1.15e4, 60.4), "below": (1.05e4, 57.0), "far": (1e6, 70.0)}
        axes.set_xscale("log")
        axes.set_xlim(1e3, 1e7)
        axes.set_ylim(40, 80)
        figure.draw_without_rendering()
        figure.set_layout_engine("none")
        where = {label: axes.transData.transform(point) for label, point in points.items()}
        for label, how in family.named(axes, points):
            box = axes.annotate(label, **{**how, "arrowprops": None}).get_window_extent()
            nearest = min(where, key=lambda name, box=box: family.gap(box, where[name]))
            assert nearest == label or "arrowprops" in how


def test_the_figure_names_every_method_in_the_colour_of_its_most_telling_message(stored):
    (drawn,) = family.figures("all", "missing").values()
    assert drawn.startswith("<svg")
    assert all(f">{word}<" in drawn for word in ("FedAvg", "FedProto", "prototypes", "weights"))
    assert [family.most_telling(group) for group in groups_of(stored)] == ["weights", "prototypes"]


def test_the_answer_names_methods_with_one_model_for_all_sites():
    rows = [row.split("|")[1].strip() for row in family.leaves("family-digits").splitlines()]
    assert rows.index("DeSA") < rows.index("FedDM")
    assert "DeSA" not in family.answer("family-digits")
    assert "FedDM" in family.answer("family-digits")


def test_without_runs_of_real_images_there_is_no_answer(stored):
    assert family.answer("all") == family.NO_COMPARISON


def test_without_runs_it_says_so(stored):
    assert family.leaves("missing") == "No stored runs."
