"""The headline agrees with the records, also when the newer method is lower; unfair comparisons are named."""

from typing import Any

import pytest

from fedlgd.report.summary import caveats, headline
from tests.report.conftest import MakeGroups, run_of


def test_one_method_is_only_stated(make_groups: MakeGroups) -> None:
    told = headline(make_groups(run_of("FedLGD", x=0.9, y=0.7)))
    assert (told.title, told.comparisons) == ("FedLGD ends at 80.0 %.", ())


def seeds_of(label: str, *accuracies: float, **more: Any) -> list[dict[str, Any]]:
    """One run for each of these accuracies."""
    return [run_of(label, seed, x=value) | more for seed, value in enumerate(accuracies)]


def test_one_seed_has_no_winner_however_large_the_difference(make_groups: MakeGroups) -> None:
    told = headline(make_groups(run_of("FedAvg", x=0.40, y=0.60), run_of("FedLGD", x=0.39, y=0.97)))
    assert told.title == "No clear winner over 1 seed: FedLGD 68.0 %, FedAvg 50.0 %."
    assert told.comparisons == (
        "FedLGD against FedAvg: +18.0 points on the mean; higher at 1 of 2 sites, from −1.0 at x to +37.0 at y; "
        "one seed, so the noise is unknown.",
    )


def test_the_newer_method_wins_outside_the_noise(make_groups: MakeGroups) -> None:
    """By hand: differences 10, 11, 12; s = 1; 4.303 / sqrt(3) = 2.48. The methods' own spread does not matter."""
    told = headline(make_groups(*seeds_of("FedAvg", 0.60, 0.70, 0.80), *seeds_of("FedLGD", 0.70, 0.81, 0.92)))
    assert told.title == "FedLGD ends 11.0 points above FedAvg: 81.0 ± 11.0 % against 70.0 ± 10.0 %."
    assert told.comparisons[0].endswith("95 % interval over 3 seeds from +8.5 to +13.5, outside the noise.")


def test_the_newer_method_loses(make_groups: MakeGroups) -> None:
    told = headline(make_groups(*seeds_of("FedAvg", 0.80, 0.81, 0.82), *seeds_of("FedLGD", 0.79, 0.80, 0.81)))
    assert told.title == "FedLGD ends 1.0 point below FedAvg: 80.0 ± 1.0 % against 81.0 ± 1.0 %."


def test_a_difference_within_the_noise_has_no_winner(make_groups: MakeGroups) -> None:
    """By hand: differences 0, 3, 6; 3 ± 4.303 * 3 / sqrt(3) = 3 ± 7.45."""
    told = headline(make_groups(*seeds_of("A", 0.60, 0.60, 0.60), *seeds_of("B", 0.60, 0.63, 0.66)))
    assert told.title == "No clear winner over 3 seeds: B 63.0 ± 3.0 %, A 60.0 ± 0.0 %."
    assert told.comparisons[0].endswith("95 % interval over 3 seeds from −4.5 to +10.5, within the noise.")


def test_two_seeds_rarely_suffice(make_groups: MakeGroups) -> None:
    """By hand: differences 10 and 12; 11 ± 12.706 * 1.41 / sqrt(2) = 11 ± 12.7."""
    told = headline(make_groups(*seeds_of("A", 0.60, 0.60), *seeds_of("B", 0.70, 0.72)))
    assert told.title.startswith("No clear winner over 2 seeds")


def test_only_runs_with_the_same_seed_are_paired(make_groups: MakeGroups) -> None:
    shifted = [run_of("B", seed, x=0.9) for seed in (5, 6, 7)]
    told = headline(make_groups(*seeds_of("A", 0.5, 0.5, 0.5), *shifted))
    assert told.title == "No clear winner without a common seed: B 90.0 ± 0.0 %, A 50.0 ± 0.0 %."
    assert told.comparisons[0].endswith("no common seed.")


def test_a_draw(make_groups: MakeGroups) -> None:
    told = headline(make_groups(*seeds_of("A", 0.8, 0.7), *seeds_of("B", 0.8, 0.7)))
    assert told.title == "No clear winner over 2 seeds: B 75.0 ± 7.1 %, A 75.0 ± 7.1 %."


