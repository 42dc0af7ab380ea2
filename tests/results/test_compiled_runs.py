"""Runs of the paper in both modes: the pages say which is which, and the verdict is the same with either."""

import json

import pytest

from fedlgd.paper.items import Found, find_item, stored, stored_part
from results.pages import compiled
from results.pages.compiled import AGAIN, PAPER, comparison, modes, ranges
from tests.paper.test_verdicts import store

ITEM, CIFAR10C = find_item("table-digits"), find_item("table-cifar10c")
PLACE = "desk/table-digits/C10"


def compile_seeds(folder, *seeds: int, commit: str = "") -> None:
    """Their manifests say that these runs were compiled."""
    for file in (file for seed in seeds for file in (folder / PLACE).glob(f"*/seed{seed}/manifest.json")):
        content = json.loads(file.read_text())
        file.write_text(json.dumps(content | {"engine": {**content["engine"], "compile": True}, "commit": commit}))


def found_in(folder) -> Found:
    return stored_part(folder, ITEM, "C10", "desk")


@pytest.mark.parametrize(("seeds", "words"), [([4], "4"), ([0, 1, 2, 5], "0 to 2 and 5"), ([], "")])
def test_seeds_are_written_as_ranges(seeds, words):
    assert ranges(seeds) == words


def test_a_part_says_which_seeds_ran_compiled(tmp_path):
    for entry in ("fedlgd", "fedavg"):
        store(tmp_path, entry, 0.5, 0.6, 0.7, 0.8)
    assert modes(found_in(tmp_path)) == ""
    compile_seeds(tmp_path, 2, 3)
    first, second = modes(found_in(tmp_path)).split("; ")
    assert first == "Seeds 0 to 1 eager"
    assert "2 to 3 compiled" in second
    assert compiled.UNNAMED in second


def test_a_part_says_which_entries_ran_at_which_commit(tmp_path):
    for entry in ("fedlgd", "fedavg"):
        store(tmp_path, entry, 0.5, 0.6, 0.7)
    compile_seeds(tmp_path, 0, 1, 2, commit="0123abc")
    for seed in (1, 2):
        file = tmp_path / PLACE / "fedavg" / f"seed{seed}" / "manifest.json"
        content = json.loads(file.read_text())
        file.write_text(
            json.dumps(content | {"engine": {**content["engine"], "compile": False}, "commit": "4567def"})
        )
    first, second = modes(found_in(tmp_path)).split("; ")
    assert "1 to 2 of FedAvg eager" in first
    assert "4567def" in first
    assert "0 to 2 compiled" in second
    assert "0123abc" in second


def test_other_settings_tell_another_version(tmp_path):
    store(tmp_path, "fedlgd", 0.5, 0.6)
    compile_seeds(tmp_path, 1)
    config = tmp_path / PLACE / "fedlgd/seed1/config.toml"
    config.write_text("newer = 1\n" + config.read_text())
    assert "older version" in modes(found_in(tmp_path))


@pytest.mark.parametrize(("fedlgd", "same"), [((0.81, 0.82, 0.83), True), ((0.1, 0.2, 0.3), False)])
def test_a_verdict_is_compared_with_compiled_runs_in_place_of_eager_ones(tmp_path, monkeypatch, fedlgd, same):
    monkeypatch.setattr(compiled, "PAPER", tmp_path / "first")
    monkeypatch.setattr(compiled, "AGAIN", tmp_path / "again")
    for entry in find_item("table-digits").methods[:8]:
        for folder, own in (("first", (0.8, 0.81, 0.82)), ("again", fedlgd)):
            store(tmp_path / folder, entry, *(own if entry == "fedlgd" else (0.5, 0.51, 0.52)))
    compile_seeds(tmp_path / "again", 0, 1, 2)
    text = "\n".join(comparison(ITEM))
    assert ("is another one" in text) != same
    assert text.count("| FedLGD |") == 3


def test_stored_runs_in_both_modes_are_of_the_same_data_and_give_the_same_verdict():
    pairs = [(again, stored_part(PAPER, again.item, again.part, again.scale)) for again in stored(AGAIN, CIFAR10C)]
    assert pairs
    for again, first in pairs:
        for entry, group in again.groups.items():
            runs = {run.seed: run.manifest for run in first.groups[entry].counted}
            assert all(run.manifest.engine.compile for run in group.counted)
            assert all(not runs[run.seed].engine.compile for run in group.counted)
            assert all(runs[run.seed].data.digest == run.manifest.data.digest for run in group.counted)
    assert "is the same" in "\n".join(comparison(CIFAR10C))
