"""Scores on test images with noise: how much, how often, what they look like, and what is refused."""

import math
from dataclasses import replace

import pytest
import torch

from fedlgd.core.errors import PrivacyError, SettingError
from fedlgd.core.train import score
from fedlgd.distill.settings import Private
from fedlgd.dp import accounting, ledger, release
from fedlgd.dp.release import MAX_IMAGE_LOSS, NoisyScores
from fedlgd.dp.training import SiteDp
from fedlgd.engines.settings import RoundSettings
from tests import tiny
from tests.errors import refuses

NET = tiny.net()
PARAMS = tiny.params(NET)
SITE = tiny.federation(test=40).sites[0]
PLAN = RoundSettings(rounds=4, seed=3, evaluate_every=2)


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDLGD_STATE", str(tmp_path / "home"))


def scores(seed: int = 0, planned: int = 4, **budget) -> NoisyScores:
    return NoisyScores(SITE, tiny.CLASSES, seed, planned, Private(**{"epsilon": 50.0, "scores": 10.0} | budget))


def test_without_a_budget_scores_are_exact():
    run = tiny.Run(tiny.fedavg(), tiny.federation(test=40), PLAN, using=NET)
    for site in tiny.federation(test=40).sites:
        assert run.records[-1].scores[site.name] == score(NET, run.states[-1].params, site.test, tiny.CLASSES)


def test_all_scores_of_a_run_together_spend_the_budget_of_test_images_and_nothing_else():
    asked = scores()
    for i in range(4):
        asked(NET, tiny.params(NET, i))
    assert ledger.PrivacyLedger("ape test images", asked.budget).spent() == pytest.approx(10.0, rel=1e-3)
    assert ledger.PrivacyLedger("ape", asked.budget).spent() == 0


def test_the_noise_has_the_level_of_the_specification(monkeypatch):
    """Deviation sqrt(3 planned) / mu on counts, and ten times that on the sum of losses."""
    seen = []
    monkeypatch.setattr("fedlgd.dp.release.add_noise", lambda value, scale, _: seen.append(scale) or value.double())
    scores(planned=9)(NET, PARAMS)
    assert seen == [pytest.approx(math.sqrt(3 * 9) / accounting.mu_for(10.0, 1e-5))]
    scores(planned=9, adjacency="replace")(NET, PARAMS)
    assert seen[1] == pytest.approx(2 * seen[0])


def test_one_test_image_moves_what_is_released_by_at_most_its_sensitivity(monkeypatch):
    found = []
    monkeypatch.setattr("fedlgd.dp.release.add_noise", lambda value, *_: found.append(value.double()) or value)
    for n in range(len(SITE.test) - 5, len(SITE.test)):
        less = replace(SITE, test=replace(SITE.test, x=SITE.test.x[:n], y=SITE.test.y[:n]))
        for site in (SITE, less):
            hot = {name: 100 * value for name, value in PARAMS.items()}
            replace(scores(total=90.0), site=site, seed=n)(NET, hot)
        assert float((found[-2] - found[-1]).norm()) <= math.sqrt(3) * (len(SITE.test) - n) * (1 + 1e-6)
    assert float(found[0][-1]) * MAX_IMAGE_LOSS <= MAX_IMAGE_LOSS * len(SITE.test)


def test_the_same_model_is_scored_once_and_another_seed_is_refused(monkeypatch):
    draws = []
    monkeypatch.setattr(release, "gaussian", lambda g, shape: draws.append(shape) or ledger.gaussian(g, shape))
    one, again = scores()(NET, PARAMS), scores()(NET, PARAMS)
    assert one == again
    assert len(draws) == 1
    with pytest.raises(
        PrivacyError, match=r"site 'ape test images' has spent epsilon = 10.*distil\.private\.total="
    ):
        scores(seed=1, epsilon=10.0).reserve()
    scores(seed=1).reserve()


def test_a_noisy_score_is_a_possible_score():
    for i in range(20):
        found = scores(scores=0.05, total=100.0, epsilon=1.0, test_key=f"k{i}")(NET, PARAMS)
        assert 0 <= found.accuracy <= 1
        assert 0 <= found.loss <= MAX_IMAGE_LOSS
        assert all(0 <= right <= all_ for right, all_ in zip(found.correct, found.total, strict=True))
        assert found.auc is None
    near = scores(scores=50.0, planned=1)(NET, PARAMS)
    exact = score(NET, PARAMS, SITE.test, tiny.CLASSES)
    assert near.accuracy == pytest.approx(exact.accuracy, abs=0.05)
    assert near.loss == pytest.approx(exact.loss, abs=0.5)


def test_a_run_scores_with_noise_and_is_refused_at_enrolment_if_the_budget_is_spent():
    values = {"epsilon": 60.0, "counts": 0.2, "releases": 2, "blocks": 1, "scores": 1.0, "total": 90.0}
    private = {f"distil__private__{name}": value for name, value in values.items()}
    method = tiny.fedavg(distil__plan="bank", train_on="virtual", **private)
    data = tiny.federation(train=12)
    run = tiny.Run(method, data, PLAN, using=tiny.net())
    exact = tiny.Run(tiny.settings(method, {"distil.private.scores": 0.0}), data, PLAN, using=tiny.net())
    assert run.records[-1].scores != exact.records[-1].scores
    assert all(torch.equal(a, b) for a, b in zip(_last(run), _last(exact), strict=True))
    assert ledger.PrivacyLedger("ape test images", method.distil.private).spent() == pytest.approx(1.0, rel=1e-3)
    assert "epsilon 1 for each of them" in method.budget.statement


def test_a_budget_for_several_runs_is_told_beside_that_of_the_run():
    assert "All runs of a site together: epsilon at most 7.7." in Private(epsilon=4, total=7.7).statement
    assert "together" not in Private(epsilon=4).statement


def _last(run: tiny.Run) -> list[torch.Tensor]:
    return list(run.states[-1].params.values())


def test_a_budget_for_scores_needs_a_promise_and_fits_in_it():
    for values in ({"scores": 1.0}, {"epsilon": 4.0, "scores": 5.0}):
        with refuses("setting-value", SettingError, setting="distil.private.scores"):
            Private(**values)
    with refuses("setting-value", SettingError, setting="site_dp.scores"):
        SiteDp(epsilon=4.0, scores=1.0)
