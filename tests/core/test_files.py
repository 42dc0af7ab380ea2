"""Files are whole or absent, and know when they were damaged."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fedlgd.core import files
from fedlgd.core.errors import DataError, RunError
from tests.core.damage import flips, noticed
from tests.errors import refuses

# Whole or absent


def full(*_: Any, **__: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


def write(file: Path, content: bytes) -> None:
    """As every file of a run is written."""
    with files.writing(file):
        files.write_atomic(file, content)


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize(("owner", "step"), [(os, "fsync"), (Path, "replace"), (os, "open")])
def test_a_full_disk_leaves_the_old_file_and_nothing_beside_it(tmp_path, monkeypatch, owner, step, there):
    file = tmp_path / "a.json"
    if there:
        file.write_bytes(b"old")
    monkeypatch.setattr(owner, step, full)
    with pytest.raises(RunError) as error:
        write(file, b"new content")
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
            write(file, bytes(100_000))
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


def test_a_file_that_writes_itself_is_whole_or_absent(tmp_path):
    def write(file: Any, fail: bool) -> None:
        file.write(b"first half, ")
        if fail:
            raise ValueError("no second half")
        file.write(b"second half")

    with pytest.raises(ValueError, match="no second half"):
        files.write_atomic(tmp_path / "a", lambda file: write(file, fail=True))
    assert names(tmp_path) == []
    files.write_atomic(tmp_path / "a", lambda file: write(file, fail=False))
    assert (tmp_path / "a").read_bytes() == b"first half, second half"


def test_a_failed_write_may_name_another_way_out_and_be_of_another_kind(tmp_path):
    with pytest.raises(DataError, match=r"cannot write here: No such file.* was left\. Use --data-home"):  # noqa: SIM117
        with files.writing("here", "Use --data-home", DataError):
            (tmp_path / "nowhere" / "a").write_bytes(b"")


def test_what_a_killed_process_was_writing_is_cleared_away_and_nothing_else(tmp_path):
    for name in (".a.json.4711.part", ".b.part", "a.json", "mine.part", ".hidden"):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / ".c.1.part").write_bytes(b"")
    files.clear_parts(tmp_path)
    assert names(tmp_path) == [".hidden", "a.json", "below", "mine.part"]
    assert names(tmp_path / "below") == [".c.1.part"]


def test_folders_are_made_on_the_way(tmp_path):
    files.write_atomic(tmp_path / "a" / "b" / "c", b"content")
    assert (tmp_path / "a" / "b" / "c").read_bytes() == b"content"


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with refuses("cannot-write", RunError):
        write(tmp_path / "file" / "below", b"")


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
    with pytest.raises(RunError, match=r"records.jsonl: No space"), files.writing(file):
        files.append(file, b"two\n", after=4)
    monkeypatch.undo()
    assert file.read_bytes()[:4] == b"one\n"
    files.append(file, b"two\n", after=4)
    assert file.read_bytes() == b"one\ntwo\n"


# One at a time


def test_a_lock_is_for_one_and_is_free_afterwards(tmp_path):
    busy = RunError("somebody is there")

    def second() -> None:
        with files.locked(tmp_path / ".lock", busy):
            pytest.fail("two at once")

    for _ in range(2):
        with files.locked(tmp_path / ".lock", busy), pytest.raises(RunError, match="somebody is there"):
            second()
    with pytest.raises(KeyboardInterrupt), files.locked(tmp_path / ".lock", busy):
        raise KeyboardInterrupt
    with files.locked(tmp_path / ".lock", busy):
        pass


HOLDER = """
import os, signal, sys
from pathlib import Path
from fedlgd.core.errors import RunError
from fedlgd.core.files import locked

with locked(Path(sys.argv[1]), RunError("busy")):
    print("locked", flush=True)
    sys.stdin.read()
"""


def test_a_lock_ends_with_its_process_however_it_ends(tmp_path):
    file = tmp_path / ".lock"
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(file)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "locked\n"
        with pytest.raises(RunError, match="busy"), files.locked(file, RunError("busy")):
            pytest.fail("two at once")
        holder.kill()
    with files.locked(file, RunError("busy")):
        pass


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
    with refuses("damaged-file", RunError):
        files.read_json(file)


def test_json_edited_by_hand_is_refused_whatever_is_edited(tmp_path):
    file = tmp_path / "a.json"
    files.write_json(file, VALUE)
    plain = json.loads(file.read_text())
    for edited in (plain | {"format": 2}, plain | {"more": 1}, {k: v for k, v in plain.items() if k != "names"}):
        file.write_text(json.dumps(edited))
        with refuses("damaged-file", RunError):
            files.read_json(file)


def test_a_missing_file_is_named_with_the_way_out(tmp_path):
    with refuses("damaged-file", RunError):
        files.read_json(tmp_path / "nothing")


def test_json_deeper_than_the_stack_is_damage_too(tmp_path):
    (tmp_path / "a.json").write_text("[" * 100_000)
    assert noticed(files.read_json, tmp_path / "a.json")
