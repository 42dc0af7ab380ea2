"""Cumulative costs, and the round after which virtual images have cost less than the real ones would have."""

from pathlib import Path
from typing import Any

import pytest

from fedlgd.report.cost import (
    CPU,
    WALL,
    break_even_round,
    break_even_table,
    break_evens,
    clock,
    cumulative_bytes,
    cumulative_time,
)
from fedlgd.report.groups import curves, group_runs
from fedlgd.rundir.read import Run, read_run
from tests.report.conftest import MakeGroups, run_of
from tests.report.fake import write_run

SELECTED = {"anchors": {"selected": {"first": 0, "every": 2, "count": 3}}}


@pytest.mark.parametrize(
    ("upfront", "own", "later", "real", "wanted"),
    [
        (0.0, [1.0], 1.0, 2.0, 1),
        (5.0, [1.0], 1.0, 2.0, 6),
        (4.5, [1.0], 1.0, 2.0, 5),
        (0.0, [9.0, 1.0, 1.0], 1.0, 2.0, 9),
        (0.0, [1.0, 9.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0], 1.0, 2.0, 9),
        (0.0, [1.0], 2.0, 2.0, None),
        (0.0, [1.0, 1.0], 3.0, 2.0, None),
    ],
    ids=["at once", "equality", "upfront", "one dear round", "below, above, below", "level", "dearer"],
)
def test_the_round_from_which_the_total_stays_lower(
    upfront: float, own: list[float], later: float, real: float, wanted: int | None
) -> None:
    assert break_even_round(upfront, own, later, real) == wanted
    if wanted:
        totals = [upfront + sum(own[:t]) + later * max(0, t - len(own)) - t * real for t in range(wanted + 50)]
        assert all(total < 0 for total in totals[wanted:])
        assert wanted == 1 or totals[wanted - 1] >= 0


def test_a_round_on_real_images_is_three_passes_over_all_of_them_in_every_epoch(tmp_path: Path) -> None:
    """By hand: 3 x 1 234 567 FLOP x 2 epochs x (2000 + 1600 + 1200) images; own: 4 GFLOP a round and 4 before."""
    (found,) = break_evens(group_runs([read_run(write_run(tmp_path / "a"))]))
    assert found.real == 3 * 1_234_567 * 2 * 4800
    assert (found.own, found.enrolment) == (4e9, 4e9)
    assert (found.without_enrolment, found.with_enrolment) == (1, 1)


def test_steps_count_in_place_of_epochs(tmp_path: Path) -> None:
    """By hand: 7 steps of 32 images at three sites."""
    settings = {"local": {"epochs": 2, "steps": 7, "batch": 32}}
    (found,) = break_evens(group_runs([read_run(write_run(tmp_path / "a", settings=settings))]))
    assert found.real == 3 * 1_234_567 * 7 * 32 * 3
    assert (found.without_enrolment, found.with_enrolment) == (None, None)
    texts = [cell.text for cell in break_even_table([found]).rows[0]]
    assert texts == ["FedLGD", "2.49 GFLOP", "4.00 GFLOP", "4.00 GFLOP", "never", "never"]


def test_rounds_that_were_not_run_cost_what_such_rounds_cost_before(tmp_path: Path) -> None:
    """Selected are 0, 2 and 4; rounds 0 and 1 are on record. By hand: 103 4 103 4 103 4 4 4 4 4 GFLOP are 337,
    ten rounds on real images 355.6; without the last round 333 are more than 320."""
    path = write_run(tmp_path / "a", rounds=2, settings=SELECTED)
    records = (path / "records.jsonl").read_text()
    (path / "records.jsonl").write_text(records.replace('"distil": 1000000000,', '"distil": 100000000000,', 1))
    (found,) = break_evens(group_runs([read_run(path)]))
    assert found.own == (103e9 + 4e9) / 2
    assert found.without_enrolment == 10


def test_a_method_on_real_images_has_no_break_even(tmp_path: Path) -> None:
    assert break_evens(group_runs([read_run(write_run(tmp_path / "a", flags=()))])) == ()


@pytest.mark.parametrize(
    "settings",
    [
        {"local": {"epochs": "many", "steps": 0, "batch": 32}},
        {"local": {"epochs": 2, "batch": 32}},
        {"local": {}},
        {"anchors": {"per_class": 10}},
        {"refine": {"selected": {"first": 0, "every": 5}}},
        {"refine": {"selected": {"first": 0, "every": 0, "count": 2}}},
    ],
)
def test_a_setting_that_config_toml_lacks_is_not_guessed(tmp_path: Path, settings: dict[str, Any]) -> None:
    assert break_evens(group_runs([read_run(write_run(tmp_path / "a", settings=settings))])) == ()


def test_curves_along_a_cost_are_at_the_mean_over_seeds(make_groups: MakeGroups) -> None:
    """By hand: 1 200 bytes at the enrolment, then 2.5 MB a round; seed 1 counts double."""
    groups = make_groups(run_of("A", 0, x=0.8), run_of("A", 1, x=0.8))

    def along(run: Run) -> dict[int, float]:
        return {t: total * (1 + run.seed) for t, total in cumulative_bytes(run).items()}

    (curve,) = curves(groups, lambda record: record.accuracy, along)
    assert curve.x == tuple(1.5 * (1200 + 2_500_000 * rounds) for rounds in (1, 2, 3, 4))


def test_evaluation_does_not_count_as_computing_time(make_groups: MakeGroups) -> None:
    """By hand: 6 s at the enrolment, then 2 + 5 + 0.5 a round; half of it is CPU time."""
    ((run,),) = (group.runs for group in make_groups(run_of("A", x=0.8) | {"cpu": 0.5}))
    assert list(cumulative_time(run, WALL).values()) == [6.0, 13.5, 21.0, 28.5, 36.0]
    assert list(cumulative_time(run, CPU).values()) == [3.0, 6.75, 10.5, 14.25, 18.0]


@pytest.mark.parametrize(
    ("runs", "wanted"),
    [
        ([{"cpu": 0.5}, {"cpu": 0.1}], CPU),
        ([{"cpu": 0.5}, {}], WALL),
        ([{"cpu": 0.5}, {"cpu": 0.5, "device": "cuda:1"}], WALL),
    ],
    ids=["all have it", "an older run", "a GPU"],
)
def test_cpu_time_is_compared_if_all_runs_have_it(
    make_groups: MakeGroups, runs: list[dict[str, Any]], wanted: object
) -> None:
    assert clock(make_groups(*(run_of(f"A{i}", x=0.8) | run for i, run in enumerate(runs)))) is wanted


def test_a_run_that_went_on_after_cpu_time_was_added_is_compared_by_wall_time(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a", cpu=0.5)
    records = (path / "records.jsonl").read_text()
    (path / "records.jsonl").write_text(records.replace('"cpu": {"distil": 3.0}', '"cpu": {}', 1))
    assert clock(group_runs([read_run(path)])) is WALL
