"""Trackers: every round once, whatever happened before, and never at the cost of the run."""

import math
import struct
import sys
from contextlib import suppress
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from fedlgd.core.errors import SettingError
from fedlgd.core.score import Score
from fedlgd.rundir.records import RoundRecord, committed_records, encode_record
from fedlgd.runs.config import Config
from fedlgd.runs.run import execute
from fedlgd.runs.trackers import (
    TRACKERS,
    Tracked,
    Tracking,
    check_trackers,
    numbers,
)
from tests import tiny
from tests.runs.folder import FAST_NET, Stopped, config, everything, method

STEPS = [0, 1, 2, 3]  # the enrolment and three rounds


class FakeWandb(ModuleType):
    """Records what it is asked to do."""

    def __init__(self) -> None:
        super().__init__("wandb")
        self.inits: list[dict[str, Any]] = []
        self.logged: list[tuple[int, dict[str, float]]] = []
        self.ends: list[int] = []

    def init(self, **given: Any) -> Any:
        self.inits.append(given)
        return SimpleNamespace(
            id=given["id"] or f"run{len(self.inits)}",
            log=lambda values, step: self.logged.append((step, values)),
            finish=lambda exit_code: self.ends.append(exit_code),
        )


class FakeMlflow(ModuleType):
    """Records what it is asked to do, and prints as the real one does."""

    def __init__(self) -> None:
        super().__init__("mlflow")
        self.experiments: list[str] = []
        self.starts: list[dict[str, str]] = []
        self.params: list[dict[str, Any]] = []
        self.logged: list[tuple[int, dict[str, float]]] = []
        self.ends: list[str] = []

    def set_experiment(self, name: str) -> None:
        self.experiments.append(name)

    def start_run(self, **given: str) -> Any:
        self.starts.append(given)
        return SimpleNamespace(info=SimpleNamespace(run_id=given.get("run_id", "5f2c")))

    def log_params(self, params: dict[str, Any]) -> None:
        self.params.append(params)

    def log_metrics(self, values: dict[str, float], step: int) -> None:
        self.logged.append((step, values))

    def end_run(self, status: str) -> None:
        print("View run at: http://...")
        self.ends.append(status)


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> FakeWandb:
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    return fake


@pytest.fixture
def mlflow(monkeypatch: pytest.MonkeyPatch) -> FakeMlflow:
    fake = FakeMlflow()
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
    return fake


HOW = config(method("fedavg"), net=FAST_NET, analysis=False)


def run(
    out: Path, *names: str, stop: int | None = None, how: Config = HOW, sites: tuple[str, ...] = tiny.NAMES
) -> None:
    """A run of three rounds under these trackers, interrupted after round `stop`."""

    def heard(record: RoundRecord) -> None:
        tracking(record)
        if record.round == stop:
            raise Stopped(record)

    with suppress(Stopped), Tracking(names, Tracked("a title", out, how)) as tracking:
        execute(how, tiny.federation(sites), out, heard)


def steps(logged: list[tuple[int, Any]]) -> list[int]:
    return [step for step, _ in logged]


# What is logged


def record(**given: Any) -> RoundRecord:
    return RoundRecord(**({"round": 0} | given))


def test_the_numbers_of_a_round_by_hand() -> None:
    """Mean accuracy (0.5 + 0.7) / 2, test loss (1 + 3) / 2, training loss (2 + 4) / 2; bytes so far."""
    scores = {"ape": Score(0.5, 1.0, (1,), (2,)), "bee": Score(0.7, 3.0, (1,), (2,))}
    last = record(
        round=0,
        scores=scores,
        metrics={"ape": {"loss": 2.0}, "bee": {"loss": 4.0}},
        bytes_up=10,
        bytes_down=7,
        seconds={"train": 1.5},
        cpu={"train": 0.5},
        flops={"train": 9},
    )
    assert numbers([record(round=-1, bytes_up=3), last]) == {
        "mean/accuracy": pytest.approx(0.6),
        "mean/test_loss": 2.0,
        "mean/train_loss": 3.0,
        "bytes/up": 13.0,
        "bytes/down": 7.0,
        "accuracy/ape": 0.5,
        "accuracy/bee": 0.7,
        "seconds/train": 1.5,
        "cpu/train": 0.5,
        "flops/train": 9.0,
    }


