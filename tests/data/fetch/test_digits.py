"""The formats of the originals: read right, and refused when damaged or hostile."""

import errno
import gzip
import io
import os
import pickle
import pickletools
import struct
import sys
import tarfile
import tracemalloc
import zipfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.io import savemat

from fedlgd.core.errors import DataError
from fedlgd.data.originals import cifar, idx, libsvm, mat, pictures, retina
from fedlgd.data.originals.plain_pickle import read_pickle
from tests.data import writing

# MNIST


def test_mnist_comes_back_byte_for_byte(tmp_path):
    made = writing.mnist(tmp_path)
    read = idx.read_mnist(tmp_path)
    assert {key: value.tolist() for key, value in read.items()} == {k: v.tolist() for k, v in made.items()}
    assert {value.dtype for value in read.values()} == {np.dtype(np.uint8)}


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (writing.idx(writing.bytes_of(4, 28, 28), kind=9), "not an IDX file"),
        (writing.idx(writing.bytes_of(4, 28)), "not an IDX file"),
        (b"<html>moved</html>", "is not what it should be"),
        (b"", "is not what it should be"),
        (writing.idx(writing.bytes_of(4, 28, 28))[:-20], "is not what it should be"),
        (gzip.compress(struct.pack(">HBB3I", 0, 8, 3, 4, 28, 28) + bytes(100), mtime=0), "announces 3136 bytes"),
        (gzip.compress(struct.pack(">HBB3I", 0, 8, 3, 1, 2, 2) + bytes(5), mtime=0), "announces 4 bytes"),
        (gzip.compress(struct.pack(">HBB3I", 0, 8, 3, 1 << 31, 1 << 31, 1 << 31), mtime=0), "announces"),
        (gzip.compress(b"\0\0", mtime=0), "is not what it should be"),
        (writing.idx(writing.bytes_of(4, 28, 28)), "4 images but 5 labels"),
    ],
)
def test_a_damaged_idx_file_is_refused(content, says, tmp_path):
    writing.mnist(tmp_path)
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(content)
    with pytest.raises(DataError, match=says):
        idx.read_mnist(tmp_path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(DataError, match=r"has no train-images-idx3-ubyte\.gz"):
        idx.read_mnist(tmp_path)


# USPS


def test_usps_values_become_bytes_and_labels_count_from_zero(tmp_path):
    values = np.full((3, 256), -1.0)
    values[0, :5] = [-0.631, 0.862, 0.307, 1, 0]
    for name in ("usps.bz2", "usps.t.bz2"):
        (tmp_path / name).write_bytes(writing.libsvm(values, np.array([7, 10, 1], np.uint8)))
    read = libsvm.read_usps(tmp_path)
    assert read["train_x"].shape == (3, 16, 16)
    assert read["train_x"][0, 0, :6].tolist() == [47, 237, 166, 255, 127, 0]  # floor(255 (v + 1) / 2)
    assert read["train_y"].tolist() == read["test_y"].tolist() == [6, 9, 0]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (writing.libsvm(np.full((1, 256), 3.0), np.array([1])), "values outside"),
        (writing.libsvm(np.full((1, 256), np.nan), np.array([1])), "values outside"),
        (writing.libsvm(np.zeros((1, 300)), np.array([1])), "not what it should be"),
        (writing.libsvm(np.zeros((1, 256)), np.array([11])), "labels from 10"),
        (writing.libsvm(np.zeros((9, 256)), np.arange(9) + 1)[:-9], "not what it should be"),
        (b"no bz2 at all", "not what it should be"),
        (writing.bz2.compress(b"one two three\n"), "not what it should be"),
        (writing.bz2.compress(b""), "has no images"),
        (writing.bz2.compress(b"1 0:1\n"), "index 0"),
    ],
)
def test_a_damaged_libsvm_file_is_refused(content, says, tmp_path):
    (tmp_path / "usps.bz2").write_bytes(content)
    with pytest.raises(DataError, match=says):
        libsvm.read_usps(tmp_path)


# SVHN and SynthDigits


def house_numbers(folder, n=4):
    x, y = writing.bytes_of(32, 32, 3, n), np.array([[10], [1], [9], [5]], np.uint8)[:n]
    for part in ("train", "test"):
        writing.mat(folder / f"{part}_32x32.mat", x, y)
    return x


