"""A run folder that came from someone else cannot lead out of itself: links and special files in it are refused."""

import os
from pathlib import Path

import pytest

from fedlgd.core.errors import RunError
from fedlgd.report.page import write_report
from fedlgd.report.watch import Watcher
from fedlgd.runs.run import execute
from tests import tiny
from tests.runs.folder import FAST_NET, config, method, run_until

HOW = config(method("fedlgd"), net=FAST_NET, real_samples=1)
PLACES = [
    "records.jsonl",
    "manifest.json",
    "config.toml",
    ".lock",
    "analysis.json",
    "state",
    "state/head.json",
    "state/sites/ape",
    "state/enrolled/ape.safetensors",
    "virtual/start/ape.png",
    "real",
    "real/ape.png",
    "invert/real-round0-batch1.png",
    "invert-2/real-round0-batch1.png",
]


@pytest.fixture
def half(tmp_path: Path) -> Path:
    run_until(0, HOW, tiny.federation(tiny.NAMES[:2], train=3, test=1), tmp_path / "out")
    return tmp_path / "out"


def resume(folder: Path) -> None:
    execute(HOW, tiny.federation(tiny.NAMES[:2], train=3, test=1), folder)


def moved_out(folder: Path, place: str) -> Path:
    """Move a part of the run elsewhere and leave a link to it."""
    inside, outside = folder / place, folder.parent / "outside"
    if inside.exists():
        inside.rename(outside)
    else:
        outside.write_text("mine")
        inside.parent.mkdir(exist_ok=True)
    inside.symlink_to(outside)
    return outside


@pytest.mark.parametrize("place", PLACES)
def test_a_link_is_refused_by_resume_and_report_and_what_it_names_is_left_alone(place: str, half: Path) -> None:
    outside = moved_out(half, place)
    before = {p: p.read_bytes() for p in [outside, *outside.rglob("*")] if p.is_file()}
    with pytest.raises(RunError) as refusal:
        resume(half)
    assert f"{str(half / place)!r} is a symbolic link" in str(refusal.value)
    assert "--out" in str(refusal.value)
    with pytest.raises(RunError, match="is a symbolic link"):
        write_report([half], half / "report.html")
    assert b"is a symbolic link" in Watcher([half]).page().body
    assert {p: p.read_bytes() for p in [outside, *outside.rglob("*")] if p.is_file()} == before


def test_a_link_to_a_file_that_is_not_there_makes_no_file(half: Path) -> None:
    (half / "records.jsonl").unlink()
    (half / "records.jsonl").symlink_to(half.parent / "new")
    with pytest.raises(RunError, match="is a symbolic link"):
        resume(half)
    assert not (half.parent / "new").exists()


@pytest.mark.parametrize("place", ["records.jsonl", "state/head.json", "virtual/start/pipe.png"])
def test_a_pipe_is_refused_instead_of_waited_for(place: str, half: Path) -> None:
    (half / place).unlink(missing_ok=True)
    os.mkfifo(half / place)
    with pytest.raises(RunError, match=r"is a special file; .* --out"):
        resume(half)
    with pytest.raises(RunError, match="is a special file"):
        write_report([half], half / "report.html")


def test_the_way_to_a_run_folder_may_be_a_link_and_trackers_may_have_links(half: Path) -> None:
    (half.parent / "latest").symlink_to(half)
    (half / "wandb").mkdir()
    (half / "wandb" / "latest-run").symlink_to(half.parent)
    resume(half.parent / "latest")
    write_report([half.parent / "latest"], half / "report.html")
