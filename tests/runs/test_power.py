"""The power may fail between any two operations: whatever a disk may then hold, the run resumes to the same end.

Every write, fsync, rename, unlink, new folder and fsync of a folder is logged. After any prefix of the log, a disk
is sure to hold only what was synced: content by fsync of the file, names by fsync of their folder. Of the rest any
part may be there. A folder whose name was lost is lost with all that is in it.
"""

import os
import random
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from fedlgd.core import files
from fedlgd.runs.run import execute
from tests import tiny
from tests.runs.folder import FAST_NET, config, everything, method

HOW = config(method("fedlgd"), rounds=2, net=FAST_NET)
DATA = tiny.federation(tiny.NAMES[:2], train=3, test=1)


@dataclass
class Disk:
    """What happened below `root`, in order: ("write", file number, content) and so on."""

    root: Path
    log: list[tuple[Any, ...]] = field(default_factory=list)
    numbers: dict[int, int] = field(default_factory=dict)  # inode -> number of the file in this log

    def number(self, path: Path) -> int:
        inode = path.stat().st_ino
        return self.numbers.setdefault(inode, len(self.numbers) + 1000 * len(self.log))

    def name(self, path: Path) -> str:
        return str(path.relative_to(self.root))

    def watch(self, patch: pytest.MonkeyPatch) -> None:
        """Log the operations of `files.write_atomic`, `files.append`, folders and removals."""
        real_sync, real_replace, real_unlink, real_mkdir = os.fsync, Path.replace, Path.unlink, Path.mkdir

        def fsync(handle: int) -> None:
            real_sync(handle)
            path = Path(f"/proc/self/fd/{handle}").readlink()
            if not path.is_relative_to(self.root):
                return
            if path.is_dir():
                self.log.append(("sync folder", self.name(path)))
            else:
                number = self.number(path)
                self.log.append(("create", self.name(path), number))
                self.log.append(("write", number, path.read_bytes()))
                self.log.append(("sync", number))

        def replace(path: Path, target: Path) -> Path:
            if path.is_relative_to(self.root):
                self.log.append(("rename", self.name(path), self.name(target), self.number(path)))
            return real_replace(path, target)

        def unlink(path: Path, missing_ok: bool = False) -> None:
            if path.is_relative_to(self.root) and path.exists():
                self.log.append(("unlink", self.name(path)))
                self.numbers.pop(path.stat().st_ino, None)
            real_unlink(path, missing_ok)

        def mkdir(path: Path, *args: Any, **kw: Any) -> None:
            new = not path.exists()
            real_mkdir(path, *args, **kw)
            if new and path != self.root and path.is_relative_to(self.root):
                self.log.append(("mkdir", self.name(path)))

        patch.setattr(os, "fsync", fsync)
        patch.setattr(Path, "replace", replace)
        patch.setattr(Path, "unlink", unlink)
        patch.setattr(Path, "mkdir", mkdir)


def after_power_loss(log: list[tuple[Any, ...]], rng: random.Random, out: Path) -> None:
    """One of the disks that may be left: unsynced names and contents are there, absent, or there in part."""
    content: dict[int, list[bytes]] = {}  # versions since the last sync, the synced one first
    names: dict[str, list[int | str | None]] = {}  # what each name stood for since its folder was synced
    for what, *about in log:
        if what == "create" and names.get(about[0], [None])[-1] != about[1]:
            names.setdefault(about[0], [None]).append(about[1])
        elif what == "write":
            content.setdefault(about[0], [b""]).append(about[1])
        elif what == "sync":
            content[about[0]] = content[about[0]][-1:]
        elif what == "rename":
            names[about[0]].append(None)
            names.setdefault(about[1], [None]).append(about[2])
        elif what == "mkdir":
            names.setdefault(about[0], [None]).append("folder")
        elif what == "unlink":
            names.setdefault(about[0], [None]).append(None)
        elif what == "sync folder":
            for name in names:
                if str(Path(name).parent) == about[0]:
                    names[name] = names[name][-1:]
    found = {name: rng.choice(kept) for name, kept in names.items()}
    for name, number in found.items():
        above = [str(folder) for folder in Path(name).parents][:-1]
        if isinstance(number, int) and all(found.get(folder) for folder in above):
            write_some(out / name, content.get(number, [b""]), rng)


def write_some(file: Path, versions: list[bytes], rng: random.Random) -> None:
    before, after = versions[0], rng.choice(versions)
    torn = len(versions) > 1 and after.startswith(before) and rng.random() < 0.5
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(after[: rng.randint(len(before), len(after))] if torn else after)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Disk, dict[str, Any]]:
    root = tmp_path_factory.mktemp("disk")
    disk = Disk(root / "run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDLGD_CACHE", str(root / "home"))
        disk.watch(patch)
        execute(HOW, DATA, disk.root)
    return disk, everything(disk.root)


def test_the_log_tells_the_whole_story(recorded: Any, tmp_path: Path) -> None:
    disk, straight = recorded
    synced = [
        ("sync folder", str(p.relative_to(disk.root))) for p in [disk.root, *disk.root.rglob("*")] if p.is_dir()
    ]
    after_power_loss(disk.log + synced, random.Random(0), tmp_path / "run")
    assert everything(tmp_path / "run") == straight


def check_prefixes(recorded: Any, tmp_path: Path, seed: int) -> None:
    disk, straight = recorded
    rng, out = random.Random(seed), tmp_path / "run"
    for length in range(len(disk.log) + 1):
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        after_power_loss(disk.log[:length], rng, out)
        left = sorted(str(p.relative_to(out)) for p in out.rglob("*"))
        try:
            execute(HOW, DATA, out)
        except Exception as error:
            pytest.fail(f"after {length} operations, last {disk.log[:length][-1:]}: {error}; the disk held {left}")
        assert everything(out) == straight, length


def test_a_new_file_of_records_is_on_the_disk_under_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(files, "sync_folder", synced.append)
    files.append(tmp_path / "records.jsonl", b"1\n", after=0)
    files.append(tmp_path / "records.jsonl", b"2\n", after=2)
    assert synced == [tmp_path]


def test_power_that_fails_after_any_operation_loses_no_committed_round(recorded: Any, tmp_path: Path) -> None:
    check_prefixes(recorded, tmp_path, seed=0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 5))
def test_power_fails_in_many_ways(seed: int, recorded: Any, tmp_path: Path) -> None:
    check_prefixes(recorded, tmp_path, seed)
