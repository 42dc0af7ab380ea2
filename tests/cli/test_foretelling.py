"""How long it will take, said before."""

import json
from pathlib import Path

import pytest

from fedlgd.cli import foretelling
from fedlgd.cli.pace import about
from fedlgd.core.device import Place
from fedlgd.engines.choice import Engine
from fedlgd.runs.estimate import Estimate
from fedlgd.runs.suite import parse_entry, plan
from tests import tiny


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (49.6, "about 50 s"),
        (89, "about 89 s"),
        (840, "about 14 min"),
        (12_000, "about 3 h 20 min"),
        (7170, "about 2 h 0 min"),
    ],
)
def test_time_is_said_in_round_words(seconds: float, words: str):
    assert about(seconds) == words


def test_a_comparison_counts_shared_virtual_sets_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(
        foretelling, "estimated", lambda *_: Estimate({"distil": 100.0, "train": 10.0, "server": 2.0}, {}, 80.0)
    )
    entries = [parse_entry(spec) for spec in ("fedavg", "fedprox")]
    jobs = plan(entries, 3, tmp_path, {"train_on": "virtual"})
    assert foretelling.all_seconds(jobs, None, 1, Place()) == pytest.approx(6 * 112 - 3 * 80)  # type: ignore[arg-type]
    assert foretelling.all_seconds(jobs, None, 2, Place()) == pytest.approx(6 * 57 - 3 * 40)  # type: ignore[arg-type]


def test_only_long_work_is_worth_a_word(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    for seconds, said in ((59.0, ""), (840.0, "about 14 min\n")):
        monkeypatch.setattr(foretelling, "estimated", lambda *_, s=seconds: Estimate({"train": s}, {}))
        foretelling.foretell(None, Path(), tiny.federation(), Engine())  # type: ignore[arg-type]
        assert capsys.readouterr().err == said


def test_the_answer_to_estimate(capsys: pytest.CaptureFixture[str]):
    foretelling.tell(Estimate({"train": 120.0, "server": 30.0}, {}), 2, json=False)
    foretelling.tell(Estimate({"train": 120.0, "server": 30.0}, {}), 2, json=True)
    foretelling.tell(None, 2, json=False)
    first, second, third = capsys.readouterr().out.splitlines()
    assert first == "about 2 min"
    assert json.loads(second) == {"seconds": 90.0, "phases": {"train": 120.0, "server": 30.0}}
    assert "nobody can tell" in third
