"""The headline agrees with the records, also when the newer method is lower; unfair comparisons are named."""

import re
from math import sqrt
from statistics import stdev
from typing import Any

import pytest

from fedlgd.report.summary import Difference, caveats, headline, paired_difference
from tests.report.conftest import MakeGroups, run_of


def seeds_of(label: str, *accuracies: float, **more: Any) -> list[dict[str, Any]]:
    """One run for each of these accuracies."""
    return [run_of(label, seed, x=value) | more for seed, value in enumerate(accuracies)]


def numbers(text: object) -> list[float]:
    """The decimal numbers of a text, in its order."""
    return [float(each.replace("−", "-")) for each in re.findall(r"[+−]?\d+\.\d", str(text))]


def test_one_method_is_only_stated(make_groups: MakeGroups) -> None:
    told = headline(make_groups(run_of("FedLGD", x=0.9, y=0.7)))
    assert numbers(told.title) == [80.0]
    assert (told.comparisons, told.winner, told.gap) == ((), "", None)


def test_one_seed_has_no_winner_however_large_the_difference(make_groups: MakeGroups) -> None:
    told = headline(make_groups(run_of("FedAvg", x=0.40, y=0.60), run_of("FedLGD", x=0.39, y=0.97)))
    assert (told.winner, told.gap.seeds, told.gap.interval) == ("", 1, None)
    assert numbers(told.title) == [68.0, 50.0]
    (compared,) = told.comparisons
    assert compared.kind == "one-seed"
    assert numbers(compared) == [18.0, -1.0, 37.0]
    assert "1 of 2 sites" in compared.text


def test_the_newer_method_wins_outside_the_noise(make_groups: MakeGroups) -> None:
    """By hand: differences 10, 11, 12; s = 1; 4.303 / sqrt(3) = 2.48. The methods' own spread does not matter."""
    told = headline(make_groups(*seeds_of("FedAvg", 0.60, 0.70, 0.80), *seeds_of("FedLGD", 0.70, 0.81, 0.92)))
    assert told.winner == "FedLGD"
    assert told.gap.mean == pytest.approx(0.11)
    assert told.gap.interval == pytest.approx((0.0852, 0.1348), abs=1e-4)
    assert numbers(told.title) == [11.0, 81.0, 11.0, 70.0, 10.0]
    (compared,) = told.comparisons
    assert compared.kind == "outside"
    assert numbers(compared)[-2:] == [8.5, 13.5]


def test_the_newer_method_loses(make_groups: MakeGroups) -> None:
    told = headline(make_groups(*seeds_of("FedAvg", 0.80, 0.81, 0.82), *seeds_of("FedLGD", 0.79, 0.80, 0.81)))
    assert told.winner == "FedAvg"
    assert told.gap.mean == pytest.approx(-0.01)
    assert "1.0 point below" in told.title


def test_a_difference_within_the_noise_has_no_winner(make_groups: MakeGroups) -> None:
    """By hand: differences 0, 3, 6; 3 ± 4.303 * 3 / sqrt(3) = 3 ± 7.45."""
    told = headline(make_groups(*seeds_of("A", 0.60, 0.60, 0.60), *seeds_of("B", 0.60, 0.63, 0.66)))
    assert (told.winner, told.gap.seeds) == ("", 3)
    (compared,) = told.comparisons
    assert compared.kind == "within"
    assert numbers(compared)[-2:] == [-4.5, 10.5]


@pytest.mark.parametrize("second", [0.60, 0.55])
def test_two_seeds_have_no_interval_and_no_winner(make_groups: MakeGroups, second: float) -> None:
    """The interval of the differences 10 and 15 would reach from −19 to +44, that of 10 and 10 from 10 to 10."""
    told = headline(make_groups(*seeds_of("A", 0.60, second), *seeds_of("B", 0.70, 0.70)))
    assert (told.winner, told.gap.seeds, told.gap.interval) == ("", 2, None)
    assert [each.kind for each in told.comparisons] == ["too-few-seeds"]
    assert "95 %" not in str(told.comparisons[0])
    assert (told.gap.range, Difference(0.1, 1).range) == (" (too few seeds)", "")


@pytest.mark.parametrize(("seeds", "quantile"), [(3, 4.303), (5, 2.776), (10, 2.262), (31, 2.042), (101, 1.984)])
def test_the_interval_has_the_quantile_of_students_distribution(seeds: int, quantile: float) -> None:
    """By the printed tables of t at 97.5 %."""
    values = {seed: float(seed % 2) for seed in range(seeds)}
    found = paired_difference(values, dict.fromkeys(values, 0.0))
    half = (found.interval[1] - found.interval[0]) / 2
    assert half == pytest.approx(quantile * stdev(values.values()) / sqrt(seeds), rel=3e-4)


def test_only_runs_with_the_same_seed_are_paired(make_groups: MakeGroups) -> None:
    shifted = [run_of("B", seed, x=0.9) for seed in (5, 6, 7)]
    told = headline(make_groups(*seeds_of("A", 0.5, 0.5, 0.5), *shifted))
    assert (told.winner, told.gap) == ("", None)
    assert [each.kind for each in told.comparisons] == ["unpaired"]


def test_a_draw(make_groups: MakeGroups) -> None:
    told = headline(make_groups(*seeds_of("A", 0.8, 0.7), *seeds_of("B", 0.8, 0.7)))
    assert (told.winner, told.gap.mean) == ("", 0.0)
    assert numbers(told.title) == [75.0, 7.1, 75.0, 7.1]


