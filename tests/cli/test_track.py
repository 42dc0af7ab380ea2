"""`--track` on the command line: refused before anything runs, and every run of a comparison in its own folder."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import TINY, tiny_run
from tests.runs.test_trackers import FakeTensorBoard

SMALL = [f"--set={k}={v}" for k, v in TINY.items() if not k.startswith(("refine", "anchors"))]


@pytest.mark.parametrize("name", ["tensorbord", "tensorboard"])
@pytest.mark.parametrize("command", ["run", "compare"])
def test_a_tracker_that_cannot_be_used_is_said_before_anything_runs(
    command: str, name: str, fedlgd: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    done = fedlgd(command, "-o", "out", "--track", name)
    assert done.code == 2
    assert done.out == ""
    assert done.err.startswith("fedlgd: ")
    assert name in done.err
    assert not (tmp_path / "out").exists()


def test_a_run_is_tracked_and_its_result_is_still_all_there_is_on_stdout(
    fedlgd: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboardX", fake := FakeTensorBoard())
    more = ("--track", "tensorboard", "--json", "--set=analysis=false", "--engine=loop")
    done = fedlgd(*tiny_run(tmp_path / "out", *more, rounds=1))
    assert done.code == 0, done.err
    result = json.loads(done.out)
    assert list(fake.logged) == [0, 1]
    assert fake.logged[1]["mean/accuracy"] == pytest.approx(result["mean"])
    assert "track" not in (tmp_path / "out" / "config.toml").read_text()


def test_every_run_of_a_comparison_is_tracked_in_its_own_folder(
    fedlgd: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboardX", fake := FakeTensorBoard())
    fake.add_scalar = lambda *_: None  # type: ignore[method-assign]
    words = [
        "--seeds=2",
        "--rounds=1",
        "-o",
        "out",
        "--set=analysis=false",
        "--track",
        "tensorboard",
        "--json",
        *SMALL,
    ]
    done = fedlgd("compare", "--methods", "fedavg", *words)
    assert done.code == 0, done.err
    assert fake.folders == [f"out/fedavg/seed{seed}/tensorboard" for seed in (0, 1)]
    assert fake.closed == 2
