"""Input made to break a reader is refused in words, without a traceback and without using up the memory."""

import io
import json
import pkgutil
import struct
import zipfile
from collections.abc import Iterator
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pytest

import fedlgd
from fedlgd.cli import app, main
from fedlgd.core import files
from fedlgd.core.errors import DataError, RunError, SettingError, in_words
from fedlgd.core.settings import Settings
from fedlgd.data.arrays import npz_digest, read_arrays
from fedlgd.data.own.check import check_data
from fedlgd.data.suites import from_folders
from fedlgd.rundir.read import read_run
from fedlgd.runs.config import resolve
from fedlgd.runs.parse import parse_assignment, read_toml
from fedlgd.runs.run import execute
from tests import tiny
from tests.runs.folder import FAST_NET, config, method, run_until

# Settings

DEEP = "[" * 100_000
HUGE = {
    "ten megabytes": "rounds=" + "9" * 10_000_000,
    "a million digits": "rounds=" + "9" * 1_000_000,
    "five thousand digits": "rounds=" + "9" * 5_000,
    "brackets": "rounds=" + DEEP,
    "closed brackets": "rounds=" + DEEP + "]" * 100_000,
    "a few brackets": "rounds=" + "[" * 50 + "]" * 50,
    "inline tables": "distil=" + "{a=" * 10_000 + "1" + "}" * 10_000,
    "dots": ".".join(["a"] * 100_000) + "=1",
    "dots in a value": "distil={" + ".".join(["a"] * 50_000) + "=1}",
}


@pytest.mark.parametrize("text", HUGE.values(), ids=HUGE)
def test_an_oversized_literal_is_refused_in_a_short_line(text: str) -> None:
    with pytest.raises(SettingError) as error:
        resolve({}, dict([parse_assignment(text)]))
    assert len(str(error.value)) < 300


@pytest.mark.parametrize("text", HUGE.values(), ids=HUGE)
def test_an_oversized_config_file_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "my.toml").write_text(text)
    with pytest.raises(SettingError) as error:
        resolve(read_toml(tmp_path / "my.toml"))
    assert len(str(error.value)) < 300


def test_a_config_file_without_end_is_refused() -> None:
    with pytest.raises(SettingError, match=r"/dev/zero.* has more than"):
        read_toml(Path("/dev/zero"))


def groups() -> Iterator[type[Settings]]:
    """Every group of settings of the package."""
    for module in pkgutil.walk_packages(fedlgd.__path__, "fedlgd."):
        if not module.name.endswith("__main__"):
            import_module(module.name)
    found = Settings.__subclasses__()
    while found:
        cls = found.pop()
        found += cls.__subclasses__()
        if cls.__module__.startswith("fedlgd."):
            yield cls


def test_every_integer_setting_has_a_lower_and_an_upper_bound() -> None:
    integers = [(cls, f) for cls in groups() for f in fields(cls) if get_type_hints(cls)[f.name] is int]
    assert len(integers) > 30
    unbounded = [f"{cls.__name__}.{f.name}" for cls, f in integers if not {"least", "most"} <= f.metadata.keys()]
    assert unbounded == []


# .npz files


def npy(
    shape: Any = (6, 8, 8), dtype: str = "|u1", body: bytes | None = None, magic: bytes = b"\x93NUMPY\x01\x00"
) -> bytes:
    head = f"{{'descr': {dtype!r}, 'fortran_order': False, 'shape': {shape!r}, }}".encode()
    body = bytes(6 * 64) if body is None else body
    return magic + struct.pack("<H", len(head) + 1) + head + b"\n" + body


def packed(path: Path, train_x: bytes, kind: int = zipfile.ZIP_STORED, **more: bytes) -> Path:
    path.parent.mkdir(exist_ok=True)
    labels = npy((6,), body=bytes([0, 0, 0, 1, 1, 1]))
    with zipfile.ZipFile(path, "w", kind) as archive:
        for name, content in {"train_x.npy": train_x, "train_y.npy": labels, **more}.items():
            archive.writestr(name, content)
    return path


