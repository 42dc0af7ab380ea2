"""The part of the results page about the price of epsilon follows the stored numbers."""

import json
from pathlib import Path

import pytest

from results.pages.epsilon import TRIALS, epsilon


def keep(folder: Path, file: str, *rows: tuple[str, float, int, float]) -> None:
    stored = [
        {"method": method, "epsilon": epsilon, "seed": seed, "accuracy": {"a": accuracy}}
        for method, epsilon, seed, accuracy in rows
    ]
    (folder / file).write_text(json.dumps(stored))


def test_without_files_there_is_nothing(tmp_path):
    assert epsilon(tmp_path) == ""


@pytest.mark.parametrize(("private", "words"), [(0.89, "within the 2"), (0.8, "more than the 2")])
def test_the_loss_at_epsilon_four_is_compared_with_the_bar(tmp_path, private, words):
    keep(tmp_path, "epsilon.json", ("FedLGD", 0.0, 0, 0.9), ("FedLGD", 0.0, 1, 0.5), ("FedLGD", 4.0, 0, private))
    text = epsilon(tmp_path)
    assert words in text
    assert f"loses {100 * (0.9 - private):.1f} points" in text
    assert "1 seed:" in text


def test_trials_tell_what_few_releases_cost(tmp_path):
    keep(tmp_path, "epsilon.json", ("FedLGD", 0.0, 0, 0.9))
    keep(
        tmp_path,
        "trials.json",
        ("no privacy", 0.0, 0, 0.72),
        ("30 releases, no noise", 100.0, 0, 0.69),
        ("300 releases, no noise", 100.0, 0, 0.725),
        ("30 releases, no noise, no clipping", 100.0, 0, 0.68),
    )
    text = epsilon(tmp_path)
    assert "was not measured" in text
    assert "30 releases cost 3.0 points and 300 releases -0.5" in text
    assert "| 30 releases, no noise | 69.0 | -3.0 |" in text


def test_dp_sgd_is_compared_at_every_epsilon_that_both_have(tmp_path):
    real, long = "DP-SGD on real images", "FedLGD, converged"
    both = [(long, 0.0, 0, 0.7), (long, 4.0, 0, 0.69), (real, 0.0, 0, 0.85), (real, 4.0, 0, 0.75)]
    keep(tmp_path, "epsilon.json", *both, (real, 1.0, 0, 0.6))
    keep(tmp_path, "dp-sgd.json", ("rate 2", 4.0, 0, 0.751))
    text = epsilon(tmp_path)
    assert "Longer distillation" not in text
    assert f"{real} against {long}: +15.0 points without noise, +6.0 points at epsilon 4." in text
    assert "| rate 2 | 75.1 |" in text


def test_what_longer_distillation_gains_and_what_epsilon_costs_it(tmp_path):
    keep(tmp_path, "epsilon.json", ("FedLGD", 0.0, 0, 0.9))
    rows = [("FedLGD", 0.0, 0, 0.60), ("FedLGD", 4.0, 0, 0.55)]
    rows += [("FedLGD, converged", 0.0, 0, 0.65), ("FedLGD, converged", 4.0, 0, 0.56)]
    rows += [("FedLGD, twice the steps of converged", 0.0, 0, 0.652)]
    keep(tmp_path, "svhn.json", *rows)
    text = epsilon(tmp_path)
    assert "+5.0 without noise, +1.0 at epsilon 4." in text
    assert "by +0.2 points (one seed)" in text
    assert "converged loses 9.0 points" in text
    assert "without noise a 65.0; at epsilon 4 a 56.0." in text


def test_trials_without_noise_stand_between_no_privacy_and_epsilon_four(tmp_path):
    keep(tmp_path, "epsilon.json", ("FedLGD, converged", 0.0, 0, 0.8), ("FedLGD, converged", 4.0, 0, 0.7))
    keep(tmp_path, "trials.json", ("converged, 300 releases, no noise", 100.0, 0, 0.75))
    text = epsilon(tmp_path)
    rows = [line for line in text.splitlines() if line.startswith("| converged")]
    assert rows == [
        "| converged, no privacy | 80.0 | +0.0 |",
        "| converged, 300 releases, no noise | 75.0 | -5.0 |",
        "| converged, epsilon 4 | 70.0 | -10.0 |",
    ]
    assert TRIALS.splitlines()[0] not in text