def test_the_highest_of_several_is_named_and_each_is_held_against_the_first(
    make_groups: MakeGroups,
) -> None:
    groups = make_groups(
        *(run for name, x in (("A", 0.5), ("B", 0.8), ("C", 0.7)) for run in seeds_of(name, x, x, x))
    )
    told = headline(groups)
    assert told.winner == "B"
    assert told.gap.mean == pytest.approx(0.1)  # above C
    assert [numbers(each)[0] for each in told.comparisons] == [30.0, 20.0]
    assert [each.text.split()[0] for each in told.comparisons] == ["B", "C"]


def test_the_highest_of_several_is_not_named_if_one_of_them_is_as_good(make_groups: MakeGroups) -> None:
    runs = [*seeds_of("A", 0.5, 0.5, 0.5), *seeds_of("B", 0.80, 0.82, 0.81), *seeds_of("C", 0.82, 0.79, 0.80)]
    told = headline(make_groups(*runs))
    assert told.winner == ""
    assert numbers(told.title) == [81.0, 1.0, 80.3, 1.5]  # B and C; A is clearly lower


def test_a_headline_without_a_winner_stays_short(make_groups: MakeGroups) -> None:
    title = headline(make_groups(*(run_of(name, x=0.5) for name in "ABCDE"))).title
    assert numbers(title) == [50.0] * 3
    assert title.endswith("and 2 more.")


def test_methods_without_a_common_site_are_compared_on_the_mean_alone(make_groups: MakeGroups) -> None:
    (compared,) = headline(make_groups(run_of("A", x=0.5), run_of("B", y=0.8))).comparisons
    assert numbers(compared) == [30.0]
    assert "site" not in compared.text


def test_an_unfinished_run_stands_and_does_not_end(make_groups: MakeGroups) -> None:
    assert " stands at " in headline(make_groups(run_of("A", x=0.8) | {"done": 2})).title
    two = headline(make_groups(run_of("A", x=0.8) | {"done": 2}, run_of("B", x=0.8) | {"done": 2}))
    assert " yet " in two.title


def test_nothing_evaluated_is_said(make_groups: MakeGroups) -> None:
    told = headline(make_groups(run_of("A", x=0.8) | {"done": 0}))
    assert (numbers(told.title), told.comparisons, told.winner) == ([], (), "")


A, B = run_of("A", x=0.8), run_of("B", x=0.8)
A1 = run_of("A", 1, x=0.8)


def test_equal_runs_with_several_seeds_need_no_caution(make_groups: MakeGroups) -> None:
    assert caveats(make_groups(A, A1, B, run_of("B", 1, x=0.8))) == ()


def test_a_setting_that_an_older_version_does_not_have_is_no_difference(make_groups: MakeGroups) -> None:
    assert caveats(make_groups(A, A1 | {"settings": {"real_samples": 3}})) == ()


@pytest.mark.parametrize(
    ("runs", "kinds", "named"),
    [
        ([A, B], ["one-seed"], ""),
        ([A, A1, B], ["unequal-seeds"], "(A: 0, 1; B: 0)"),
        ([A, A1, B, *(run_of(name, x=0.8) for name in "CDEF")], ["unequal-seeds"], "(A: 0, 1; 5 methods: 0)"),
        ([A, B | {"digest": "other"}], ["unequal-data", "one-seed"], "data"),
        ([A, B | {"rounds": 5}], ["unequal-rounds", "one-seed", "cost"], "rounds"),
        ([A, B | {"settings": {"ratio": 0.5}}], ["unequal-ratio", "one-seed"], "share of sites"),
        ([A | {"done": 3}, B], ["unfinished", "one-seed"], "A, seed 0, is unfinished (3 of 4 rounds)"),
        ([A, A1 | {"done": 3}], ["not-counted", "one-seed"], "A, seed 1, is unfinished (3 of 4 rounds)"),
        ([A, A], ["same-seed"], "A has"),
        ([A, A1 | {"evaluate_every": 2}], ["unequal-settings"], "of A differ"),
    ],
)
def test_a_limit_of_the_comparison_is_named(
    make_groups: MakeGroups, runs: list[dict[str, Any]], kinds: list[str], named: str
) -> None:
    found = caveats(make_groups(*runs))
    assert [each.kind for each in found] == kinds
    assert named in found[0].text


def test_a_method_that_works_more_is_named_with_what_it_costs(make_groups: MakeGroups) -> None:
    """By hand: 40 s, of which a tenth and then half is CPU time; bytes are equal."""
    cheap, dear = (run_of(label, x=0.8) | {"cpu": cpu} for label, cpu in (("FedAvg", 0.1), ("FedLGD", 0.5)))
    said = caveats(make_groups(cheap, dear))[-1]
    assert said.kind == "cost"
    assert "CPU time from 4.00 s (FedAvg) to 20.0 s (FedLGD)" in said.text
    assert "bytes" not in said.text
    assert "cost" not in [each.kind for each in caveats(make_groups(cheap, dear | {"done": 1}))]


def test_what_was_tuned_for_how_long_is_said_and_who_was_not(make_groups: MakeGroups) -> None:
    how = {"settings": ["local.lr"], "candidates": 9, "rounds": [1, 3], "cpu_seconds": 7200.0}
    how |= {"validation": 0.2, "accuracy": 0.8}
    tuned, more = ({"settings": {"tuned": each}} for each in (how, how | {"candidates": 27}))
    without, effort, *_ = caveats(make_groups(A | tuned, B))
    assert (without.kind, effort.kind) == ("not-tuned", "tuned")
    assert without.text.endswith(": B.")
    assert "(9 candidates, 2.00 h of CPU time): local.lr." in effort.text
    assert caveats(make_groups(A | tuned, B | more))[0].kind == "unequal-tuning"
    assert {each.kind for each in caveats(make_groups(A | tuned, B | tuned))} == {"tuned", "one-seed"}
