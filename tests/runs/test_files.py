"""Files are whole or absent, and know when they were damaged."""

import errno
import json
import os
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedlgd.core.errors import RunError
from fedlgd.core.pack import pack
from fedlgd.core.types import Hello, ServerState, SiteState, VirtualSet
from fedlgd.engines.memory import Enrolment
from fedlgd.runs import files

# Whole or absent


def full(*_: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize(("owner", "step"), [(os, "fsync"), (Path, "replace"), (Path, "open")])
def test_a_full_disk_leaves_the_old_file_and_nothing_beside_it(tmp_path, monkeypatch, owner, step, there):
    file = tmp_path / "a.json"
    if there:
        file.write_bytes(b"old")
    monkeypatch.setattr(owner, step, full)
    with pytest.raises(RunError) as error:
        files.write_atomic(file, b"new content")
    monkeypatch.undo()
    assert str(file) in str(error.value)
    assert "No space left on device" in str(error.value)
    assert "Free space" in str(error.value)
    assert names(tmp_path) == (["a.json"] if there else [])
    assert not there or file.read_bytes() == b"old"


def test_a_disk_that_fills_up_in_the_middle_of_the_bytes_leaves_the_old_file(tmp_path, monkeypatch):
    """A file of the real size limit: the write itself fails after some bytes."""
    resource = pytest.importorskip("resource")
    signal = pytest.importorskip("signal")
    file = tmp_path / "a.bin"
    file.write_bytes(b"old")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
        with pytest.raises(RunError, match=r"a\.bin: File too large"):
            files.write_atomic(file, bytes(100_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert names(tmp_path) == ["a.bin"]
    assert file.read_bytes() == b"old"


@pytest.mark.parametrize(("owner", "step"), [(os, "fsync"), (Path, "replace")])
def test_an_interrupt_passes_through_and_leaves_nothing_half_written(tmp_path, monkeypatch, owner, step):
    file = tmp_path / "a.json"
    file.write_bytes(b"old")
    monkeypatch.setattr(owner, step, interrupt)
    with pytest.raises(KeyboardInterrupt):
        files.write_atomic(file, b"new")
    monkeypatch.undo()
    assert names(tmp_path) == ["a.json"]
    assert file.read_bytes() == b"old"


def test_the_bytes_are_on_the_disk_before_the_file_has_its_name(tmp_path, monkeypatch):
    events: list[str] = []
    fsync, replace = os.fsync, Path.replace
    monkeypatch.setattr(os, "fsync", lambda handle: (events.append("fsync"), fsync(handle)))
    monkeypatch.setattr(Path, "replace", lambda a, b: (events.append("replace"), replace(a, b)))
    files.write_atomic(tmp_path / "a", b"content")
    assert events == ["fsync", "replace", "fsync"]  # the file, its name, the folder with the new name
    assert (tmp_path / "a").read_bytes() == b"content"


def test_folders_are_made_on_the_way(tmp_path):
    files.write_atomic(tmp_path / "a" / "b" / "c", b"content")
    assert (tmp_path / "a" / "b" / "c").read_bytes() == b"content"


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(RunError, match=r"cannot save .*file/below: (Not a directory|File exists).*--out"):
        files.write_atomic(tmp_path / "file" / "below", b"")


def test_appending_forgets_what_was_behind_the_committed_part(tmp_path):
    file = tmp_path / "records.jsonl"
    files.append(file, b"one\n", after=0)
    files.append(file, b"two, never committed\n", after=4)
    files.append(file, b"2\n", after=4)
    assert file.read_bytes() == b"one\n2\n"


def test_a_failed_append_keeps_the_committed_part(tmp_path, monkeypatch):
    file = tmp_path / "records.jsonl"
    files.append(file, b"one\n", after=0)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunError, match=r"records.jsonl: No space"):
        files.append(file, b"two\n", after=4)
    monkeypatch.undo()
    assert file.read_bytes()[:4] == b"one\n"
    files.append(file, b"two\n", after=4)
    assert file.read_bytes() == b"one\ntwo\n"


# Messages


def random_tensor(seed: int, dtype: torch.dtype = torch.float32, shape: tuple[int, ...] = (3, 2)) -> Tensor:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 100
    return x.to(dtype)


def virtual(origin: str, round: int) -> VirtualSet:
    return VirtualSet(images=random_tensor(round), labels=torch.tensor([0, 1, 1]), origin=origin, round=round)


SERVER = ServerState(
    round=7,
    params={"a.weight": random_tensor(0), "b": random_tensor(1, torch.float64), "n": torch.tensor(3)},
    anchors=virtual("server", 5),
    held={"ape": 4, "bee/../x": -1, "Ünïcode \U0001f600\n": 0},
    trees={"control": {"a.weight": random_tensor(2)}, "empty": {}},
)
SITE = SiteState(virtual=virtual("ape", -1), trees={"previous": {"w": random_tensor(3)}})
ENROLMENT = Enrolment(
    state=SITE,
    hello=Hello(site="ape", counts=torch.tensor([2, 0])),
    seconds={"distil": 0.1},
    flops={"distil": 12345678901234},
)
MESSAGES = [SERVER, SITE, SiteState(), ENROLMENT]


def bits(message: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """All that a message is, tensors as their bytes."""
    tensors, plain = pack(message)
    raw = {
        name: (tuple(t.shape), t.dtype, bytes(t.reshape(-1).view(torch.uint8).tolist()))
        for name, t in tensors.items()
    }
    return raw, plain


@pytest.mark.parametrize("message", MESSAGES)
def test_a_message_comes_back_bit_for_bit(tmp_path, message):
    files.write_message(tmp_path / "m", message)
    files.verify(tmp_path / "m")
    again = files.read_message(tmp_path / "m", type(message))
    assert type(again) is type(message)
    assert bits(again) == bits(message)


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float32,
        torch.float64,
        torch.float16,
        torch.bfloat16,
        torch.int64,
        torch.int32,
        torch.uint8,
        torch.bool,
    ],
    ids=str,
)
@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (1,), (2, 3, 1)], ids=str)
def test_tensors_of_every_kind_come_back_bit_for_bit(tmp_path, dtype, shape):
    state = ServerState(params={"x": random_tensor(1, dtype, shape)})
    files.write_message(tmp_path / "m", state)
    assert bits(files.read_message(tmp_path / "m", ServerState)) == bits(state)


