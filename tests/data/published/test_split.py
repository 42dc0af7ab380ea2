"""The suite `split`: one prepared domain among sites."""

from pathlib import Path

import numpy as np
import pytest

from fedlgd.core.errors import SettingError
from fedlgd.data import arrays
from fedlgd.data.arrays import write_arrays
from fedlgd.data.published.partition import Split
from fedlgd.data.suites import load
from tests.errors import refuses

TRAIN, TEST = 300, 50


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A domain `things` of three classes; the first pixels of an image are its number."""
    images = np.zeros((TRAIN + TEST, 12, 12), np.uint8)
    numbers = np.arange(TRAIN + TEST)
    images[:, 0, 0], images[:, 0, 1] = numbers // 256, numbers % 256
    labels = (numbers % 3).astype(np.uint8)
    arrays = {"train_x": images[:TRAIN], "train_y": labels[:TRAIN]}
    write_arrays(tmp_path / "things.npz", {**arrays, "test_x": images[TRAIN:], "test_y": labels[TRAIN:]})
    monkeypatch.setenv("FEDLGD_DATA", str(tmp_path))
    monkeypatch.setenv("FEDLGD_CACHE", str(tmp_path))
    return tmp_path


def numbers(part):
    return [256 * int(x[0, 0, 0]) + int(x[0, 0, 1]) for x in part.x]


@pytest.mark.parametrize("by", ["iid", "dirichlet", "quantity", "shards"])
def test_every_training_image_is_at_one_site_with_its_label(home, by):
    federation = load("split", of="things", by=by, sites=4, alpha=1.0)
    assert [site.name for site in federation.sites] == [f"things-{i}" for i in range(1, 5)]
    assert sorted(n for site in federation.sites for n in numbers(site.train)) == list(range(TRAIN))
    for site in federation.sites:
        assert [n % 3 for n in numbers(site.train)] == site.train.y.tolist()


def test_all_sites_are_tested_on_the_same_images(home):
    for site in Split(of="things", sites=3).open().sites:
        assert numbers(site.test) == list(range(TRAIN, TRAIN + TEST))


def test_the_last_tenth_of_photographs_without_training_images_is_for_testing(home):
    things = arrays.read_arrays(home / "things.npz")
    photographs = {f"test_{each}": np.asarray(things[f"train_{each}"]) for each in "xy"}
    write_arrays(home / "cifar10_test.npz", photographs)
    sites = Split(of="cifar10_test", sites=3).open().sites
    assert sorted(n for site in sites for n in numbers(site.train)) == list(range(270))
    assert all(numbers(site.test) == list(range(270, 300)) for site in sites)


def test_names_of_many_sites_sort_as_they_are_numbered(home):
    names = [site.name for site in Split(of="things", by="iid", sites=12).open().sites]
    assert names[0] == "things-01"
    assert names == sorted(names)


def test_seeds_alpha_and_ways_differ_and_are_said(home):
    tried = [{}, {"seed": 1}, {"alpha": 5.0}, {"by": "quantity"}, {"by": "iid"}, {"by": "shards"}]
    opened = [Split(of="things", sites=4, **change).open() for change in tried]
    assert len({tuple(numbers(f.sites[0].train)) for f in opened}) == len(tried)
    assert opened[0].note == "things partitioned among 4 sites, classes by Dir(0.5), seed 0"
    assert "2 shards each" in opened[-1].sites[0].note


def test_images_are_resized_when_asked(home):
    assert Split(of="things").open().shape == (3, 12, 12)
    assert Split(of="things", size=8).open().shape == (3, 8, 8)


def test_the_minimum_is_met_or_refused(home):
    for site in Split(of="things", alpha=0.05, sites=5, min_per_class=10).open().sites:
        assert site.train.counts(3).min() >= 10
    with refuses("class-too-small-to-divide", label=0, possible=20, fewer=", at most 4 sites"):
        Split(of="things", sites=5, min_per_class=21).open()


def test_it_is_divided_once_and_again_when_the_file_changes(home, monkeypatch):
    before = Split(of="things", sites=3).open().digest
    with monkeypatch.context() as patch:
        patch.setattr(arrays, "resized", lambda *_: pytest.fail("divided again"))
        assert Split(of="things", sites=3).open().digest == before
    x, y = np.zeros((30, 12, 12), np.uint8), np.arange(30, dtype=np.uint8) % 3
    write_arrays(home / "things.npz", {"train_x": x, "train_y": y, "test_x": x, "test_y": y})
    assert len(Split(of="things", sites=3).open().sites[0].test) == 30


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"by": "luck"}, "data.by is 'luck'; choose one of: iid, dirichlet, shards, quantity"),
        ({"of": "../things"}, "data.of is '../things'"),
        ({"of": ""}, "data.of is ''"),
        ({"sites": 0}, "data.sites is 0"),
        ({"shards": 0}, "data.shards is 0"),
        ({"size": -1}, "data.size is -1"),
        ({"by": "shards", "min_per_class": 1}, "data.min_per_class is 1; use 0 with"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, message):
    with pytest.raises(SettingError, match=message):
        Split(**settings)


def test_a_missing_domain_is_named(home):
    with refuses("files-missing", files=["other.npz"]):
        Split(of="other").open()
