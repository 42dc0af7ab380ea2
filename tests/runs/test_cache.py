"""The shared cache of virtual sets: what a folder belongs to, and what is cleared from it."""

import os
import shutil
import time
from importlib import resources
from pathlib import Path

import pytest
import torch

import fedlgd
from fedlgd.core import files
from fedlgd.core.types import Cached
from fedlgd.runs import folder as cache

SOURCE = Path(fedlgd.__file__).parent


@pytest.fixture
def copied(tmp_path, monkeypatch):
    """A copy of the package's source that `source_digest` reads, and a cache of its own."""
    copy = tmp_path / "fedlgd"
    for name in ("core", "distill", "dp", "nets", "report"):
        shutil.copytree(SOURCE / name, copy / name)
    monkeypatch.setattr(resources, "files", lambda _: copy)
    monkeypatch.setenv("FEDLGD_CACHE", str(tmp_path / "data"))
    yield copy
    cache.source_digest.cache_clear()


def _folder() -> Path:
    cache.source_digest.cache_clear()
    return cache.shared_cache()._path


def test_the_same_source_is_the_same_folder(copied):
    first = _folder()
    assert _folder() == first
    assert torch.__version__ in first.name
    assert f"threads{torch.get_num_threads()}" in first.name


@pytest.mark.parametrize(
    "file",
    ["distill/init.py", "distill/augment.py", "distill/__init__.py", "nets/builtin.py", "core/net.py"],
)
def test_an_edit_of_what_computes_the_sets_is_another_folder(copied, file):
    first = _folder()
    with (copied / file).open("a") as source:
        source.write("# edited\n")
    assert _folder() != first


@pytest.mark.parametrize("file", ["report/page.py", "core/train.py"])
def test_an_edit_elsewhere_keeps_the_folder(copied, file):
    first = _folder()
    with (copied / file).open("a") as source:
        source.write("# edited\n")
    assert _folder() == first


def test_sets_of_other_source_are_kept_and_not_served(copied):
    item = Cached(tensor=torch.ones(3), seconds={}, cpu={}, flops={})
    cache.shared_cache().put("key", item)
    old = _folder()
    with (copied / "distill/distribution.py").open("a") as source:
        source.write("# edited\n")
    assert cache.FolderCache(_folder()).get("key") is None
    assert torch.equal(cache.FolderCache(old).get("key").tensor, item.tensor)


def test_every_module_that_distillation_imports_from_core_is_known():
    """What is left out of the digest has no say in pixels of virtual sets."""
    lines = [
        line
        for part in ("distill", "nets")
        for f in (SOURCE / part).glob("*.py")
        for line in f.read_text().splitlines()
        if line.startswith("from fedlgd.core")
    ]
    whole = [line.removeprefix("from fedlgd.core import ").split(", ") for line in lines if "core import" in line]
    imported = {line.split()[1].removeprefix("fedlgd.core.") for line in lines if "core import" not in line}
    imported |= {module for modules in whole for module in modules}
    known = {"errors", "files", "meter", "public", "settings", "source", "text", "tree"}
    assert imported - set(cache.CORE) == known


def test_without_source_the_version_is_the_key(copied):
    shutil.rmtree(copied / "distill")
    assert f"fedlgd{fedlgd.__version__}-" in _folder().name


def test_the_digest_takes_little_cpu_time():
    cache.source_digest.cache_clear()
    started = time.process_time()
    cache.source_digest()
    assert time.process_time() - started < 0.5


def test_old_halves_of_files_are_cleared_and_young_ones_kept(copied):
    folder = _folder()
    other = folder.with_name("fedlgd0.0-other")
    other.mkdir()
    parts = [where / f".x.{age}.part" for where in (folder, other) for age in ("old", "young")]
    for part in parts:
        part.write_bytes(b"half")
    before = time.time() - 2 * files.OLD
    for part in parts[::2]:
        os.utime(part, (before, before))
    (other / "whole.safetensors").write_bytes(b"kept")
    _folder()
    assert [part.exists() for part in parts] == [False, True, False, True]
    assert (other / "whole.safetensors").exists()
