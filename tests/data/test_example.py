"""`fedlgd data example`: rendered images of three sites on which the commands can be tried."""

from statistics import fmean

import numpy as np
import pytest

import fedlgd
from fedlgd.core.errors import DataError
from fedlgd.core.files import digest
from fedlgd.data import example
from fedlgd.data.own.check import check_data
from tests.errors import refuses


@pytest.fixture(scope="module")
def sites(tmp_path_factory):
    folder = tmp_path_factory.mktemp("example") / "sites"
    example.write_example(folder)
    return folder


def test_it_writes_the_same_bytes_again(sites, tmp_path):
    example.write_example(tmp_path / "again")
    images = sorted(path.relative_to(sites) for path in sites.rglob("*.png"))
    assert len(images) > 1000
    assert all(
        digest((sites / name).read_bytes()) == digest((tmp_path / "again" / name).read_bytes()) for name in images
    )


def test_the_check_finds_nothing(sites):
    checked = check_data(sites)
    assert (checked.sites, checked.problems) == (3, ())


def test_it_says_that_it_is_rendered(sites):
    assert "rendered" in (sites / "README.md").read_text()


@pytest.mark.parametrize("inside", ["image.png", ".hidden"])
def test_a_folder_with_something_in_it_is_refused_and_left_alone(tmp_path, inside):
    (tmp_path / inside).touch()
    with refuses("example-folder-not-empty", DataError, folder=str(tmp_path)):
        example.write_example(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [inside]


def test_the_sites_differ_in_size_and_look(sites):
    federation = fedlgd.from_folders(sites, size=16)
    sizes = sorted(len(site.train) for site in federation.sites)
    assert sizes[0] * 4 < sizes[-1]
    means = np.array([site.train.pixels(slice(None)).float().mean((0, 2, 3)).tolist() for site in federation.sites])
    for i in range(3):
        assert np.abs(means - means[i]).max(1)[np.arange(3) != i].min() > 10


def test_a_small_federation_learns_what_a_guess_does_not_know(sites):
    federation = fedlgd.from_folders(sites, size=24)
    method = fedlgd.configure(fedlgd.FedAvg, train_on="real", local__epochs=3, local__lr=0.05)
    result = fedlgd.run(federation, method, rounds=6, net={"name": "convnet", "width": 16})
    assert fmean(result.accuracy.values()) > 0.65
