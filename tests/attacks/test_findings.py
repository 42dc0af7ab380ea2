"""The numbers of a finding, recomputed by definition on small arrays, and how often a null is called a leak."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.stats import beta, binom, gaussian_kde, norm

from fedlgd.attacks import findings, membership
from fedlgd.attacks.findings import RMIA_OFFSETS, calibrated, finding, findings_of
from fedlgd.attacks.membership import FPR_GRID, at_fpr, clopper_pearson, roc
from fedlgd.attacks.shadow import Observations
from fedlgd.core.types import Stream
from fedlgd.report.attacks import leaking
from fedlgd.rundir.results import AUDIT_FORMAT, Audit
from tests import tiny

RNG = Stream(0).at("audit")
ABOUT = {"label": "x", "kind": "run", "target": "model", "statistic": "s"}


def halves(federations: int, images: int, seed: int) -> tuple[np.random.Generator, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng, rng.random((federations, images)) < 0.5


def observed(seed: int, leak: float, federations: int = 5, images: int = 120) -> list[Observations]:
    """Statistics with a difficulty for each image, an effect `leak` of membership, and noise."""
    rng, members = halves(federations, images, seed)
    phi = 2 * rng.normal(size=images) + leak * members + 0.5 * rng.normal(size=members.shape)
    others = 2 * rng.normal(size=80) + 0.5 * rng.normal(size=(federations, 80))
    found = []
    for row, inside, population in zip(phi, members, others, strict=True):
        values = torch.from_numpy(row)
        statistics = {
            "model/phi": values[:, None],
            "model/p": values.sigmoid(),
            "model/population": torch.from_numpy(population).sigmoid(),
            "updates/along": torch.from_numpy(rng.normal(size=images) + leak * inside),
        }
        found.append(Observations(members=torch.from_numpy(inside), statistics=statistics, accuracy=0.5))
    return found


def audit_of(findings) -> Audit:
    return Audit(format=AUDIT_FORMAT, attack="rmia", site="a", images=1, federations=5, findings=tuple(findings))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(-4, 4), st.booleans()), min_size=4, max_size=60))
def test_the_curve_is_the_best_rate_over_all_thresholds(points):
    scores, members = np.array([float(s) for s, _ in points]), np.array([m for _, m in points])
    if members.all() or not members.any():
        return
    thresholds = [math.inf, *sorted(set(scores), reverse=True)]
    rates = [((scores[~members] >= t).mean(), (scores[members] >= t).mean()) for t in thresholds]
    curve = roc(scores, members)
    wanted = [max(tpr for fpr, tpr in rates if fpr <= rate + 1e-9) for rate in FPR_GRID]
    np.testing.assert_allclose(curve.tpr, wanted)
    trapezoids = sum((b[0] - a[0]) * (a[1] + b[1]) / 2 for a, b in pairwise(rates))
    assert curve.auc == pytest.approx(trapezoids)
    pairs = [(a > b) + (a == b) / 2 for a in scores[members] for b in scores[~members]]
    assert curve.auc == pytest.approx(np.mean(pairs))


@pytest.mark.parametrize("seed", range(5))
def test_a_true_positive_rate_is_that_of_the_best_threshold_with_so_few_false_positives(seed):
    rng, (members,) = halves(1, 2400, seed)
    scores = rng.normal(size=2400) + members
    others, allowed = scores[~members], math.floor((~members).sum() * 0.01)
    passing = [t for t in others if (others > t).sum() <= allowed]
    wanted = max((scores[members] > t).mean() for t in passing)
    assert at_fpr(scores, members, 0.01) == wanted


@pytest.mark.parametrize(("hits", "of"), [(0, 1), (1, 1), (0, 30), (3, 30), (17, 30), (30, 30), (5, 4000)])
@pytest.mark.parametrize("level", [0.95, 0.975])
def test_exact_intervals_are_quantiles_of_beta_distributions_and_roots_of_binomial_tails(hits, of, level):
    tail = (1 - level) / 2
    low, high = clopper_pearson(hits, of, level)
    assert low == pytest.approx(beta.ppf(tail, hits, of - hits + 1) if hits else 0.0, abs=1e-11)
    assert high == pytest.approx(beta.ppf(1 - tail, hits + 1, of - hits) if hits < of else 1.0, abs=1e-11)
    if hits:
        assert low == pytest.approx(brentq(lambda p: binom.sf(hits - 1, of, p) - tail, 1e-12, 1), abs=1e-9)
    if hits < of:
        assert high == pytest.approx(brentq(lambda p: binom.cdf(hits, of, p) - tail, 0, 1 - 1e-12), abs=1e-9)


def test_no_trial_leaves_every_probability_possible():
    assert clopper_pearson(0, 0) == (0, 1)


def test_the_bound_from_rates_is_that_of_the_formula_counted_by_hand():
    members = np.tile([True, True, False, False], 50)  # 50 members and 50 others in each half
    scores = np.where(members, 1.0, 0.0)
    scores[[3, 7, 11]] = 2.0  # three others of the tested half are above every member
    low, high = clopper_pearson(50, 50, 0.95)[0], clopper_pearson(3, 50, 0.95)[1]
    found = membership.epsilon_from_rates(scores, members, 0.0, 1e-3)
    assert found == pytest.approx(math.log((low - 1e-3) / high))
    assert membership.epsilon_from_rates(1 - scores, members, 0.0, 1e-3) == 0


@pytest.mark.parametrize(("r", "v"), [(20, 20), (40, 33), (100, 75)])
def test_the_bound_of_one_run_without_delta_is_an_exact_binomial_test(r, v):
    """With delta = 0 the guesses are dominated by Bin(r, e^eps / (1 + e^eps))."""
    q = clopper_pearson(v, r, 0.9)[0]  # 5 % in the lower tail
    assert membership.one_run(1000, r, v, 0.0) == pytest.approx(math.log(q / (1 - q)), abs=1e-6)


@pytest.mark.parametrize(
    ("v", "epsilon", "delta"), [(0, 1.0, 1e-3), (7, 0.5, 1e-3), (12, 2.0, 1e-2), (12, 0.0, 0.0)]
)
def test_the_p_value_of_one_run_is_the_sum_of_its_formula(v, epsilon, delta):
    m, r, q = 50, 12, 1 / (1 + math.exp(-epsilon))
    p = [math.comb(r, k) * q**k * (1 - q) ** (r - k) for k in range(r + 1)]
    most = max((sum(p[v - i : v]) / i for i in range(1, v + 1)), default=0.0)
    wanted = min(1.0, sum(p[v:]) + 2 * m * delta * most)
    assert membership.one_run_p_value(m, r, v, epsilon, delta) == pytest.approx(wanted, abs=1e-12)


def test_lower_bounds_of_epsilon_hold_for_randomised_response_over_many_seeds():
    """Each bound may be above the truth in 5 % of runs; the larger of two at 97.5 % each as well."""
    above, epsilon = 0, 1.0
    for seed in range(60):
        rng, (members,) = halves(1, 600, seed)
        truth = rng.random(600) < 1 / (1 + math.exp(-epsilon))
        said = np.where(truth, members, ~members) + 1e-3 * rng.random(600)
        bounds = (
            membership.audited_epsilon(said, members, 0.0, 0.025),
            membership.epsilon_from_rates(said, members, 0.01, 0.0, 0.025),
        )
        above += max(bounds) > epsilon
    assert above <= binom.ppf(0.999, 60, 0.05)


def test_a_finding_has_the_counts_rates_and_intervals_of_its_scores():
    rng, members = halves(3, 900, 0)
    scores = rng.normal(size=members.shape) + 1.5 * members
    found = finding(scores, members, RNG, 1e-5, **ABOUT)
    inside = int(members.sum())
    assert (found.federations, found.n_in, found.n_out) == (3, inside, 2700 - inside)
    assert found.auc[1] == pytest.approx(norm.cdf(1.5 / math.sqrt(2)), abs=0.02)
    assert found.auc[0] < found.auc[1] < found.auc[2]
    assert found.tpr["0.001"] is None
    assert found.exact["0.001"] is None
    rate = at_fpr(scores.ravel(), members.ravel(), 0.01)
    assert found.tpr["0.01"][1] == rate
    assert found.exact["0.01"] == clopper_pearson(round(rate * inside), inside)
    single = [bound(scores[0], members[0]) for bound in (_one_run_bound, _rates_bound)]
    assert found.epsilon_lower == max(single)
    assert found.worst is None
    assert [row[0] for row in found.roc] == FPR_GRID.round(6).tolist()
    assert all(low <= high for _, _, low, high in found.roc)


def _one_run_bound(scores: np.ndarray, members: np.ndarray) -> float:
    k, order = len(scores) // 10, np.argsort(scores)
    right = int(members[order[-k:]].sum()) + int((~members[order[:k]]).sum())
    return membership.one_run(len(scores), 2 * k, right, 1e-5, 0.025)


def _rates_bound(scores: np.ndarray, members: np.ndarray) -> float:
    return membership.epsilon_from_rates(scores, members, 0.01, 1e-5, 0.025)


def test_the_worst_image_is_the_one_whose_own_federations_tell_its_membership():
    rng, members = halves(17, 40, 0)
    scores = rng.normal(size=members.shape)
    quiet = finding(scores, members, RNG, **ABOUT).worst
    scores[:, 0] += 100 * members[:, 0]
    loud = finding(scores, members, RNG, **ABOUT).worst
    areas = [roc(scores[:, u], members[:, u]).auc for u in range(40)]
    assert areas[0] == 1
    assert loud == pytest.approx(np.quantile(areas, 0.99))
    assert quiet < loud


@pytest.mark.parametrize("attack", ["rmia", "lira"])
def test_a_planted_leak_is_found_in_every_target_that_has_it(attack):
    seen = observed(0, leak=2.0)
    found = findings_of(seen, attack, {"": np.ones(120, dtype=bool)}, RNG, "run", "x", 1e-5)
    assert [each.target for each in found] == ["model", "updates"]
    assert [each.target for each in leaking(audit_of(found))] == ["model", "updates"]


@pytest.mark.parametrize("attack", ["rmia", "lira"])
def test_a_null_is_called_a_leak_about_as_rarely_as_promised(attack, monkeypatch):
    """An interval of 95 % lies above 1/2 in 2.5 % of audits without a leak; epsilon is above 0 in at most 5 %."""
    monkeypatch.setattr(membership.bootstrap, "__defaults__", ((), 100))
    everyone, runs = {"": np.ones(120, dtype=bool)}, 30
    leaks, bounds = 0, 0
    for seed in range(runs):
        found = findings_of(observed(seed, leak=0.0), attack, everyone, RNG, "run", "x", 1e-5)
        leaks += len(leaking(audit_of(found)))
        bounds += sum(each.epsilon_lower > 0 for each in found)
    assert leaks <= binom.ppf(0.999, 2 * runs, 0.05)
    assert bounds <= binom.ppf(0.999, 2 * runs, 0.05)


@pytest.mark.parametrize(
    ("name", "attack"), [("model/p", "rmia"), ("model/phi", "lira"), ("updates/along", "rmia")]
)
def test_scores_of_a_federation_never_use_its_own_membership(name, attack):
    seen = observed(1, leak=1.0)
    members = np.stack([each.members.numpy() for each in seen])
    other = members.copy()
    other[2] = ~other[2]
    first, second = (calibrated(name, seen, mask, attack) for mask in (members, other))
    np.testing.assert_array_equal(first[2], second[2])
    assert not np.array_equal(first[0], second[0])  # there it is a shadow


def test_the_offset_of_rmia_is_the_best_of_the_shadows_and_not_of_the_target():
    seen = observed(2, leak=1.0)
    members = np.stack([each.members.numpy() for each in seen])
    p, population = (
        np.stack([each.statistics[f"model/{n}"].numpy() for each in seen]) for n in ("p", "population")
    )
    rest = [1, 2, 3, 4]

    def mean_area(a: float) -> float:
        among = [(p[rest], members[rest], t, population[rest]) for t in range(4)]
        return float(np.mean([roc(membership.rmia(*each, a=a), members[rest][each[2]]).auc for each in among]))

    best = max(RMIA_OFFSETS, key=mean_area)
    wanted = membership.rmia_untied(p, members, 0, population, a=best)
    np.testing.assert_array_equal(calibrated("model/p", seen, members, "rmia")[0], wanted)


# The attack of the paper


def test_the_sample_of_the_paper_has_as_many_training_as_test_images_and_says_which_is_which(monkeypatch):
    site = tiny.federation(train=12, test=7).by_name["ape"]  # images of each of three classes
    pixels = {
        name: {x.numpy().tobytes() for x in getattr(site, name).take(slice(None)).x} for name in ("train", "test")
    }
    for most, wanted in ((2000, 21), (5, 5)):
        monkeypatch.setattr(findings, "MAX_IMAGES_PER_SIDE", most)
        data, members = findings.draw_sample(site, RNG)
        assert (int(members.sum()), len(data)) == (wanted, 2 * wanted)
        for inside, x in zip(members.tolist(), data.x, strict=True):
            assert x.numpy().tobytes() in pixels["train" if inside else "test"]


def test_the_attack_of_the_paper_is_the_ratio_of_densities_of_the_other_half():
    """Recomputed with scipy: the area of p_in / p_out, each fitted on the half that is not scored."""
    rng, n = np.random.default_rng(3), 200
    sides = rng.normal(0.6, 1, n), rng.normal(0, 1.3, n)
    scores = np.empty((2, n))
    for fold in (0, 1):
        inside, outside = (gaussian_kde(side[1 - fold :: 2], "scott") for side in sides)
        for row, side in zip(scores, sides, strict=True):
            row[fold::2] = inside.logpdf(side[fold::2]) - outside.logpdf(side[fold::2])
    area = np.mean(scores[0][:, None] > scores[1][None])
    values = torch.from_numpy(np.concatenate(sides))
    seen = Observations(members=torch.arange(2 * n) < n, statistics={"s": values, "loss": values}, accuracy=0.75)
    found = findings.paper_findings(seen, False, RNG, "run", "x")
    assert [(each.statistic, each.target, each.kind) for each in found] == [
        ("s", "model", "run"),
        ("loss", "model", "run"),
    ]
    assert [each.auc[1] for each in found] == pytest.approx([area, area], abs=1e-9)
    assert {(each.n_in, each.n_out, each.federations, each.accuracy) for each in found} == {(n, n, 1, 0.75)}
    (control,) = findings.paper_findings(seen, False, RNG, "blind", "x")
    assert (control.statistic, control.auc[1]) == ("s", pytest.approx(area, abs=1e-9))


def test_densities_fitted_on_the_points_they_score_find_leaks_in_noise_and_are_called_biased(monkeypatch):
    """Cross-fitted areas are 1/2 on average. Of 200 audits of noise, 160 are called a leak if fitted in-sample."""
    monkeypatch.setattr(membership.bootstrap, "__defaults__", ((), 60))
    runs, areas, leaks = 20, {True: [], False: []}, {True: 0, False: 0}
    for seed in range(runs):
        values = torch.from_numpy(np.random.default_rng(1000 + seed).normal(size=300))
        seen = Observations(members=torch.arange(300) < 150, statistics={"s": values})
        for in_sample in (True, False):
            (found,) = findings.paper_findings(seen, in_sample, RNG, "run", "x")
            assert ("biased" in found.statistic) is in_sample
            areas[in_sample].append(found.auc[1])
            leaks[in_sample] += found.auc[0] > 0.5
    assert np.mean(areas[False]) == pytest.approx(0.5, abs=4 * 0.045 / math.sqrt(runs))
    assert leaks[False] <= binom.ppf(0.999, runs, 0.025)
    assert leaks[True] >= binom.ppf(0.001, runs, 0.8)


def test_intervals_of_the_attack_of_the_paper_know_that_its_halves_depend_on_each_other(monkeypatch):
    """The intervals of 200 audits of noise cover 1/2 at least as often as promised, on each side."""
    monkeypatch.setattr(membership.bootstrap, "__defaults__", ((), 60))
    rng, n, runs, above, below = np.random.default_rng(5), 60, 200, 0, 0
    for _ in range(runs):
        seen = Observations(
            members=torch.arange(2 * n) < n, statistics={"s": torch.from_numpy(rng.normal(size=2 * n))}
        )
        (found,) = findings.paper_findings(seen, False, RNG, "run", "x")
        above, below = above + (found.auc[0] > 0.5), below + (found.auc[2] < 0.5)
    assert above <= 0.025 * runs
    assert below <= 0.025 * runs


def test_what_the_paper_looks_at_are_gradients_and_the_loss_of_each_image():
    net = tiny.net()
    params, site = tiny.params(net), tiny.federation(train=4, test=4).by_name["ape"]
    sample = findings.draw_sample(site, RNG)
    seen = findings.observe_model(net, params, sample, 0.5)
    x, y = sample[0].x, sample[0].y
    loss = torch.nn.functional.cross_entropy(net(params, x).logits[:, : net.classes], y, reduction="none")
    torch.testing.assert_close(seen.statistics["loss"].float(), loss.detach(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(seen.statistics["log gradient norm"].exp(), seen.statistics["gradient norm"])
    assert (seen.statistics["gradient norm of the last layer"] <= seen.statistics["gradient norm"] + 1e-6).all()
    assert (seen.accuracy, seen.members.tolist()) == (0.5, sample[1].tolist())
