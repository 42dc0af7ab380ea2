"""The headline agrees with the records, also when the newer method is lower; unfair comparisons are named."""

from typing import Any

import pytest

from fedlgd.report.summary import caveats, headline
from tests.report.conftest import MakeGroups, run_of


def test_one_method_is_only_stated(make_groups: MakeGroups) -> None:
    told = headline(make_groups(run_of("FedLGD", x=0.9, y=0.7)))
    assert (told.title, told.comparisons) == ("FedLGD ends at 80.0 %.", ())


def test_the_newer_method_wins(make_groups: MakeGroups) -> None:
    told = headline(make_groups(run_of("FedAvg", x=0.80, y=0.60), run_of("FedLGD", x=0.79, y=0.67)))
    assert told.title == "FedLGD ends 3.0 points above FedAvg: 73.0 % against 70.0 %."
    assert told.comparisons == (
        "FedLGD against FedAvg: +3.0 points on the mean; higher at 1 of 2 sites, from −1.0 at x to +7.0 at y.",
    )


def test_the_newer_method_loses(make_groups: MakeGroups) -> None:
    told = headline(make_groups(run_of("FedAvg", x=0.8), run_of("FedLGD", x=0.79)))
    assert told.title == "FedLGD ends 1.0 point below FedAvg: 79.0 % against 80.0 %."


def test_a_draw(make_groups: MakeGroups) -> None:
    told = headline(make_groups(run_of("A", x=0.8), run_of("B", x=0.8)))
    assert told.title == "B ends level with A: 80.0 % against 80.0 %."


def test_the_highest_of_several_is_named_and_each_is_held_against_the_first(
    make_groups: MakeGroups,
) -> None:
    told = headline(make_groups(run_of("A", x=0.5), run_of("B", x=0.8), run_of("C", x=0.7)))
    assert told.title == "B ends highest of 3 methods at 80.0 %, 10.0 points above C."
    assert [line.split(";")[0] for line in told.comparisons] == [
        "B against A: +30.0 points on the mean",
        "C against A: +20.0 points on the mean",
    ]


def test_seeds_give_the_spread_and_it_is_said_when_the_difference_is_no_larger(make_groups: MakeGroups) -> None:
    seeds = [run_of("A", 0, x=0.60), run_of("A", 1, x=0.70), run_of("B", 0, x=0.66), run_of("B", 1, x=0.66)]
    told = headline(make_groups(*seeds))
    assert told.title == "B ends 1.0 point above A: 66.0 ± 0.0 % against 65.0 ± 7.1 %."
    assert told.comparisons[0].endswith("no more than the standard deviation over seeds (7.1).")


def test_methods_without_a_common_site_are_compared_on_the_mean_alone(make_groups: MakeGroups) -> None:
    told = headline(make_groups(run_of("A", x=0.5), run_of("B", y=0.8)))
    assert told.comparisons == ("B against A: +30.0 points on the mean.",)


def test_an_unfinished_run_stands_and_does_not_end(make_groups: MakeGroups) -> None:
    assert " stands at " in headline(make_groups(run_of("A", x=0.8) | {"done": 2})).title


def test_nothing_evaluated_is_said(make_groups: MakeGroups) -> None:
    assert headline(make_groups(run_of("A", x=0.8) | {"done": 0})).title == "No round has been evaluated yet."


A, B = run_of("A", x=0.8), run_of("B", x=0.8)
A1 = run_of("A", 1, x=0.8)


def test_equal_runs_with_several_seeds_need_no_caution(make_groups: MakeGroups) -> None:
    assert caveats(make_groups(A, A1, B, run_of("B", 1, x=0.8))) == ()


@pytest.mark.parametrize(
    ("runs", "said"),
    [
        ([A, B], "only one seed"),
        ([A, A1, B], "not run with the same seeds (A: 0, 1; B: 0)"),
        ([A, B | {"digest": "other"}], "same data"),
        ([A, B | {"rounds": 5}], "same number of rounds"),
        ([A, B | {"settings": {"ratio": 0.5}}], "same share of sites per round"),
        ([A | {"done": 3}, B], "A, seed 0, is unfinished (3 of 4 rounds) and is shown up to its last round."),
        ([A, A1 | {"done": 3}], "A, seed 1, is unfinished (3 of 4 rounds) and is not counted."),
        ([A, A], "several runs with the same seed"),
        ([A, A1 | {"settings": {"pull": {"weight": 3.0}}}], "differ in more than their seed"),
    ],
)
def test_a_limit_of_the_comparison_is_named(make_groups: MakeGroups, runs: list[dict[str, Any]], said: str) -> None:
    assert said in " ".join(caveats(make_groups(*runs)))
