"""The page about what leaves a site: rows from stored runs, and a point of the figure for each method."""

import re
from dataclasses import replace
from itertools import combinations

import pytest

from fedlgd.core.files import write_json
from fedlgd.core.text import number_of_bytes
from fedlgd.report.plots import canvas, styled
from results.pages import family
from results.pages.comparisons import groups_of
from tests.report.fake import write_run

AUDITED = {
    "format": 1,
    "attack": "rmia",
    "site": "a",
    "images": 9,
    "federations": 5,
    "settings": {},
    "promised": None,
}


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


def audit_of(folder, *targets: str) -> None:
    """An audit file that found these targets, each a little more exposed than the one before."""
    areas = [[0.5 + i / 10, 0.55 + i / 10, 0.6 + i / 10] for i in range(len(targets))]
    about = {"kind": "run", "federations": 5, "n_in": 9, "n_out": 9, "tpr": {}, "exact": {}, "roc": []}
    about |= {"label": "x", "statistic": "trace", "epsilon_lower": 0.0, "worst": None, "accuracy": 0.25}
    found = [{**about, "target": target, "auc": auc} for target, auc in zip(targets, areas, strict=True)]
    write_json(folder / "audit.json", {**AUDITED, "findings": found})


def test_an_audit_has_a_row_with_a_column_for_each_target_and_stands_beside_its_method(tmp_path, monkeypatch):
    """Under the name that the method has in the comparison, wherever its images start; not beside a private run."""
    monkeypatch.setattr(family, "RECORDS", tmp_path)
    family.audits.cache_clear()
    noise = {"distil": {"start": "noise"}}
    kept = (("FedLAP of the table", "fedlap", noise), ("all means", "collabdm", noise), ("DeSA", "desa", {}))
    for label, method, settings in kept:
        write_run(tmp_path / "family-digits" / method / "seed0", label=label, method=method, settings=settings)
        run = write_run(tmp_path / "family-audits" / method / "seed0", method=method, settings=settings)
        audit_of(run, "virtual", *{"fedlap": ("model", "uploads"), "collabdm": ("features",)}.get(method, ()))
    rows = {row.split("|")[1].strip(): row for row in family.audited("family-audits").splitlines()[2:]}
    assert set(rows) == {"FedLAP of the table", "all means", "DeSA"}
    cells = [cell.strip() for cell in rows["FedLAP of the table"].strip("|").split("|")][1:]
    assert cells == ["0.65 [0.60, 0.70]", "–", "0.75 [0.70, 0.80]", "–", "–", "0.55 [0.50, 0.60]", "25.0"]
    best = {
        row.split("|")[1].strip(): row.split("|")[-2].strip() for row in family.leaves("family-digits").splitlines()
    }
    assert best["FedLAP of the table"] == "uploaded images 0.75 [0.70, 0.80]"
    assert best["all means"] == "feature means 0.65 [0.60, 0.70]"
    assert best["DeSA"] == "–"
    family.audits.cache_clear()


def test_without_runs_of_real_images_there_is_no_answer(stored):
    assert family.answer("all") == family.NO_COMPARISON


def test_gains_are_those_of_the_same_methods_with_less_work(tmp_path, monkeypatch):
    monkeypatch.setattr(family, "RECORDS", tmp_path)
    for name, rounds, better in (("family-digits", 4, 0.0), ("long", 8, 0.1)):
        for label, method, train_on, accuracy in (
            ("A", "fedavg", "real", 0.6),
            ("B", "feddm", "virtual", 0.3 + better),
        ):
            how = {"train_on": train_on, "rounds": rounds}
            final = dict.fromkeys("ab", accuracy + better)
            write_run(tmp_path / name / label, label=label, method=method, rounds=rounds, final=final, settings=how)
    assert re.findall(r"\b(\d+|A|B)\b(?!\.\d)", family.gains("long"))[-6:] == ["2", "20", "20", "A", "10", "A"]


def test_without_runs_it_says_so(stored):
    assert family.leaves("missing") == "No stored runs."
