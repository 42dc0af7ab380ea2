"""Sites keep their own states: the one that counts and the one just made, each in a private folder."""

import gc
import os
import stat
from pathlib import Path

import pytest
import torch

from fedlgd.core.errors import RunError
from fedlgd.core.types import Scale, SiteState, VirtualSet
from fedlgd.engines.storage import FolderStates, RamStates, States
from fedlgd.runs.folder import DrawnStates


def state(number: float, round: int = -2) -> SiteState:
    """It holds a number; a virtual set of this round, if there is one."""
    virtual = None
    if round > -2:
        labels = torch.tensor([0, 1])
        virtual = VirtualSet(images=torch.zeros(2, 3, 2, 2), labels=labels, origin="ape", round=round)
    return SiteState(virtual=virtual, trees={"own": {"w": torch.tensor(number)}})


def number(states: States, site: str, version: int) -> float:
    return states.load(site, version).trees["own"]["w"].item()


def versions(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


@pytest.fixture(params=["ram", "folder", "temporary"])
def states(request, tmp_path) -> States:
    made = {"ram": RamStates, "folder": lambda: FolderStates(tmp_path / "sites"), "temporary": FolderStates}
    return made[request.param]()


def test_a_state_comes_back_by_site_and_version(states):
    for site, start in (("ape", 1.0), ("bee/../x", 2.0)):
        states.save(site, -1, state(start), before=-1)
        states.save(site, 0, state(start + 0.5), before=-1)
    assert [number(states, "ape", v) for v in (-1, 0)] == [1.0, 1.5]
    assert [number(states, "bee/../x", v) for v in (-1, 0)] == [2.0, 2.5]


def test_the_state_it_came_from_stays_until_there_is_a_newer_one(states):
    """A site that is not in every round, as under sampling."""
    states.save("ape", -1, state(1.0), before=-1)
    states.save("ape", 2, state(2.0), before=-1)
    assert [number(states, "ape", v) for v in (-1, 2)] == [1.0, 2.0]
    states.save("ape", 7, state(3.0), before=2)
    assert [number(states, "ape", v) for v in (2, 7)] == [2.0, 3.0]
    with pytest.raises((RunError, KeyError)):
        states.load("ape", -1)


def test_a_round_done_again_replaces_what_it_left_and_nothing_else(states):
    """The server was gone before its commit: the site begins again from the state that counts."""
    states.save("ape", 3, state(1.0), before=-1)
    for value in (2.0, 2.5):
        states.save("ape", 4, state(value), before=3)
    assert [number(states, "ape", v) for v in (3, 4)] == [1.0, 2.5]


def test_a_file_is_named_by_its_round(tmp_path):
    states = FolderStates(tmp_path)
    states.save("ape", -1, state(0.0), before=-1)
    states.save("ape", 12, state(1.0), before=-1)
    assert versions(tmp_path / "ape") == ["0012.safetensors", "start.safetensors"]
    states.save("ape", 10_000, state(2.0), before=12)
    assert versions(tmp_path / "ape") == ["0012.safetensors", "10000.safetensors"]


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077])
def test_the_folder_of_a_site_is_its_own(tmp_path, mask):
    before = os.umask(mask)
    try:
        FolderStates(tmp_path / "sites").save("ape", -1, state(0.0), before=-1)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "sites" / "ape").stat().st_mode) == 0o700


def test_the_folder_that_a_killed_process_left_is_used(tmp_path):
    """It was made, and nothing or half a state was written."""
    folder = tmp_path / "ape"
    folder.mkdir(mode=0o700)
    (folder / ".start.safetensors.4711.part").write_bytes(b"half")
    states = FolderStates(tmp_path)
    states.save("ape", -1, state(5.0), before=-1)
    assert versions(folder) == ["start.safetensors"]
    assert number(states, "ape", -1) == 5.0
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.parametrize("place", ["sites", "sites/ape"])
def test_a_folder_that_cannot_be_made_is_named_with_the_way_out(tmp_path, place):
    (tmp_path / place).parent.mkdir(exist_ok=True)
    (tmp_path / place).write_text("mine")
    with pytest.raises(RunError, match=r"cannot write .*start\.safetensors: .*; no incomplete file.*--out"):
        FolderStates(tmp_path / "sites").save("ape", -1, state(0.0), before=-1)
    assert (tmp_path / place).read_text() == "mine"


def test_a_temporary_folder_is_private_and_goes_with_its_states():
    states = FolderStates()
    states.save("ape", -1, state(0.0), before=-1)
    folder = states.path
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    del states
    gc.collect()
    assert not folder.exists()


def test_a_virtual_set_is_drawn_when_it_moved_and_only_then(tmp_path):
    states = DrawnStates(tmp_path / "sites", tmp_path / "virtual", {"ape": Scale()})
    states.save("ape", -1, state(0.0, round=-1), before=-1)
    states.save("ape", 0, state(0.0, round=-1), before=-1)  # something else of the site changed
    states.save("ape", 1, state(0.0, round=1), before=0)
    drawn = sorted(str(p.relative_to(tmp_path / "virtual")) for p in tmp_path.rglob("*.png"))
    assert drawn == ["0001/ape.png", "start/ape.png"]
