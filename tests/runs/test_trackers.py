"""Trackers: every round once, whatever happened before, and never at the cost of the run."""

import math
import struct
import sys
from contextlib import nullcontext, suppress
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from fedlgd.core.score import Score
from fedlgd.rundir.records import RoundRecord, committed_records, encode_record
from fedlgd.runs.config import Config
from fedlgd.runs.run import execute
from fedlgd.runs.trackers import (
    Tracking,
    check_trackers,
    values_of,
)
from tests import tiny
from tests.errors import refuses
from tests.runs.folder import FAST_NET, Stopped, config, everything, method

STEPS = [0, 1, 2, 3]  # the enrolment and three rounds


class FakeTensorBoard(ModuleType):
    """Records what it is asked to do, and prints, as trackers do."""

    def __init__(self) -> None:
        super().__init__("tensorboardX")
        self.logged: dict[int, dict[str, float]] = {}
        self.folders: list[str] = []
        self.texts: list[str] = []
        self.closed = 0
        self.broken_at = -1

    def SummaryWriter(self, logdir: str, filename_suffix: str) -> Any:  # noqa: N802
        print("View run at: http://...")
        self.folders.append(logdir)
        return SimpleNamespace(
            add_scalar=self.add_scalar,
            add_text=lambda *given: self.texts.append(given[1]),
            add_image=lambda *_, **__: None,
            flush=lambda: None,
            close=self.close,
        )

    def add_scalar(self, name: str, value: float, step: int) -> None:
        if step == self.broken_at:
            raise ConnectionError("no route")
        assert name not in self.logged.setdefault(step, {})
        self.logged[step][name] = value

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def board(monkeypatch: pytest.MonkeyPatch) -> FakeTensorBoard:
    fake = FakeTensorBoard()
    monkeypatch.setitem(sys.modules, "tensorboardX", fake)
    return fake


HOW = config(method("fedavg"), net=FAST_NET, analysis=False)