def test_svhn_is_turned_image_by_image_and_its_label_10_is_the_digit_0(tmp_path):
    x = house_numbers(tmp_path)
    read = mat.read_svhn(tmp_path)
    assert read["train_x"].shape == (4, 32, 32, 3)
    assert all(np.array_equal(read["train_x"][i], x[..., i]) for i in range(4))
    assert read["test_y"].tolist() == [0, 1, 9, 5]
    assert read["test_y"].dtype == np.uint8


def test_synthdigits_are_read_as_files_or_in_their_zip(tmp_path):
    x, y = writing.bytes_of(32, 32, 3, 3), np.array([[3], [0], [9]], np.uint8)
    with zipfile.ZipFile(tmp_path / "SynthDigits.zip", "w") as archive:
        for name in mat.GANIN:
            writing.mat(tmp_path / name, x, y)
            archive.write(tmp_path / name, name)
    plain = mat.read_synth(tmp_path)
    for name in mat.GANIN:
        (tmp_path / name).unlink()
    packed = mat.read_synth(tmp_path)
    assert plain["train_y"].tolist() == packed["test_y"].tolist() == [3, 0, 9]
    assert np.array_equal(plain["train_x"], packed["train_x"])
    assert np.array_equal(plain["train_x"][1], x[..., 1])
    (tmp_path / "SynthDigits.zip").unlink()
    with pytest.raises(DataError, match=r"has no SynthDigits\.zip, nor synth_train"):
        mat.read_synth(tmp_path)


@pytest.mark.parametrize(
    ("x", "y", "says"),
    [
        (writing.bytes_of(32, 32, 3, 4), np.zeros((5, 1), np.uint8), "4 images but 5 labels"),
        (writing.bytes_of(32, 32, 4), np.zeros((4, 1), np.uint8), "X is uint8 of shape"),
        (np.zeros((32, 32, 3, 4)), np.zeros((4, 1), np.uint8), "X is float64"),
        (writing.bytes_of(32, 32, 3, 4), np.full((4, 1), 11, np.uint8), "labels from 11"),
        (writing.bytes_of(32, 32, 3, 4), np.full((4, 1), 1.5), "labels from 1.5"),
        (writing.bytes_of(32, 32, 3, 4), {"a": 1}, "y is struct"),
        (np.array([[1, "two"]], object), np.zeros((4, 1), np.uint8), "X is cell"),
        ("abc", np.zeros((4, 1), np.uint8), "X is char"),
    ],
)
def test_a_mat_file_of_something_else_is_refused(x, y, says, tmp_path):
    house_numbers(tmp_path)
    writing.mat(tmp_path / "train_32x32.mat", x, y)
    with pytest.raises(DataError, match=says):
        mat.read_svhn(tmp_path)


def test_a_mat_file_without_its_variables_is_refused(tmp_path):
    savemat(tmp_path / "train_32x32.mat", {"Z": np.zeros(3)})
    with pytest.raises(DataError, match="has no variable X"):
        mat.read_svhn(tmp_path)


def test_a_damaged_mat_file_is_refused_wherever_it_is_cut(tmp_path):
    house_numbers(tmp_path)
    path = tmp_path / "train_32x32.mat"
    whole = path.read_bytes()
    for length in [0, 3, 100, 127, 130, 200, len(whole) // 2, len(whole) - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(DataError, match=r"train_32x32\.mat"):
            mat.read_svhn(tmp_path)
    path.write_bytes(b"MATLAB 7.3 MAT-file".ljust(124) + b"\x00\x02IM" + bytes(600))
    with pytest.raises(DataError, match=r"train_32x32\.mat"):
        mat.read_svhn(tmp_path)


# Pictures


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
    read = pictures.read_mnist_m(tmp_path)
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
    read = pictures.read_mnist_m(tmp_path)
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
    read = pictures.read_synth_folder(tmp_path)
    assert read["train_x"].shape == read["test_x"].shape == (10, 64, 64, 3)
    assert read["train_y"].tolist() == list(range(10))
    assert read["train_x"][7].min() == read["train_x"][7].max() == 140


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"mnist_m/mnist_m_train/00000001.png": b"not a picture"}, "not a readable picture"),
        ({"mnist_m/mnist_m_train/00000009.png": writing.picture(writing.bytes_of(32, 32, 3))}, "not both"),
        ({"mnist_m/mnist_m_train_labels.txt": b"00000000.png 1\n"}, "not both"),
        ({"mnist_m/mnist_m_train_labels.txt": b"nonsense\n"}, "is not what it should be"),
        ({"mnist_m/mnist_m_train_labels.txt": b"\xff\xfe\x00"}, "is not what it should be"),
        ({"mnist_m/mnist_m_train/00000001.png": writing.picture(writing.bytes_of(31, 32, 3))}, "of 2 sizes"),
        ({"mnist_m/mnist_m_train_labels.txt": b"00000000.png 1\n00000001.png 2\n00000002.png 12\n"}, "labels from"),
    ],
)
def test_damaged_pictures_and_labels_are_refused(change, says, tmp_path):
    writing.tar(tmp_path / "mnist_m.tar.gz", mnist_m()[0] | change)
    with pytest.raises(DataError, match=says):
        pictures.read_mnist_m(tmp_path)


