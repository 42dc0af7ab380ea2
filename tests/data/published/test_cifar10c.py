"""The 57 sites of CIFAR10C from a miniature data home: who holds which photographs, and that they are mapped."""

from pathlib import Path

import numpy as np
import pytest
import torch

from fedlgd.core.errors import SettingError
from fedlgd.core.meter import listening
from fedlgd.core.types import Scale
from fedlgd.data import arrays
from fedlgd.data.arrays import read_arrays, resized, write_arrays
from fedlgd.data.published.corruptions import CORRUPTIONS, corrupted
from fedlgd.data.published.partition import CLASSES, Cifar10C
from fedlgd.data.suites import load
from tests.errors import refuses

COUNT = 200  # photographs in the miniature: 0-179 to train on, 180-199 to test on
TWO = ("brightness", "frost")
SMALL = {"train_photos": 150, "test_photos": 20, "min_per_class": 2}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Photographs that can be told apart after corruption, and CIFAR-10-C files that say what they are."""
    rng = np.random.default_rng(0)
    photographs = rng.integers(60, 180, (COUNT, 32, 32, 3)).astype(np.uint8)
    labels = rng.permutation(np.arange(COUNT) % 10).astype(np.uint8)
    write_arrays(tmp_path / "cifar10_test.npz", {"test_x": photographs, "test_y": labels})
    folder = tmp_path / "CIFAR-10-C"
    folder.mkdir()
    for i, name in enumerate(TWO):
        values = np.arange(5)[:, None] * 40 + 10 * i + np.arange(COUNT) % 10  # severity, corruption, photograph
        pixels = np.broadcast_to(values.reshape(-1, 1, 1, 1), (5 * COUNT, 32, 32, 3)).astype(np.uint8)
        np.save(folder / f"{name}.npy", pixels)
    np.save(folder / "labels.npy", np.tile(labels, 5))
    monkeypatch.setenv("FEDLGD_DATA", str(tmp_path))
    monkeypatch.setenv("FEDLGD_CACHE", str(tmp_path))
    return tmp_path


def opened(**settings):
    return Cifar10C(**{"corruptions": TWO, **SMALL, **settings}).open()


def made_files(home):
    return sorted((home / "made").rglob("*.npz"))


def test_there_are_three_sites_a_corruption(home):
    federation = load("cifar10c", **SMALL)
    assert len(federation.sites) == 57
    assert {site.name.rpartition("-")[0] for site in federation.sites} == set(CORRUPTIONS)
    assert federation.sites[0].name == "gaussian_noise-1"
    assert (federation.classes, federation.shape) == (CLASSES, (3, 28, 28))


def test_sites_of_a_corruption_share_its_photographs_and_no_image(home):
    opened()
    for file in made_files(home):
        numbers = read_arrays(file)["photos"]
        assert sorted(numbers.tolist()) == list(range(150))


def test_images_are_the_corrupted_photographs_under_their_labels(home):
    sites = opened(size=32).by_name
    photographs = read_arrays(home / "cifar10_test.npz")
    for name in TWO:
        file = next(f for f in made_files(home) if f.name.startswith(name))
        numbers = read_arrays(file)["photos"]
        parts = [sites[f"{name}-{i}"] for i in (1, 2, 3)]
        expected = corrupted(photographs["test_x"], name, 3, range(150))[numbers]
        assert (torch.cat([part.train.x for part in parts]).numpy() == resized(expected, 32)).all()
        assert (torch.cat([part.train.y for part in parts]).numpy() == photographs["test_y"][numbers]).all()


def test_no_photograph_is_trained_on_anywhere_and_tested_on_anywhere(home):
    federation = opened(size=32)
    photographs = read_arrays(home / "cifar10_test.npz")
    for site in federation.sites:
        name = site.name.rpartition("-")[0]
        tested = corrupted(photographs["test_x"], name, 3, range(180, 200))
        assert (site.test.x.numpy() == resized(tested, 32)).all()
        assert (site.test.y.numpy() == photographs["test_y"][180:]).all()


def test_every_site_has_the_minimum_of_every_class(home):
    for site in opened(min_per_class=4).sites:
        assert site.train.counts(10).min() >= 4


def test_a_minimum_that_cannot_be_is_refused_with_what_can(home):
    with refuses("class-too-small-to-divide", sites=3, least=100):
        opened(min_per_class=100)


def test_alpha_and_seed_change_who_gets_what(home):
    sizes = {
        tuple(len(site.train) for site in opened(**change).sites) for change in ({}, {"seed": 1}, {"alpha": 0.5})
    }
    assert len(sizes) == 3


def test_corruptions_are_made_alike_whatever_others_there_are(home):
    alone, among = (opened(corruptions=names).by_name["frost-2"] for names in (("frost",), TWO))
    assert (alone.train.x == among.train.x).all()


def test_official_files_are_read_at_the_severity(home):
    for severity in (1, 4):
        sites = opened(source="official", severity=severity).by_name
        for i, name in enumerate(TWO):
            values = 40 * (severity - 1) + 10 * i
            assert set(sites[f"{name}-1"].train.x.unique().tolist()) <= set(range(values, values + 10))
            assert sites[f"{name}-1"].test.x[:, 0, 0, 0].tolist() == [values + n % 10 for n in range(180, 200)]


def test_both_sources_divide_the_photographs_alike(home):
    made, official = opened(), opened(source="official")
    for name in made.by_name:
        assert (made.by_name[name].train.y == official.by_name[name].train.y).all()


def test_pixels_go_in_as_they_are_unless_half_is_asked_for(home):
    assert opened().sites[0].train.scale == Scale((0.0,) * 3, (1.0,) * 3)
    x = opened().sites[0].train.take(slice(None)).x
    assert x.min() >= 0
    assert x.max() <= 1
    assert opened(scaling="half").sites[0].train.scale == Scale()


def test_what_was_made_is_mapped_the_next_time(home, monkeypatch):
    digest = opened().digest
    monkeypatch.setattr(arrays, "resized", lambda *_: pytest.fail("made again"))
    again = opened(scaling="half")
    assert [len(site.train) for site in again.sites] == [len(site.train) for site in opened().sites]
    assert opened().digest == digest
    assert len(made_files(home)) == len(TWO)


@pytest.mark.parametrize("source", ["made", "official"])
def test_other_files_are_not_taken_for_the_old_ones(home, source):
    before = opened(source=source).digest
    arrays = {key: np.array(value) for key, value in read_arrays(home / "cifar10_test.npz").items()}
    arrays["test_x"][:] = 77
    write_arrays(home / "cifar10_test.npz", arrays)
    np.save(home / "CIFAR-10-C" / "frost.npy", np.full((5 * COUNT, 32, 32, 3), 77, np.uint8))
    assert opened(source=source).digest != before


def test_each_corruption_is_a_tick(home):
    heard = []
    with listening(lambda *tick: heard.append(tick)):
        opened()
    assert heard == [("cifar10c", 1, 2), ("cifar10c", 2, 2)]


def test_notes_say_what_the_images_are(home):
    made, official = opened(), opened(source="official")
    assert "not its published files; severity 3; trained on photographs 0 to 149" in made.note
    assert "frost is drawn" in made.by_name["frost-1"].note
    assert "drawn" not in made.by_name["brightness-1"].note
    assert official.note.startswith("CIFAR-10-C; severity 3")
    assert official.by_name["frost-1"].note == "frost of severity 3, from CIFAR-10-C"


@pytest.mark.parametrize(
    ("settings", "most"),
    [
        ({"train_photos": 181}, 180),
        ({"test_photos": 21}, 20),
    ],
)
def test_more_photographs_than_there_are_is_refused(home, settings, most):
    with refuses("too-few-photographs", most=most, count=200):
        opened(**settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"source": "web"}, "data.source is 'web'; choose one of: made, official"),
        ({"severity": 6}, "data.severity is 6"),
        ({"severity": 0}, "data.severity is 0"),
        ({"size": 30}, "data.size is 30; choose one of: 28, 32"),
        ({"scaling": "own"}, "data.scaling is 'own'"),
        ({"parts": 0}, "data.parts is 0"),
        ({"train_photos": 0}, "data.train_photos is 0"),
        ({"corruptions": ()}, "name at least one"),
        ({"corruptions": ("fog", "fog")}, "each once"),
        ({"corruptions": ("rain",)}, "data.corruptions has 'rain'; available: gaussian_noise"),
        ({"alpha": 0.0}, "alpha is 0.0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(home, settings, message):
    with pytest.raises(SettingError, match=message):
        opened(**settings)


def test_missing_files_are_named_with_the_way_to_get_them(home):
    (home / "cifar10_test.npz").unlink()
    (home / "CIFAR-10-C" / "frost.npy").unlink()
    with refuses("files-missing", files=["cifar10_test.npz"], way_out="get it with: fedlgd data fetch cifar10"):
        opened()
    with refuses(
        "files-missing", files=["CIFAR-10-C/frost.npy"], way_out="get it with: fedlgd data fetch cifar10c"
    ):
        opened(source="official")


def test_an_official_file_of_another_shape_is_refused(home):
    np.save(home / "CIFAR-10-C" / "frost.npy", np.zeros((COUNT, 32, 32, 3), np.uint8))
    with refuses("array-of-wrong-shape", shape=(200, 32, 32, 3)):
        opened(source="official")
    (home / "CIFAR-10-C" / "frost.npy").write_bytes(b"not an array")
    with refuses("npy-unreadable"):
        opened(source="official")
