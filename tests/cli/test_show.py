"""The commands that show what there is."""

import json
from pathlib import Path

import pytest
from PIL import Image

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


def test_data_list_names_the_builtin_data(fedlgd):
    plain, rows = fedlgd("data", "list"), json.loads(fedlgd("data", "list", "--json").out)
    assert "builtin-digits" in [row["name"] for row in rows]
    assert "builtin-digits" in plain.out


def test_data_show_counts_the_images_of_each_class_at_each_site(fedlgd, digits):
    rows = json.loads(fedlgd("data", "show", "builtin-digits", "--json").out)
    assert [row["site"] for row in rows] == SITES
    for row in rows:
        site = digits.by_name[row["site"]]
        assert row["train"] == len(site.train) == sum(row["images per class"])
        assert row["test"] == len(site.test)
        assert row["note"]
    plain = fedlgd("data", "show")
    assert plain.code == 0
    assert all(site in plain.out for site in SITES)


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
    assert json.loads(done.out) == {"report": str(tmp_path / "runs" / "report.html"), "runs": 2}
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
