"""The digits suite, on prepared files made here."""

import numpy as np
import pytest
import torch

import fedlgd
from fedlgd.core.errors import SettingError
from fedlgd.core.types import Scale
from fedlgd.data.arrays import npz_digest, write_arrays
from fedlgd.data.fetch.download import DATASETS
from fedlgd.data.published import domains
from fedlgd.data.published.domains import Digits, release_note
from tests.errors import refuses

SHAPES = {"mnist": (28, 28), "svhn": (32, 32, 3), "usps": (16, 16), "mnist_m": (32, 32, 3)}
SITES = ["mnist", "svhn", "usps", "synth-rendered", "mnist-m"]


def prepare(home, name, shape, seed=0):
    rng = np.random.default_rng([seed, *name.encode()])
    arrays = {}
    for part, count in (("train", 20), ("test", 10)):
        arrays[f"{part}_x"] = rng.integers(0, 256, (count, *shape), dtype=np.uint8)
        arrays[f"{part}_y"] = (np.arange(count) % 10).astype(np.uint8)
    write_arrays(home / f"{name}.npz", arrays)
    return arrays


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A data home with tiny files of the right formats; few rendered images, as they take time."""
    monkeypatch.setenv("FEDLGD_DATA", str(tmp_path))
    monkeypatch.setenv("FEDLGD_CACHE", str(tmp_path))
    monkeypatch.setattr(domains, "RENDERED", {"train": 20, "test": 10})
    for name, shape in SHAPES.items():
        prepare(tmp_path, name, shape)
    return tmp_path


def test_five_sites_in_the_order_of_the_paper_share_one_shape(home):
    federation = fedlgd.load("digits")
    assert [site.name for site in federation.sites] == SITES
    assert federation.shape == (3, 28, 28)
    assert federation.classes == tuple("0123456789")
    for site in federation.sites:
        assert site.train.x.dtype == torch.uint8
        assert site.train.y.tolist() == [*range(10), *range(10)]


def test_images_that_have_the_size_already_are_left_as_they_are(home):
    wanted = prepare(home, "mnist", (28, 28))
    site = Digits().open().by_name["mnist"]
    for channel in range(3):
        assert np.array_equal(site.train.x[:, channel], wanted["train_x"])
        assert np.array_equal(site.test.x[:, channel], wanted["test_x"])


def test_colours_keep_their_channels(home):
    wanted = prepare(home, "svhn", (28, 28, 3))
    x = Digits().open().by_name["svhn"].train.x
    assert np.array_equal(x, wanted["train_x"].transpose(0, 3, 1, 2))


@pytest.mark.parametrize("size", [16, 32])
def test_any_size(home, size):
    assert Digits(size=size).open().shape == (3, size, size)


def test_resized_images_are_made_once(home, monkeypatch):
    first = Digits().open().digest
    monkeypatch.setattr(domains.store, "resized", lambda *_: pytest.fail("made again"))
    monkeypatch.setattr(domains, "_rendered", lambda *_: pytest.fail("rendered again"))
    assert Digits().open().digest == first


def test_another_source_file_is_not_taken_for_the_old_one(home):
    before = Digits().open().by_name["usps"].train.x.clone()
    old = npz_digest(home / "usps.npz")
    prepare(home, "usps", (16, 16), seed=1)
    assert npz_digest(home / "usps.npz") != old
    assert not torch.equal(Digits().open().by_name["usps"].train.x, before)


def test_scaling_is_half_for_all_or_each_site_by_its_own_constants(home):
    assert {site.train.scale for site in Digits().open().sites} == {Scale()}
    own = Digits(scaling="own").open().by_name
    assert own["mnist"].train.scale == own["mnist"].test.scale == Scale((0.1307,) * 3, (0.3015,) * 3)
    assert own["svhn"].train.scale == Scale((0.4379, 0.4440, 0.4731), (0.1161, 0.1192, 0.1017))
    assert own["usps"].train.scale == Scale((0.2473,) * 3, (0.2665,) * 3)
    assert own["synth-rendered"].train.scale == Scale((0.4828, 0.4603, 0.4320), (0.1960, 0.1938, 0.1977))
    assert own["mnist-m"].train.scale == Scale((0.4595, 0.4629, 0.4097), (0.1727, 0.1603, 0.1785))


def test_the_stand_in_says_that_it_is_one(home):
    federation = Digits().open()
    site = federation.by_name["synth-rendered"]
    assert "stand-in" in site.note
    assert "without SynthDigits" in federation.note
    assert site.train.counts(10).tolist() == [2] * 10


def test_the_stand_in_is_drawn_the_same_every_time_and_not_twice_the_same(home):
    site = Digits().open().by_name["synth-rendered"]
    for file in (home / "made").rglob("synth*"):
        file.unlink()
    assert torch.equal(Digits().open().by_name["synth-rendered"].train.x, site.train.x)
    assert not torch.equal(site.train.x[:10], site.test.x)


def test_auto_takes_the_first_synthetic_set_there_is(home):
    prepare(home, "synth_folder", (32, 32, 3))
    assert Digits().open().sites[3].name == "synth-folder"
    prepare(home, "synth_ganin", (32, 32, 3))
    federation = Digits().open()
    assert federation.sites[3].name == "synth-ganin"
    assert "without" not in federation.note
    assert Digits(synth="folder").open().sites[3].name == "synth-folder"
    assert Digits(synth="rendered").open().sites[3].name == "synth-rendered"


def test_none_leaves_the_synthetic_site_out(home):
    assert [site.name for site in Digits(synth="none").open().sites] == ["mnist", "svhn", "usps", "mnist-m"]


def test_all_missing_files_are_named_with_the_command_that_gets_them(home):
    (home / "svhn.npz").unlink()
    (home / "mnist_m.npz").unlink()
    with refuses("files-missing", files=["svhn.npz", "mnist_m.npz"]):
        Digits().open()


def test_a_synthetic_set_that_was_asked_for_by_name_must_be_there(home):
    with refuses("files-missing", files=["synth_ganin.npz"]):
        Digits(synth="ganin").open()


def test_a_file_that_is_no_archive_is_said(home):
    (home / "usps.npz").write_bytes(b"not a zip file")
    with refuses("npz-unreadable"):
        Digits().open()


@pytest.mark.parametrize(
    ("settings", "named"),
    [({"scaling": "none"}, "half, own"), ({"synth": "mine"}, "ganin"), ({"size": 4}, "size is 4")],
)
def test_values_that_make_no_sense_are_refused(settings, named):
    with pytest.raises(SettingError, match=named):
        Digits(**settings)


@pytest.mark.parametrize(
    ("name", "train", "test", "word"),
    [
        ("mnist", 60_000, 10_000, "complete"),
        ("mnist_m", 59_001, 9_001, "complete"),
        ("mnist_m", 60_000, 10_000, "complete"),
        ("svhn", 12_000, 26_032, "subset: 12 000 of 73 257, test 26 032 of 26 032"),
        ("svhn", 604_388, 26_032, "more than was published"),
    ],
)
def test_notes_compare_sizes_with_the_published_ones(name, train, test, word):
    assert word in release_note(DATASETS[name], train, test)


def test_subsets_are_called_subsets_at_the_site(home):
    assert "subset: 20 of 7 291, test 10 of 2 007" in Digits().open().by_name["usps"].note
