"""What a report says about inversion and about epsilon."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from fedlgd.report.figures import epsilon_figures
from fedlgd.report.groups import group_runs
from fedlgd.report.page import inversion_section, render
from fedlgd.rundir.read import read_run
from tests.report.conftest import MakeGroups
from tests.report.fake import TILE, write_run

CELL: dict[str, Any] = {
    "case": "real",
    "title": "FedAvg on real images",
    "round": 0,
    "batch": 1,
    "images": 8,
    "identified": 0.75,
    "interval": [0.35, 0.97],
    "chance": 0.01,
    "rank": 2.5,
    "candidates": 100,
    "psnr": 12.0,
    "psnr_aligned": 21.5,
    "feature_distance": 0.2,
    "ssim": 0.61,
    "nearer_training": 0.875,
    "expected": 0.8,
    "p_value": 0.4,
    "distance_training": 0.11,
    "distance_held_out": 0.31,
    "picture": "invert/real-round0-batch1.png",
}
MEMORY: dict[str, Any] = {
    "what": "virtual set",
    "site": "svhn",
    "round": -1,
    "images": 100,
    "nearer_training": 0.9,
    "expected": 0.8,
    "p_value": 0.003,
    "closest": [0.1, 0.2],
    "picture": "../../secret.png",
}


def inverted(path: Path, show: bool = True, **cell: Any) -> Path:
    write_run(path)
    found = {
        "settings": {"site": "svhn", "show": show},
        "cells": {"a": CELL | cell},
        "memorisation": [MEMORY],
    }
    (path / "invert.json").write_text(json.dumps(found))
    (path / "invert").mkdir()
    Image.new("RGB", (2 * TILE, 4 * TILE), "red").save(path / "invert" / "real-round0-batch1.png")
    Image.new("RGB", (TILE, TILE), "blue").save(path.parent / "secret.png")
    return path


def test_identification_beside_chance_is_the_headline(tmp_path):
    (found,) = inversion_section(group_runs([read_run(inverted(tmp_path / "run"))]))
    assert re.findall(r"[\d.]+ %|8 images", found["headline"]) == ["75.0 %", "8 images", "1.0 %"]
    text = " ".join((*(cell.text for row in found["table"].rows for cell in row), *found["table"].notes))
    assert "75.0 [35.0, 97.0]" in text
    assert "2.5 of 100" in text


def test_the_headline_weighs_each_cell_by_its_images_and_keeps_kinds_of_updates_apart(tmp_path):
    """By hand: (8 x 0.75 + 32 x 0.25) / 40 = 35 %, by chance (8 x 0.01 + 32 x 0.06) / 40 = 5 %."""
    path = inverted(tmp_path / "run", chance=0.01)
    found = json.loads((path / "invert.json").read_text())
    larger = found["cells"]["a"] | {"batch": 4, "images": 32, "identified": 0.25, "chance": 0.06}
    found["cells"] |= {"b": larger, "c": larger | {"title": "virtual", "identified": 1.0}}
    (path / "invert.json").write_text(json.dumps(found))
    (shown,) = inversion_section(group_runs([read_run(path)]))
    assert re.findall(r"([\d.]+) %|(\d+) images", shown["headline"]) == [
        *(("35.0", ""), ("", "40"), ("5.0", "")),
        *(("100.0", ""), ("", "32"), ("6.0", "")),
    ]
    assert [row[3].value for row in shown["table"].rows] == [0.75, 0.25, 1.0]


def test_copies_of_training_images_are_listed_the_most_surprising_first(tmp_path):
    path = inverted(tmp_path / "run")
    found = json.loads((path / "invert.json").read_text())
    found["memorisation"] += [MEMORY | {"p_value": 1e-6, "site": "usps", "round": 4, "closest": [0.3, 0.04]}]
    (path / "invert.json").write_text(json.dumps(found))
    (shown,) = inversion_section(group_runs([read_run(path)]))
    assert [row[1].text for row in shown["memory"].rows] == ["usps", "svhn"]
    assert [row[2].text for row in shown["memory"].rows] == ["5", "0"]
    assert [row[4].value for row in shown["memory"].rows] == [0.04, 0.1]
    assert [row[-1].value for row in shown["memory"].rows] == [1e-6, 0.003]


def test_every_distance_says_which_direction_is_safer(tmp_path):
    (found,) = inversion_section(group_runs([read_run(inverted(tmp_path / "run"))]))
    assert found["memory"] is not None
    names = [column.name for table in (found["distances"], found["memory"]) for column in table.columns]
    distances = [name for name in names if "distance" in name or "to nearest training" in name]
    assert len(distances) == 3
    assert all("higher = safer" in name for name in distances)


def test_pictures_have_their_rows_named_and_come_from_the_run_folder_only(tmp_path):
    (found,) = inversion_section(group_runs([read_run(inverted(tmp_path / "run"))]))
    (picture,) = found["pictures"]
    assert picture.rows == ("original", "reconstruction", "nearest training image", "nearest held-out image")
    assert not found["closest"]  # its path points outside


def test_pictures_of_private_images_are_not_in_the_page_unless_asked_for(tmp_path):
    run = read_run(inverted(tmp_path / "run", show=False))
    (found,) = inversion_section(group_runs([run]))
    assert not found["pictures"]
    assert 'data-kind="hidden-pictures"' in render([run])


def test_results_with_other_settings_are_shown_beside_each_other_with_their_own_pictures(tmp_path):
    path = inverted(tmp_path / "run")
    first = json.loads((path / "invert.json").read_text())
    for number, loss in ((1, "cosine"), (2, "l2")):
        name = "invert" if number == 1 else f"invert-{number}"
        settings = first["settings"] | {"attack": {"loss": loss, "tv": 0.2}, "seed": 3, "show": True}
        (path / f"{name}.json").write_text(json.dumps(first | {"settings": settings}))
    (path / "invert-2").mkdir()
    Image.new("RGB", (2 * TILE, 4 * TILE), "green").save(path / "invert-2" / "real-round0-batch1.png")
    one, two = inversion_section(group_runs([read_run(path)]))
    assert [each["heading"].rpartition(", ")[2] for each in (one, two)] == [
        "site svhn (attack.loss=cosine)",
        "site svhn (attack.loss=l2)",
    ]
    assert one["pictures"][0].uri != two["pictures"][0].uri


def test_what_cannot_be_measured_is_a_dash(tmp_path):
    path = inverted(tmp_path / "run", nearer_training=None, ssim=None)
    (found,) = inversion_section(group_runs([read_run(path)]))
    rows = (found["table"].rows[0], found["distances"].rows[0])
    assert [[cell.text for cell in row].count("–") for row in rows] == [3, 1]


def test_a_damaged_file_is_named_and_the_rest_is_shown(tmp_path):
    path = inverted(tmp_path / "run", identified="many")
    run = read_run(path)
    assert not run.inversions
    assert "invert.json" in run.damage[0]


def private(epsilon: float) -> dict[str, Any]:
    return {"distil": {"per_class": 10, "private": {"epsilon": epsilon, "delta": 1e-5}}}


def test_runs_with_several_budgets_have_a_figure(make_groups: MakeGroups):
    runs = [{"settings": private(e), "final": {"a": a}} for e, a in ((0.0, 0.9), (4.0, 0.8), (1.0, 0.7))]
    (drawing,) = epsilon_figures(make_groups(*runs))
    line, marks = [line for line in drawing.figure.axes[0].lines if len(line.get_xdata()) == 3]
    assert (line.get_marker(), marks.get_marker()) == ("None", "o")
    assert list(line.get_xdata()) == [0.0, 0.25, 1.0]
    assert list(line.get_ydata()) == pytest.approx([90, 80, 70])
    assert "1 / epsilon" in drawing.svg


def test_one_budget_has_no_figure(make_groups: MakeGroups):
    assert not [*epsilon_figures(make_groups({"settings": private(4.0)}, {"label": "FedAvg"}))]
