"""Runs with the same label are seeds of one another."""

from pathlib import Path

import pytest

from fedlgd.report.groups import Stat, curves, group_runs, summarise
from fedlgd.rundir.read import Run, read_run
from tests.report.conftest import MakeGroups, run_of
from tests.report.fake import write_run


def test_mean_and_sample_standard_deviation_by_hand() -> None:
    stat = summarise([0.6, 0.7, 0.8])
    assert stat is not None
    assert stat.mean == pytest.approx(0.7)
    assert stat.std == pytest.approx(0.1)  # sqrt((0.01 + 0 + 0.01) / 2)
    assert summarise([0.5]) == Stat(0.5)
    assert summarise([]) is None


def test_same_label_is_one_group_ordered_by_seed(make_groups: MakeGroups) -> None:
    groups = make_groups(run_of("B", 1, x=0.5), run_of("A", 0, x=0.5), run_of("B", 0, x=0.5))
    assert [(group.label, [run.seed for run in group.runs]) for group in groups] == [("B", [0, 1]), ("A", [0])]


def test_accuracy_is_the_mean_over_sites_then_over_seeds(make_groups: MakeGroups) -> None:
    (group,) = make_groups(run_of("A", 0, x=0.8, y=0.6), run_of("A", 1, x=0.9, y=0.7))
    assert group.accuracy is not None
    assert group.accuracy.mean == pytest.approx(0.75)  # seeds: 0.70 and 0.80
    assert group.accuracy.std == pytest.approx(0.02**0.5 / 2)
    at_x = group.accuracy_at("x")
    assert at_x is not None
    assert at_x.mean == pytest.approx(0.85)


def test_an_unfinished_seed_does_not_count_beside_finished_ones(make_groups: MakeGroups) -> None:
    (group,) = make_groups(run_of("A", 0, x=0.8), run_of("A", 1, x=0.2) | {"done": 2})
    assert [run.seed for run in group.counted] == [0]
    assert group.accuracy == Stat(0.8)


def test_curves_use_the_rounds_that_all_seeds_evaluated(make_groups: MakeGroups) -> None:
    runs = (run_of("A", 0, x=0.8) | {"done": 3}, run_of("A", 1, x=0.8) | {"done": 2})
    (curve,) = curves(make_groups(*runs), lambda record: record.round)
    assert curve.x == (1, 2)
    assert curve.stats == (Stat(0.0, 0.0), Stat(1.0, 0.0))


def test_a_method_has_the_same_colour_in_any_order_and_company(tmp_path: Path) -> None:
    names = ("fedlgd", "fedavg", "scaffold", "mine")
    runs = [read_run(write_run(tmp_path / name, label=name.title(), method=name)) for name in names]
    variant = read_run(write_run(tmp_path / "v", label="FedAvg + anchors", method="fedavg+anchors"))

    def styles(*shown: Run) -> dict[str, int]:
        return {group.label: group.style for group in group_runs(shown)}

    together = styles(*runs, variant)
    assert together == styles(variant, *reversed(runs))
    assert len(set(together.values())) == 5
    for run in runs[:3]:
        assert styles(run)[run.label] == together[run.label]


def pulled(weight: float, seed: int = 0, **more: object) -> dict[str, object]:
    return run_of("FedLGD", seed, x=0.5) | {"settings": {"pull": {"weight": weight}, **more}}


def test_runs_with_other_settings_are_no_seeds_of_one_another(make_groups: MakeGroups) -> None:
    runs = (pulled(1.0), pulled(3.0), pulled(3.0, 1), run_of("FedAvg", x=0.5))
    found = [(group.label, len(group.runs)) for group in make_groups(*runs)]
    assert found == [("FedLGD (pull.weight=1)", 1), ("FedLGD (pull.weight=3)", 2), ("FedAvg", 1)]


def test_what_is_only_recorded_and_what_is_unknown_to_another_version_makes_no_difference(
    make_groups: MakeGroups,
) -> None:
    runs = (pulled(1.0), pulled(1.0, 1, evaluate_every=2, real_samples=3), pulled(1.0, 2, new={"knob": 1}))
    assert [(group.label, len(group.runs)) for group in make_groups(*runs)] == [("FedLGD", 3)]


def test_a_note_is_extended_and_many_differences_are_a_variant(make_groups: MakeGroups) -> None:
    noted = [run_of("A (local.steps=2)", x=0.5) | {"settings": {"refine": {"start": each}}} for each in ("x", "y")]
    assert [group.label for group in make_groups(*noted)] == [
        "A (local.steps=2, refine.start=x)",
        "A (local.steps=2, refine.start=y)",
    ]
    many = [run_of("A", x=0.5) | {"settings": {"net": dict.fromkeys("abcd", each)}} for each in (1, 2, 1)]
    assert [(group.label, len(group.runs)) for group in make_groups(*many)] == [
        ("A, variant 1", 2),
        ("A, variant 2", 1),
    ]


def test_of_a_budget_only_epsilon_is_named(make_groups: MakeGroups) -> None:
    budgets = ({"epsilon": 0.0, "delta": 1e-5, "releases": 300}, {"epsilon": 4.0, "delta": 1e-5, "releases": 60})
    runs = [run_of("A", x=0.5) | {"settings": {"distil": {"private": each}}} for each in budgets]
    labels = [group.label for group in make_groups(*runs)]
    assert labels == ["A (distil.private.epsilon=none)", "A (distil.private.epsilon=4)"]
    for epsilon, groups in ((0.0, 1), (4.0, 2)):  # details of a budget count if it is on
        runs = [
            run_of("A", seed, x=0.5)
            | {"settings": {"distil": {"private": {"epsilon": epsilon, "delta": 1e-5, "clip": 0.1 * seed}}}}
            for seed in (1, 2)
        ]
        assert len(make_groups(*runs)) == groups