def test_without_the_folder_of_synthetic_digits_its_names_are_said(tmp_path):
    with pytest.raises(
        DataError, match=r"has no synthetic-digits\.zip or archive\.zip, nor a folder synthetic_digits"
    ):
        pictures.read_synth_folder(tmp_path)


def test_a_cut_archive_an_empty_one_and_none_are_refused(tmp_path):
    with pytest.raises(DataError, match=r"has no mnist_m\.tar\.gz, nor a folder"):
        pictures.read_mnist_m(tmp_path)
    path = tmp_path / "mnist_m.tar.gz"
    writing.tar(path, {})
    with pytest.raises(DataError, match="has no pictures"):
        pictures.read_mnist_m(tmp_path)
    writing.tar(path, mnist_m(40)[0])
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(DataError, match="is not what it should be"):
        pictures.read_mnist_m(tmp_path)


def test_a_picture_too_large_to_be_one_is_refused_before_it_is_decoded(tmp_path, monkeypatch):
    monkeypatch.setattr(pictures, "LARGEST", 10_000)
    writing.tar(tmp_path / "mnist_m.tar.gz", mnist_m()[0] | {"mnist_m/mnist_m_test/1.png": bytes(20_000)})
    with pytest.raises(DataError, match="larger than any picture"):
        pictures.read_mnist_m(tmp_path)


# CIFAR-10


def test_a_batch_pickled_by_python_2_reads_as_the_standard_library_would(tmp_path):
    rows, labels = writing.bytes_of(300, 3072), writing.digits(300).tolist()
    content = writing.old_batch(rows, labels)
    ours, theirs = read_pickle(content, "batch"), pickle.loads(content, encoding="latin1")
    assert np.array_equal(ours.pop("data"), rows)
    assert np.array_equal(theirs.pop("data"), rows)
    assert ours == theirs
    assert ours["labels"] == labels


def test_a_batch_pickled_again_by_python_3_in_the_same_protocol_reads_too():
    batch = {"batch_label": "again", "labels": [1, 2], "data": writing.bytes_of(2, 3072), "filenames": ["a", "b"]}
    read = read_pickle(pickle.dumps(batch, protocol=2), "batch")
    assert np.array_equal(read["data"], batch["data"])
    assert read["labels"] == [1, 2]


def test_cifar10_is_read_channel_by_channel(tmp_path):
    made = writing.cifar(tmp_path / cifar.ARCHIVE)
    read = cifar.read_cifar10(tmp_path)
    assert read["train_x"].shape == (15, 32, 32, 3)
    assert read["test_x"].shape == (3, 32, 32, 3)
    rows, labels = made["data_batch_2"]
    assert np.array_equal(read["train_x"][4, ..., 2], rows[1, 2048:].reshape(32, 32))
    assert read["train_y"][3:6].tolist() == labels