def encrypted(path: Path) -> Path:
    content = bytearray(packed(path, npy()).read_bytes())
    at = content.index(b"PK\x01\x02")
    content[at + 8] |= 1
    path.write_bytes(content)
    return path


def twice(path: Path) -> Path:
    content = packed(path, npy(), **{"train_z.npy": npy()}).read_bytes()
    path.write_bytes(content.replace(b"train_z.npy", b"train_x.npy"))
    return path


def bomb(path: Path, declared: int) -> Path:
    content = bytearray(packed(path, npy(), zipfile.ZIP_DEFLATED).read_bytes())
    at = content.index(b"PK\x01\x02")
    content[at + 24 : at + 28] = struct.pack("<I", declared)
    path.write_bytes(content)
    return path


def exotic(path: Path, method: int) -> Path:
    content = bytearray(packed(path, npy(), zipfile.ZIP_DEFLATED).read_bytes())
    at = content.index(b"PK\x01\x02")
    content[at + 10 : at + 12] = content[8:10] = struct.pack("<H", method)
    path.write_bytes(content)
    return path


def zipped_badly(path: Path) -> Path:
    path.write_bytes(path.read_bytes()[:-30])
    return path


CRAFTED = {
    "encrypted": encrypted,
    "two members of one name": twice,
    "an absolute path": lambda path: packed(path, npy(), **{"/etc/passwd": npy()}),
    "a path upwards": lambda path: packed(path, npy(), **{"../up.npy": npy()}),
    "objects": lambda path: packed(path, npy(dtype="|O")),
    "objects, compressed": lambda path: packed(path, npy(dtype="|O"), zipfile.ZIP_DEFLATED),
    "wrong magic": lambda path: packed(path, npy(magic=b"\x93NUMPI\x01\x00")),
    "a version of the future": lambda path: packed(path, npy(magic=b"\x93NUMPY\x09\x00")),
    "a shape beyond the file": lambda path: packed(path, npy((10**15, 8, 8))),
    "a shape beyond memory": lambda path: packed(path, npy((10**15, 8, 8)), zipfile.ZIP_DEFLATED),
    "a shape beyond all numbers": lambda path: packed(path, npy((10**30, 8, 8)), zipfile.ZIP_DEFLATED),
    "a shape with a negative side": lambda path: packed(path, npy((-6, 8, 8))),
    "a shape into the next member": lambda path: packed(path, npy((7, 8, 8))),
    "a shape of brackets": lambda path: packed(path, npy("(" * 9_000)),
    "no numbers": lambda path: packed(path, npy(dtype="zz")),
    "declared size too large": lambda path: bomb(path, 2**32 - 2),
    "unknown compression": lambda path: exotic(path, 97),
    "bzip2 that is none": lambda path: exotic(path, 12),
    "lzma that is none": lambda path: exotic(path, 14),
    "not a zip": lambda path: zipped_badly(packed(path, npy())),
    "a folder": lambda path: path.mkdir() or path,
}


@pytest.mark.parametrize("make", CRAFTED.values(), ids=CRAFTED)
def test_a_crafted_npz_is_refused(make: Any, tmp_path: Path) -> None:
    file = make(tmp_path / "a.npz")
    with pytest.raises(DataError, match=r"a\.npz"):
        read_arrays(file)
    with pytest.raises(DataError, match="a"):
        from_folders(tmp_path)
    assert check_data(tmp_path, 1).count("error") if file.is_file() else True


def test_members_are_checked_before_a_digest_is_taken_of_them(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"train_x\.npy is encrypted"):
        npz_digest(encrypted(tmp_path / "a.npz"))


def test_an_ordinary_npz_in_the_same_hands_is_read(tmp_path: Path) -> None:
    for kind in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        assert read_arrays(packed(tmp_path / "a.npz", npy(), kind))["train_x"].shape == (6, 8, 8)
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, np.zeros((6, 8, 8), np.uint8), version=(3, 0))
    assert read_arrays(packed(tmp_path / "b.npz", buffer.getvalue()))["train_x"].shape == (6, 8, 8)