def test_odd_numbers_keep_their_bits(tmp_path):
    patterns = torch.tensor([0x7FC00001, 0x7F800000, -0x80000000, 1, 0x7F7FFFFF], dtype=torch.int32)
    state = ServerState(
        params={"x": patterns.view(torch.float32)}
    )  # a NaN with a payload, inf, -0.0, subnormal, max
    files.write_message(tmp_path / "m", state)
    assert torch.equal(files.read_message(tmp_path / "m", ServerState).params["x"].view(torch.int32), patterns)


def test_tensors_that_are_views_or_the_same_come_back_each_on_its_own(tmp_path):
    x = random_tensor(0)
    x_grad = random_tensor(1).requires_grad_()
    params = {"x": x, "again": x, "row": x[1:], "turned": x.t(), "wide": x[:1].expand(4, 2), "leaf": x_grad}
    files.write_message(tmp_path / "m", ServerState(params=params))
    again = files.read_message(tmp_path / "m", ServerState).params
    assert {name: t.tolist() for name, t in again.items()} == {name: t.tolist() for name, t in params.items()}
    again["x"].zero_()
    assert again["again"].tolist() == x.tolist()


@given(st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), st.integers(-(2**63), 2**63 - 1)))
def test_plain_values_under_any_name_come_back(tmp_path_factory, held):
    file = tmp_path_factory.mktemp("plain") / "m"
    files.write_message(file, ServerState(params={}, held=held))
    assert files.read_message(file, ServerState).held == held


def noticed(read: Callable[[Path], Any], file: Path) -> bool:
    """Is the damage reported, with the name of the file and the way out?"""
    try:
        read(file)
    except RunError as error:
        return re.search(rf"{file.name}' is damaged or missing .*Restore.*--out", str(error)) is not None
    return False


