"""Own images from the command line: checked, run by path, and the data home as an option."""

import json
import os
import tomllib
from pathlib import Path

import numpy as np
import pytest

from fedlgd.cli.checking import chosen_data
from tests.cli.conftest import TINY
from tests.data.pictures import noise, save, tree

SMALL = ["--engine=loop", *(f"--set={key}={value}" for key, value in TINY.items() if not key.startswith("data."))]


@pytest.fixture
def sites(tmp_path):
    return tree(tmp_path / "sites", classes={"no": 12, "yes": 12})


def test_a_clean_folder_is_exit_code_0(fedlgd, sites):
    done = fedlgd("data", "check", str(sites), "--least", "5")
    assert (done.code, done.err) == (0, "")
    assert "2 sites, 48 readable images: 0 errors, 0 warnings" in done.out


def test_warnings_are_exit_code_0_unless_strict(fedlgd, sites):
    (sites / "notes.txt").write_text("x")
    assert fedlgd("data", "check", str(sites), "--least", "5").code == 0
    assert fedlgd("data", "check", str(sites), "--least", "5", "--strict").code == 1


def test_errors_are_exit_code_1_and_in_the_table(fedlgd, sites):
    (sites / "a" / "no" / "bad[red].png").write_text("no image")
    done = fedlgd("data", "check", str(sites))
    assert done.code == 1
    assert "bad[red].png" in done.out.replace("\n", "")
    assert "1 errors" in done.out


def test_json_lists_every_problem_and_the_table_a_few_of_a_kind(fedlgd, sites):
    for i in range(9):
        (sites / "a" / "no" / f"bad{i}.png").write_text("no image")
    done = fedlgd("data", "check", str(sites), "--json")
    got = json.loads(done.out)
    assert (done.code, got["errors"], got["sites"], got["images"]) == (1, 9, 2, 48)
    errors = [p for p in got["problems"] if p["severity"] == "error"]
    assert [p["file"] for p in errors] == [f"a/no/bad{i}.png" for i in range(9)]
    assert set(errors[0]) == {"severity", "site", "file", "problem", "way_out"}
    shown = " ".join(fedlgd("data", "check", str(sites)).out.replace("│", " ").split())
    assert "6 more" in shown


def test_a_folder_that_is_not_there_is_exit_code_2(fedlgd):
    done = fedlgd("data", "check", "nowhere")
    assert done.code == 2
    assert "there is no folder or file nowhere" in done.err


@pytest.mark.parametrize(
    ("argument", "folder"), [(None, "sites"), ("./sites", None), ("sites", None), (None, "sites/")]
)
def test_a_folder_is_named_by_its_path_with_or_without_the_option(argument, folder, sites, monkeypatch):
    monkeypatch.chdir(sites.parent)
    wanted = {"data.name": "folders", "data.path": str(sites.resolve())}
    assert chosen_data(argument, Path(folder) if folder else None) == wanted


def test_a_federation_is_known_by_its_name_even_where_a_folder_is_called_so(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "builtin-digits").mkdir()
    assert chosen_data("builtin-digits", None) == {"data.name": "builtin-digits"}
    assert chosen_data(None, None) == {"data.name": None}


def test_a_folder_is_run_and_two_classes_have_an_area_under_the_curve(fedlgd, sites):
    done = fedlgd("run", "--data", "sites", "--rounds", "1", "-o", "out", *SMALL)
    assert done.code == 0, done.err
    config = tomllib.loads((sites.parent / "out" / "config.toml").read_text())
    assert config["data"]["path"] == str(sites.resolve())
    last = json.loads((sites.parent / "out" / "records.jsonl").read_text().splitlines()[-1])
    assert all(0 <= score["auc"] <= 1 for score in last["scores"].values())


def test_methods_are_compared_on_a_folder(fedlgd, sites):
    done = fedlgd("compare", "--data", "sites", "--methods", "fedavg", "--seeds", "1", "--rounds", "1", *SMALL[1:5])
    assert done.code == 0, done.err
    assert "on sites" in done.out


def test_a_name_and_a_folder_together_are_refused(fedlgd, sites):
    done = fedlgd("run", "builtin-digits", "--data", "sites")
    assert done.code == 2
    assert "name one federation" in done.err


def test_a_name_that_is_no_path_is_still_a_slip(fedlgd):
    done = fedlgd("run", "builtin-digts")
    assert done.code == 2
    assert "did you mean 'builtin-digits'" in done.err


def test_a_bad_folder_is_one_line_and_exit_code_2(fedlgd, sites):
    save(sites / "a" / "no" / "large.png", noise(1, 20))
    done = fedlgd("run", "sites", *SMALL)
    assert done.code == 2
    assert "--set data.size=64" in done.err
    assert len(done.err.strip().splitlines()) == 1


def test_the_data_home_is_an_option(fedlgd, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    x, y = np.zeros((4, 96, 96, 3), np.uint8), np.arange(4, dtype=np.uint8) % 2
    for name in ("retina_a", "retina_b"):
        np.savez(elsewhere / f"{name}.npz", train_x=x, train_y=y, test_x=x, test_y=y)
    assert fedlgd("data", "show", "retina-ab").code == 2
    done = fedlgd("--data-home", str(elsewhere), "data", "show", "retina-ab")
    assert done.code == 0
    assert os.environ["FEDLGD_DATA"] == str(elsewhere)
    assert "--data-home" in fedlgd("--help").out
