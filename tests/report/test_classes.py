"""What counts per class say: models that predict one class, sites of one class, and two classes."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedlgd.core.score import Score
from fedlgd.report.accuracy import accuracy_table, without_sites
from fedlgd.report.classes import (
    MANY_CLASS_NOTE,
    MEAN_NOTE,
    TWO_CLASS_NOTE,
    binary_table,
    class_facts,
    only_class,
    two_class_rates,
    unscored_notes,
)
from fedlgd.report.groups import Group
from fedlgd.report.summary import caveats, headline
from fedlgd.report.tables import as_csv, as_latex, as_markdown
from fedlgd.rundir.intervals import auc_interval, difference_interval, mean_interval, wilson
from fedlgd.rundir.manifest import Promise
from fedlgd.rundir.records import RoundRecord
from tests.report.conftest import MakeGroups, run_of

TWO = {"classes": ("no", "yes")}
SIZES = {**TWO, "totals": {"x": (60, 40), "y": (30, 20)}}
ALL_NO = SIZES | {"hits": {"x": (60, 0), "y": (30, 0)}}
GOOD = SIZES | {"hits": {"x": (54, 30), "y": (27, 15)}}


# Intervals


@pytest.mark.parametrize(
    ("share", "size", "low", "high"), [(0.5, 10, 0.2366, 0.7634), (1.0, 20, 0.8389, 1.0), (0.0, 20, 0.0, 0.1611)]
)
def test_the_interval_is_wilsons(share: float, size: int, low: float, high: float) -> None:
    """Known values of the interval without continuity correction."""
    assert wilson(share, size) == pytest.approx((low, high), abs=5e-5)


def test_the_interval_of_one_share_is_that_of_its_mean_and_of_its_difference_to_a_constant() -> None:
    ends = wilson(0.7, 30)
    assert mean_interval([0.7], [30]) == pytest.approx(ends)
    assert difference_interval(0.7, ends, 0.2, (0.2, 0.2)) == pytest.approx((ends[0] - 0.2, ends[1] - 0.2))


def test_the_interval_of_a_difference_is_newcombes() -> None:
    """56/70 - 48/80, a known value of his method 10: 0.0524 to 0.3339."""
    found = difference_interval(56 / 70, wilson(56 / 70, 70), 48 / 80, wilson(48 / 80, 80))
    assert found == pytest.approx((0.0524, 0.3339), abs=5e-5)


def test_the_interval_of_a_mean_over_sites_is_that_of_a_bootstrap() -> None:
    shares, sizes = [0.9, 0.6, 0.75], [120, 80, 200]
    draws = np.random.default_rng(0).binomial(sizes, shares, (20_000, 3)) / sizes
    assert mean_interval(shares, sizes) == pytest.approx(np.quantile(draws.mean(1), (0.025, 0.975)), abs=0.01)


def test_the_interval_of_an_auc_is_that_of_a_bootstrap_over_images() -> None:
    random = np.random.default_rng(3)
    ill, well = random.normal(1.2, 1, 80), random.normal(0, 1, 120)
    draws = []
    for _ in range(2000):
        yes, no = random.choice(ill, 80), random.choice(well, 120)
        draws.append((yes[:, None] > no).mean() + (yes[:, None] == no).mean() / 2)
    auc = (ill[:, None] > well).mean()
    assert auc_interval(auc, 80, 120) == pytest.approx(np.quantile(draws, (0.025, 0.975)), abs=0.02)


@given(st.floats(0, 1), st.integers(1, 300), st.integers(1, 300))
def test_an_interval_of_an_auc_contains_it_and_names_no_class_as_the_first(
    auc: float, ours: int, others: int
) -> None:
    low, high = auc_interval(auc, ours, others)
    assert 0 <= low <= auc <= high <= 1
    assert auc_interval(auc, others, ours) == (low, high)
    assert auc_interval(1 - auc, ours, others) == pytest.approx((1 - high, 1 - low), abs=1e-9)


def test_a_perfect_auc_of_few_images_is_not_certain() -> None:
    assert 0.6 < auc_interval(1.0, 5, 5)[0] < auc_interval(1.0, 50, 50)[0] < 1.0


# Models of one class


@pytest.mark.parametrize(
    ("correct", "total", "only"),
    [
        ((60, 0), (60, 40), 0),
        ((0, 40), (60, 40), 1),
        ((60, 1), (60, 40), None),
        ((59, 0), (60, 40), None),
        ((60, 40), (60, 40), None),
        ((0, 40), (0, 40), None),  # a good model does the same
        ((0, 9, 0), (5, 9, 7), 1),
    ],
)
def test_a_model_of_one_class_is_found_by_its_counts(correct, total, only) -> None:
    assert only_class(Score(sum(correct) / sum(total), 0.1, correct, total)) == only


def test_a_model_of_one_class_is_said_first_and_wins_nothing(make_groups: MakeGroups) -> None:
    groups = make_groups(*(run_of("A", seed, x=0.6, y=0.6) | ALL_NO for seed in range(3)))
    groups += make_groups(*(run_of("B", seed, x=0.3, y=0.3) | SIZES for seed in range(3)))
    assert caveats(groups)[0].kind == "one-class-model"
    found = headline(groups)
    assert found.winner == ""
    assert "60.0 %" in found.title
    assert class_facts(groups, groups[0])["one_class_model"] == {"x": {"no": 3}, "y": {"no": 3}}
    assert class_facts(groups, groups[1])["one_class_model"] == {}


def test_a_model_that_is_clearly_above_the_largest_class_wins(make_groups: MakeGroups) -> None:
    groups = make_groups(*(run_of("A", seed, x=0.6, y=0.6) | ALL_NO for seed in range(3)))
    groups += make_groups(*(run_of("B", seed, x=0.84, y=0.84) | GOOD for seed in range(3)))
    assert headline(groups).winner == "B"
    facts = class_facts(groups, groups[1])
    assert facts["largest_class"] == {"x": 0.6, "y": 0.6}
    assert facts["two_classes"]["x"]["sensitivity"]["mean"] == 0.75


def test_some_seeds_and_some_sites_are_told_apart(make_groups: MakeGroups) -> None:
    half = SIZES | {"hits": {"x": (60, 0), "y": (27, 15)}}
    (group,) = make_groups(run_of("A", 0, x=0.6, y=0.6) | half, run_of("A", 1, x=0.8, y=0.8) | GOOD)
    (note,) = (each for each in caveats([group]) if each.kind == "one-class-model")
    assert "1 of 2 seeds" in note.text
    assert "'no' at x" in note.text
    texts = [cell.text for cell in accuracy_table([group]).rows[0]]
    assert [text.endswith("‡") for text in texts[3:6]] == [True, False, False]


def noisy(group: Group) -> Group:
    promise = Promise(epsilon=1, delta=1e-5, scores=1.0)
    return replace(
        group, runs=tuple(replace(run, manifest=replace(run.manifest, promise=promise)) for run in group.runs)
    )


def test_noisy_scores_have_no_interval_no_model_of_one_class_and_no_best(make_groups: MakeGroups) -> None:
    groups = make_groups(run_of("A", x=0.6, y=0.6) | ALL_NO, run_of("B", x=0.9, y=0.9) | GOOD)
    groups = tuple(map(noisy, groups))
    assert class_facts(groups, groups[0])["one_class_model"] == {}
    assert not any(cell.ends for row in binary_table(groups).rows for cell in row)
    assert not any(cell.best for row in accuracy_table(groups).rows for cell in row)


# Two classes


def test_a_row_for_each_method_and_site(make_groups: MakeGroups) -> None:
    """By hand: 30 of 40 and 54 of 60 are found; Wilson's intervals."""
    table = binary_table(make_groups(*(run_of("A", seed, x=0.84, y=0.84) | GOOD | {"auc": 0.9} for seed in (0, 1))))
    assert table is not None
    assert [column.name for column in table.columns][2:] == [
        "images", "accuracy", "balanced accuracy", "sensitivity", "specificity", "AUC"
    ]  # fmt: skip
    assert [cell.text for cell in table.rows[0]] == [
        "A", "x", "60 + 40", "84.0 (75.6–89.9)", "82.5 (73.4–88.5)", "75.0 (59.8–85.8)", "90.0 (79.9–95.3)",
        "90.0 (81.4–94.7)",
    ]  # fmt: skip
    assert "'yes'" in table.notes[0]