def test_a_cifar_archive_that_lacks_or_damages_a_batch_is_refused(tmp_path):
    path = tmp_path / cifar.ARCHIVE
    for change, says in (
        ({"data_batch_3": b""}, "data_batch_3 is a damaged pickle"),
        ({"test_batch": writing.old_batch(writing.bytes_of(3, 3072), [1, 2])}, "3 images but 2 labels"),
        ({"test_batch": writing.old_batch(writing.bytes_of(3, 3071), [1, 2, 3])}, "no rows of 3072"),
        ({"test_batch": writing.old_batch(writing.bytes_of(3, 3072), [1, 2, 10])}, "labels from"),
        ({"test_batch": pickle.dumps([1, 2], protocol=2)}, "no rows of 3072"),
    ):
        writing.cifar(path, **change)
        with pytest.raises(DataError, match=says):
            cifar.read_cifar10(tmp_path)
    writing.tar(path, {"cifar-10-batches-py/data_batch_1": writing.old_batch(writing.bytes_of(1, 3072), [1])})
    with pytest.raises(DataError, match="has no data_batch_2"):
        cifar.read_cifar10(tmp_path)
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(DataError, match="is not what it should be"):
        cifar.read_cifar10(tmp_path)


# Hostile pickles. None of them may run anything; HARM shows it if one does.

HARM: list[str] = []


def harm(*_: object) -> dict[str, int]:
    HARM.append("ran")
    return {}


class Calls:
    """An object that pickles as a call."""

    def __init__(self, function: object, *arguments: object) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return self.call


SOUND = writing.old_batch(writing.bytes_of(2, 3072), [1, 2])
HOSTILE = {
    "os.system": pickle.dumps(Calls(os.system, "exit 7"), protocol=2),
    "own function": pickle.dumps(Calls(harm), protocol=2),
    "builtins eval": pickle.dumps(Calls(eval, "1"), protocol=2),
    "getattr": pickle.dumps(Calls(getattr, "", "join"), protocol=2),
    "inside the dictionary": pickle.dumps({"data": [Calls(harm)], "labels": []}, protocol=2),
    "protocol 0": b"cos\nsystem\n(S'exit 7'\ntR.",
    "protocol 4": pickle.dumps({"data": 1}, protocol=4),
    "INST": b"(S'exit 7'\nios\nsystem\n.",
    "OBJ": b"\x80\x02(cos\nsystem\nU\x01xo.",
    "NEWOBJ": b"\x80\x02cnumpy\nndarray\n)\x81.",
    "EXT": b"\x80\x02\x82\x01.",
    "PERSID": b"\x80\x02Pid\n.",
    "a numpy name that loads": b"\x80\x02cnumpy\nload\nU\x01x\x85R.",
    "a name with a dot": b"\x80\x02cnumpy.core.multiarray\n_reconstruct.__globals__\n.",
    "dtype of objects": SOUND.replace(b"U\x02u1", b"U\x02O8"),
    "dtype with fields": SOUND.replace(b"U\x01|q\x1bNNN", b"U\x01|q\x1bNU\x01aU\x01b"),
    "reconstruct of another class": SOUND.replace(b"cnumpy\nndarray\n", b"cnumpy\ndtype\n"),
    "encode by another codec": b"\x80\x02c_codecs\nencode\nX\x01\x00\x00\x00aX\x03\x00\x00\x00rot\x86R.",
    "call of a string": b"\x80\x02U\x01a)R.",
    "call of a memoised name with other arguments": b"\x80\x02cnumpy\ndtype\nq\x00h\x00h\x00\x85R.",
    "state for a list": b"\x80\x02]U\x01ab.",
    "an array filled twice": SOUND[:-1].replace(b"q\x1ctb", b"q\x1ctb(K\x01K\x01\x85h\x1a\x89U\x01atb") + b".",
    "never filled": b"\x80\x02cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R.",
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_pickle_is_refused_and_not_run(content, monkeypatch):
    monkeypatch.setattr(os, "system", harm)
    HARM.clear()
    with pytest.raises(DataError, match=r"was not run|damaged"):
        read_pickle(content, "batch")
    assert HARM == []


def test_the_hostile_pickles_would_do_harm_if_they_were_loaded():
    """So that the test above cannot pass because its pickles are harmless."""
    HARM.clear()
    pickle.loads(HOSTILE["own function"])
    pickle.loads(HOSTILE["inside the dictionary"])
    assert HARM == ["ran", "ran"]


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x02T\xff\xff\xff\x7fabc.",  # a string of 2 GB that is not there
        b"\x80\x02X\xff\xff\xff\xffabc.",
        b"\x80\x02\x8b\xff\xff\xff\x7fabc.",  # a number of 2 GB
        SOUND.replace(struct.pack("<H", 3072), struct.pack("<H", 65535)),  # a shape larger than its bytes
        b"\x80\x02r\xff\xff\xff\xff.",  # memory place 4 294 967 295 of an empty stack
        b"\x80\x02j\xff\xff\xff\xff.",
        b"\x80\x02" + b"]q\x00" + b"(h\x00h\x00h\x00e" * 20 + b".",  # a list that holds itself
    ],
)
def test_a_pickle_that_announces_much_allocates_nothing(content):
    tracemalloc.start()
    try:
        with suppress(DataError):  # a list that holds itself is no error, and no batch
            read_pickle(content, "batch")
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_a_pickle_with_too_many_steps_or_bytes_is_refused(monkeypatch):
    with pytest.raises(DataError, match="more opcodes"):
        read_pickle(b"\x80\x02" + b"N" * 200_010 + b".", "batch")
    monkeypatch.setattr("fedlgd.data.originals.plain_pickle.LARGEST", 100)
    with pytest.raises(DataError, match="is a pickle of"):
        read_pickle(bytes(200), "batch")


