"""A run directory that is damaged, or is another run's, is refused by name and left exactly as it is."""

import json
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fedlgd.core import files
from fedlgd.core.errors import RunError
from fedlgd.data.federation import Federation
from fedlgd.runs.folder import RunDirectory
from fedlgd.runs.run import execute, run
from tests import tiny
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

SITES = config(method("fedlgd"), net=FAST_NET)  # sites change: state/sites holds files
ENROLLED = config(method("fedavg", train_on="virtual"), net=FAST_NET)  # sites stay as they enrolled
KINDS = {"fedlgd": SITES, "fedavg": ENROLLED}


@pytest.fixture(scope="module")
def data() -> Federation:
    return tiny.federation(tiny.NAMES[:2], train=3, test=1)


@pytest.fixture(scope="module")
def halves(tmp_path_factory, data) -> dict[str, Path]:
    """A run of each kind, interrupted after its second round."""
    root = tmp_path_factory.mktemp("halves")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDLGD_DATA", str(root / "home"))
        for kind, how in KINDS.items():
            run_until(1, how, data, root / kind)
    return {kind: root / kind for kind in KINDS}


@pytest.fixture
def half(halves, tmp_path) -> Callable[[str], Path]:
    """A copy of such a run, to be damaged."""

    def copy(kind: str) -> Path:
        return Path(shutil.copytree(halves[kind], tmp_path / kind))

    return copy


def refused(folder: Path, how: Any, data: Federation) -> str:
    """The words of the refusal; the folder must be as it was, byte for byte."""
    before = snapshot(folder)
    with pytest.raises(RunError) as error:
        execute(how, data, folder)
    assert snapshot(folder) == before
    assert "--out" in str(error.value)
    return str(error.value)


