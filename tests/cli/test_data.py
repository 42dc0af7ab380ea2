"""`fedlgd data`: list, show and check; folders of own images; the data home."""

import json
import os
import tomllib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedlgd.cli.common import chosen_data
from fedlgd.core.errors import message
from fedlgd.data.suites import SUITES
from tests.cli.conftest import TINY
from tests.data.pictures import noise, save, tree

SITES = ["mnist", "scans", "photos", "fonts", "street"]


def test_data_list_names_every_suite_with_its_settings(fedlgd):
    plain, rows = fedlgd("data", "list"), json.loads(fedlgd("data", "list", "--json").out)
    assert [row["name"] for row in rows] == list(SUITES)
    assert all(name in plain.out for name in SUITES)
    digits = {row["name"]: row for row in rows}["digits"]
    assert digits["settings"] == {"scaling": "half", "synth": "auto", "size": 28}


def test_data_list_says_what_is_ready_and_how_to_get_the_rest(fedlgd, digits_home):
    def found():
        return {row["name"]: row for row in json.loads(fedlgd("data", "list", "--json").out)}

    assert found()["builtin-digits"]["ready"]
    assert not found()["digits"]["ready"]
    assert found()["digits"]["fetch"] == "fedlgd data fetch digits"
    assert "mnist.npz" in found()["digits"]["missing"]
    assert "digits: fedlgd data fetch digits" in fedlgd("data", "list").out
    assert "retina-ab: needs retina_a.npz, retina_b.npz" in fedlgd("data", "list").out
    for file in SUITES["digits"].files:
        (digits_home / file).touch()
    assert found()["digits"]["ready"]
    assert not found()["digits"]["fetch"]


def show(fedlgd, *more):
    done = fedlgd("data", "show", "builtin-digits", "--json", *more)
    assert done.code == 0, done.err
    return json.loads(done.out)


def test_data_show_counts_the_images_of_each_class_at_each_site(fedlgd, digits):
    found = show(fedlgd)
    assert found["name"] == "builtin-digits"
    assert found["shape"] == [3, 28, 28]
    assert found["shift"] == []
    assert [row["site"] for row in found["sites"]] == SITES
    for row in found["sites"]:
        site = digits.by_name[row["site"]]
        assert row["train"] == len(site.train) == sum(row["train_per_class"])
        assert row["test"] == len(site.test) == sum(row["test_per_class"])
        assert row["note"]
        assert all(sum(channel) == pytest.approx(1, abs=1e-3) for channel in row["histogram"])
    plain = fedlgd("data", "show")
    assert plain.code == 0
    assert all(site in plain.out for site in SITES)
    assert "█" in plain.out


def test_data_show_takes_settings_of_the_data(fedlgd):
    assert {row["train"] for row in show(fedlgd, "--set", "data.limit=30")["sites"]} == {30}
    wrong = fedlgd("data", "show", "builtin-digits", "--set", "data.colour=1")
    assert wrong.code == 2
    assert "data.colour" in wrong.err


FEW = ("--set", "data.limit=40", "--size", "8", "--draws", "2")


def test_data_show_measures_the_shift_between_sites_in_two_spaces(fedlgd, monkeypatch):
    monkeypatch.setattr("fedlgd.runs.shift.NET_WIDTH", 8)
    found = show(fedlgd, "--shift", *FEW)["shift"]
    assert [(each["space"], each["among"]) for each in found] == [
        ("pixels", "all images"),
        ("random features", "all images"),
    ]
    for each in found:
        assert each["sites"] == SITES
        assert (each["size"], each["draws"], each["unbiased"]) == (8, 2, True)
        assert len(each["mean"]) == len(each["std"]) == 5
        assert each["average"] > each["zero"] + 0.1
    assert show(fedlgd, "--shift", *FEW)["shift"] == found
    assert show(fedlgd, "--shift", "--seed", "1", *FEW)["shift"] != found
    biased = show(fedlgd, "--shift", "--biased", *FEW)["shift"]
    assert not biased[0]["unbiased"]
    assert biased[0]["zero"] > found[0]["zero"]


