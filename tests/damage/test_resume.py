"""A run folder after damage: what is refused stays as it is, what was not committed does not count, and what is
repaired goes on. The table has what is refused."""

import errno
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fedlgd.core import files
from fedlgd.core.errors import FedlgdError, RunError
from fedlgd.data.federation import Federation
from fedlgd.runs.folder import RunDirectory
from fedlgd.runs.run import execute, run
from tests import tiny
from tests.damage.table import KINDS, half, images
from tests.errors import check_error, refuses
from tests.runs.folder import (
    FAST_NET,
    as_plain,
    config,
    everything,
    head,
    leftovers,
    method,
    run_until,
    snapshot,
    stop_after,
)

SITES, ENROLLED = KINDS["fedlgd"], KINDS["fedavg"]
POOLED = config(method("pooled"), net=FAST_NET)


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDLGD_CACHE", str(tmp_path / "home"))


@pytest.fixture
def data() -> Federation:
    return images()


def refused(folder: Path, how: Any, data: Federation) -> FedlgdError:
    """The refusal; the folder must be as it was, byte for byte."""
    before = snapshot(folder)
    with pytest.raises(RunError) as error:
        execute(how, data, folder)
    assert snapshot(folder) == before
    return error.value


def test_the_state_from_before_may_be_damaged_or_gone_as_nothing_reads_it(data, tmp_path):
    folder = half(tmp_path)
    (folder / "state" / "sites" / "ape" / "0000.safetensors").write_bytes(b"half")
    (folder / "state" / "sites" / "bee" / "0000.safetensors").unlink()
    execute(SITES, data, folder)
    execute(SITES, data, tmp_path / "straight")
    assert everything(folder) == everything(tmp_path / "straight")
    assert leftovers(folder) == []


def test_an_enrolment_that_is_damaged_before_the_first_round_is_refused(tmp_path, data):
    folder = tmp_path / "out"

    def join_one(directory: Any, site: str, enrolment: Any, real: Any = RunDirectory.enrol) -> None:
        real(directory, site, enrolment)
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunDirectory, "enrol", join_one)
        with pytest.raises(KeyboardInterrupt):
            execute(SITES, data, folder)
    for name in ("enrolled/ape", "sites/ape/start"):
        file = folder / "state" / f"{name}.safetensors"
        content = file.read_bytes()
        file.write_bytes(content[:-1])
        check_error(refused(folder, SITES, data), "damaged-file", file=str(file))
        file.write_bytes(content)
    (folder / "state" / "sites" / "ape" / "start.safetensors").unlink()
    check_error(refused(folder, SITES, data), "damaged-file")


def test_what_was_refused_goes_on_once_the_file_is_restored(data, tmp_path):
    folder = half(tmp_path)
    file = folder / "state" / "sites" / "ape" / "0001.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[:-1])
    refused(folder, SITES, data)
    file.write_bytes(content)
    execute(SITES, data, folder)
    execute(SITES, data, tmp_path / "straight")
    assert everything(folder) == everything(tmp_path / "straight")
    assert leftovers(folder) == []


def test_another_python_is_fine(data, tmp_path):
    folder = half(tmp_path)
    manifest = files.read_json(folder / "manifest.json")
    manifest["versions"]["python"] = "3.99"
    files.write_json(folder / "manifest.json", manifest)
    execute(SITES, data, folder)
    assert head(folder)["round"] == SITES.plan.rounds


def test_every_differing_setting_is_named_with_the_file_that_has_the_stored_ones(tmp_path, data):
    first = config(method("fedavg"), net=FAST_NET)
    run_until(0, first, data, tmp_path / "out")
    message = str(refused(tmp_path / "out", config(method("fedprox"), net=FAST_NET, seed=7), data))
    for word in ("'fedavg'", "'fedprox'", "seed is 0", "7 here", "mu is", str(tmp_path / "out" / "config.toml")):
        assert word in message


def test_changed_test_images_are_refused_where_sites_are_pooled(data, tmp_path):
    run_until(0, POOLED, data, tmp_path / "out")
    *rest, last = data.sites
    x = last.test.x.clone()
    x[0, 0, 0, 0] ^= 1
    other = replace(last, test=replace(last.test, x=x))
    refused(tmp_path / "out", POOLED, Federation(data.name, (*rest, other)))


def test_the_order_of_sites_does_not_matter_where_sites_are_pooled(data, tmp_path):
    run_until(0, POOLED, data, tmp_path / "out")
    result = execute(POOLED, Federation(data.name, data.sites[::-1]), tmp_path / "out")
    assert result.records[-1].round + 1 == POOLED.plan.rounds


def test_sites_in_another_order_are_the_same_data(data, tmp_path):
    folder = half(tmp_path)
    execute(SITES, Federation(data.name, data.sites[::-1]), folder)
    assert head(folder)["round"] == SITES.plan.rounds


def test_a_run_that_did_nothing_yet_may_be_configured_anew(tmp_path):
    """Its settings did not fit the data: the message says what to change, and then the same folder will do."""
    data = tiny.federation(tiny.NAMES[:2], train=3, test=1)
    strict = method("fedlgd", **{"distil.per_class": 4, "distil.short": "refuse"})
    with refuses("class-smaller-than-virtual", count=3, per_class=4):
        execute(config(strict, net=FAST_NET), data, tmp_path / "out")
    how = config(method("fedlgd", **{"distil.per_class": 3}), net=FAST_NET, rounds=1)
    execute(how, data, tmp_path / "out")
    assert (tmp_path / "out" / "config.toml").read_text() == how.toml()
    assert head(tmp_path / "out")["round"] == 1


