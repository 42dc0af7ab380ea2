"""How a budget is divided, and what releases add up to."""

import math
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedlgd.core.errors import SettingError
from fedlgd.distill.settings import Private
from fedlgd.dp import accounting, budget
from fedlgd.dp.budget import Level, noise_for, noise_levels, spent_epsilon
from tests.errors import refuses
from tests.vectors import vector


@given(
    st.floats(0.1, 20),
    st.sampled_from(["noise", "statistics", "mean-image"]),
    st.integers(1, 200),
    st.integers(0, 200),
    st.sampled_from(["add-remove", "replace"]),
)
def test_all_parts_together_never_exceed_the_budget(epsilon, start, releases, refinements, adjacency):
    private = Private(epsilon=epsilon, releases=releases, adjacency=adjacency)
    total = spent_epsilon(noise_levels(private, start, refinements).values(), private.delta, adjacency)
    assert total <= epsilon * (1 + 1e-9)
    if refinements:
        assert total == pytest.approx(epsilon, rel=1e-6)


def delta_by_integration(epsilon: float, mu: float) -> float:
    """E[max(0, 1 - e^(epsilon - L))] for the privacy loss L ~ N(mu^2 / 2, mu^2), summed on a grid."""
    z = np.linspace(-12, 12, 200_001)
    density = np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
    loss = mu**2 / 2 + mu * z
    return float((density * np.maximum(0, -np.expm1(epsilon - loss))).sum() * (z[1] - z[0]))


@pytest.mark.parametrize("adjacency", ["add-remove", "replace"])
def test_the_composition_of_many_releases_is_that_of_their_privacy_losses(adjacency):
    """Losses of independent Gaussian releases add up: their means, and their variances mu_r^2 = (C / sigma_r)^2."""
    levels = [Level(40.0, releases=30), Level(9.0), Level(55.0, releases=5, each=8), Level(12.0, releases=2)]
    bound = 2 if adjacency == "replace" else 1
    variances = 30 * [(bound / 40) ** 2] + [(bound / 9) ** 2] + 40 * [(bound / 55) ** 2] + 2 * [(bound / 12) ** 2]
    epsilon = spent_epsilon(levels, 1e-5, adjacency)
    assert delta_by_integration(epsilon, math.sqrt(sum(variances))) == pytest.approx(1e-5, rel=1e-6)


def test_the_split_is_that_of_the_specification():
    private = Private(epsilon=4)
    mu2 = accounting.mu_for(4, 1e-5) ** 2
    shares = {
        name: level.releases / level.sigma**2 / mu2
        for name, level in noise_levels(private, "mean-image", 100).items()
    }
    assert shares == pytest.approx({"counts": 0.01, "start": 0.10, "distil": 0.59, "refine": 0.30})
    assert noise_levels(private, "mean-image", 100)["refine"].releases == 100


def test_replacing_an_image_needs_twice_the_noise():
    one, other = (noise_levels(Private(epsilon=4, adjacency=kind), "noise") for kind in ("add-remove", "replace"))
    assert {name: other[name].sigma / one[name].sigma for name in one} == pytest.approx(dict.fromkeys(one, 2.0))


def test_off_is_zero_or_infinite():
    assert not Private().on
    assert not Private(epsilon=math.inf).on
    assert Private(epsilon=4).on


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"epsilon": -1}, "distil.private.epsilon is -1"),
        ({"epsilon": 101}, "use 100 or less, or 0"),
        ({"epsilon": math.nan}, "distil.private.epsilon"),
        ({"epsilon": 4, "total": 2}, "distil.private.total is 2, less than"),
        ({"refine": 0.89, "start": 0.2}, "nothing is left"),
        ({"epsilon": 4, "rate": 0.5, "adjacency": "replace"}, "distil.private.rate=1"),
        ({"epsilon": 4, "delta": 0}, "more than 0"),
    ],
)
def test_impossible_budgets_are_refused_with_a_way_out(values, words):
    with pytest.raises(SettingError, match=words):
        Private(**values)


def test_refinement_without_a_share_is_refused():
    with refuses("setting-value", SettingError, value=0.0):
        noise_levels(Private(epsilon=4, refine=0.0), "noise", refinements=10)


@pytest.mark.parametrize(
    ("sigma", "rate", "steps", "epsilon"),
    [(1.1, 0.01, 1000, 1.526), (1.0, 256 / 6000, 1000, 9.156), (4.0, 256 / 6000, 10_000, 4.834)],
)
def test_random_parts_are_accounted_by_prv(sigma, rate, steps, epsilon):
    assert spent_epsilon([Level(sigma, rate, steps)], 1e-5) == pytest.approx(epsilon, abs=2e-3)


@pytest.mark.parametrize("case", vector("rdp_accountant")["cases"])
def test_prv_is_tighter_than_the_rdp_of_the_vectors(case):
    level = Level(case["noise_multiplier"], case["q"], case["steps"])
    assert 0.85 * case["epsilon"] < spent_epsilon([level], case["delta"]) < case["epsilon"]


def test_prv_of_whole_batches_is_the_exact_composition():
    exact = spent_epsilon([Level(52.7, 1.0, 200)], 1e-5)
    assert exact == pytest.approx(1.0012, abs=1e-4)
    assert budget._prv(((52.7, 1.0, 200),), 1e-5) == pytest.approx(exact, rel=0.02)


@pytest.mark.parametrize("rate", [0.25, 1.0])
def test_noise_for_uses_the_budget_and_no_more(rate):
    beside = Level(5.0)
    sigma = noise_for(4.0, 1e-5, rate, 60, beside)
    assert 3.9 < spent_epsilon([Level(sigma, rate, 60), beside], 1e-5) <= 4.0 * (1 + 1e-9)


def test_without_opacus_a_rate_is_refused_with_the_command_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "opacus.accountants", None)
    with refuses("opacus-missing-for-rate", SettingError):
        spent_epsilon([Level(3.21, 0.5, 10)], 1e-5)
