"""`--track` on the command line: refused before anything runs, and every run of a comparison under its own name."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import TINY, tiny_run
from tests.runs.test_trackers import FakeWandb

SMALL = [f"--set={k}={v}" for k, v in TINY.items() if not k.startswith(("refine", "anchors"))]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("wnadb", "no tracker is called 'wnadb'; available: tensorboard, wandb, mlflow"),
        ("wandb", "--track wandb needs wandb"),
    ],
)
@pytest.mark.parametrize("command", ["run", "compare"])
def test_a_tracker_that_cannot_be_used_is_said_before_anything_runs(
    command: str, name: str, said: str, fedlgd: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    done = fedlgd(command, "-o", "out", "--track", name)
    assert done.code == 2
    assert done.out == ""
    assert done.err.startswith("fedlgd: ")
    assert said in done.err
    assert not (tmp_path / "out").exists()


def test_a_run_is_tracked_and_its_result_is_still_all_there_is_on_stdout(
    fedlgd: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", fake := FakeWandb())
    more = ("--track", "wandb", "--json", "--set=analysis=false", "--engine=loop")
    done = fedlgd(*tiny_run(tmp_path / "out", *more, rounds=1))
    assert done.code == 0, done.err
    result = json.loads(done.out)
    assert [step for step, _ in fake.logged] == [0, 1]
    assert fake.logged[-1][1]["mean/accuracy"] == pytest.approx(result["mean"])
    assert fake.inits[0]["name"] == "FedLGD on builtin-digits, seed 0"
    assert "track" not in (tmp_path / "out" / "config.toml").read_text()


def test_every_run_of_a_comparison_is_tracked_under_its_own_name(
    fedlgd: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", fake := FakeWandb())
    words = ["--seeds=2", "--rounds=1", "-o", "out", "--set=analysis=false", "--track", "wandb", "--json", *SMALL]
    done = fedlgd("compare", "--methods", "fedavg", *words)
    assert done.code == 0, done.err
    assert [given["name"] for given in fake.inits] == [
        "FedAvg on real data, seed 0",
        "FedAvg on real data, seed 1",
    ]
    assert [step for step, _ in fake.logged] == [0, 1, 0, 1]
    assert fake.ends == [0, 0]