CASES = [
    ("fedlgd", "manifest.json"),
    ("fedlgd", "config.toml"),
    ("fedlgd", "records.jsonl"),
    ("fedlgd", "state/head.json"),
    ("fedlgd", "state/server-2.safetensors"),
    ("fedlgd", "state/sites/ape/0001.safetensors"),
    ("fedlgd", "state/sites/bee/0001.safetensors"),
    ("fedlgd", "state/enrolled/ape.safetensors"),
    ("fedavg", "manifest.json"),
    ("fedavg", "config.toml"),
    ("fedavg", "records.jsonl"),
    ("fedavg", "state/head.json"),
    ("fedavg", "state/server-2.safetensors"),
    ("fedavg", "state/enrolled/ape.safetensors"),
    ("fedavg", "state/enrolled/bee.safetensors"),
    ("fedavg", "state/sites/ape/start.safetensors"),
    ("fedavg", "state/sites/bee/start.safetensors"),
]


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_a_cut_file_is_refused(kind, name, half, data):
    folder = half(kind)
    file = folder / name
    content = file.read_bytes()
    ends_in_line = name.endswith(".json")
    for length in sorted({0, 1, len(content) // 2, len(content) - (2 if ends_in_line else 1)}):
        file.write_bytes(content[:length])
        assert str(file) in refused(folder, KINDS[kind], data)


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_a_turned_bit_is_refused(kind, name, half, data):
    folder = half(kind)
    file = folder / name
    content = file.read_bytes()
    rng = random.Random(name)
    for position in [0, len(content) - 1, *rng.sample(range(len(content)), 12)]:
        damaged = bytearray(content)
        damaged[position] ^= 1 << rng.randrange(8)
        file.write_bytes(damaged)
        assert str(file) in refused(folder, KINDS[kind], data), position


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_a_deleted_file_is_refused(kind, name, half, data):
    folder = half(kind)
    (folder / name).unlink()
    assert str(folder / name) in refused(folder, KINDS[kind], data)


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_whose_state_was_deleted_is_not_begun_again_over_its_records(kind, half, data):
    folder = half(kind)
    shutil.rmtree(folder / "state")
    assert "contains other files" in refused(folder, KINDS[kind], data)


@pytest.mark.parametrize(("kind", "name"), [("fedlgd", "0001"), ("fedavg", "start")])
def test_a_site_that_lost_its_folder_is_refused(kind, name, half, data):
    folder = half(kind)
    shutil.rmtree(folder / "state" / "sites" / "bee")
    assert str(folder / "state" / "sites" / "bee" / f"{name}.safetensors") in refused(folder, KINDS[kind], data)


def test_the_state_from_before_may_be_damaged_or_gone_as_nothing_reads_it(half, data, tmp_path):
    folder = half("fedlgd")
    (folder / "state" / "sites" / "ape" / "0000.safetensors").write_bytes(b"half")
    (folder / "state" / "sites" / "bee" / "0000.safetensors").unlink()
    execute(SITES, data, folder)
    execute(SITES, data, tmp_path / "straight")
    assert everything(folder) == everything(tmp_path / "straight")
    assert leftovers(folder) == []


def test_a_run_in_the_format_of_before_is_refused(half, data):
    """Its sites' states were elsewhere."""
    folder = half("fedlgd")
    head = folder / "state/head.json"
    files.write_json(head, files.read_json(head) | {"format": 1})
    assert "format 1" in refused(folder, SITES, data)


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
        assert str(file) in refused(folder, SITES, data)
        file.write_bytes(content)
    (folder / "state" / "sites" / "ape" / "start.safetensors").unlink()
    assert "start.safetensors" in refused(folder, SITES, data)


def test_what_was_refused_goes_on_once_the_file_is_restored(half, data, tmp_path):
    folder = half("fedlgd")
    file = folder / "state" / "sites" / "ape" / "0001.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[:-1])
    refused(folder, SITES, data)
    file.write_bytes(content)
    execute(SITES, data, folder)
    execute(SITES, data, tmp_path / "straight")
    assert everything(folder) == everything(tmp_path / "straight")
    assert leftovers(folder) == []


def test_a_state_of_another_kind_is_refused(half, data):
    folder = half("fedlgd")
    shutil.copy(folder / "state/sites/ape/0001.safetensors", folder / "state/server-2.safetensors")
    assert "server-2.safetensors" in refused(folder, SITES, data)


@pytest.mark.parametrize("name", ["manifest.json", "state/head.json"])
def test_another_format_is_refused(name, half, data):
    folder = half("fedlgd")
    files.write_json(folder / name, files.read_json(folder / name) | {"format": 99})
    message = refused(folder, SITES, data)
    assert str(folder) in message
    assert "format 99" in message


@pytest.mark.parametrize("package", ["torch", "fedlgd"])
def test_another_version_is_refused(package, half, data):
    folder = half("fedlgd")
    manifest = files.read_json(folder / "manifest.json")
    manifest["versions"][package] = "0.0.1"
    files.write_json(folder / "manifest.json", manifest)
    message = refused(folder, SITES, data)
    assert f"created with {package} 0.0.1" in message
    assert str(folder) in message


def test_another_python_is_fine(half, data):
    folder = half("fedlgd")
    manifest = files.read_json(folder / "manifest.json")
    manifest["versions"]["python"] = "3.99"
    files.write_json(folder / "manifest.json", manifest)
    execute(SITES, data, folder)
    assert head(folder)["round"] == SITES.plan.rounds


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda c: replace(c, plan=replace(c.plan, rounds=2)), "3 rounds, more than 2"),
        (lambda c: replace(c, plan=replace(c.plan, seed=9)), "seed is 0 there and 9 here"),
        (lambda c: replace(c, method=method("fedlgd", **{"local.lr": 0.5})), "there and 0.5 here"),
        (lambda c: replace(c, method=method("fedavg")), "and 'fedavg' here"),
        (lambda c: replace(c, net={"name": "convnet", "depth": 2, "width": 4}), "and 'convnet' here"),
        (lambda c: replace(c, data=replace(c.data, limit=5)), "data.limit is 0 there and 5 here"),
    ],
)
def test_another_configuration_in_the_same_folder_is_refused(change, words, half, data):
    folder = half("fedlgd")
    message = refused(folder, change(SITES), data)
    assert str(folder) in message
    assert words in message


def test_a_setting_more_or_less_is_another_configuration_whichever_came_first(tmp_path, data):
    """One written configuration is the beginning of the other."""
    plain, more = (config(method("fedavg"), net={**FAST_NET, **extra}) for extra in ({}, {"bias": True}))
    for first, second in ((plain, more), (more, plain)):
        folder = tmp_path / first.digest
        run_until(0, first, data, folder)
        message = refused(folder, second, data)
        assert "another configuration" in message
        there, here = ("not set", "True") if second is more else ("True", "not set")
        assert f"net.bias is {there} there and {here} here" in message


def test_every_differing_setting_is_named_with_the_file_that_has_the_stored_ones(tmp_path, data):
    first = config(method("fedavg"), net=FAST_NET)
    run_until(0, first, data, tmp_path / "out")
    message = refused(tmp_path / "out", config(method("fedprox"), net=FAST_NET, seed=7), data)
    assert "method is 'fedavg' there and 'fedprox' here" in message
    assert "seed is 0 there and 7 here" in message
    assert "mu is not set there and" in message
    assert str(tmp_path / "out" / "config.toml") in message


def test_an_edited_configuration_is_refused_even_if_it_is_the_one_wanted(half, data):
    folder = half("fedlgd")
    file = folder / "config.toml"
    file.write_text(file.read_text().replace("rounds = 3", "rounds = 9"))
    assert str(file) in refused(folder, replace(SITES, plan=replace(SITES.plan, seed=9)), data)


def changed(site: Any, part: str, what: str) -> Any:
    x, y = getattr(site, part).x.clone(), getattr(site, part).y.clone()
    if what == "pixel":
        x[0, 0, 0, 0] ^= 1
    else:
        y[0], y[-1] = y[-1].item(), y[0].item()
    return replace(site, **{part: replace(getattr(site, part), x=x, y=y)})


