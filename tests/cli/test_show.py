"""The commands that show what there is."""

import json
from pathlib import Path

import pytest
from PIL import Image

from fedlgd.data.registry import SUITES
from fedlgd.methods import registry
from fedlgd.nets.registry import NETS
from tests.cli.conftest import tiny_run

SITES = ["mnist", "scans", "photos", "fonts", "street"]


def tiny_fedavg(out: Path) -> list[str]:
    words = tiny_run(out, "--method=fedavg", "--quiet", rounds=1)
    return [word for word in words if not word.startswith(("--set=refine", "--set=anchors"))]


def test_methods_lists_every_method_with_its_presets_and_settings(fedlgd):
    plain, rows = fedlgd("methods"), json.loads(fedlgd("methods", "--json").out)
    assert [row["name"] for row in rows] == registry.names()
    by_name = {row["name"]: row for row in rows}
    assert by_name["fedlgd"]["settings"]["distil"]["per_class"] == 10
    assert "official" in by_name["fedlgd"]["presets"]
    assert all(row["about"] for row in rows)
    assert all(name in plain.out for name in registry.names())


def test_nets_lists_every_net_with_its_size(fedlgd):
    plain, rows = fedlgd("nets"), json.loads(fedlgd("nets", "--json").out)
    assert [row["name"] for row in rows] == list(NETS)
    by_name = {row["name"]: row for row in rows}
    assert by_name["convnet"]["settings"]["width"] == 128
    assert by_name["convnet"]["parameters"] > 300_000
    assert all(name in plain.out for name in NETS)


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
    assert "fetch:" in fedlgd("data", "list").out
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
    monkeypatch.setattr("fedlgd.cli.sites.WIDTH", 8)
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
    assert "what zero looks like" in plain
    assert plain.count("±") >= 2 * 25


def test_the_shift_of_many_sites_is_summarised(fedlgd, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setattr("fedlgd.cli.sites.MATRIX", 4)
    plain = fedlgd("data", "show", "builtin-digits", "--shift", *FEW, "--quiet").out
    assert "nearest" in plain
    assert "farthest" in plain
    assert "mean over pairs" in plain


def test_the_shift_class_by_class(fedlgd, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setattr("fedlgd.cli.sites.WIDTH", 4)
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
    assert "sheet.png: No such file or directory" in done.err


def test_report_makes_one_page_of_all_runs_below_a_folder(fedlgd, tmp_path):
    assert fedlgd(*tiny_fedavg(tmp_path / "runs" / "fedavg")).code == 0
    assert fedlgd(*tiny_run(tmp_path / "runs" / "fedlgd", "--quiet", rounds=1)).code == 0
    done = fedlgd("report", str(tmp_path / "runs"), "--json")
    assert done.code == 0
    assert json.loads(done.out) == {
        "report": str(tmp_path / "runs" / "report.html"),
        "runs": 2,
        "figures": [],
    }
    page = (tmp_path / "runs" / "report.html").read_text()
    assert "FedLGD" in page
    assert "FedAvg" in page
    again = fedlgd("report", str(tmp_path / "runs" / "fedlgd"), "-o", str(tmp_path / "one.html"))
    assert again.out.strip() == f"Report: {tmp_path / 'one.html'}"
    assert "FedAvg" not in (tmp_path / "one.html").read_text()


def test_report_without_a_run_says_so(fedlgd, tmp_path):
    (tmp_path / "empty").mkdir()
    for place in ("empty", "nowhere"):
        done = fedlgd("report", str(tmp_path / place))
        assert done.code == 2
        assert done.err.startswith("fedlgd: no run in ")
        assert place in done.err
    (tmp_path / "empty" / "manifest.json").write_text("{}")
    done = fedlgd("report", str(tmp_path / "empty"))
    assert done.code == 2
    assert "no run can be read" in done.err
    assert done.err.count("\n") == 1


def test_a_report_that_cannot_be_written_is_said(fedlgd, tmp_path):
    assert fedlgd(*tiny_fedavg(tmp_path / "run")).code == 0
    (tmp_path / "file").write_text("")
    done = fedlgd("report", str(tmp_path / "run"), "-o", str(tmp_path / "file" / "report.html"))
    assert done.code == 2
    assert str(tmp_path / "file" / "report.html") in done.err


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
    assert "cannot import the data suite 'own_suite:Nothing'" in wrong.err
