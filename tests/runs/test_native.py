"""Python feels native: short representations, HTML in notebooks, progress, comparison and report."""

import base64
import io
import re

import numpy as np
import pytest
from PIL import Image

import fedlgd
from fedlgd.core.errors import SettingError
from tests import tiny
from tests.errors import refuses
from tests.runs.folder import method

NET = {"name": "convnet", "depth": 2, "width": 4}


@pytest.fixture(scope="module")
def data():
    return tiny.federation()


@pytest.fixture(scope="module")
def result(data):
    return fedlgd.run(data, method("fedlgd"), rounds=1, net=NET)


def test_every_object_is_printed_in_a_few_lines(data, result):
    site = data.sites[0]
    for thing in (data, site, site.train, result.virtual["ape"], result.anchors, result, result.virtual):
        text = repr(thing)
        assert len(text) < 400, text
        assert "tensor(" not in text
    assert "3 sites" in repr(data)
    assert "18 training and 12 test images" in repr(site)
    assert "FedLGD: 1 of 1 round," in repr(result)
    assert "'ape'" in repr(result.virtual["ape"])


def test_a_federation_of_many_sites_is_printed_short():
    many = tiny.federation(names=[f"site{i}" for i in range(40)], train=1, test=1)
    assert len(repr(many)) < 200
    assert "28 more sites" in many._repr_html_()


def test_notebooks_show_tables_and_images_that_can_be_decoded(data, result):
    predictions = result.predict(np.zeros((2, 8, 8, 3), np.uint8))
    for thing in (data, data.sites[0], data.sites[0].train, result.virtual["ape"], result, predictions):
        page = thing._repr_html_()
        assert "<" in page
        for encoded in re.findall(r"base64,([^\"]+)", page):
            Image.open(io.BytesIO(base64.b64decode(encoded))).load()
    (first, *_) = re.findall(r"base64,([^\"]+)", data.sites[0]._repr_html_())
    shown = np.asarray(Image.open(io.BytesIO(base64.b64decode(first))))
    train = data.sites[0].train
    assert np.array_equal(shown[:8, :8], train.x[train.of_class(0)[0]].permute(1, 2, 0).numpy())


def test_a_name_is_escaped_in_html():
    names = ["<script>alert(1)</script>"]
    assert "<script>" not in tiny.federation(names=names)._repr_html_()


def test_a_run_from_python_is_silent(data, capsys):
    fedlgd.run(data, method("fedavg"), rounds=3, net=NET)
    assert capsys.readouterr().err == ""


def test_compare_gives_results_by_method_and_a_table(data, tmp_path):
    compared = fedlgd.compare(
        data, [method("fedavg"), method("fedprox")], seeds=2, rounds=1, net=NET, out=tmp_path / "runs"
    )
    assert [len(results) for results in compared.values()] == [2, 2]
    assert set(compared.accuracy["FedAvg on real data"]) == {"ape", "bee", "cat"}
    assert "FedProx on real data" in repr(compared)
    assert "±" in repr(compared)
    assert "<table>" in compared._repr_html_()
    page = fedlgd.write_report(tmp_path / "runs")
    assert page == tmp_path / "runs/report.html"
    assert "FedProx" in page.read_text()
    assert fedlgd.write_report([tmp_path / "runs"], tmp_path / "other.html").exists()


def test_compare_and_report_refuse_nothing_to_do(data, tmp_path):
    with refuses("nothing-to-compare", methods=0):
        fedlgd.compare(data, [])
    with refuses("entry-twice", method="fedavg"):
        fedlgd.compare(data, ["fedavg", "fedavg"])
    with refuses("two-methods-same-label", label="FedAvg on real data"):
        fedlgd.compare(data, ["fedavg", fedlgd.FedAvg()])
    with refuses("jobs-in-memory", jobs=2):
        fedlgd.compare(data, ["fedavg"], jobs=2)
    with refuses("no-run-in-folder", folders=[str(tmp_path)]):
        fedlgd.write_report(tmp_path)


def test_every_method_is_exported():
    from fedlgd.methods import registry

    for name in registry.names():
        cls = registry.find_method(name)
        assert getattr(fedlgd, cls.__name__) is cls
    assert set(fedlgd.__all__) <= set(dir(fedlgd))


def test_a_sweep_from_python_names_every_point_and_its_settings(data, tmp_path):
    method = fedlgd.configure("fedavg", "quick", train_on="real")
    found = fedlgd.compare(
        data, [method], seeds=1, sweep={"local.lr": [0.1, 0.2]}, rounds=1, net=NET, out=tmp_path / "out"
    )
    assert list(found) == ["FedAvg on real data (local.lr=0.1)", "FedAvg on real data (local.lr=0.2)"]
    assert "lr = 0.2" in (found["FedAvg on real data (local.lr=0.2)"][0].folder / "config.toml").read_text()
    with refuses("setting-not-of-every-method", path="local.speed"):
        fedlgd.compare(data, [method], sweep={"local.speed": [1]})


@pytest.mark.parametrize(
    ("sweep", "words"),
    [
        ({"local.lr": 1}, "local.lr=1; give different values"),
        ({"local.lr": []}, "local.lr=[]; give different values"),
        ({"local.lr": [0, 0.0]}, "local.lr=[0, 0.0]; give different values"),
        ({"local.lr": "0,1"}, "local.lr='0,1'; give different values"),
        ({"local.lr": [1], "local.batch": [2], "local.epochs": [1]}, "(3 axes)"),
        ({"local.spochs": [1]}, "did you mean 'epochs'"),
    ],
)
def test_a_sweep_that_is_none_is_refused_before_any_run(data, tmp_path, sweep, words):
    with pytest.raises(SettingError, match=re.escape(words)):
        fedlgd.compare(data, [fedlgd.FedAvg()], sweep=sweep, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()