def test_the_highest_of_several_is_named_and_each_is_held_against_the_first(
    make_groups: MakeGroups,
) -> None:
    groups = make_groups(*seeds_of("A", 0.5, 0.5), *seeds_of("B", 0.8, 0.8), *seeds_of("C", 0.7, 0.7))
    told = headline(groups)
    assert told.title == "B ends highest of 3 methods at 80.0 ± 0.0 %, 10.0 points above C."
    assert [line.split(";")[0] for line in told.comparisons] == [
        "B against A: +30.0 points on the mean",
        "C against A: +20.0 points on the mean",
    ]


def test_the_highest_of_several_is_not_named_if_one_of_them_is_as_good(make_groups: MakeGroups) -> None:
    runs = [*seeds_of("A", 0.5, 0.5), *seeds_of("B", 0.80, 0.82), *seeds_of("C", 0.82, 0.79)]
    assert headline(make_groups(*runs)).title == "No clear winner over 2 seeds: B 81.0 ± 1.4 %, C 80.5 ± 2.1 %."


def test_a_headline_without_a_winner_stays_short(make_groups: MakeGroups) -> None:
    title = headline(make_groups(*(run_of(name, x=0.5) for name in "ABCDE"))).title
    assert title == "No clear winner over 1 seed: A 50.0 %, B 50.0 %, C 50.0 %, and 2 more."


def test_methods_without_a_common_site_are_compared_on_the_mean_alone(make_groups: MakeGroups) -> None:
    told = headline(make_groups(run_of("A", x=0.5), run_of("B", y=0.8)))
    assert told.comparisons == ("B against A: +30.0 points on the mean; one seed, so the noise is unknown.",)


def test_an_unfinished_run_stands_and_does_not_end(make_groups: MakeGroups) -> None:
    assert " stands at " in headline(make_groups(run_of("A", x=0.8) | {"done": 2})).title
    two = headline(make_groups(run_of("A", x=0.8) | {"done": 2}, run_of("B", x=0.8) | {"done": 2}))
    assert two.title.startswith("No clear winner yet over 1 seed: ")


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
        ([A, A1, B, *(run_of(name, x=0.8) for name in "CDEF")], "same seeds (A: 0, 1; 5 methods: 0)"),
        ([A, B | {"digest": "other"}], "same data"),
        ([A, B | {"rounds": 5}], "same number of rounds"),
        ([A, B | {"settings": {"ratio": 0.5}}], "same share of sites per round"),
        ([A | {"done": 3}, B], "A, seed 0, is unfinished (3 of 4 rounds) and is shown up to its last round."),
        ([A, A1 | {"done": 3}], "A, seed 1, is unfinished (3 of 4 rounds) and is not counted."),
        ([A, A], "several runs with the same seed"),
        ([A, A1 | {"settings": {"real_samples": 3}}], "differ in more than their seed"),
    ],
)
def test_a_limit_of_the_comparison_is_named(make_groups: MakeGroups, runs: list[dict[str, Any]], said: str) -> None:
    assert said in " ".join(caveats(make_groups(*runs)))


def test_a_method_that_works_more_is_named_with_what_it_costs(make_groups: MakeGroups) -> None:
    """By hand: 40 s, of which a tenth and then half is CPU time; bytes are equal."""
    cheap, dear = (run_of(label, x=0.8) | {"cpu": cpu} for label, cpu in (("FedAvg", 0.1), ("FedLGD", 0.5)))
    said = "The methods do not cost the same: CPU time from 4.00 s (FedAvg) to 20.0 s (FedLGD), including setup."
    assert caveats(make_groups(cheap, dear))[-1] == said
    assert not any("cost" in each for each in caveats(make_groups(cheap, dear | {"done": 1})))


def test_what_was_tuned_for_how_long_is_said_and_who_was_not(make_groups: MakeGroups) -> None:
    how = {"settings": ["local.lr"], "candidates": 9, "rounds": [1, 3], "cpu_seconds": 7200.0}
    how |= {"validation": 0.2, "accuracy": 0.8}
    tuned, more = ({"settings": {"tuned": each}} for each in (how, how | {"candidates": 27}))
    said = caveats(make_groups(A | tuned, B))
    assert said[0] == "Not tuned, unlike the others: B."
    assert said[1] == "A was tuned on held-out training images (9 candidates, 2.00 h of CPU time): local.lr."
    assert "same number of candidates" in caveats(make_groups(A | tuned, B | more))[0]
    assert not any("tuned with the same" in each for each in caveats(make_groups(A | tuned, B | tuned)))
