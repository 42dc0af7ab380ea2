"""The generated parts of the page about the price of epsilon follow the stored numbers."""

import json
import re

import pytest

from results.pages import epsilon

LONG, TWICE = "FedLGD, converged", "FedLGD, twice the steps of converged"
DP, PRESET = "DP-SGD on real images", "FedLGD, preset private"


@pytest.fixture
def keep(tmp_path, monkeypatch):
    monkeypatch.setattr(epsilon, "FOLDER", tmp_path)

    def write(name: str, *rows: tuple[str, float, int, float]) -> None:
        stored = [
            {"method": method, "epsilon": budget, "seed": seed, "accuracy": {"a": accuracy}}
            for method, budget, seed, accuracy in rows
        ]
        (tmp_path / f"{name}.json").write_text(json.dumps(stored))

    return write


@pytest.mark.parametrize(("private", "words"), [(0.89, "within the"), (0.8, "more than the")])
def test_the_loss_at_epsilon_four_is_compared_with_the_target(keep, private, words):
    keep("epsilon", ("FedLGD", 0.0, 0, 0.9), ("FedLGD", 0.0, 1, 0.5), ("FedLGD", 4.0, 0, private))
    text = epsilon.epsilon("prices")
    assert words in text
    assert f"loses {100 * (0.9 - private):.1f} points" in text
    assert "1 seed:" in text


def test_a_cost_without_runs_is_not_measured(keep):
    keep("epsilon", ("FedLGD", 0.0, 0, 0.9))
    assert "was not measured" in epsilon.epsilon("prices")


def test_accuracy_against_epsilon_is_a_mean_over_sites_and_seeds(keep):
    rows = [("FedLGD", budget, seed, 0.7 + seed / 20) for budget in (0.0, 4.0) for seed in (0, 1)]
    keep("epsilon", *rows)
    text = epsilon.epsilon("curve")
    assert "| method | no noise | epsilon 4 |" in text
    assert "| FedLGD | 72.5 ± 3.5 | 72.5 ± 3.5 |" in text


def test_trials_tell_what_few_releases_cost(keep):
    keep(
        "trials",
        ("no privacy", 0.0, 0, 0.72),
        ("30 releases, no noise", 100.0, 0, 0.69),
        ("300 releases, no noise", 100.0, 0, 0.725),
        ("30 releases, no noise, no clipping", 100.0, 0, 0.68),
    )
    text = epsilon.epsilon("trials")
    assert "30 releases cost 3.0 points and 300 releases -0.5" in text
    assert "| 30 releases, no noise | 69.0 | -3.0 |" in text


def test_dp_sgd_is_compared_at_every_epsilon_that_both_have(keep):
    both = [(LONG, 0.0, 0, 0.7), (LONG, 4.0, 0, 0.69), (DP, 0.0, 0, 0.85), (DP, 4.0, 0, 0.75)]
    keep("epsilon", *both, (DP, 1.0, 0, 0.6))
    keep("dp-sgd", ("rate 2", 4.0, 0, 0.751))
    assert "Longer distillation" not in epsilon.epsilon("prices")
    expected = f"{DP} against {LONG}: +15.0 points without noise, +6.0 points at epsilon 4."
    assert epsilon.epsilon("best") == expected
    assert "| rate 2 | 75.1 |" in epsilon.epsilon("dp-sgd")


def test_what_longer_distillation_gains_and_what_epsilon_costs_it(keep):
    rows = [("FedLGD", 0.0, 0, 0.60), ("FedLGD", 4.0, 0, 0.55), (LONG, 0.0, 0, 0.65), (LONG, 4.0, 0, 0.56)]
    keep("epsilon", ("FedLGD", 0.0, 0, 0.60), ("FedLGD", 4.0, 0, 0.57))
    keep("svhn", *rows, (TWICE, 0.0, 0, 0.652))
    text = epsilon.epsilon("svhn")
    assert "+5.0 without noise, +1.0 at epsilon 4." in text
    assert "by +0.2 points (one seed)" in text
    assert "converged loses 9.0 points" in text
    assert "without noise a 65.0; at epsilon 4 a 56.0." in text
    answer = epsilon.epsilon("answer")
    assert "3.0 points" in answer
    assert "5.0 or 9.0" in answer


def test_trials_without_noise_stand_between_no_privacy_and_epsilon_four(keep):
    keep("epsilon", (LONG, 0.0, 0, 0.8), (LONG, 4.0, 0, 0.7))
    keep("trials", ("converged, 300 releases, no noise", 100.0, 0, 0.75), ("no privacy", 0.0, 0, 0.9))
    rows = [line for line in epsilon.epsilon("networks").splitlines() if line.startswith("| ")][2:]
    assert rows == [
        "| converged, no privacy | 80.0 | +0.0 |",
        "| converged, 300 releases, no noise | 75.0 | -5.0 |",
        "| converged, epsilon 4 | 70.0 | -10.0 |",
    ]


