"""What a run leaves for its report: real samples, and how alike the sites' features are."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fedlgd.core.errors import SettingError
from fedlgd.core.types import LabelledSet, Scale, Stream
from fedlgd.runs import analysis
from fedlgd.runs.analysis import SiteAnalysis, Sources
from fedlgd.runs.config import RunSettings
from fedlgd.runs.folder import write_samples
from fedlgd.runs.run import execute
from tests import tiny
from tests.runs.folder import config, method, run_until, snapshot


def found(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "analysis.json").read_text())


@pytest.fixture(scope="module")
def data():
    return tiny.federation()


@pytest.fixture
def how():
    """tau = {0, 2}, four rounds."""
    return config(method("fedlgd"), rounds=4, analysis=True, real_samples=2)


def test_the_distance_to_the_anchors_is_taken_when_something_moved(data, how, tmp_path):
    """By hand, at the end: class means of unit features of the model, squared gaps, mean over classes."""
    execute(how, data, tmp_path / "run")
    noted = found(tmp_path / "run")["distances"]
    assert [each["round"] for each in noted] == [-1, 0, 2]
    assert all(set(each["sites"]) == set(tiny.NAMES) for each in noted)
    ended = config(method("fedlgd"), rounds=3, analysis=True)
    last = execute(ended, data, tmp_path / "short")
    for name, value in found(tmp_path / "short")["distances"][-1]["sites"].items():
        assert value == pytest.approx(distance_by_hand(last, name), abs=2e-6)


def test_pictures_shared_by_the_server_are_shown_and_compared_under_the_sites_scale(data, tmp_path):
    """The set of VHL where inputs range from 0 to 1: drawn as made, and embedded as the sites embed it."""
    none = Scale((0.0,) * 3, (1.0,) * 3)
    sites = tuple(replace(site, train=replace(site.train, scale=none)) for site in data.sites)
    unscaled = replace(data, sites=sites)
    how = config(tiny.settings(method("vhl"), {"per_class": 2}), rounds=1, analysis=True)
    result = execute(how, unscaled, tmp_path / "run")
    assert result.anchors.scale == Scale()
    seen = analysis.as_input(result.anchors, unscaled).images
    torch.testing.assert_close(seen, 0.5 + 0.5 * result.anchors.images)
    (drawn,) = (tmp_path / "run").rglob("anchors.png")
    first = np.asarray(Image.open(drawn))[: tiny.SIDE, : tiny.SIDE]
    assert np.array_equal(first, Scale().to_pixels(result.anchors.images)[0].permute(1, 2, 0).numpy())


def distance_by_hand(result, name):
    def means(own):
        features = result.net.frozen(result.params, own.images).features.double()
        unit = features / features.norm(dim=1, keepdim=True)
        return [unit[own.labels == k].mean(0) for k in range(tiny.CLASSES)]

    gaps = zip(means(result.virtual[name]), means(result.anchors), strict=True)
    return sum(float(((a - b) ** 2).sum()) for a, b in gaps) / tiny.CLASSES


def test_an_interrupted_run_ends_with_the_same_analysis(data, how, tmp_path):
    execute(how, data, tmp_path / "whole")
    run_until(0, how, data, tmp_path / "cut")
    run_until(2, how, data, tmp_path / "cut")
    execute(how, data, tmp_path / "cut")
    assert found(tmp_path / "cut") == found(tmp_path / "whole")


def test_a_look_that_a_crash_prevented_is_made_up_for(data, how, tmp_path, monkeypatch):
    execute(how, data, tmp_path / "whole")

    def crash(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(SiteAnalysis, "distances", crash)
        with pytest.raises(KeyboardInterrupt):
            execute(how, data, tmp_path / "cut")
    execute(how, data, tmp_path / "cut")
    assert found(tmp_path / "cut") == found(tmp_path / "whole")


def test_a_complete_run_is_not_looked_at_again(data, how, tmp_path, monkeypatch):
    execute(how, data, tmp_path / "run")
    before = snapshot(tmp_path / "run")
    monkeypatch.setattr(SiteAnalysis, "at_the_end", lambda _: pytest.fail("analysed twice"))
    execute(how, data, tmp_path / "run")
    assert snapshot(tmp_path / "run") == before


def test_a_damaged_analysis_stops_nothing_and_is_made_anew(data, how, tmp_path):
    execute(how, data, tmp_path / "run")
    whole = found(tmp_path / "run")
    (tmp_path / "run" / "analysis.json").write_text("{")
    execute(how, data, tmp_path / "run")
    assert found(tmp_path / "run")["mmd"] == whole["mmd"]


def test_looking_changes_no_bit_of_the_run(data, how, tmp_path):
    seen = execute(how, data, tmp_path / "seen")
    unseen = execute(config(method("fedlgd"), rounds=4, analysis=False, real_samples=0), data, tmp_path / "unseen")
    assert tiny.equal(seen.params, unseen.params)
    assert tiny.without_seconds(seen.records) == tiny.without_seconds(unseen.records)
    assert not (tmp_path / "unseen" / "analysis.json").exists()
    assert not (tmp_path / "unseen" / "real").exists()


def test_matrices_have_a_row_for_each_site_and_tell_far_from_near(data, how, tmp_path):
    execute(how, data, tmp_path / "run")
    content = found(tmp_path / "run")
    assert content["sites"] == list(tiny.NAMES)
    assert content["images"] == tiny.CLASSES * 2
    for matrix in content["mmd"].values():
        rows = np.array(matrix)
        assert rows.shape == (3, 3)
        assert (rows == rows.T).all()
        assert (rows.diagonal() == 0).all()
    assert set(content["mmd"]) == {"real", "virtual"}
    assert content["map"] == []


def test_methods_on_real_images_have_no_virtual_part(data, tmp_path):
    execute(config(method("fedavg"), rounds=1, analysis=True), data, tmp_path / "run")
    content = found(tmp_path / "run")
    assert (content["distances"], set(content["mmd"])) == ([], {"real"})


def test_personal_models_have_no_common_features(data, tmp_path):
    execute(config(method("fedbn"), rounds=1, analysis=True), data, tmp_path / "run")
    assert not (tmp_path / "run" / "analysis.json").exists()


def test_a_model_that_is_not_a_number_says_nothing(data):
    run = tiny.Run(method("fedlgd"), data, RunSettings(rounds=1))
    state = run.states[-1]
    broken = {name: torch.full_like(value, torch.nan) for name, value in state.params.items()}
    run.memory.commit(replace(state, params=broken), run.records[-1], {})
    sources = Sources(data, tiny.net(), run.memory, run.memory.states, Stream(0))
    broken_run = SiteAnalysis(sources, Path("absent.json"))
    assert broken_run.distances() == {}
    assert broken_run.at_the_end() == {}


def test_the_map_puts_like_beside_like_the_same_every_time():
    """Two far clusters: every point is nearer to the middle of its own."""
    shift = torch.zeros(40, 8)
    shift[:, 0] = 30.0
    classes = torch.arange(40) % 4
    near, far, shared = (analysis.ImageFeatures(torch.randn(40, 8) + by, classes) for by in (0.0, shift, 0.0))
    sets = {"real": {"a": near, "b": far}, "anchors": {"": shared}}
    clouds = analysis.tsne_map(sets, seed=3)
    assert [(cloud["kind"], cloud["site"], len(cloud["points"])) for cloud in clouds] == [
        ("real", "a", 40),
        ("real", "b", 40),
        ("anchors", "", 40),
    ]
    assert all(cloud["labels"] == classes.tolist() for cloud in clouds)
    near, far, also_near = (np.array(cloud["points"]) for cloud in clouds)
    middle = np.concatenate([near, also_near]).mean(0)
    assert (np.linalg.norm(far - far.mean(0), axis=1) < np.linalg.norm(far - middle, axis=1)).all()
    assert analysis.tsne_map(sets, seed=3) == clouds


def test_real_samples_are_the_first_images_of_each_class(data, how, tmp_path):
    execute(how, data, tmp_path / "run")
    site = data.by_name["bee"]
    sheet = np.array(Image.open(tmp_path / "run" / "real" / "bee.png"))
    assert sheet.shape == (tiny.CLASSES * tiny.SIDE, 2 * tiny.SIDE, 3)
    second = site.train.x[site.train.of_class(1)[1]].permute(1, 2, 0).numpy()
    assert (sheet[tiny.SIDE : 2 * tiny.SIDE, tiny.SIDE :] == second).all()


def test_a_class_with_fewer_images_is_filled_up_and_an_absent_one_has_no_row(tmp_path):
    images = torch.zeros(3, 3, 2, 2)
    write_samples(tmp_path, "a", LabelledSet(images, torch.tensor([0, 0, 2]), Scale()), per_class=2)
    sheet = np.array(Image.open(tmp_path / "a.png"))
    assert sheet.shape == (4, 4, 3)
    assert set(np.unique(sheet[:2])) == {128}
    assert set(np.unique(sheet[2:, 2:])) == {255}


def test_samples_are_written_once(tmp_path):
    images = LabelledSet(torch.zeros(2, 3, 2, 2), torch.tensor([0, 1]), Scale())
    write_samples(tmp_path, "a", images, per_class=1)
    before = (tmp_path / "a.png").stat().st_mtime_ns
    write_samples(tmp_path, "a", images, per_class=1)
    assert (tmp_path / "a.png").stat().st_mtime_ns == before


def test_fewer_than_no_samples_are_refused():
    with pytest.raises(SettingError, match="real_samples is -2; use -1"):
        RunSettings(real_samples=-2)
