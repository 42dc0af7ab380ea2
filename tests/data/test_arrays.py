"""The cache: files are complete or absent, damage is noticed, and what cannot be stored is computed again."""

import os
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from fedlgd.core.files import OLD
from fedlgd.data.arrays import load_or_make
from fedlgd.runs.folder import shared_cache


def test_a_failed_write_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDLGD_CACHE", str(tmp_path))
    monkeypatch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError("disk full")))
    assert load_or_make("thing", lambda: {"x": np.arange(3)})["x"].tolist() == [0, 1, 2]
    assert list(tmp_path.iterdir()) == []


def test_many_may_make_the_same_thing_at_once(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDLGD_CACHE", str(tmp_path))
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda _: load_or_make("thing", lambda: {"x": np.arange(50_000)}), range(32)))
    assert all((result["x"] == np.arange(50_000)).all() for result in results)
    assert [path.name for path in tmp_path.iterdir()] == ["thing.npz"]


def test_what_is_cached_is_an_ordinary_npz(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDLGD_CACHE", str(tmp_path))
    load_or_make("thing", lambda: {"x": np.arange(3)})
    with np.load(tmp_path / "thing.npz", allow_pickle=False) as arrays:
        assert arrays["x"].tolist() == [0, 1, 2]


def test_old_parts_of_killed_processes_are_cleared_and_those_being_written_are_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDLGD_CACHE", str(tmp_path))
    for folder in (tmp_path, shared_cache()._path):
        for name, age in ((".old.npz.1.part", 2 * OLD), (".new.npz.2.part", 0.0)):
            (folder / name).write_bytes(b"half")
            os.utime(folder / name, (time.time() - age, time.time() - age))
    load_or_make("thing", lambda: {"x": np.arange(3)})
    shared_cache()
    assert sorted(p.name for p in tmp_path.rglob("*.part")) == [".new.npz.2.part", ".new.npz.2.part"]