@pytest.mark.parametrize(("private", "verdict"), [(0.84, "reaches"), (0.8, "misses")])
def test_the_preset_is_compared_with_dp_sgd_and_with_the_goal(tmp_path, monkeypatch, private, verdict):
    monkeypatch.setattr(epsilon, "FOLDER", tmp_path)
    accuracies = {DP: {"a": 0.9, "b": 0.8}, PRESET: {"a": 0.9, "b": 2 * private - 0.9}}
    for name, file in ((DP, "epsilon"), (PRESET, "preset"), ("FedLAP-DP", "fedlap"), (DP, "validation")):
        accuracy = accuracies.get(name, {"a": 0.4, "b": 0.2})
        rows = [
            {"method": name, "accuracy": accuracy, "epsilon": 4.0, "seed": seed, "cpu": 61.4} for seed in range(3)
        ]
        (tmp_path / f"{file}.json").write_text(json.dumps(rows))
    text, gap = epsilon.epsilon("private-answer"), 100 * (0.85 - private)
    assert f"is {gap:.1f} ({gap:.1f} to {gap:.1f}) points less accurate" in text
    assert "(3 seeds)" in text
    assert f"which {verdict} the goal of 3 points" in text
    assert f"at b: {100 * (1.7 - 2 * private):.1f} points, against +0.0 at a." in text
    assert f"| {DP} | 90.0 | 80.0 | 85.0 | 61 |" in epsilon.epsilon("held-out")
    table = epsilon.epsilon("beside")
    assert f"| {PRESET} | {100 * private:.1f} ± 0.0 |" in table
    assert "| FedLAP-DP | 30.0 ± 0.0 |" in table
    assert f"{gap:+.1f} ({gap:+.1f} to {gap:+.1f}) at epsilon 4" in table


@pytest.mark.parametrize(
    ("gaps", "verdict"),
    [
        ((2.2, 3.2, 2.8), "within"),
        ((2.8, 3.6, 3.2), "beyond"),
        ((2.5,), "within"),
        ((2.1, 2.2, 2.2), "reaches"),
        ((3.9, 4.0, 3.9), "misses"),
    ],
)
def test_an_interval_on_both_sides_of_the_goal_decides_nothing(keep, gaps, verdict):
    keep("epsilon", *[(DP, 4.0, seed, 0.8 + seed / 50) for seed in range(3)])
    keep("preset", *[(PRESET, 4.0, seed, 0.8 + seed / 50 - gap / 100) for seed, gap in enumerate(gaps)])
    said = set(re.findall(r"\w+", epsilon.epsilon("private-answer")))
    assert said & {"within", "beyond", "reaches", "misses"} == {verdict}
    assert ("clearly" in said) == (verdict in ("within", "beyond"))


def test_differences_of_sites_are_of_the_seeds_that_both_have(keep):
    keep("epsilon", (DP, 4.0, 0, 0.8), (DP, 4.0, 1, 0.9))
    keep("preset", (PRESET, 4.0, 0, 0.7))
    assert "is 10.0 points" in epsilon.epsilon("private-answer")
    assert "at a: 10.0 points" in epsilon.epsilon("private-answer")


def test_fedlap_has_a_row_and_how_it_was_set_only_if_it_ran(keep):
    keep("epsilon", (DP, 4.0, 0, 0.8))
    keep("preset", (PRESET, 4.0, 0, 0.7))
    keep("fedlap")
    assert epsilon.epsilon("beside").endswith(epsilon.NO_LAP)
    assert "| FedLAP-DP" not in epsilon.epsilon("beside")
    keep("fedlap", ("FedLAP-DP", 4.0, 0, 0.3))
    assert epsilon.epsilon("beside").endswith(epsilon.LAP)
    assert "| FedLAP-DP | 30.0 |" in epsilon.epsilon("beside")


def test_a_preset_that_did_not_run_is_compared_with_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(epsilon, "FOLDER", tmp_path)
    dp = {"method": DP, "accuracy": {"a": 0.9}, "epsilon": 4.0, "seed": 0}
    for file, rows in {"epsilon": [dp], "preset": [], "fedlap": []}.items():
        (tmp_path / f"{file}.json").write_text(json.dumps(rows))
    assert epsilon.epsilon("private-answer") == epsilon.epsilon("beside") == epsilon.NOT_MEASURED


def test_the_figure_has_a_line_for_each_method(keep):
    keep("epsilon", ("FedLGD", 0.0, 0, 0.8), ("FedLGD", 4.0, 0, 0.7), (DP, 0.0, 0, 0.9))
    (drawn,) = epsilon.figures().values()
    assert "FedLGD" in drawn
    assert "DP-SGD" in drawn
