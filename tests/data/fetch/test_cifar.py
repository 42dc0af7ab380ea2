"""Readers of CIFAR-10, binary version, and of CIFAR-10-C."""

import errno
import io
import os
import pickle
import tarfile
from pathlib import Path

import numpy as np
import pytest

from fedlgd.core.errors import DataError
from fedlgd.data.fetch import prepare, readers
from tests.data.fetch import writing
from tests.errors import refuses

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


def test_cifar10_is_read_channel_by_channel(tmp_path):
    made = writing.cifar(tmp_path / readers.CIFAR10)
    read = readers.read_cifar10(tmp_path)
    assert read["train_x"].shape == (15, 32, 32, 3)
    assert read["test_x"].shape == (3, 32, 32, 3)
    rows, labels = made["data_batch_2.bin"]
    assert np.array_equal(read["train_x"][4, ..., 2], rows[1, 2048:].reshape(32, 32))
    assert read["train_y"][3:6].tolist() == labels.tolist()
    rows, labels = made["test_batch.bin"]
    assert np.array_equal(read["test_x"][0, ..., 0], rows[0, :1024].reshape(32, 32))
    assert read["test_y"].tolist() == labels.tolist()


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"data_batch_3.bin": b""}, "batch-of-wrong-size"),
        ({"test_batch.bin": bytes(3 * 3073 - 1)}, "batch-of-wrong-size"),
        ({"test_batch.bin": bytes(10_001 * 3073)}, "batch-of-wrong-size"),
        ({"test_batch.bin": bytes([10]) + bytes(3072)}, "original-labels-out-of-range"),
        ({"test_batch.bin": pickle.dumps({"data": [1, 2]})}, "batch-of-wrong-size"),
    ],
)
def test_a_damaged_batch_is_refused(change, code, tmp_path):
    writing.cifar(tmp_path / readers.CIFAR10, **change)
    with refuses(code):
        readers.read_cifar10(tmp_path)


def test_an_archive_that_lacks_batches_or_is_truncated_is_refused(tmp_path):
    path = tmp_path / readers.CIFAR10
    writing.tar(path, {"cifar-10-batches-bin/data_batch_1.bin": bytes(3073)})
    with refuses("original-missing"):
        readers.read_cifar10(tmp_path)
    path.write_bytes(path.read_bytes()[:100])
    with refuses("original-damaged"):
        readers.read_cifar10(tmp_path)


# CIFAR-10-C


@pytest.fixture
def small_c(monkeypatch):
    """CIFAR-10-C with 10 images an array instead of 50 000."""
    monkeypatch.setattr(prepare, "CIFAR10C_SHAPE", (10, 32, 32, 3))
    members = {
        f"CIFAR-10-C/{name}.npy": writing.npy(writing.bytes_of(10, 32, 32, 3)) for name in prepare.SEVERITIES
    }
    return members | {"CIFAR-10-C/labels.npy": writing.npy(writing.digits(10))}


def unpack(folder: Path, members: dict[str, bytes]) -> Path:
    writing.tar(folder / prepare.CIFAR10C, members, "w")
    (folder / "home").mkdir(exist_ok=True)
    prepare.unpack_cifar10c(folder, folder / "home")
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
    assert {path.stem for path in folder.iterdir()} == {*prepare.SEVERITIES, "labels"}
    assert {path.name for path in tmp_path.iterdir()} == {"home", prepare.CIFAR10C}


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE])
def test_links_and_other_things_in_the_archive_are_not_unpacked(kind, small_c, tmp_path):
    secret = tmp_path / "secret.npy"
    secret.write_bytes(small_c["CIFAR-10-C/fog.npy"])
    del small_c["CIFAR-10-C/fog.npy"]
    writing.tar(tmp_path / prepare.CIFAR10C, small_c, "w")
    with tarfile.open(tmp_path / prepare.CIFAR10C, "a") as archive:
        entry = tarfile.TarInfo("CIFAR-10-C/fog.npy")
        entry.type, entry.linkname = kind, str(secret)
        archive.addfile(entry)
    (tmp_path / "home").mkdir()
    with refuses("original-missing", what="fog.npy"):
        prepare.unpack_cifar10c(tmp_path, tmp_path / "home")
    assert list((tmp_path / "home").iterdir()) == []


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (writing.npy(writing.bytes_of(9, 32, 32, 3)), "array-of-wrong-shape"),
        (writing.npy(np.zeros((10, 32, 32, 3))), "array-of-wrong-shape"),
        (writing.npy(writing.bytes_of(10, 32, 32, 3))[:-1], "original-damaged"),
        (pickle.dumps(Calls(harm)), "original-damaged"),
        (b"", "original-damaged"),
    ],
)
def test_a_wrong_array_is_refused_and_nothing_stays(content, code, small_c, tmp_path):
    with refuses(code):
        unpack(tmp_path, small_c | {"CIFAR-10-C/fog.npy": content})
    assert list((tmp_path / "home").iterdir()) == []


def test_an_array_of_objects_is_not_unpickled(small_c, tmp_path):
    made = io.BytesIO()
    np.save(made, np.array([Calls(harm)], object), allow_pickle=True)
    HARM.clear()
    with refuses("original-damaged"):
        unpack(tmp_path, small_c | {"CIFAR-10-C/fog.npy": made.getvalue()})
    assert HARM == []


def test_a_cut_archive_leaves_the_folder_that_was_there(small_c, tmp_path):
    folder = unpack(tmp_path, small_c)
    path = tmp_path / prepare.CIFAR10C
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with refuses("original-damaged"):
        prepare.unpack_cifar10c(tmp_path, tmp_path / "home")
    assert [path.name for path in (tmp_path / "home").iterdir()] == ["CIFAR-10-C"]
    prepare.check_cifar10c(folder)


def test_a_disk_that_fills_leaves_nothing(small_c, tmp_path, monkeypatch):
    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DataError, match=r"\.npy: No space left"):
        unpack(tmp_path, small_c)
    assert list((tmp_path / "home").iterdir()) == []


def test_folders_of_a_killed_process_are_cleared(small_c, tmp_path):
    for name in (".CIFAR-10-C.0123abcd", ".CIFAR-10-C.0123abcd.old"):
        (tmp_path / "home" / name).mkdir(parents=True)
        (tmp_path / "home" / name / "fog.npy").write_bytes(b"half")
    unpack(tmp_path, small_c)
    assert [path.name for path in (tmp_path / "home").iterdir()] == ["CIFAR-10-C"]
