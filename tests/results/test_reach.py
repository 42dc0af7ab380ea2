"""CPU time and bytes to an accuracy, from the records of runs."""

from pathlib import Path

import pytest

from bench import project, run
from fedlgd.core.text import duration
from fedlgd.report.groups import group_runs
from fedlgd.rundir.read import read_run
from results import reach
from tests.cli.conftest import TINY
from tests.report.fake import write_run

BENCH = [{"kind": "phase", "phase": name, "published": {"seconds": {"median": 1.0}}} for name in run.NAMES]
BENCH.append({"kind": "anomaly", "phase": "gm", "ratio": {"median": 2.0}})


def test_the_published_procedure_is_projected_round_by_round_without_evaluation():
    """By hand for 4 sites and 6 rounds, of which 0 and 5 are selected."""
    found = reach.published_seconds(BENCH, 4, 5, 1000)
    matching = 4 * 1000 + 2 * 4 * project.REFINE_STEPS + 2 * project.GM_STEPS * 2.0
    assert found == pytest.approx(matching + 2 * 4 + 4 * 4 + 6 * 4 / 5 + 6 / 50)


def test_the_time_to_an_accuracy_is_that_of_the_first_round_that_reaches_it(tmp_path: Path):
    groups = group_runs(
        read_run(write_run(tmp_path / label, label=label, cpu=0.5, final={"x": 0.9}))
        for label in ("FedLGD, strong", reach.DEFAULTS)
    )
    for group in groups:
        (one,) = group.counted
        first = reach.round_of(one, 0.5)
        before = [r.accuracy for r in one.evaluated if r.round < first]
        assert all(accuracy < 0.5 for accuracy in before)
        expected = sum(
            seconds
            for record in one.records
            if record.round <= first
            for phase, seconds in record.cpu.items()
            if phase != "evaluate"
        )
        assert reach.cpu_time(one)[first] == pytest.approx(expected)
    table = reach.table(groups, BENCH, 0.5)
    assert [line.split(" | ")[0] for line in table.splitlines()[2:]] == [
        "| FedLGD, strong",
        "| FedLGD, defaults",
        "| published, 1000 initial steps, projected",
        "| published, 10000 initial steps, projected",
    ]
    assert "after" in reach.headline(groups, 0.5)
    assert "after" not in reach.headline(groups, 0.95)
    assert "| 0 | – | – | – |" in reach.table(groups, BENCH, 0.95)
    whole = reach.published_seconds(BENCH, len(groups[0].counted[0].manifest.data.sites), 99, 10_000)
    assert f"| published, 10000 initial steps, projected | – | – | 100 | {duration(whole)} |" in table
    assert all(text.startswith("<svg") for text in reach.figures(groups).values())
    assert set(reach.figures(groups)) == {"reach-time.svg", "reach-bytes.svg"}


def test_arms_run_and_continue(digits_home, tmp_path, monkeypatch):
    monkeypatch.setattr(reach, "ARMS", {reach.DEFAULTS: ("", {"rounds": 60})})
    more = {"data": {"name": "builtin-digits"}, "rounds": 1, **TINY}
    ((title, accuracy),) = reach.measure(tmp_path / "out", [0], more)
    assert title == "FedLGD, defaults, seed 0"
    assert 0 <= accuracy <= 1
    assert list(reach.measure(tmp_path / "out", [0], more)) == [(title, accuracy)]
    (folder,) = (tmp_path / "out").glob("*/seed0")
    (found,) = group_runs([read_run(folder)])
    assert found.label == reach.DEFAULTS
    assert list(reach.cpu_time(found.runs[0])) == [-1, 0]