def test_the_positive_class_is_the_one_that_a_run_names(make_groups: MakeGroups) -> None:
    (group,) = make_groups(run_of("A", x=0.84, y=0.84) | GOOD)
    (run,) = group.runs
    named = replace(group, runs=(replace(run, manifest=replace(run.manifest, positive="no")),))
    plain, other = (binary_table([each]).rows[0] for each in (group, named))
    assert (other[2].text, other[5].text, other[6].text) == ("40 + 60", plain[6].text, plain[5].text)
    assert class_facts([named], named)["positive_class"] == "no"


def test_a_site_without_counts_has_accuracy_alone(make_groups: MakeGroups) -> None:
    (group,) = make_groups(run_of("A", x=0.8) | TWO)
    scores = {"x": Score(0.8, 0.1, (0, 0), (0, 0))}
    (run,) = (replace(run, records=(RoundRecord(round=3, scores=scores),)) for run in group.runs)
    table = binary_table([Group("A", (run,))])
    assert [cell.text for cell in table.rows[0]] == ["A", "x", "–", "80.0", "–", "–", "–", "–"]


def test_a_copy_as_csv_has_both_ends_of_every_interval(make_groups: MakeGroups) -> None:
    head, row = as_csv(binary_table(make_groups(run_of("A", x=0.84) | GOOD))).splitlines()[:2]
    found = dict(zip(head.split(","), row.split(","), strict=True))
    low, high = wilson(0.75, 40)
    ends = (float(found["sensitivity low"]), float(found["sensitivity high"]))
    assert ends == pytest.approx((100 * low, 100 * high), abs=1e-4)