def run(
    out: Path, track: bool = True, stop: int | None = None, how: Config = HOW, sites: tuple[str, ...] = tiny.NAMES
) -> None:
    """A run of three rounds, tracked or not, interrupted after round `stop`."""

    def heard(record: RoundRecord) -> None:
        tracking(record)
        if record.round == stop:
            raise Stopped(record)

    with suppress(Stopped), Tracking(out, how) if track else nullcontext(lambda _: None) as tracking:
        execute(how, tiny.federation(sites), out, heard)


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
    assert values_of([record(round=-1, bytes_up=3), last]) == {
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
    assert set(values_of([record(bytes_up=1)])) == {"bytes/up", "bytes/down"}
    assert math.isnan(record().training_loss)


def test_a_site_may_be_called_anything() -> None:
    names = ("mean", "Site A/B: 100 %", "Site A?B: 100 %")
    logged = values_of([record(scores={name: Score(0.5, 1.0, (1,), (2,)) for name in names})])
    keys = [key for key in logged if key.startswith("accuracy/")]
    assert len(keys) == 3
    assert all(set(key) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-/") for key in keys)


# Every round once


def test_every_round_is_logged_once(board: FakeTensorBoard, tmp_path: Path) -> None:
    run(tmp_path / "out")
    assert list(board.logged) == STEPS
    assert board.logged[3]["mean/accuracy"] == committed_records(tmp_path / "out")[-1].accuracy
    assert board.folders == [str(tmp_path / "out/tensorboard")]
    assert "rounds = 3" in board.texts[0]
    assert board.closed == 1


def test_a_run_that_goes_on_logs_the_missing_rounds(board: FakeTensorBoard, tmp_path: Path) -> None:
    run(tmp_path / "out", stop=0)
    assert list(board.logged) == [0, 1]
    run(tmp_path / "out")
    assert list(board.logged) == STEPS
    assert (len(board.texts), board.closed) == (1, 2)


def test_rounds_from_before_tracking_was_asked_for_are_made_up_for(board: FakeTensorBoard, tmp_path: Path) -> None:
    run(tmp_path / "out", track=False, stop=1)
    run(tmp_path / "out")
    assert list(board.logged) == STEPS


def test_a_complete_run_is_logged_when_asked_for_and_not_again(board: FakeTensorBoard, tmp_path: Path) -> None:
    run(tmp_path / "out", track=False)
    run(tmp_path / "out")
    run(tmp_path / "out")
    assert list(board.logged) == STEPS
    assert len(board.folders) == 1


def test_a_round_that_was_never_committed_is_not_logged(board: FakeTensorBoard, tmp_path: Path) -> None:
    run(tmp_path / "out", track=False, stop=0)
    with (tmp_path / "out" / "records.jsonl").open("a") as file:
        file.write('{"round": 1, "sco')
    assert [each.round for each in committed_records(tmp_path / "out")] == [-1, 0]
    run(tmp_path / "out")
    assert list(board.logged) == STEPS


def test_a_loss_that_is_not_a_number_is_read_back(tmp_path: Path) -> None:
    assert committed_records(tmp_path) == []
    diverged = record(scores={"ape": Score(0.1, math.nan, (1,), (2,))})
    (tmp_path / "records.jsonl").write_bytes(encode_record(diverged))
    (only,) = committed_records(tmp_path)
    assert math.isnan(only.scores["ape"].loss)
    assert values_of([only])["accuracy/ape"] == 0.1
    assert "mean/test_loss" not in values_of([only])


# Never at the cost of the run


def test_a_tracked_run_is_the_run_it_would_have_been(board: FakeTensorBoard, tmp_path: Path) -> None:
    run(tmp_path / "plain", track=False)
    run(tmp_path / "tracked")
    assert everything(tmp_path / "plain") == everything(tmp_path / "tracked")


def test_a_tracker_that_fails_is_said_and_the_run_goes_on(board: FakeTensorBoard, tmp_path: Path) -> None:
    board.broken_at = 2
    with pytest.warns(UserWarning, match="ConnectionError: no route"):
        run(tmp_path / "out")
    assert len(committed_records(tmp_path / "out")) == 4
    assert {step for step, values in board.logged.items() if values} == {0, 1}
    board.broken_at = -1
    run(tmp_path / "out")
    assert sorted(board.logged) == STEPS


def test_what_a_tracker_prints_stays_off_stdout(
    board: FakeTensorBoard, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path / "out")
    out, err = capsys.readouterr()
    assert out == ""
    assert "View run" in err


def test_a_missing_package_is_said_with_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with refuses("tracker-missing", name="tensorboard", package="tensorboardX"):
        check_trackers(["tensorboard"])


def test_an_unknown_tracker_is_refused() -> None:
    with refuses("unknown-tracker", name="wandb", available=["tensorboard"]):
        check_trackers(["wandb"])


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
    run(tmp_path / "out", stop=0, how=how)
    run(tmp_path / "out", how=how)
    values = [(event.step, v) for event in events(tmp_path / "out/tensorboard") for v in event.summary.value]
    scalars = {(v.tag, step): v.simple_value for step, v in values if v.HasField("simple_value")}
    records = committed_records(tmp_path / "out")
    for step in range(len(records)):
        for name, value in values_of(records[: step + 1]).items():
            assert scalars.pop((name, step)) == pytest.approx(value, rel=1e-6)
    assert not scalars
    drawn = [(v.tag, step) for step, v in values if v.HasField("image")]
    assert len(drawn) == len(set(drawn))
    assert {("virtual/ape", 0), ("virtual/bee", 0), ("virtual/cat", 0), ("virtual/anchors", 1)} <= set(drawn)
    (text,) = [v for step, v in values if v.HasField("tensor")]
    assert b"rounds = 3" in text.tensor.string_val[0]
