"""Readers of the digit sets: what is read comes back byte for byte, and damaged files are refused."""

import gzip
import struct
import zipfile

import numpy as np
import pytest
from scipy.io import savemat

from fedlgd.data.fetch import readers
from tests.data.fetch import writing
from tests.errors import refuses

# MNIST


def test_mnist_comes_back_byte_for_byte(tmp_path):
    made = writing.mnist(tmp_path)
    read = readers.read_mnist(tmp_path)
    assert {key: value.tolist() for key, value in read.items()} == {k: v.tolist() for k, v in made.items()}
    assert {value.dtype for value in read.values()} == {np.dtype(np.uint8)}


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (writing.idx(writing.bytes_of(4, 28, 28), kind=9), "idx-of-wrong-kind"),
        (writing.idx(writing.bytes_of(4, 28)), "idx-of-wrong-kind"),
        (b"<html>moved</html>", "original-damaged"),
        (b"", "original-damaged"),
        (writing.idx(writing.bytes_of(4, 28, 28))[:-20], "original-damaged"),
        (gzip.compress(struct.pack(">HBB3I", 0, 8, 3, 4, 28, 28) + bytes(100), mtime=0), "idx-of-wrong-size"),
        (gzip.compress(struct.pack(">HBB3I", 0, 8, 3, 1, 2, 2) + bytes(5), mtime=0), "idx-of-wrong-size"),
        (gzip.compress(struct.pack(">HBB3I", 0, 8, 3, 1 << 31, 1 << 31, 1 << 31), mtime=0), "idx-of-wrong-size"),
        (gzip.compress(b"\0\0", mtime=0), "original-damaged"),
        (writing.idx(writing.bytes_of(4, 28, 28)), "original-labels-do-not-match"),
    ],
)
def test_a_damaged_idx_file_is_refused(content, code, tmp_path):
    writing.mnist(tmp_path)
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(content)
    with refuses(code):
        readers.read_mnist(tmp_path)


def test_a_missing_file_is_named(tmp_path):
    with refuses("original-missing", what="train-images-idx3-ubyte.gz"):
        readers.read_mnist(tmp_path)


# USPS


def test_usps_values_become_bytes_and_labels_count_from_zero(tmp_path):
    values = np.full((3, 256), -1.0)
    values[0, :5] = [-0.631, 0.862, 0.307, 1, 0]
    for name in ("usps.bz2", "usps.t.bz2"):
        (tmp_path / name).write_bytes(writing.libsvm(values, np.array([7, 10, 1], np.uint8)))
    read = readers.read_usps(tmp_path)
    assert read["train_x"].shape == (3, 16, 16)
    assert read["train_x"][0, 0, :6].tolist() == [47, 237, 166, 255, 127, 0]  # floor(255 (v + 1) / 2)
    assert read["train_y"].tolist() == read["test_y"].tolist() == [6, 9, 0]


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (writing.libsvm(np.full((1, 256), 3.0), np.array([1])), "usps-out-of-range"),
        (writing.libsvm(np.full((1, 256), np.nan), np.array([1])), "usps-out-of-range"),
        (writing.libsvm(np.zeros((1, 300)), np.array([1])), "original-damaged"),
        (writing.libsvm(np.zeros((1, 256)), np.array([11])), "original-labels-out-of-range"),
        (writing.libsvm(np.zeros((9, 256)), np.arange(9) + 1)[:-9], "original-damaged"),
        (b"no bz2 at all", "original-damaged"),
        (writing.bz2.compress(b"one two three\n"), "original-damaged"),
        (writing.bz2.compress(b""), "usps-without-images"),
        (writing.bz2.compress(b"1 0:1\n"), "original-damaged"),
    ],
)
def test_a_damaged_libsvm_file_is_refused(content, code, tmp_path):
    (tmp_path / "usps.bz2").write_bytes(content)
    with refuses(code):
        readers.read_usps(tmp_path)