# Run folders

HOW = config(method("fedavg"), net=FAST_NET)


@pytest.fixture
def half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDLGD_DATA", str(tmp_path / "home"))
    run_until(0, HOW, tiny.federation(tiny.NAMES[:2], train=3, test=1), tmp_path / "out")
    return tmp_path / "out"


def refused(folder: Path, *words: str) -> None:
    with pytest.raises(RunError) as error:
        execute(HOW, tiny.federation(tiny.NAMES[:2], train=3, test=1), folder)
    assert all(word in str(error.value) for word in words)


@pytest.mark.parametrize(
    "line", [b"[" * 100_000, b'{"scores": {"ape": 1}}', b"[]", b"{}", b"1" * 10_000, b"\xff", b""]
)
def test_a_record_that_is_none_is_refused_even_if_its_digest_is_right(line: bytes, half: Path) -> None:
    head = files.read_json(half / "state" / "head.json")
    (half / "records.jsonl").write_bytes(line + b"\n")
    head["records"] = {"bytes": len(line) + 1, "digest": files.digest(line + b"\n")}
    files.write_json(half / "state" / "head.json", head)
    refused(half, "records.jsonl", "--out")
    with pytest.raises(RunError, match=r"records\.jsonl"):
        read_run(half)


ALLOWED = [("sites", {}), ("round", -1), ("round", 2**70)]
WRONG = [None, -1, "x", [], {}, 1.5, 2**70, [[]], {"a": {}}]


@pytest.mark.parametrize("file", ["manifest.json", "state/head.json"])
def test_a_key_that_is_missing_or_of_another_kind_is_refused_even_if_the_digest_is_right(
    file: str, half: Path
) -> None:
    whole = files.read_json(half / file)
    needed = {"manifest.json": ("format", "config", "versions", "data")}.get(file, tuple(whole))
    for key in needed:
        files.write_json(half / file, {k: v for k, v in whole.items() if k != key})
        refused(half, str(half))
        for wrong in WRONG:
            if (key, wrong) in ALLOWED:
                continue
            files.write_json(half / file, whole | {key: wrong})
            refused(half, str(half))


def test_a_head_cannot_name_a_file_elsewhere(half: Path) -> None:
    head = files.read_json(half / "state" / "head.json")
    for name in ("../../secret", "/etc/passwd", "server-1.safetensors/../x", "server-1.safetensors\n"):
        files.write_json(half / "state" / "head.json", head | {"server": name})
        refused(half, "head.json")


def test_a_manifest_of_brackets_is_refused(half: Path) -> None:
    (half / "manifest.json").write_text("[" * 100_000)
    refused(half, "manifest.json")
    with pytest.raises(RunError, match=r"manifest\.json"):
        read_run(half)
    (half / "manifest.json").write_text(json.dumps({"format": 2}))
    refused(half, "manifest.json")


# Memory

SHORT = [
    MemoryError(),
    MemoryError("Unable to allocate 7 TiB"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:117] . DefaultCPUAllocator: can't allocate memory: you tried"),
    RuntimeError("[enforce fail] data. DefaultCPUAllocator: not enough memory: you tried to allocate 9 bytes."),
    RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"),
]


@pytest.mark.parametrize("error", SHORT, ids=str)
def test_memory_that_ran_out_is_said_without_a_traceback(error, monkeypatch, capsys) -> None:
    monkeypatch.setattr(app, "app", lambda: (_ for _ in ()).throw(error))
    with pytest.raises(SystemExit) as exit_:
        main()
    assert exit_.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("fedlgd: not enough memory (")
    assert "--workers" in said
    assert said.count("\n") == 1


@pytest.mark.parametrize("error", [RuntimeError("size mismatch"), ValueError("a bug"), KeyError("x")])
def test_a_bug_keeps_its_traceback(error, monkeypatch) -> None:
    monkeypatch.setattr(app, "app", lambda: (_ for _ in ()).throw(error))
    with pytest.raises(type(error)):
        main()
    assert in_words(error) == ""
