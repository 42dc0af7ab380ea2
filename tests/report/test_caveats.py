"""Whatever makes a comparison unfair is said."""

from typing import Any

import pytest

from fedlgd.report.caveats import caveats
from tests.report.conftest import MakeGroups, run_of

A, B = run_of("A", x=0.8), run_of("B", x=0.8)
A1 = run_of("A", 1, x=0.8)


def test_equal_runs_with_several_seeds_need_no_caution(make_groups: MakeGroups) -> None:
    assert caveats(make_groups(A, A1, B, run_of("B", 1, x=0.8))) == ()


@pytest.mark.parametrize(
    ("runs", "said"),
    [
        ([A, B], "one seed only"),
        ([A, A1, B], "not run with the same seeds (A: 0, 1; B: 0)"),
        ([A, B | {"digest": "other"}], "same data"),
        ([A, B | {"rounds": 5}], "same number of rounds"),
        ([A, B | {"settings": {"ratio": 0.5}}], "same share of sites per round"),
        ([A | {"done": 3}, B], "A, seed 0, is unfinished (3 of 4 rounds) and is shown as far as it is."),
        ([A, A1 | {"done": 3}], "A, seed 1, is unfinished (3 of 4 rounds) and is not counted."),
        ([A, A], "several runs with the same seed"),
        ([A, A1 | {"settings": {"pull": {"weight": 3.0}}}], "differ in more than their seed"),
    ],
)
def test_it_is_said(make_groups: MakeGroups, runs: list[dict[str, Any]], said: str) -> None:
    assert said in " ".join(caveats(make_groups(*runs)))