def positions(length: int, count: int) -> list[int]:
    """Both ends and random places between."""
    return sorted({0, 1, 7, 8, length - 1, *random.Random(length).sample(range(length), min(count, length))})


def flips(content: bytes, count: int) -> list[tuple[int, bytes]]:
    """Copies with one bit, or one whole byte, turned round."""
    rng = random.Random(0)
    masks = [1 << bit for bit in range(8)] + [0xFF]
    copies = []
    for position in positions(len(content), count):
        turned = bytearray(content)
        turned[position] ^= rng.choice(masks)
        copies.append((position, bytes(turned)))
    return copies


@pytest.mark.parametrize("message", MESSAGES)
def test_a_turned_bit_anywhere_is_noticed(tmp_path, message):
    file = tmp_path / "m.safetensors"
    files.write_message(file, message)
    for position, damaged in flips(file.read_bytes(), 400):
        file.write_bytes(damaged)
        for read in (files.verify, lambda f: files.read_message(f, type(message))):
            assert noticed(read, file), f"byte {position} was turned"
        assert file.read_bytes() == damaged


@pytest.mark.parametrize("message", MESSAGES)
def test_a_shortened_or_lengthened_file_is_noticed(tmp_path, message):
    file = tmp_path / "m.safetensors"
    files.write_message(file, message)
    content = file.read_bytes()
    shortened = [content[:length] for length in positions(len(content), 200)]
    for damaged in (b"", *shortened, content + b"\0", content + content):
        file.write_bytes(damaged)
        assert noticed(files.verify, file), f"{len(damaged)} bytes instead of {len(content)}"


def test_a_message_of_another_kind_is_refused(tmp_path):
    files.write_message(tmp_path / "m", SITE)
    with pytest.raises(RunError, match="damaged"):
        files.read_message(tmp_path / "m", ServerState)


def test_a_missing_file_is_named_with_the_way_out(tmp_path):
    for read in (files.read_json, files.verify):
        with pytest.raises(RunError, match=r"nothing' is damaged or missing .*No such file.* Restore .*--out"):
            read(tmp_path / "nothing")


def test_a_pickle_is_not_read(tmp_path):
    torch.save({"x": torch.zeros(1)}, tmp_path / "m")
    with pytest.raises(RunError, match="damaged"):
        files.read_message(tmp_path / "m", ServerState)


# JSON with a digest

VALUE = {"format": 1, "names": ["a", "Ünï"], "deep": {"x": 0.1, "y": None, "z": [True, -3]}}


def test_json_comes_back_and_is_readable_without_this_code(tmp_path):
    files.write_json(tmp_path / "a.json", VALUE)
    assert files.read_json(tmp_path / "a.json") == VALUE
    plain = json.loads((tmp_path / "a.json").read_text(encoding="utf-8"))
    assert {**VALUE, "digest": plain["digest"]} == plain


def test_json_notices_every_turned_bit_and_every_cut(tmp_path):
    file = tmp_path / "a.json"
    files.write_json(file, VALUE)
    content = file.read_bytes()
    cuts = [(length, content[:length]) for length in range(len(content) - 1)]  # the last byte is a line end
    for position, damaged in (*flips(content, len(content)), *cuts):
        file.write_bytes(damaged)
        assert noticed(files.read_json, file), f"damage at byte {position}"


@pytest.mark.parametrize("text", ["[]", "3", "null", '"x"', "{}", '{"digest": 3}', "", "{", "\udcff"])
def test_json_that_was_never_ours_is_refused(tmp_path, text):
    file = tmp_path / "a.json"
    file.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(RunError, match=r"a.json' is damaged"):
        files.read_json(file)


def test_json_edited_by_hand_is_refused_whatever_is_edited(tmp_path):
    file = tmp_path / "a.json"
    files.write_json(file, VALUE)
    plain = json.loads(file.read_text())
    for edited in (plain | {"format": 2}, plain | {"more": 1}, {k: v for k, v in plain.items() if k != "names"}):
        file.write_text(json.dumps(edited))
        with pytest.raises(RunError, match="digest does not match"):
            files.read_json(file)
