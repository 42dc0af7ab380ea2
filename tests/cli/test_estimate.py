"""The estimated time, printed before a run."""

import json
from pathlib import Path

import pytest

from fedlgd.cli import common
from fedlgd.engines.registry import engine
from fedlgd.runs.config import resolve
from fedlgd.runs.entries import parse_entry, plan_jobs
from fedlgd.runs.estimate import Estimate
from tests import tiny


def test_a_comparison_counts_shared_virtual_sets_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(
        common, "estimate_run", lambda *_: Estimate({"distil": 100.0, "train": 10.0, "server": 2.0}, {}, 80.0)
    )
    entries = [parse_entry(spec) for spec in ("fedavg", "fedprox")]
    jobs = plan_jobs(entries, 3, tmp_path, {"train_on": "virtual"})
    for workers, seconds in ((1, 6 * 112 - 3 * 80), (2, 6 * 57 - 3 * 40)):
        pool = engine("pool", workers)
        assert common.estimate_jobs(jobs, tiny.federation(), pool) == pytest.approx(seconds)


def test_only_long_work_is_worth_a_word(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    for seconds, said in ((59.0, ""), (840.0, "Estimated time: about 14 min\n")):
        monkeypatch.setattr(common, "estimate_run", lambda *_, s=seconds: Estimate({"train": s}, {}))
        common.announce_run(
            resolve({}, {"real_samples": 0, "distil.per_class": 2}), Path("absent"), tiny.federation(), engine()
        )
        assert capsys.readouterr().err == said


def test_the_answer_to_estimate(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    found = Estimate({"train": 120.0, "server": 30.0}, {}, cpu={"train": 100.0})
    for answer, as_json in ((found, False), (found, True), (None, False)):
        monkeypatch.setattr(common, "estimate_run", lambda *_, answer=answer: answer)
        common.print_estimate(None, Path(), tiny.federation(), engine("pool", 2), as_json)  # type: ignore[arg-type]
    first, second, third = capsys.readouterr().out.splitlines()
    assert first == "about 2 min"
    phases = {"train": 120.0, "server": 30.0}
    assert json.loads(second) == {"seconds": 90.0, "phases": phases, "cpu": {"train": 100.0}}
    assert third.startswith("No estimate")
