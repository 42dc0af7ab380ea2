"""Any party at real sites is killed before any write to its disk: what was committed stays, with the same bits."""

import os
from pathlib import Path

import pytest

from fedlgd.deploy.coordinator import coordinate
from fedlgd.runs.run import execute
from tests import tiny
from tests.deploy import grid
from tests.deploy.grid import LocalGrid
from tests.deploy.test_flower import same
from tests.runs.test_resume import Disk, KilledError

pytestmark = pytest.mark.slow

CONFIG = grid.config(tiny.fedlgd("quick", refine__selected__every=1), rounds=1)
SMALL = tiny.federation(tiny.NAMES[:2], train=3, test=1)
SITES = grid.nodes(SMALL.by_name)


def run(folders: dict[int, Path], out: Path):
    return coordinate(LocalGrid(folders), CONFIG, out, SITES, timeout=0.0, pause=0.0)


def test_killed_before_any_write_of_any_party_the_run_ends_with_the_same_bits(tmp_path, monkeypatch):
    """Sites and coordinator write in this process, one after the other: a kill is one of whoever writes."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
    monkeypatch.setenv("FEDLGD_CACHE", str(tmp_path / "straight" / "cache"))
    (tmp_path / "straight").mkdir()
    folders, data = grid.sites(tmp_path / "straight", SMALL)
    whole = execute(CONFIG, data)
    with Disk().watched() as disk:
        same(run(folders, tmp_path / "straight" / "run"), whole)
    written = {file.relative_to(tmp_path / "straight").parts[0] for file in disk.files}
    assert {"run", *(f"site-{name}" for name in SITES)} <= written  # every party is killed
    kills = 0
    for n, step in enumerate(disk.steps):
        if step == "sync folder":
            continue  # what it leaves is there before the next step
        root = tmp_path / f"killed-{n}"
        root.mkdir()
        monkeypatch.setenv("FEDLGD_CACHE", str(root / "cache"))
        folders, _ = grid.sites(root, SMALL)
        with Disk(dies_at=n, torn=step == "sync").watched(), pytest.raises(KilledError):
            run(folders, root / "run")
        same(run(folders, root / "run"), whole)
        kills += 1
    assert kills >= 50