def test_a_batch_cut_anywhere_is_refused():
    for length in [*range(300), len(SOUND) - 200, len(SOUND) - 1]:
        with pytest.raises(DataError):
            read_pickle(SOUND[:length], "batch")


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_whatever_is_changed_in_a_batch_only_plain_values_or_an_error_come_out(data):
    small = writing.old_batch(writing.bytes_of(1, 12), [1])
    changed = bytearray(small)
    for _ in range(data.draw(st.integers(1, 4))):
        changed[data.draw(st.integers(0, len(small) - 1))] = data.draw(st.integers(0, 255))
    modules = set(sys.modules)
    with suppress(DataError):
        read_pickle(bytes(changed), "batch")
    assert set(sys.modules) == modules


def test_the_reader_knows_every_opcode_of_a_batch_and_no_other_that_could_call():
    from fedlgd.data.originals import plain_pickle

    known = {*plain_pickle.VALUES, *plain_pickle.CONSTANTS, *plain_pickle.ACTIONS}
    assert known <= {opcode.name for opcode in pickletools.opcodes}
    assert not known & {"INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "STACK_GLOBAL", "EXT1", "EXT2", "EXT4", "PERSID"}


# CIFAR-10-C


@pytest.fixture
def small_c(monkeypatch):
    """CIFAR-10-C with 10 images an array instead of 50 000."""
    monkeypatch.setattr(cifar, "SHAPE", (10, 32, 32, 3))
    members = {f"CIFAR-10-C/{name}.npy": writing.npy(writing.bytes_of(10, 32, 32, 3)) for name in cifar.CORRUPTIONS}
    return members | {"CIFAR-10-C/labels.npy": writing.npy(writing.digits(10))}


def unpack(folder: Path, members: dict[str, bytes]) -> Path:
    writing.tar(folder / cifar.ARCHIVE_C, members, "w")
    (folder / "home").mkdir(exist_ok=True)
    cifar.unpack_cifar10c(folder, folder / "home")
    return folder / "home" / "CIFAR-10-C"


def test_cifar10c_becomes_twenty_arrays_that_can_be_mapped(small_c, tmp_path):
    folder = unpack(tmp_path, small_c)
    assert len(list(folder.iterdir())) == 20
    array = np.load(folder / "fog.npy", mmap_mode="r", allow_pickle=False)
    assert np.array_equal(array, writing.bytes_of(10, 32, 32, 3))
    unpack(tmp_path, small_c)  # a second time replaces the first
    assert sorted(path.name for path in (tmp_path / "home").iterdir()) == ["CIFAR-10-C"]


def test_an_archive_cannot_choose_where_its_members_go(small_c, tmp_path):
    evil = small_c | {
        "../../outside.npy": b"x",
        "/tmp/absolute.npy": b"x",
        "../fog2.npy": b"x",
        "CIFAR-10-C/unknown.npy": b"x",
        "CIFAR-10-C/run.sh": b"x",
    }
    del evil["CIFAR-10-C/fog.npy"]
    evil["../../../fog.npy"] = small_c["CIFAR-10-C/fog.npy"]  # a known name in a bad place lands in the good one
    folder = unpack(tmp_path, evil)
    assert {path.stem for path in folder.iterdir()} == {*cifar.CORRUPTIONS, "labels"}
    assert {path.name for path in tmp_path.iterdir()} == {"home", cifar.ARCHIVE_C}


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE])
def test_links_and_other_things_in_the_archive_are_not_unpacked(kind, small_c, tmp_path):
    secret = tmp_path / "secret.npy"
    secret.write_bytes(small_c["CIFAR-10-C/fog.npy"])
    del small_c["CIFAR-10-C/fog.npy"]
    writing.tar(tmp_path / cifar.ARCHIVE_C, small_c, "w")
    with tarfile.open(tmp_path / cifar.ARCHIVE_C, "a") as archive:
        entry = tarfile.TarInfo("CIFAR-10-C/fog.npy")
        entry.type, entry.linkname = kind, str(secret)
        archive.addfile(entry)
    (tmp_path / "home").mkdir()
    with pytest.raises(DataError, match=r"has no fog\.npy"):
        cifar.unpack_cifar10c(tmp_path, tmp_path / "home")
    assert list((tmp_path / "home").iterdir()) == []


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (writing.npy(writing.bytes_of(9, 32, 32, 3)), "it should be uint8 of shape"),
        (writing.npy(np.zeros((10, 32, 32, 3))), "is float64"),
        (writing.npy(writing.bytes_of(10, 32, 32, 3))[:-1], "is not what it should be"),
        (pickle.dumps(Calls(harm)), "is not what it should be"),
        (b"", "is not what it should be"),
    ],
)
def test_a_wrong_array_is_refused_and_nothing_stays(content, says, small_c, tmp_path):
    with pytest.raises(DataError, match=says):
        unpack(tmp_path, small_c | {"CIFAR-10-C/fog.npy": content})
    assert list((tmp_path / "home").iterdir()) == []


