"""Readers of data sets published as picture files: MNIST-M, the synthetic digits, RIM-ONE DL."""

import zipfile
from pathlib import Path

import numpy as np
import pytest

from fedlgd.data.fetch import prepare, readers
from tests.data.fetch import writing
from tests.errors import refuses


def zipped(path: Path, members: dict[str, bytes]) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def mnist_m(n=3):
    """Members of Ganin's archive, and what they show."""
    shown = {part: writing.bytes_of(n, 32, 32, 3, seed=k) for k, part in enumerate(("train", "test"))}
    members = {}
    for part, images in shown.items():
        for i, image in enumerate(images):
            members[f"mnist_m/mnist_m_{part}/{i:08d}.png"] = writing.picture(image)
        lines = "".join(f"{i:08d}.png {i % 10}\n" for i in range(n))
        members[f"mnist_m/mnist_m_{part}_labels.txt"] = lines.encode()
    return members, shown


def unpacked(folder: Path, members: dict[str, bytes]) -> None:
    for name, content in members.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


@pytest.mark.parametrize("packed", [True, False])
def test_mnist_m_as_ganin_released_it_packed_or_not(packed, tmp_path):
    members, shown = mnist_m()
    if packed:
        writing.tar(tmp_path / "mnist_m.tar.gz", members)
    else:
        unpacked(tmp_path, members)
    read = readers.read_mnist_m(tmp_path)
    assert np.array_equal(read["train_x"], shown["train"])
    assert np.array_equal(read["test_x"], shown["test"])
    assert read["train_y"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("names", [("train", "test"), ("training", "testing"), ("Training", "Testing")])
def test_mnist_m_repacked_with_a_folder_for_each_digit(names, tmp_path):
    images = writing.bytes_of(3, 32, 32, 3)
    unpacked(
        tmp_path / "mnist_m",
        {f"{part}/{d}/a.png": writing.picture(images[i]) for part in names for i, d in enumerate((4, 7, 0))},
    )
    read = readers.read_mnist_m(tmp_path)
    assert read["train_y"].tolist() == [0, 4, 7]
    assert np.array_equal(read["test_x"], images[[2, 0, 1]])


@pytest.mark.parametrize("packed", [True, False])
def test_the_folder_of_synthetic_digits_is_resized_as_its_sizes_differ(packed, tmp_path):
    made = {
        f"data/synthetic_digits/{part}/{digit}/x.jpg": writing.picture(
            np.full((40 + digit, 50, 3), 20 * digit, np.uint8), "JPEG"
        )
        for part in ("imgs_train", "imgs_valid")
        for digit in range(10)
    }
    if packed:
        zipped(tmp_path / "archive.zip", made)
    else:
        unpacked(tmp_path, made)
    read = readers.read_synth_folder(tmp_path)
    assert read["train_x"].shape == read["test_x"].shape == (10, 64, 64, 3)
    assert read["train_y"].tolist() == list(range(10))
    assert read["train_x"][7].min() == read["train_x"][7].max() == 140


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"mnist_m/mnist_m_train/00000001.png": b"not a picture"}, "picture-unreadable"),
        (
            {"mnist_m/mnist_m_train/00000009.png": writing.picture(writing.bytes_of(32, 32, 3))},
            "pictures-without-labels",
        ),
        ({"mnist_m/mnist_m_train_labels.txt": b"00000000.png 1\n"}, "pictures-without-labels"),
        ({"mnist_m/mnist_m_train_labels.txt": b"nonsense\n"}, "original-damaged"),
        ({"mnist_m/mnist_m_train_labels.txt": b"\xff\xfe\x00"}, "original-damaged"),
        (
            {"mnist_m/mnist_m_train/00000001.png": writing.picture(writing.bytes_of(31, 32, 3))},
            "picture-sizes-differ",
        ),
        (
            {"mnist_m/mnist_m_train_labels.txt": b"00000000.png 1\n00000001.png 2\n00000002.png 12\n"},
            "original-labels-out-of-range",
        ),
    ],
)
def test_damaged_pictures_and_labels_are_refused(change, code, tmp_path):
    writing.tar(tmp_path / "mnist_m.tar.gz", mnist_m()[0] | change)
    with refuses(code):
        readers.read_mnist_m(tmp_path)


def test_without_the_folder_of_synthetic_digits_its_names_are_said(tmp_path):
    with refuses("original-missing"):
        readers.read_synth_folder(tmp_path)


def test_a_cut_archive_an_empty_one_and_none_are_refused(tmp_path):
    with refuses("original-missing"):
        readers.read_mnist_m(tmp_path)
    path = tmp_path / "mnist_m.tar.gz"
    writing.tar(path, {})
    with refuses("no-pictures"):
        readers.read_mnist_m(tmp_path)
    writing.tar(path, mnist_m(40)[0])
    path.write_bytes(path.read_bytes()[:5000])
    with refuses("original-damaged"):
        readers.read_mnist_m(tmp_path)


def test_a_picture_too_large_to_be_one_is_refused_before_it_is_decoded(tmp_path, monkeypatch):
    monkeypatch.setattr(readers, "MAX_PICTURE_BYTES", 10_000)
    writing.tar(tmp_path / "mnist_m.tar.gz", mnist_m()[0] | {"mnist_m/mnist_m_test/1.png": bytes(20_000)})
    with refuses("picture-too-large"):
        readers.read_mnist_m(tmp_path)


# RIM-ONE DL


def rim_one_members() -> dict[str, bytes]:
    root = "RIM-ONE_DL_images"
    return {
        f"{root}/{partition}/{part}/{diagnosis}/r1_Im{i}.png": writing.picture(writing.bytes_of(8, 8, 3, seed=i))
        for partition in ("partitioned_randomly", "partitioned_by_hospital")
        for part in ("training_set", "test_set")
        for diagnosis in ("glaucoma", "normal")
        for i in range(2)
    }


def test_rim_one_is_laid_out_by_part_and_diagnosis(tmp_path):
    evil = {
        "../../../partitioned_randomly/test_set/normal/..png": b"x",
        "partitioned_randomly/test_set/normal/../../x.png": b"x",
    }
    zipped(tmp_path / prepare.RIM_ONE, rim_one_members() | evil)
    prepare.unpack_rim_one(tmp_path, tmp_path / "home")
    found = sorted(str(p.relative_to(tmp_path / "home")) for p in tmp_path.rglob("*.png"))
    assert found == sorted(
        f"retina/rim_one/{part}/{diagnosis}/r1_Im{i}.png"
        for part in ("Training", "Testing")
        for diagnosis in ("glaucoma", "normal")
        for i in range(2)
    )


def test_a_page_instead_of_the_zip_or_a_zip_of_something_else_is_refused(tmp_path):
    (tmp_path / prepare.RIM_ONE).write_bytes(b"<html>log in</html>")
    with refuses("original-damaged"):
        prepare.unpack_rim_one(tmp_path, tmp_path / "home")
    zipped(tmp_path / prepare.RIM_ONE, {"partitioned_randomly/test_set/normal/a.png": b"x"})
    with refuses("rim-one-without-pictures", partition="partitioned_randomly", folder="Training/glaucoma"):
        prepare.unpack_rim_one(tmp_path, tmp_path / "home")
    assert not list((tmp_path / "home").rglob("*.png"))
