"""When training on virtual images has cost the sites less than training on the real ones would have."""

from pathlib import Path

import pytest

from fedlgd.report.breakeven import break_evens, crossing
from fedlgd.report.groups import group_runs
from fedlgd.report.read import read_run
from fedlgd.report.tables import break_even_table
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
    ids=["at once", "equal is not less", "upfront", "one dear round", "below, above, below", "level", "dearer"],
)
def test_the_round_from_which_the_total_stays_lower(
    upfront: float, own: list[float], later: float, real: float, wanted: int | None
) -> None:
    assert crossing(upfront, own, later, real) == wanted
    if wanted:
        totals = [upfront + sum(own[:t]) + later * max(0, t - len(own)) - t * real for t in range(wanted + 50)]
        assert all(total < 0 for total in totals[wanted:])
        assert wanted == 1 or totals[wanted - 1] >= 0


def test_a_round_on_real_images_is_three_passes_over_all_of_them_in_every_epoch(tmp_path: Path) -> None:
    """By hand: 3 x 1 234 567 FLOP x 2 epochs x (2000 + 1600 + 1200) images; own: 4 GFLOP a round and 4 before."""
    (found,) = break_evens(group_runs([read_run(write_run(tmp_path / "a"))]))
    assert found.real == 3 * 1_234_567 * 2 * 4800
    assert (found.own, found.upfront) == (4e9, 4e9)
    assert (found.without, found.including) == (1, 1)


def test_steps_count_in_place_of_epochs(tmp_path: Path) -> None:
    """By hand: 7 steps of 32 images at three sites."""
    settings = {"local": {"epochs": 2, "steps": 7, "batch": 32}}
    (found,) = break_evens(group_runs([read_run(write_run(tmp_path / "a", settings=settings))]))
    assert found.real == 3 * 1_234_567 * 7 * 32 * 3
    assert (found.without, found.including) == (None, None)
    texts = [cell.text for cell in break_even_table([found]).rows[0]]
    assert texts == ["FedLGD", "2.49 GFLOP", "4.00 GFLOP", "4.00 GFLOP", "never", "never"]


def test_rounds_that_were_not_run_cost_what_such_rounds_cost_before(tmp_path: Path) -> None:
    """Selected are 0, 2 and 4; rounds 0 and 1 are on record. By hand: 103 4 103 4 103 4 4 4 4 4 GFLOP are 337,
    ten rounds on real images 355.6; without the last round 333 are more than 320."""
    path = write_run(tmp_path / "a", rounds=2, settings=SELECTED)
    records = (path / "records.jsonl").read_text()
    (path / "records.jsonl").write_text(records.replace('"distil": 1000000000,', '"distil": 100e9,', 1))
    (found,) = break_evens(group_runs([read_run(path)]))
    assert found.own == (103e9 + 4e9) / 2
    assert found.without == 10


def test_a_method_on_real_images_has_no_break_even(tmp_path: Path) -> None:
    assert break_evens(group_runs([read_run(write_run(tmp_path / "a", flags=()))])) == ()


def test_settings_that_say_nothing_of_local_training_give_none(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", settings={"local": {"epochs": "many"}})
    assert break_evens(group_runs([read_run(run)])) == ()