@pytest.mark.parametrize("what", ["pixel", "label"])
@pytest.mark.parametrize("part", ["train", "test"])
def test_changed_data_is_refused(part, what, half, data):
    folder = half("fedlgd")
    first, *rest = data.sites
    other = Federation(data.name, (changed(first, part, what), *rest))
    message = refused(folder, SITES, other)
    assert "the images of 'tiny'" in message
    assert str(folder) in message


POOLED = config(method("pooled"), net=FAST_NET)


def test_changed_test_images_are_refused_where_sites_are_pooled(data, tmp_path):
    run_until(0, POOLED, data, tmp_path / "out")
    *rest, last = data.sites
    refused(tmp_path / "out", POOLED, Federation(data.name, (*rest, changed(last, "test", "pixel"))))


def test_the_order_of_sites_does_not_matter_where_sites_are_pooled(data, tmp_path):
    run_until(0, POOLED, data, tmp_path / "out")
    result = execute(POOLED, Federation(data.name, data.sites[::-1]), tmp_path / "out")
    assert result.records[-1].round + 1 == POOLED.plan.rounds


def test_other_sites_are_refused(half):
    folder = half("fedlgd")
    refused(folder, SITES, tiny.federation(("ape", "cow"), train=3, test=1))
    refused(folder, SITES, tiny.federation(train=3, test=1))


def test_sites_in_another_order_are_the_same_data(half, data):
    folder = half("fedlgd")
    execute(SITES, Federation(data.name, data.sites[::-1]), folder)
    assert head(folder)["round"] == SITES.plan.rounds


# Folders that hold something else


@pytest.mark.parametrize("name", ["thesis.txt", "manifest.json", "config.toml", "records.jsonl", "state/x"])
def test_a_folder_with_other_files_is_left_alone(name, tmp_path, data):
    file = tmp_path / "out" / name
    file.parent.mkdir(parents=True)
    file.write_text("mine")
    refused(tmp_path / "out", SITES, data)
    assert file.read_text() == "mine"


def test_a_run_that_did_nothing_yet_may_be_configured_anew(tmp_path):
    """Its settings did not fit the data: the message says what to change, and then the same folder will do."""
    data = tiny.federation(tiny.NAMES[:2], train=3, test=1)
    with pytest.raises(ValueError, match=r"use distil\.per_class=3 or less"):
        execute(config(method("fedlgd", **{"distil.per_class": 4}), net=FAST_NET), data, tmp_path / "out")
    how = config(method("fedlgd", **{"distil.per_class": 3}), net=FAST_NET, rounds=1)
    execute(how, data, tmp_path / "out")
    assert (tmp_path / "out" / "config.toml").read_text() == how.toml()
    assert head(tmp_path / "out")["round"] == 1


# Two at once, other threads, and a run that is complete


def test_a_second_run_in_the_same_folder_is_refused_while_the_first_goes(tmp_path, data):
    folder = tmp_path / "out"
    refusals: list[str] = []

    def second(record: Any) -> None:
        before = snapshot(folder)
        with pytest.raises(RunError) as error:
            execute(SITES, data, folder)
        refusals.append(str(error.value))
        assert snapshot(folder) == before

    execute(SITES, data, folder, second)
    assert len(refusals) == 1 + SITES.plan.rounds
    assert all("another process uses" in text and str(folder) in text for text in refusals)
    execute(SITES, data, folder)  # and afterwards the folder is free


@pytest.mark.parametrize("listener", [stop_after(0), None])
def test_the_folder_is_free_after_an_interrupt_or_a_refusal(listener, half, data):
    folder = half("fedlgd")
    for _ in range(2):
        refused(folder, replace(SITES, plan=replace(SITES.plan, seed=9)), data)
    execute(SITES, data, folder, listener)


def test_another_number_of_threads_is_said(half, data):
    folder = half("fedlgd")
    manifest = files.read_json(folder / "manifest.json")
    manifest["threads"] = torch.get_num_threads() + 3
    files.write_json(folder / "manifest.json", manifest)
    with pytest.warns(UserWarning, match=rf"was started with {manifest['threads']} threads and is resumed with"):
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
    assert "bee.safetensors" in refused(tmp_path / "out", ENROLLED, data)


def test_a_tail_that_was_never_committed_does_not_count(half, data, tmp_path):
    folder = half("fedlgd")
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


def test_the_python_front_door_refuses_alike(half, data):
    folder = half("fedavg")
    before = snapshot(folder)
    with pytest.raises(RunError, match="another configuration"):
        run(data, ENROLLED.method, rounds=3, net="convnet", out=folder)
    assert snapshot(folder) == before
    assert len(json.loads((folder / "manifest.json").read_text())["data"]["sites"]) == 2