def test_old_records_have_no_auc(make_groups: MakeGroups) -> None:
    (group,) = make_groups(run_of("A", x=0.84) | GOOD)
    assert two_class_rates(group, "x", 1)["AUC"] is None


def test_more_classes_have_no_such_table(make_groups: MakeGroups) -> None:
    assert binary_table(make_groups(run_of("A", x=0.8))) is None


# Sites that lack classes, or scores

LACKS = TWO | {"totals": {"x": (0, 40), "y": (20, 20)}, "hits": {"x": (0, 40), "y": (12, 12)}}


def test_a_site_that_lacks_a_class_is_marked_and_the_mean_is_given_without_it(make_groups: MakeGroups) -> None:
    """All of its images are right: the mean is 80 %, and 60 % without it."""
    groups = make_groups(run_of("A", x=1.0, y=0.6) | LACKS)
    table, accuracy = binary_table(groups), accuracy_table(groups)
    assert [cell.text for cell in table.rows[0]][-2:] == ["–", "–"]
    assert [row[1].text for row in table.rows] == ["x†", "y"]
    assert [column.name for column in accuracy.columns][3:5] == ["x†", "y"]
    assert accuracy.notes == without_sites(accuracy, 1).notes
    note = accuracy.notes[-1]
    assert note.startswith("† No test images: x of class 'no'.")
    assert f"{TWO_CLASS_NOTE} {MEAN_NOTE}; without x" in note
    assert note.endswith("A 60.0 %.")
    assert note in as_markdown(accuracy)
    assert r"$\dagger$ No test images" in as_latex(accuracy)
    assert class_facts(groups, groups[0])["one_class_sites"] == ["x"]


def test_of_many_sites_that_lack_classes_some_are_listed(make_groups: MakeGroups) -> None:
    sites = {f"s{i}": 0.5 for i in range(8)}
    lacks = {"classes": ("a", "b", "c"), "totals": dict.fromkeys(sites, (0, 6, 9))}
    note = accuracy_table(make_groups(run_of("A", **sites) | lacks)).notes[-1]
    assert "s4 of class 'a'; and 3 more sites." in note
    assert note.endswith(f"{MANY_CLASS_NOTE} {MEAN_NOTE}.")


def test_a_mean_over_fewer_sites_says_so(make_groups: MakeGroups) -> None:
    (group,) = make_groups(run_of("A", x=0.8, y=0.6))
    (run,) = group.runs
    *rest, last = run.records
    last = replace(last, scores={"x": last.scores["x"]}, unscored={"y": "it did not answer"})
    group = replace(group, runs=(replace(run, records=(*rest, last)),))
    (note,) = unscored_notes([group])
    assert "1 of 2 sites" in note
    assert "from y in round 4" in note
    assert note in accuracy_table([group]).notes
    assert class_facts([group], group)["unscored_sites"] == ["y"]


def test_no_note_where_every_class_is_tested(make_groups: MakeGroups) -> None:
    groups = make_groups(run_of("A", x=0.84, y=0.84) | GOOD)
    assert not any("†" in note or "‡" in note for note in accuracy_table(groups).notes)
