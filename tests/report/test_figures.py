"""The figures of a report as files."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path

from fedlgd.report.figures import round_figures, similarity_figures, site_figures
from fedlgd.report.groups import group_runs
from fedlgd.report.page import write_figures
from fedlgd.report.plots import heat_map, save
from fedlgd.rundir.read import read_run
from tests.report.fake import write_analysis, write_run


def test_figures_are_written_as_pdf_and_png(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", label="FedLGD")
    write_analysis(run)
    files = write_figures([run], tmp_path / "figures")
    names = {file.stem for file in files}
    assert {"accuracy", "loss", "accuracy-by-bytes", "accuracy-by-time"} < names
    assert {"site0-mnist-accuracy", "sites0-fedlgd-map", "sites0-fedlgd-mmd-real"} < names
    assert "sites0-fedlgd-map-classes" in names
    for file in files:
        assert file.read_bytes().startswith(b"%PDF" if file.suffix == ".pdf" else b"\x89PNG")


def test_a_figure_file_is_the_same_every_time(tmp_path: Path) -> None:
    figure = heat_map({(0, 1): (0.5, "1.0")}, ["a", "b"], ["a", "b"], "MMD")
    first, second = (save(figure, tmp_path / name) for name in ("first", "second"))
    assert [file.read_bytes() for file in first] == [file.read_bytes() for file in second]


def test_figure_files_have_safe_names_whatever_a_site_is_called(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", label="../x", final={"../../etc/passwd": 0.9, "\0": 0.8})
    names = [drawing.name for site in site_figures(group_runs([read_run(run)])) for drawing in site.drawings]
    names += [file.stem for file in write_figures([run], tmp_path / "figures")]
    assert "site0-etc-passwd-accuracy" in names
    assert all(re.fullmatch(r"[a-z0-9-]+", name) for name in names)


def test_a_site_whose_loss_diverged_has_a_curve_of_the_other_rounds(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "a", rounds=3, final={"x": 0.8}))
    scores = {"x": replace(run.records[2].scores["x"], loss=math.nan)}
    records = (*run.records[:2], replace(run.records[2], scores=scores), run.records[3])
    (site,) = site_figures(group_runs([replace(run, records=records)]))
    _, loss = site.drawings
    assert list(loss.figure.axes[0].lines[0].get_xdata()) == [1, 3]


def test_the_map_by_class_names_the_classes(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", classes=("glaucoma", "normal"))
    cloud = {"kind": "real", "site": "mnist", "points": [[0, 1], [1, 0]], "labels": [1, 0]}
    (run / "analysis.json").write_text(json.dumps({"sites": ["mnist"], "map": [cloud]}))
    (section,) = similarity_figures(group_runs([read_run(run)]))
    by_class = next(each for each in section.drawings if each.name.endswith("map-classes"))
    legend = by_class.figure.axes[0].get_legend()
    assert {text.get_text() for text in legend.get_texts()} == {"glaucoma", "normal"}


def test_sites_of_the_analysis_have_the_order_of_the_tables(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", final={"south": 0.5, "north": 0.6, "east": 0.7})
    clouds = [{"kind": "real", "site": site, "points": [[0, 1]]} for site in ("east", "north", "south")]
    content = {
        "sites": ["east", "north", "south"],
        "mmd": {"real": [[0, 12, 13], [12, 0, 23], [13, 23, 0]]},
        "map": clouds,
        "distances": [{"round": 0, "sites": {"east": 1, "north": 2, "south": 3}}],
    }
    (run / "analysis.json").write_text(json.dumps(content))
    analysis = read_run(run).analysis.ordered(["south", "north", "east"])
    assert analysis.sites == ("south", "north", "east")
    assert analysis.mmd["real"] == ((0, 23, 13), (23, 0, 12), (13, 12, 0))
    assert [cloud.site for cloud in analysis.map] == ["south", "north", "east"]
    assert list(analysis.distances[0].sites.items()) == [("south", 3), ("north", 2), ("east", 1)]
    (section,) = similarity_figures(group_runs([read_run(run)]))
    heights = [tick.get_text() for tick in section.drawings[0].figure.axes[0].get_yticklabels()]
    assert heights == ["south", "north", "east"]


def test_the_axis_of_an_accuracy_ends_at_100_percent(tmp_path: Path) -> None:
    runs = [
        read_run(write_run(tmp_path / str(seed), seed=seed, final={"x": final}))
        for seed, final in enumerate((1.0, 0.9))
    ]
    low, high = round_figures(group_runs(runs))[0].figure.axes[0].get_ylim()
    assert 100 < high < 103
    assert low < 90
