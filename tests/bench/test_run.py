"""The bench as a program: the arithmetic of its conclusions, and one tiny run of it."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bench import match, project, published, run, workers
from bench.tools import measure, ours, table
from bench.tools.scene import Scene
from fedlgd.data.federation import Federation
from fedlgd.data.suites import load
from fedlgd.methods.fedlgd import FedLGD
from fedlgd.runs.config import configure


def test_spread_is_median_and_quartiles():
    assert measure.Spread.of([4.0, 1.0, 2.0, 3.0, 5.0]) == measure.Spread(3.0, 2.0, 4.0)
    assert measure.Spread.of([2.0]) == measure.Spread(2.0, 2.0, 2.0)


def test_both_sides_take_turns_and_cost_is_per_unit(monkeypatch: pytest.MonkeyPatch):
    heard: list[str] = []
    costs = iter([8.0, 1.0, 16.0, 2.0, 8.0, 2.0])

    def fake(call: measure.Call, _: measure.Call) -> float:
        call()
        return next(costs)

    monkeypatch.setattr(measure, "seconds", fake)
    found = measure.compare(lambda: heard.append("a"), lambda: heard.append("b"), 3, (2, 1))
    assert heard == list("ababab")
    assert (found.first.median, found.second.median, found.ratio.median) == (4.0, 2.0, 4.0)


def test_arithmetic_and_memory_are_those_of_one_call():
    side = 1 << 11
    found = measure.once(lambda: torch.ones(side, side) @ torch.ones(side, 1), measure.default_malloc)
    assert found.flops == 2 * side * side
    assert 15 < found.megabytes < 60


@pytest.mark.parametrize(("goal", "steps"), [(50.0, 2.0), (20.0, 4.736), (100.0, 1.0), (9.0, None)])
def test_steps_to_a_goal_lie_on_a_power_law_between_measured_ones(goal: float, steps: float | None):
    curve = [(1, 100.0), (2, 50.0), (4, 25.0), (8, 10.0)]
    found = match.steps_to(curve, goal)
    assert found == (steps if steps is None else pytest.approx(steps, rel=0.02))


def test_a_projection_adds_up():
    cost = dict.fromkeys(run.NAMES, 1.0)
    theirs = project.theirs(project.DIGITS, cost, 1000)
    assert theirs["dm-initial"] == 5 * 1000
    assert theirs["dm-iterative"] == 10 * 5 * 100
    assert theirs["gm"] == 10 * 500
    assert theirs["epoch-regularised"] == 90 * 5
    assert theirs["evaluation"] == pytest.approx(100 * 49.04)
    assert project.theirs(project.CIFAR10C, cost, 1000)["dm-initial"] == pytest.approx(57 * 1000 * 200 / 256)
    assert project.ours_(project.DIGITS, cost, 20, 30)["gm"] == 10 * 30
    assert project.ours_(project.DIGITS, cost, 20, 30)["evaluation"] == pytest.approx(10 * 49.04)
    assert project.ours_(project.DIGITS, cost, 20, 30, evaluate_every=1)["evaluation"] == pytest.approx(100 * 49.04)


def test_a_published_run_is_projected_with_its_anomaly_detection():
    sides = {"published": {"seconds": {"median": 2.0}}, "ours": {"seconds": {"median": 1.0}}}
    found = [{"phase": name, **sides} for name in run.NAMES]
    plain, shipped = (
        next(r for r in run.projections(found, [], extra) if r["who"] == "published")["hours"]
        for extra in ([], [{"phase": "gm", "ratio": {"median": 1.5}}])
    )
    assert shipped["gm"] == pytest.approx(1.5 * plain["gm"])
    assert shipped["dm-initial"] == plain["dm-initial"]


def test_a_bar_says_by_how_much_it_is_missed():
    assert project.Bar("x", 20, 21.0).verdict == "met"
    assert project.Bar("x", 20, 5.0).verdict == "not met: 25% of it"
    assert "not reached" in project.Bar("x", 20, None).verdict


@pytest.fixture
def small(digits: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(published, "REAL_PER_CLASS", 8)
    monkeypatch.setattr(match, "HELD_OUT", 2)
    for name in ("INITIAL", "ITERATIVE"):
        monkeypatch.setattr(ours, name, replace(getattr(ours, name), real_per_class=4, reuse=1))
    monkeypatch.setattr(measure, "peak_flops", lambda: 1e9)
    brief = configure(FedLGD, distil__steps=1, refine__steps=1, anchors__steps=1)
    monkeypatch.setattr(workers, "METHOD", brief)
    monkeypatch.setattr(workers, "load", lambda name: load(name, limit=100, test_limit=50))


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_a_run_prints_and_stores_what_it_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    out = tmp_path / "deep" / "bench.jsonl"
    words = f"--width 4 --repeats 1 --dm-steps 4 --dm-width 4 --gm-steps 3 --no-growth --no-memory --out {out}"
    monkeypatch.setattr(sys, "argv", ["bench", *words.split()])
    run.main()
    records = [json.loads(line) for line in out.read_text().splitlines()]
    found = {record["phase"]: record for record in records if record["kind"] == "phase"}
    assert tuple(found) == run.NAMES
    assert all(record["ratio"]["median"] > 0 for record in found.values())
    assert found["gm"]["published"]["gflop"] > 0
    kinds = {record["kind"] for record in records}
    assert kinds == {
        "machine",
        "phase",
        "allocation",
        "anomaly",
        "engine",
        "match",
        "smoothing",
        "projection",
        "bar",
    }
    printed = capsys.readouterr().out
    assert "held-out loss" in printed
    assert "| dm-iterative | step |" in table.markdown(records)


def test_an_unknown_phase_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr(sys, "argv", ["bench", "--phases", "gm,dmm"])
    with pytest.raises(SystemExit):
        run.main()
    assert "dmm" in capsys.readouterr().err


@pytest.mark.usefixtures("small")
def test_held_out_loss_of_real_images_is_lower_than_of_the_start(digits: Federation):
    scene = Scene.of("builtin-digits", 4)
    judge = match.Judge(scene)
    real = torch.cat([scene.real.x[pool[:10]] for pool in scene.members])
    assert judge.loss(real) < judge.loss(scene.published_start)
