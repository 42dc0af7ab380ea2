"""What is exported works without fedlgd and gives the same probabilities."""

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import fedlgd
from fedlgd.core.types import Scale
from tests import PATIENCE, tiny
from tests.data.dicoms import noisy, save_dicom
from tests.data.pictures import save
from tests.errors import refuses
from tests.runs.folder import method as method_of

NET = {"name": "convnet", "depth": 2, "width": 4}
BLOCK = """
import os, runpy, sys
class Block:
    def find_spec(self, name, *_):
        if name.partition(".")[0] == "fedlgd":
            raise ImportError("fedlgd is blocked")
sys.meta_path.insert(0, Block())
sys.argv = sys.argv[1:]
sys.path.insert(0, os.path.dirname(sys.argv[0]))
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def made(method="fedlgd", **more):
    data = tiny.federation()
    scale = Scale((0.2, 0.3, 0.4), (0.3, 0.2, 0.4))
    sites = tuple(
        replace(s, train=replace(s.train, scale=scale), test=replace(s.test, scale=scale)) for s in data.sites
    )
    data = replace(data, sites=sites, **more.pop("data", {}))
    return fedlgd.run(data, method_of(method), rounds=1, **{"net": NET, **more})


def run_snippet(folder, *images):
    command = [sys.executable, "-c", BLOCK, folder / "predict.py", *images]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    return [line.rsplit(" ", 1) for line in done.stdout.splitlines()]


@pytest.fixture
def picture(tmp_path):
    pixels = np.random.default_rng(1).integers(0, 256, (30, 20, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "one.png")
    return tmp_path / "one.png"


@pytest.mark.parametrize(("fit", "onnx"), [("stretch", True), ("stretch", False), ("crop", False), ("pad", False)])
def test_the_snippet_classifies_as_the_result_does_without_fedlgd(fit, onnx, tmp_path, picture):
    if onnx:
        pytest.importorskip("onnxruntime")
    result = made(data={"fit": fit})
    written = result.export(tmp_path / "model", onnx=onnx)
    assert all(file.exists() for file in written)
    assert (tmp_path / "model/model.onnx").exists() == onnx
    deep = save(tmp_path / "deep.png", Image.fromarray(np.arange(600, dtype=np.uint16).reshape(30, 20) * 100))
    pictures = [picture, deep, save_dicom(tmp_path / "scan.dcm", noisy(1))]
    expected = result.predict(pictures)
    for i, (said, probability) in enumerate(run_snippet(tmp_path / "model", *pictures)):
        assert said == f"{pictures[i]} {expected.labels[i]}"
        assert float(probability) == pytest.approx(float(expected.probabilities[i].max()), abs=2e-4)


def test_virtual_images_and_anchors_are_files_of_their_own(tmp_path):
    result = made()
    result.export(tmp_path, onnx=False)
    assert len(list((tmp_path / "virtual/ape").glob("*.png"))) == len(result.virtual["ape"]) == 6
    with np.load(tmp_path / "virtual/ape.npz") as stored:
        assert np.array_equal(stored["images"], result.virtual["ape"].images.numpy())
        assert stored["labels"].tolist() == result.virtual["ape"].labels.tolist()
    assert len(list((tmp_path / "anchors").glob("class 1-*.png"))) == 2
    assert (tmp_path / "virtual/ape.npz").stat().st_mode & 0o077 == 0
    assert (tmp_path / "virtual/ape").stat().st_mode & 0o077 == 0
    about = json.loads((tmp_path / "model.json").read_text())
    assert about["classes"] == ["class 0", "class 1", "class 2"]
    assert about["size"] == [8, 8]


def test_a_personalised_model_is_exported_for_its_site(tmp_path, picture):
    result = made("fedbn")
    with refuses("site-not-given"):
        result.export(tmp_path / "model", onnx=False)
    assert not (tmp_path / "model").exists()
    result.export(tmp_path / "model", "bee", onnx=False)
    ((_, probability),) = run_snippet(tmp_path / "model", picture)
    expected = result.predict(picture, "bee").probabilities.max()
    assert float(probability) == pytest.approx(float(expected), abs=2e-4)


class Sorted(nn.Module):
    """Its control flow depends on the values of the image: torch.export refuses it."""

    def __init__(self, shape, classes):
        super().__init__()
        self.head = nn.Linear(shape[0] * shape[1] * shape[2], classes)

    def forward(self, x):
        return self.head(x.flatten(1)) * (2 if float(x.sum()) > 0 else 1)


def test_a_net_that_cannot_be_exported_is_named(tmp_path):
    with refuses("net-not-exportable"):
        made("fedavg", net=Sorted).export(tmp_path / "model")
    assert not (tmp_path / "model/model.pt2").exists()


def test_without_the_packages_onnx_says_how_to_get_them(tmp_path, monkeypatch):
    import importlib.util

    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == "onnxruntime" else find(name, *a)
    )
    result = made("fedavg")
    with refuses("onnx-missing"):
        result.export(tmp_path / "a", onnx=True)
    result.export(tmp_path / "b")
    assert "torch.export.load" in (tmp_path / "b/predict.py").read_text()


@pytest.mark.slow
def test_networks_of_every_kind_export(tmp_path):
    linear = nn.Sequential(nn.Flatten(), nn.Linear(192, 3))
    for i, net in enumerate(({"name": "resnet18", "version": "printed"}, {**NET, "norm": "batch"}, linear)):
        result = made("fedavg", net=net)
        result.export(tmp_path / str(i), onnx=None)
        assert torch.isfinite(result.predict(np.zeros((8, 8, 3), np.uint8)).probabilities).all()