# SVHN and SynthDigits


def house_numbers(folder, n=4):
    x, y = writing.bytes_of(32, 32, 3, n), np.array([[10], [1], [9], [5]], np.uint8)[:n]
    for part in ("train", "test"):
        writing.mat(folder / f"{part}_32x32.mat", x, y)
    return x


def test_svhn_is_turned_image_by_image_and_its_label_10_is_the_digit_0(tmp_path):
    x = house_numbers(tmp_path)
    read = readers.read_svhn(tmp_path)
    assert read["train_x"].shape == (4, 32, 32, 3)
    assert all(np.array_equal(read["train_x"][i], x[..., i]) for i in range(4))
    assert read["test_y"].tolist() == [0, 1, 9, 5]
    assert read["test_y"].dtype == np.uint8


def test_synthdigits_are_read_as_files_or_in_their_zip(tmp_path):
    x, y = writing.bytes_of(32, 32, 3, 3), np.array([[3], [0], [9]], np.uint8)
    with zipfile.ZipFile(tmp_path / "SynthDigits.zip", "w") as archive:
        for name in readers.GANIN:
            writing.mat(tmp_path / name, x, y)
            archive.write(tmp_path / name, name)
    plain = readers.read_synth(tmp_path)
    for name in readers.GANIN:
        (tmp_path / name).unlink()
    packed = readers.read_synth(tmp_path)
    assert plain["train_y"].tolist() == packed["test_y"].tolist() == [3, 0, 9]
    assert np.array_equal(plain["train_x"], packed["train_x"])
    assert np.array_equal(plain["train_x"][1], x[..., 1])
    (tmp_path / "SynthDigits.zip").unlink()
    with refuses("original-missing"):
        readers.read_synth(tmp_path)


@pytest.mark.parametrize(
    ("x", "y", "code"),
    [
        (writing.bytes_of(32, 32, 3, 4), np.zeros((5, 1), np.uint8), "original-labels-do-not-match"),
        (writing.bytes_of(32, 32, 4), np.zeros((4, 1), np.uint8), "mat-of-wrong-shape"),
        (np.zeros((32, 32, 3, 4)), np.zeros((4, 1), np.uint8), "mat-of-wrong-shape"),
        (writing.bytes_of(32, 32, 3, 4), np.full((4, 1), 11, np.uint8), "original-labels-out-of-range"),
        (writing.bytes_of(32, 32, 3, 4), np.full((4, 1), 1.5), "original-labels-out-of-range"),
        (writing.bytes_of(32, 32, 3, 4), {"a": 1}, "original-damaged"),
        (np.array([[1, "two"]], object), np.zeros((4, 1), np.uint8), "original-damaged"),
        ("abc", np.zeros((4, 1), np.uint8), "original-damaged"),
    ],
)
def test_a_mat_file_of_something_else_is_refused(x, y, code, tmp_path):
    house_numbers(tmp_path)
    writing.mat(tmp_path / "train_32x32.mat", x, y)
    with refuses(code):
        readers.read_svhn(tmp_path)


def test_a_mat_file_without_its_variables_is_refused(tmp_path):
    savemat(tmp_path / "train_32x32.mat", {"Z": np.zeros(3)})
    with refuses("original-missing", what="variable X"):
        readers.read_svhn(tmp_path)


def test_a_damaged_mat_file_is_refused_wherever_it_is_cut(tmp_path):
    house_numbers(tmp_path)
    path = tmp_path / "train_32x32.mat"
    whole = path.read_bytes()
    for length in [0, 3, 100, 127, 130, 200, len(whole) // 2, len(whole) - 1]:
        path.write_bytes(whole[:length])
        with refuses("original-damaged"):
            readers.read_svhn(tmp_path)
    path.write_bytes(b"MATLAB 7.3 MAT-file".ljust(124) + b"\x00\x02IM" + bytes(600))
    with refuses("original-damaged"):
        readers.read_svhn(tmp_path)