def test_what_was_not_measured_is_left_out() -> None:
    assert set(numbers([record(bytes_up=1)])) == {"bytes/up", "bytes/down"}
    assert math.isnan(record().training_loss)


def test_a_site_may_be_called_anything() -> None:
    names = ("mean", "Site A/B: 100 %", "Site A?B: 100 %")
    logged = numbers([record(scores={name: Score(0.5, 1.0, (1,), (2,)) for name in names})])
    keys = [key for key in logged if key.startswith("accuracy/")]
    assert len(keys) == 3
    assert all(set(key) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-/") for key in keys)


# Every round once


def test_every_round_reaches_every_tracker_once(wandb: FakeWandb, mlflow: FakeMlflow, tmp_path: Path) -> None:
    run(tmp_path / "out", "wandb", "mlflow", "wandb")
    assert steps(wandb.logged) == steps(mlflow.logged) == STEPS
    assert wandb.logged == mlflow.logged
    final = committed_records(tmp_path / "out")[-1]
    assert wandb.logged[-1][1]["mean/accuracy"] == final.accuracy
    assert (wandb.ends, mlflow.ends) == ([0], ["FINISHED"])


def test_a_run_that_goes_on_is_the_same_run_there(wandb: FakeWandb, mlflow: FakeMlflow, tmp_path: Path) -> None:
    run(tmp_path / "out", "wandb", "mlflow", stop=0)
    assert steps(wandb.logged) == [0, 1]
    assert (wandb.ends, mlflow.ends) == ([1], ["KILLED"])
    run(tmp_path / "out", "wandb", "mlflow")
    assert steps(wandb.logged) == steps(mlflow.logged) == STEPS
    assert [(given["id"], given["resume"]) for given in wandb.inits] == [(None, None), ("run1", "allow")]
    assert mlflow.starts == [{"run_name": "a title"}, {"run_id": "5f2c"}]
    assert mlflow.experiments == ["fedlgd"]
    assert len(mlflow.params) == 1
    straight = tmp_path / "straight"
    run(straight, "wandb")
    timeless = [
        {k: v for k, v in values.items() if not k.startswith(("seconds", "cpu"))} for _, values in wandb.logged
    ]
    assert timeless[:4] == timeless[4:]


def test_rounds_from_before_tracking_was_asked_for_are_made_up_for(wandb: FakeWandb, tmp_path: Path) -> None:
    run(tmp_path / "out", stop=1)
    run(tmp_path / "out", "wandb")
    assert steps(wandb.logged) == STEPS


def test_a_complete_run_is_logged_when_asked_for_and_not_again(wandb: FakeWandb, tmp_path: Path) -> None:
    run(tmp_path / "out")
    run(tmp_path / "out", "wandb")
    run(tmp_path / "out", "wandb")
    assert steps(wandb.logged) == STEPS
    assert len(wandb.inits) == 1


def test_a_round_that_was_never_committed_is_not_logged(wandb: FakeWandb, tmp_path: Path) -> None:
    run(tmp_path / "out", stop=0)
    with (tmp_path / "out" / "records.jsonl").open("a") as file:
        file.write('{"round": 1, "sco')
    assert [each.round for each in committed_records(tmp_path / "out")] == [-1, 0]
    run(tmp_path / "out", "wandb")
    assert steps(wandb.logged) == STEPS


def test_a_loss_that_is_not_a_number_is_read_back(tmp_path: Path) -> None:
    assert committed_records(tmp_path) == []
    diverged = record(scores={"ape": Score(0.1, math.nan, (1,), (2,))})
    (tmp_path / "records.jsonl").write_bytes(encode_record(diverged))
    (only,) = committed_records(tmp_path)
    assert math.isnan(only.scores["ape"].loss)
    assert numbers([only])["accuracy/ape"] == 0.1
    assert "mean/test_loss" not in numbers([only])


# Never at the cost of the run


def test_a_tracked_run_is_the_run_it_would_have_been(wandb: FakeWandb, tmp_path: Path) -> None:
    run(tmp_path / "plain")
    run(tmp_path / "tracked", "wandb")
    assert everything(tmp_path / "plain") == everything(tmp_path / "tracked")


def test_a_tracker_that_fails_is_said_and_the_run_and_the_others_go_on(
    wandb: FakeWandb, mlflow: FakeMlflow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(values: dict[str, float], step: int) -> None:
        if step == 2:
            raise ConnectionError("no route")
        mlflow.logged.append((step, values))

    monkeypatch.setattr(mlflow, "log_metrics", broken)
    with pytest.warns(
        UserWarning, match=r"mlflow stopped tracking \(ConnectionError: no route\); the run continues"
    ):
        run(tmp_path / "out", "mlflow", "wandb")
    assert steps(wandb.logged) == STEPS
    assert steps(mlflow.logged) == [0, 1]
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    run(tmp_path / "out", "mlflow")
    assert steps(mlflow.logged) == STEPS


def test_what_a_tracker_prints_stays_off_stdout(
    mlflow: FakeMlflow, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path / "out", "mlflow")
    out, err = capsys.readouterr()
    assert out == ""
    assert "View run at" in err


@pytest.mark.parametrize("name", list(TRACKERS))
def test_a_missing_package_is_said_with_how_to_install_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    package = TRACKERS[name].package
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(SettingError, match=rf"--track {name} needs {package} .*; pip install {package}$"):
        check_trackers([name])


def test_an_unknown_tracker_is_refused() -> None:
    with pytest.raises(SettingError, match="no tracker is called 'wnadb'; available: tensorboard, wandb, mlflow"):
        check_trackers(["wnadb"])


# Each tracker


def test_wandb_is_told_the_settings_and_keeps_its_files_in_the_run(
    wandb: FakeWandb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    run(tmp_path / "out", "wandb")
    (given,) = wandb.inits
    assert (given["project"], given["name"], given["dir"]) == ("mine", "a title", str(tmp_path / "out"))
    assert given["config"]["rounds"] == 3
    assert "mode" not in given  # WANDB_MODE=offline decides
    assert all(isinstance(value, float) for _, values in wandb.logged for value in values.values())


def test_mlflow_is_told_the_settings_by_their_paths(mlflow: FakeMlflow, tmp_path: Path) -> None:
    run(tmp_path / "out", "mlflow")
    (params,) = mlflow.params
    assert params["rounds"] == 3
    assert params["local.lr"] == HOW.method.local.lr
    assert params["net.name"] == FAST_NET["name"]


def events(folder: Path) -> list[Any]:
    """All events of all files: TFRecords of length, checksum, content, checksum."""
    from tensorboardX.proto.event_pb2 import Event

    found = []
    for file in sorted(folder.glob("events.*")):
        content, at = file.read_bytes(), 0
        while at < len(content):
            (length,) = struct.unpack_from("<Q", content, at)
            found.append(Event.FromString(content[at + 12 : at + 12 + length]))
            at += 16 + length
    return found


def test_tensorboard_has_numbers_pictures_and_settings_and_each_once(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX", reason="needs tensorboardX (pip install tensorboardX)")
    how = config(method("fedlgd"), analysis=False)
    run(tmp_path / "out", "tensorboard", stop=0, how=how)
    run(tmp_path / "out", "tensorboard", how=how)
    values = [(event.step, v) for event in events(tmp_path / "out/tensorboard") for v in event.summary.value]
    scalars = {(v.tag, step): v.simple_value for step, v in values if v.HasField("simple_value")}
    records = committed_records(tmp_path / "out")
    for step in range(len(records)):
        for name, value in numbers(records[: step + 1]).items():
            assert scalars.pop((name, step)) == pytest.approx(value, rel=1e-6)
    assert not scalars
    drawn = [(v.tag, step) for step, v in values if v.HasField("image")]
    assert len(drawn) == len(set(drawn))
    assert {("virtual/ape", 0), ("virtual/bee", 0), ("virtual/cat", 0), ("virtual/anchors", 1)} <= set(drawn)
    (text,) = [v for step, v in values if v.HasField("tensor")]
    assert b"rounds = 3" in text.tensor.string_val[0]