def test_a_second_run_in_the_same_folder_is_refused_while_the_first_goes(tmp_path, data):
    folder = tmp_path / "out"
    refusals: list[FedlgdError] = []
    execute(SITES, data, folder, lambda _: refusals.append(refused(folder, SITES, data)))
    assert len(refusals) == 1 + SITES.plan.rounds
    for error in refusals:
        check_error(error, "folder-busy", path=str(folder))
    execute(SITES, data, folder)  # and afterwards the folder is free


@pytest.mark.parametrize("listener", [stop_after(0), None])
def test_the_folder_is_free_after_an_interrupt_or_a_refusal(listener, data, tmp_path):
    folder = half(tmp_path)
    for _ in range(2):
        refused(folder, replace(SITES, plan=replace(SITES.plan, seed=9)), data)
    execute(SITES, data, folder, listener)


def test_another_number_of_threads_is_said(data, tmp_path):
    folder = half(tmp_path)
    manifest = files.read_json(folder / "manifest.json")
    manifest["threads"] = torch.get_num_threads() + 3
    files.write_json(folder / "manifest.json", manifest)
    with pytest.warns(UserWarning, match=f"{manifest['threads']} threads"):
        execute(SITES, data, folder)
    assert head(folder)["round"] == SITES.plan.rounds


@pytest.mark.parametrize("kind", KINDS)
def test_a_complete_run_is_not_run_again(kind, tmp_path, data, monkeypatch):
    how, folder = KINDS[kind], tmp_path / "out"
    first = as_plain(execute(how, data, folder))
    before = {p: p.stat().st_mtime_ns for p in folder.rglob("*") if p.is_file()}

    def never(*_: Any) -> None:
        pytest.fail("a part of the method ran again")

    for part in ("enrol", "start", "broadcast", "site", "server"):
        monkeypatch.setattr(type(how.method), part, never)
    heard: list[Any] = []
    assert as_plain(execute(how, data, folder, heard.append)) == first
    assert heard == []
    assert {p: p.stat().st_mtime_ns for p in folder.rglob("*") if p.is_file()} == before


def test_a_damaged_complete_run_is_refused_too(tmp_path, data):
    execute(ENROLLED, data, tmp_path / "out")
    (tmp_path / "out" / "state" / "enrolled" / "bee.safetensors").unlink()
    check_error(refused(tmp_path / "out", ENROLLED, data), "damaged-file")


def test_a_tail_that_was_never_committed_does_not_count(data, tmp_path):
    folder = half(tmp_path)
    with (folder / "records.jsonl").open("ab") as file:
        file.write(b'{"round": 2, "half a rec')
    (folder / "state" / ".server-3.safetensors.1234.part").write_bytes(b"half")
    (folder / "state" / "server-3.safetensors").write_bytes(b"half")
    (folder / "state" / "sites" / "ape" / "0002.safetensors").write_bytes(b"half")
    (folder / "state" / "sites" / "ape" / ".0002.safetensors.1234.part").write_bytes(b"half")
    (folder / "state" / "enrolled" / ".ape.safetensors.1234.part").write_bytes(b"half")
    (folder / "virtual" / "0000" / ".ape.png.1234.part").write_bytes(b"half")
    execute(SITES, data, folder)
    execute(SITES, data, tmp_path / "straight")
    assert everything(folder) == everything(tmp_path / "straight")
    assert leftovers(folder) == []


def test_the_python_front_door_refuses_alike(data, tmp_path):
    folder = half(tmp_path, "fedavg")
    before = snapshot(folder)
    with refuses("other-configuration"):
        run(data, ENROLLED.method, rounds=3, net="convnet", out=folder)
    assert snapshot(folder) == before
    assert len(json.loads((folder / "manifest.json").read_text())["data"]["sites"]) == 2


class FullDisk:
    """A disk that has room for so many more files."""

    def __init__(self, room: int) -> None:
        self.room = room

    def fsync(self, handle: int) -> None:
        self.room -= 1
        if self.room < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_at_any_moment_leaves_nothing_half_written_and_the_run_goes_on(tmp_path, data, monkeypatch):
    how = config(method("fedlgd"), rounds=2, net=FAST_NET)
    execute(how, data, tmp_path / "straight")
    (tmp_path / "home").rename(tmp_path / "old-home")
    refusals: list[FedlgdError] = []
    for room in range(100):
        monkeypatch.setattr(os, "fsync", FullDisk(room).fsync)
        try:
            execute(how, data, tmp_path / "full")
            break
        except RunError as error:
            refusals.append(error)
        assert not list(tmp_path.rglob("*.part"))
    assert len(refusals) > 10
    for error in refusals:
        check_error(error, "cannot-write", reason=os.strerror(errno.ENOSPC))
    assert everything(tmp_path / "full") == everything(tmp_path / "straight")
    assert leftovers(tmp_path / "full") == []


def test_a_full_disk_in_a_round_keeps_the_rounds_before(tmp_path, data, monkeypatch):
    how = config(method("fedlgd"), net=FAST_NET)
    folder = tmp_path / "out"

    def fill(record: Any) -> None:
        if record.round == 0:
            monkeypatch.setattr(os, "fsync", FullDisk(1).fsync)

    with refuses("cannot-write", reason=os.strerror(errno.ENOSPC)):
        execute(how, data, folder, fill)
    assert head(folder)["round"] == 1
    monkeypatch.undo()
    monkeypatch.setenv("FEDLGD_CACHE", str(tmp_path / "home"))
    heard: list[int] = []
    execute(how, data, folder, lambda record: heard.append(record.round))
    assert heard == [1, 2]
    execute(how, data, tmp_path / "straight")
    assert everything(folder) == everything(tmp_path / "straight")
