"""Attacks and their numbers: vectors of the specification, chance without a leak, and known leaks."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedlgd.attacks import membership
from fedlgd.attacks.membership import (
    FPR_GRID,
    Curve,
    at_fpr,
    bootstrap,
    kde,
    kde_ratio,
    lira,
    log_density,
    rmia,
    roc,
)
from fedlgd.core.train import area
from tests.vectors import TOLERANCE, vector

KDE = {name: np.array(value) for name, value in vector("kde_lira").items()}


def random_halves(federations: int, images: int, seed: int = 0) -> tuple[np.random.Generator, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng, rng.random((federations, images)) < 0.5


def pooled(score, members: np.ndarray) -> Curve:
    scores = np.stack([score(t) for t in range(len(members))])
    return roc(scores.ravel(), members.ravel())


def test_densities_and_their_ratio_are_those_of_the_specification():
    members, others, query = KDE["member_stats"], KDE["nonmember_stats"], KDE["query"]
    np.testing.assert_allclose(log_density(members, query), KDE["logpdf_member"], rtol=TOLERANCE)
    np.testing.assert_allclose(log_density(others, query), KDE["logpdf_nonmember"], rtol=TOLERANCE)
    np.testing.assert_allclose(kde_ratio(members, others, query), KDE["log_ratio"], rtol=TOLERANCE)


def test_the_area_of_the_kde_attack_is_that_of_the_specification():
    at = np.concatenate([KDE["test_members"], KDE["test_nonmembers"]])
    scores = kde_ratio(KDE["member_stats"], KDE["nonmember_stats"], at)
    assert roc(scores, np.arange(40) < 20).auc == pytest.approx(float(KDE["auc"]), abs=TOLERANCE)


def test_where_no_density_is_known_the_ratio_says_nothing():
    near = np.array([0.0, 0.1, 0.2])
    assert kde_ratio(near, near + 0.05, np.array([1e6]))[0] == 0


def test_on_pure_noise_the_kde_attack_finds_nothing_held_out_and_a_leak_in_sample():
    def mean_area(in_sample: bool) -> float:
        areas = []
        for seed in range(40):
            members, others = np.random.default_rng(seed).normal(size=(2, 100))
            scores = np.concatenate(kde(members, others, in_sample))
            areas.append(roc(scores, np.arange(200) < 100).auc)
        return float(np.mean(areas))

    assert mean_area(in_sample=True) == pytest.approx(0.60, abs=0.03)
    assert mean_area(in_sample=False) == pytest.approx(0.50, abs=0.03)


@given(st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=2, max_size=40))
def test_the_area_is_that_by_ranks(points):
    scores, members = np.array([float(s) for s, _ in points]), np.array([m for _, m in points])
    expected = area(torch.tensor(scores), torch.tensor(members))
    if expected is not None:
        assert roc(scores, members).auc == pytest.approx(expected)


def test_a_curve_rises_from_its_threshold_and_is_never_interpolated():
    curve = roc(np.array([3.0, 2.0, 2.0, 1.0]), np.array([True, True, False, False]))
    assert curve.tpr[0] == 0.5
    assert curve.tpr[np.searchsorted(FPR_GRID, 0.49)] == 0.5
    assert curve.tpr[-1] == 1


@pytest.mark.parametrize(
    ("others", "rate", "known"), [(1000, 0.01, True), (999, 0.01, False), (10_000, 0.001, True)]
)
def test_a_true_positive_rate_needs_ten_false_positives(others, rate, known):
    scores = np.arange(others + 10.0)
    members = scores >= others
    assert at_fpr(scores, members, rate) == (1.0 if known else None)


def test_the_threshold_is_the_smallest_with_at_most_the_wanted_false_positives():
    scores = np.concatenate([np.arange(1000.0), [989.5, 990.5, 5.0]])
    members = np.arange(1003) >= 1000
    assert at_fpr(scores, members, 0.01) == pytest.approx(2 / 3)


def test_the_same_scores_again_do_not_narrow_an_interval():
    rng, members = random_halves(1, 200)
    scores = rng.normal(size=(1, 200)) + 0.5 * members
    once, often = (
        bootstrap(np.repeat(scores, k, 0), np.repeat(members, k, 0), np.random.default_rng(0), draws=100).auc
        for k in (1, 8)
    )
    assert once.low < once.middle < once.high
    assert often == pytest.approx(once)


def test_bands_contain_the_curve_and_the_same_generator_gives_the_same_bands():
    rng, members = random_halves(3, 400)
    scores = rng.normal(size=(3, 400)) + members
    first, second = (bootstrap(scores, members, np.random.default_rng(7), (0.1, 0.001), 100) for _ in "ab")
    assert first.auc == second.auc
    assert first.tpr[0.001] is None
    found = first.tpr[0.1]
    assert found is not None
    assert found.low <= found.middle <= found.high


@pytest.mark.parametrize("online", [True, False])
def test_lira_finds_a_shift_of_each_image_that_one_threshold_hides(online):
    rng, members = random_halves(17, 300)
    difficulty = 10 * rng.normal(size=300)
    statistic = difficulty + members + 0.5 * rng.normal(size=members.shape)
    assert roc(statistic.ravel(), members.ravel()).auc < 0.56
    assert pooled(lambda t: lira(statistic[..., None], members, t, online), members).auc > 0.88


@pytest.mark.parametrize("online", [True, False])
def test_lira_is_at_chance_if_the_statistic_does_not_depend_on_membership(online):
    rng, members = random_halves(5, 2000)
    statistic = rng.normal(size=(5, 2000, 2))
    assert pooled(lambda t: lira(statistic, members, t, online), members).auc == pytest.approx(0.5, abs=0.02)


def test_lira_never_looks_at_the_membership_it_guesses():
    rng, members = random_halves(5, 50)
    statistic = rng.normal(size=(5, 50, 1))
    other = members.copy()
    other[2] = ~other[2]
    np.testing.assert_array_equal(lira(statistic, members, 2), lira(statistic, other, 2))


def test_rmia_finds_members_and_is_at_chance_without_a_difference():
    rng, members = random_halves(5, 1000)
    population = rng.beta(5, 2, size=(5, 300))
    alike = rng.beta(5, 2, size=members.shape)
    higher = np.clip(alike + 0.15 * members, 0, 1)
    assert pooled(lambda t: rmia(alike, members, t, population), members).auc == pytest.approx(0.5, abs=0.02)
    assert pooled(lambda t: rmia(higher, members, t, population), members).auc > 0.6


def test_rmia_is_the_share_of_the_population_that_an_image_beats():
    p = np.array([[0.9], [0.5]])
    members = np.array([[True], [False]])
    population = np.array([[0.2, 0.8, 0.6], [0.4, 0.4, 0.6]])
    mine = 0.9 / ((1.3 * 0.5 + 0.7) / 2)
    others = population[0] / ((1.3 * population[1] + 0.7) / 2)
    for gamma in (1.0, 2.0):
        assert rmia(p, members, 0, population, gamma)[0] == pytest.approx(np.mean(mine / others >= gamma))


def test_untied_scores_refine_the_shares_and_can_tell_who_beats_everyone():
    """Members beat the whole population, and so do other images, by less: shares alone cannot tell them apart."""
    rng, members = random_halves(5, 600)
    population = rng.uniform(0.1, 0.2, size=(5, 50))
    p = rng.uniform(0.5, 0.6, size=members.shape) + 0.3 * members
    shares, untied = (
        np.stack([score(p, members, t, population) for t in range(5)]) for score in (rmia, membership.rmia_untied)
    )
    assert (shares == 1).mean() > 0.9
    assert ((untied >= shares) & (untied < shares + 1 / 50)).all()
    assert at_fpr(shares.ravel(), members.ravel(), 0.01) == 0
    assert at_fpr(untied.ravel(), members.ravel(), 0.01) > 0.5
    other = members.copy()
    other[2] = ~other[2]
    np.testing.assert_array_equal(
        membership.rmia_untied(p, members, 2, population), membership.rmia_untied(p, other, 2, population)
    )


@pytest.mark.parametrize(
    ("m", "r", "v", "delta", "epsilon"),
    [(1000, 100, 75, 1e-4, 0.673), (1000, 100, 100, 1e-5, 3.465), (1000, 1000, 1000, 1e-5, 5.782)],
)
def test_the_bound_of_one_run_is_that_of_the_specification(m, r, v, delta, epsilon):
    assert membership.one_run(m, r, v, delta) == pytest.approx(epsilon, abs=5e-4)


def test_guesses_at_chance_refute_nothing():
    assert membership.one_run(1000, 100, 55, 1e-5) == 0
    assert membership.one_run(10, 0, 0, 1e-5) == 0


def test_an_audit_of_a_gaussian_mechanism_stays_below_its_epsilon_and_sees_missing_noise():
    rng = np.random.default_rng(0)
    members = rng.random(5000) < 0.5
    found = {
        mu: membership.audited_epsilon(mu * members + rng.normal(size=5000), members, 1e-5) for mu in (0.92493, 6)
    }
    assert 0.5 < found[0.92493] < 4
    assert found[6] > 4


@given(st.integers(0, 60), st.integers(1, 60))
def test_clopper_pearson_contains_the_share_and_covers(hits, of):
    hits = min(hits, of)
    low, high = membership.clopper_pearson(hits, of)
    assert 0 <= low <= hits / of <= high <= 1
    if 0 < hits < of:
        p = low
        assert sum(math.comb(of, k) * p**k * (1 - p) ** (of - k) for k in range(hits, of + 1)) == pytest.approx(
            0.025
        )


def test_epsilon_from_rates_bounds_randomised_response_from_below():
    rng = np.random.default_rng(0)
    members = rng.random(20_000) < 0.5
    truth = rng.random(20_000) < 1 / (1 + math.exp(-2.0))
    said = np.where(truth, members, ~members) + 1e-3 * rng.random(20_000)
    assert 1.2 < membership.epsilon_from_rates(said, members, 0.12, 0.0) < 2.0
    assert membership.epsilon_from_rates(rng.random(20_000), members, 0.01, 0.0) == 0