def test_an_array_of_objects_is_not_unpickled(small_c, tmp_path):
    made = io.BytesIO()
    np.save(made, np.array([Calls(harm)], object), allow_pickle=True)
    HARM.clear()
    with pytest.raises(DataError, match=r"fog\.npy is not what it should be"):
        unpack(tmp_path, small_c | {"CIFAR-10-C/fog.npy": made.getvalue()})
    assert HARM == []


def test_a_cut_archive_leaves_the_folder_that_was_there(small_c, tmp_path):
    folder = unpack(tmp_path, small_c)
    path = tmp_path / cifar.ARCHIVE_C
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(DataError, match=r"is not what it should be|early in its archive|has no"):
        cifar.unpack_cifar10c(tmp_path, tmp_path / "home")
    assert [path.name for path in (tmp_path / "home").iterdir()] == ["CIFAR-10-C"]
    cifar.check_cifar10c(folder)


def test_a_disk_that_fills_leaves_nothing(small_c, tmp_path, monkeypatch):
    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DataError, match=r"cannot write .*\.npy: No space left on device; free space"):
        unpack(tmp_path, small_c)
    assert list((tmp_path / "home").iterdir()) == []


# RIM-ONE DL


def zipped(path: Path, members: dict[str, bytes]) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)


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
    zipped(tmp_path / retina.ARCHIVE, rim_one_members() | evil)
    retina.unpack_rim_one(tmp_path, tmp_path / "home")
    found = sorted(str(p.relative_to(tmp_path / "home")) for p in tmp_path.rglob("*.png"))
    assert found == sorted(
        f"retina/rim_one/{part}/{diagnosis}/r1_Im{i}.png"
        for part in ("Training", "Testing")
        for diagnosis in ("glaucoma", "normal")
        for i in range(2)
    )


def test_a_page_instead_of_the_zip_or_a_zip_of_something_else_is_refused(tmp_path):
    (tmp_path / retina.ARCHIVE).write_bytes(b"<html>log in</html>")
    with pytest.raises(DataError, match="is not what it should be"):
        retina.unpack_rim_one(tmp_path, tmp_path / "home")
    zipped(tmp_path / retina.ARCHIVE, {"partitioned_randomly/test_set/normal/a.png": b"x"})
    with pytest.raises(DataError, match="has no partitioned_randomly pictures for Training/glaucoma"):
        retina.unpack_rim_one(tmp_path, tmp_path / "home")
    assert not list((tmp_path / "home").rglob("*.png"))
