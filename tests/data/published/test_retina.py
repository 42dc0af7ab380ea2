"""The retina suites: the paper's sets in folders, and the two prepared ones that are not the paper's."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch

import fedlgd
from fedlgd.core.errors import SettingError
from fedlgd.core.types import Scale
from fedlgd.data.published.domains import Retina, RetinaPair
from tests.data.pictures import noise, save
from tests.errors import refuses

REAL = Path(os.environ.get("FEDLGD_DATA", "nowhere")).expanduser()


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDLGD_DATA", str(tmp_path))
    return tmp_path


def clinics(home):
    seed = 0
    for site in ("Acrima", "Drishti"):
        for part, count in (("Training", 3), ("Testing", 2)):
            for label in ("glaucoma", "normal"):
                for i in range(count):
                    seed += 1
                    save(home / "retina" / site / part / label / f"{i}.jpg", noise(seed, 20))


def test_without_the_sets_the_error_says_how_to_get_them(home):
    with refuses("no-retina-sites"):
        fedlgd.load("retina")


def test_the_sets_in_their_folders(home):
    clinics(home)
    got = fedlgd.load("retina")
    assert [site.name for site in got.sites] == ["Acrima", "Drishti"]
    assert got.classes == ("glaucoma", "normal")
    assert got.shape == (3, 96, 96)
    assert got.name == "retina"
    assert [len(site.test) for site in got.sites] == [4, 4]


def test_each_site_is_scaled_by_its_own_training_pixels(home):
    clinics(home)
    for site in fedlgd.load("retina", size=24).sites:
        x = site.train.take(slice(None)).x.double()
        assert x.mean((0, 2, 3)).abs().max() < 1e-5
        assert (x.std((0, 2, 3), unbiased=False) - 1).abs().max() < 1e-5
    assert fedlgd.load("retina", scaling="half").sites[0].train.scale == Scale()


def pair(home, **more):
    rng = np.random.default_rng(0)
    for file in ("retina_a", "retina_b"):
        x, y = rng.integers(0, 256, (12, 96, 96, 3), np.uint8), np.arange(12, dtype=np.uint8) % 2
        np.savez(home / f"{file}.npz", train_x=x[:8], train_y=y[:8], test_x=x[8:], test_y=y[8:])


def test_two_real_sites_from_prepared_files(home):
    pair(home)
    got = fedlgd.load("retina-ab")
    assert [site.name for site in got.sites] == ["hrf", "airogs"]
    assert got.classes == ("normal", "glaucoma")
    assert all("not one of the paper's sites" in site.note for site in got.sites)
    with np.load(home / "retina_a.npz") as file:
        assert torch.equal(got.sites[0].train.x.permute(0, 2, 3, 1), torch.from_numpy(file["train_x"]))
    assert fedlgd.load("retina-ab", size=32).shape == (3, 32, 32)


def test_a_missing_prepared_file_is_named(home):
    with refuses("files-missing", files=["retina_a.npz"]):
        fedlgd.load("retina-ab")


@pytest.mark.parametrize("suite", [Retina, RetinaPair])
def test_settings_that_make_no_sense(suite):
    with pytest.raises(SettingError, match=r"data\.scaling"):
        suite(scaling="paper")
    with pytest.raises(SettingError, match=r"data\.size is 4"):
        suite(size=4)


@pytest.mark.skipif(not (REAL / "retina_a.npz").exists(), reason="FEDLGD_DATA has no retina_a.npz")
def test_the_real_pair_has_the_sizes_of_its_readme():
    got = fedlgd.load("retina-ab")
    assert [(len(site.train), len(site.test)) for site in got.sites] == [(321, 80), (616, 154)]
    means = [site.train.scale.mean for site in got.sites]
    assert all(red > green > blue for red, green, blue in means)