def test_the_shift_is_shown_as_a_matrix_with_its_spread(fedlgd, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    plain = fedlgd("data", "show", "builtin-digits", "--shift", *FEW, "--quiet").out
    assert "shift in pixels" in plain
    assert "the noise level" in plain
    assert plain.count("±") >= 2 * 25


def test_the_shift_of_many_sites_is_summarised(fedlgd, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setattr("fedlgd.cli.data.MAX_MATRIX", 4)
    plain = fedlgd("data", "show", "builtin-digits", "--shift", *FEW, "--quiet").out
    assert "nearest" in plain
    assert "farthest" in plain
    assert "mean over pairs" in plain


def test_the_shift_class_by_class(fedlgd, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setattr("fedlgd.runs.shift.NET_WIDTH", 4)
    words = ("--per-class", "--set", "data.limit=40", "--size", "2", "--draws", "2")
    found = show(fedlgd, *words)["shift"]
    assert [each["among"] for each in found] == 2 * ["all images", *"0123456789"]
    assert all(each["size"] == 2 for each in found)
    plain = fedlgd("data", "show", "builtin-digits", *words).out
    assert "farthest pair" in plain


def test_too_small_a_draw_is_refused(fedlgd):
    done = fedlgd("data", "show", "builtin-digits", "--shift", "--size", "1")
    assert done.code == 2
    assert "size is 1" in done.err


@pytest.mark.parametrize("name", ["sheet.png", "sheet"])
def test_data_show_writes_a_contact_sheet(name, fedlgd, tmp_path):
    done = fedlgd("data", "show", "--sheet", str(tmp_path / name), "--json")
    assert done.code == 0
    json.loads(done.out)
    assert str(tmp_path / name) in done.err
    with Image.open(tmp_path / name) as image:
        assert image.format == "PNG"
        assert min(image.size) > 28 * 10


def test_a_contact_sheet_that_cannot_be_written_is_said(fedlgd, tmp_path):
    done = fedlgd("data", "show", "--sheet", str(tmp_path / "no" / "such" / "sheet.png"))
    assert done.code == 2
    assert "sheet.png: No such file" in done.err


# Own images

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
    assert "1 error," in done.out


def test_json_lists_every_problem_and_the_table_a_few_of_a_kind(fedlgd, sites):
    for i in range(9):
        (sites / "a" / "no" / f"bad{i}.png").write_text("no image")
    done = fedlgd("data", "check", str(sites), "--json")
    got = json.loads(done.out)
    assert (done.code, got["errors"], got["sites"], got["images"]) == (1, 9, 2, 48)
    errors = [p for p in got["problems"] if p["severity"] == "error"]
    assert [p["file"] for p in errors] == [f"a/no/bad{i}.png" for i in range(9)]
    assert set(errors[0]) == {"severity", "site", "file", "problem", "way_out", "code"}
    shown = " ".join(fedlgd("data", "check", str(sites)).out.replace("│", " ").split())
    assert "6 more" in shown


def test_every_problem_comes_before_what_to_do_about_it(fedlgd, sites, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    for i in range(5):
        (sites / "a" / "no" / f"bad{i}.png").write_bytes(b"")
    (sites / "notes.txt").write_text("x")
    lines = fedlgd("data", "check", str(sites), "--least", "20").out.splitlines()
    assert lines[:5] == [
        "error at a: a/no/bad0.png is empty",
        "  a/no/bad1.png is empty",
        "  a/no/bad2.png is empty",
        "  and 2 more of this kind (--json lists all)",
        "  What to do: replace it or remove it",
    ]
    problem = message("class-with-few-images", count=10, label="no").rpartition("; ")[0]
    few = lines.index(f"warning at a: {problem}")
    assert lines[few + 2] == "  What to do: add images"


def test_a_folder_that_is_not_there_is_exit_code_2(fedlgd):
    done = fedlgd("data", "check", "nowhere")
    assert done.code == 2
    assert "nowhere" in done.err


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
    assert message("data-given-twice", name="builtin-digits", folder="sites") in " ".join(done.err.split())


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


def test_data_show_takes_a_suite_of_ones_own(fedlgd, tmp_path, monkeypatch):
    (tmp_path / "own_suite.py").write_text(
        "from dataclasses import dataclass\n"
        "import numpy as np, fedlgd\n"
        "@dataclass(frozen=True)\n"
        "class Pair:\n"
        "    side: int = 6\n"
        "    def open(self):\n"
        "        x, y = np.zeros((4, self.side, self.side), np.uint8), np.arange(4) % 2\n"
        "        return fedlgd.from_arrays({'a': (x, y, x, y), 'b': (x, y, x, y)}, name='pair')\n"
    )
    monkeypatch.chdir(tmp_path)
    done = fedlgd("data", "show", "own_suite:Pair", "--json", "--set", "data.side=5")
    assert done.code == 0, done.err
    shown = json.loads(done.out)
    assert (shown["name"], shown["shape"]) == ("pair", [3, 5, 5])
    wrong = fedlgd("data", "show", "own_suite:Nothing")
    assert wrong.code == 2
    assert "'own_suite:Nothing'" in wrong.err


@pytest.fixture
def bad_sites(tmp_path) -> Path:
    rng = np.random.default_rng(0)
    for site in ("a", "b"):
        for label in ("x", "y"):
            for i in range(12):
                path = tmp_path / "bad" / site / label / f"{i}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(rng.integers(0, 255, (16, 16, 3), dtype=np.uint8)).save(path)
    for file in ("a/x/torn.png", "b/y/empty.png"):
        (tmp_path / "bad" / file).write_bytes(b"")
    return tmp_path / "bad"


@pytest.mark.filterwarnings("default")
def test_a_run_on_a_bad_folder_lists_all_problems_and_can_skip_them(fedlgd, bad_sites, tmp_path):
    words = ["run", str(bad_sites), "--rounds", "1", "-o", str(tmp_path / "run")]
    words += [f"--set={k}={v}" for k, v in TINY.items() if not k.startswith("data.")]
    done = fedlgd(*words)
    assert done.code == 2
    assert "torn.png" in done.err
    assert "empty.png" in done.err
    assert "--skip-bad" in done.err
    assert not (tmp_path / "run").exists()
    skipped = fedlgd(*words, "--skip-bad", "--json")
    assert skipped.code == 0, skipped.err
    assert "left out: 1 of site 'a', 1 of site 'b'" in skipped.err
    sites = json.loads((tmp_path / "run" / "manifest.json").read_text())["data"]["sites"]
    assert [(site["train"] + site["test"], "1 unreadable" in site["note"]) for site in sites] == [(24, True)] * 2
    assert tomllib.loads((tmp_path / "run" / "config.toml").read_text())["data"]["skip_bad"] is True
    for file in (bad_sites / "a").rglob("*.png"):
        file.write_bytes(b"")
    assert message("no-readable-image", site="a") in " ".join(fedlgd(*words, "--skip-bad").err.split())


def test_the_settings_of_a_federation_are_shown_before_its_data_is_there(fedlgd):
    done = fedlgd("data", "show", "cifar10c")
    assert done.code == 2
    assert "data.severity" in done.out
    assert "gaussian_noise" in done.out
    assert "fedlgd data fetch cifar10" in done.err
    assert "gaussian_noise" not in fedlgd("data", "list").out


def test_check_says_which_difference_the_test_images_of_each_site_can_show(fedlgd, tmp_path, monkeypatch):
    """By hand: 2.8016 sqrt(2 * 0.8 * 0.2 / n) is 50 points for 10 images, and more than 100 for 2."""
    monkeypatch.setenv("COLUMNS", "80")
    tree(tmp_path / "sites", sites=("large",), classes={"no": 25, "yes": 25})
    tree(tmp_path / "sites", sites=("small",), classes={"no": 6, "yes": 6})
    power = json.loads(fedlgd("data", "check", "sites", "--json").out)["power"]
    assert power["large"] == {"test": 10, "gap": pytest.approx(0.5012, abs=1e-4)}
    assert power["small"] == {"test": 2, "gap": None}
    shown = fedlgd("data", "check", "sites").out.splitlines()
    assert [line.split() for line in shown[-2:]] == [["small", "2", "none"], ["large", "10", "50"]]
    assert max(map(len, shown)) <= 80
