"""Virtual sets in files: what is written is read, and nothing else is."""

import pickle

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

import fedlgd
from fedlgd.core.errors import DataError, SettingError
from fedlgd.core.types import Scale, VirtualSet
from fedlgd.distill.files import read_set, read_start, write_set
from tests import tiny
from tests.errors import refuses
from tests.runs.folder import method

NET = {"name": "convnet", "depth": 2, "width": 4}
SHAPE = (3, 8, 8)
LABELS = torch.arange(3).repeat_interleave(2)


def virtual():
    images = torch.randn(6, *SHAPE, generator=torch.Generator().manual_seed(0))
    return VirtualSet(images=images, labels=LABELS, origin="ape", round=-1)


@pytest.mark.parametrize("scale", [Scale(), Scale((0.1, 0.2, 0.3), (0.3, 0.21, 0.17))])
def test_a_set_comes_back_bit_for_bit_under_its_own_scale(scale, tmp_path):
    write_set(tmp_path / "ape.npz", virtual(), scale)
    assert torch.equal(read_set(tmp_path / "ape.npz", "ape", scale).images, virtual().images)


def test_another_scale_keeps_the_pixels(tmp_path):
    ours, theirs = Scale((0.1, 0.2, 0.3), (0.3, 0.2, 0.1)), Scale()
    write_set(tmp_path / "ape.npz", virtual(), ours)
    back = read_set(tmp_path / "ape.npz", "ape", theirs).images
    assert torch.equal(theirs.to_pixels(back), ours.to_pixels(virtual().images))


def test_pixels_and_safetensors_and_any_order_are_read(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (6, *SHAPE), dtype=np.uint8)
    labels = np.array([2, 0, 1, 0, 1, 2])
    save_file({"images": pixels, "labels": labels}, tmp_path / "ape.safetensors")
    images = read_start(str(tmp_path / "ape.safetensors"), "ape", Scale(), LABELS, SHAPE)
    assert torch.equal(images, Scale().to_input(torch.from_numpy(pixels[[1, 3, 2, 4, 0, 5]])))
    assert torch.equal(read_start(f"{tmp_path}/", "ape", Scale(), LABELS, SHAPE), images)


def refuse(tmp_path, words, **arrays):
    np.savez(tmp_path / "bad.npz", **arrays)
    with pytest.raises(DataError, match=words):
        read_start(str(tmp_path / "bad.npz"), "ape", Scale(), LABELS, SHAPE)


def test_a_wrong_set_is_refused_with_what_is_wrong(tmp_path):
    x, y = virtual().images.numpy(), LABELS.numpy()
    refuse(tmp_path, "no array 'labels'", images=x)
    refuse(tmp_path, "an integer label for each", images=x, labels=y[:5])
    refuse(tmp_path, "an integer label for each", images=x, labels=y.astype(float))
    refuse(tmp_path, "finite floats", images=np.full_like(x, np.nan), labels=y)
    refuse(tmp_path, r"shape \(3, 4, 8\)", images=x[:, :, :4], labels=y)
    refuse(tmp_path, "per_class to what the file has", images=x, labels=np.array([0, 0, 0, 0, 1, 2]))
    refuse(tmp_path, "std above 0", images=x, labels=y, mean=np.zeros(3), std=np.zeros(3))


def test_no_pickle_is_read(tmp_path):
    refuse(tmp_path, "not a readable .npz", images=np.array([{}], dtype=object), labels=LABELS.numpy())
    (tmp_path / "set.npz").write_bytes(pickle.dumps({"images": 1}))
    (tmp_path / "set.safetensors").write_bytes(pickle.dumps({"images": 1}))
    for name in ("set.npz", "set.safetensors"):
        with pytest.raises(DataError, match=r"set\.(npz|safetensors)"):
            read_set(tmp_path / name, "ape")


def test_a_missing_file_and_a_typo_are_named(tmp_path):
    with refuses("set-missing-in-folder", DataError, name="ape", file="ape.npz"):
        read_start(f"{tmp_path}/", "ape", Scale(), LABELS, SHAPE)
    with refuses("set-missing", DataError):
        read_start(f"{tmp_path}/gone.npz", "ape", Scale(), LABELS, SHAPE)
    with pytest.raises(
        SettingError, match=r"distil.start is 'nosie'; choose one of: statistics, noise, mean-image, real"
    ):
        fedlgd.configure("fedlgd", distil__start="nosie")
    with refuses("invalid-setting", SettingError, path="anchors"):
        fedlgd.configure("fedlgd", anchors__start="real")


def test_a_run_starts_from_virtual_sets_and_anchors(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDLGD_CACHE", str(tmp_path / "home"))
    data = tiny.federation()
    first = fedlgd.run(data, method("fedlgd"), rounds=1, net=NET)
    for site, kept in first.virtual.items():
        write_set(tmp_path / f"{site}.npz", kept, Scale())
    write_set(tmp_path / "anchors.npz", first.anchors, Scale())
    still = {"refine.steps": 0, "distil.steps": 0, "anchors.steps": 0}
    where = {"distil.start": f"{tmp_path}/", "anchors.start": str(tmp_path / "anchors.npz")}
    second = fedlgd.run(data, method("fedlgd", **still, **where), rounds=1, net=NET, out=tmp_path / "out")
    for site, kept in first.virtual.items():
        assert torch.equal(second.virtual[site].images, kept.images)
    assert torch.equal(second.anchors.images, first.anchors.images)
    write_set(tmp_path / "ape.npz", first.virtual["bee"], Scale())
    third = fedlgd.run(data, method("fedlgd", **still, **where), rounds=1, net=NET, out=tmp_path / "new")
    assert torch.equal(third.virtual["ape"].images, first.virtual["bee"].images), (
        "not the cached set of another file"
    )
