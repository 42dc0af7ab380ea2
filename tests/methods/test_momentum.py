"""Learning-rate schedule and kept momentum: against torch's own optimiser over all rounds."""

import math
from dataclasses import replace

import pytest
import torch

from fedlgd.core.errors import SettingError
from fedlgd.core.train import Local, batches, descend
from fedlgd.core.types import Params, Stream
from fedlgd.distill.gradient import pseudo_gradient
from fedlgd.engines.settings import RoundSettings
from fedlgd.methods.fedavg import FedAvg
from fedlgd.methods.fedlgd import FedLGD
from fedlgd.methods.parts import Momentum
from fedlgd.runs.config import configure
from fedlgd.runs.run import execute
from tests import tiny
from tests.errors import refuses
from tests.runs.folder import FAST_NET, config

ONE = tiny.federation(tiny.NAMES[:1])
NET = tiny.net()


def with_torch(how: Local, rounds: int, kept: bool) -> Params:
    """One site, all rounds in a row, with torch.optim.SGD and its cosine schedule."""
    site, root = ONE.sites[0], Stream(0)
    w = {name: value.clone().requires_grad_() for name, value in NET.init(root.at("init")).items()}
    optimiser = torch.optim.SGD(w.values(), how.lr, momentum=how.momentum)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, rounds)
    for t in range(rounds):
        if not kept:
            optimiser.state.clear()
        generator = root.at("site", site.name, t).generator("shuffle")
        for index in batches(len(site.train), how, generator):
            optimiser.zero_grad()
            tiny.cross_entropy(NET, w, site.train.take(index)).backward()
            optimiser.step()
        if how.schedule == "cosine":
            cosine.step()
    return {name: value.detach() for name, value in w.items()}


def same(a: Params, b: Params) -> None:
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("schedule", ["constant", "cosine"])
@pytest.mark.parametrize("kept", [False, True])
def test_a_run_at_one_site_is_torchs_own_sgd(schedule, kept):
    method = tiny.settings(FedAvg(), {"local.momentum": 0.9, "local.schedule": schedule})
    played = tiny.Run(Momentum(method=method) if kept else method, ONE, RoundSettings(rounds=3), using=NET)
    same(played.states[-1].params, with_torch(method.local, 3, kept))
    other = with_torch(method.local, 3, not kept)
    assert any(not torch.allclose(other[name], played.states[-1].params[name], atol=1e-5) for name in other)


def test_the_cosine_starts_at_the_rate_ends_near_zero_and_is_applied_once():
    how = Local(lr=0.4, schedule="cosine")
    rates = [how.at(t, 10).lr for t in range(10)]
    assert rates == [pytest.approx(0.2 * (1 + math.cos(math.pi * t / 10))) for t in range(10)]
    assert how.at(5, 10).at(5, 10) == how.at(5, 10)
    assert Local(lr=0.4).at(9, 10) == Local(lr=0.4)


def test_both_halves_of_a_method_have_the_rate_of_the_round(monkeypatch):
    """FedLGD's server divides by the rate that the sites used: G = (theta_t - theta_{t+1}) / eta_t."""
    rates = []
    original = FedLGD.server

    def server(self, state, *rest):
        rates.append(self.local.lr)
        return original(self, state, *rest)

    monkeypatch.setattr(FedLGD, "server", server)
    method = tiny.fedlgd(local__schedule="cosine", local__lr=0.1)
    tiny.Run(method, ONE, RoundSettings(rounds=2), using=NET)
    assert rates == [pytest.approx(0.1), pytest.approx(0.05)]


def test_parts_pass_the_round_on_to_their_method():
    method = configure("scaffold+anchors+proximal", train_on="virtual", local__schedule="cosine", local__lr=0.1)
    assert method.at(1, 2).local.lr == pytest.approx(0.05)


def test_kept_momentum_needs_momentum_and_a_method_that_allows_it():
    with refuses("momentum-is-zero", SettingError):
        configure("fedavg+momentum")
    with refuses("part-not-accepted", SettingError, method="fednova"):
        configure("fednova+momentum", local__momentum=0.9)


def test_a_cosine_with_restarts_is_torchs_own_in_every_stage():
    how, rates = Local(lr=0.4, schedule="cosine", restarts=(3, 8)), []
    for stage in (3, 5, 2):
        optimiser = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.4)
        cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, stage)
        for _ in range(stage):
            rates.append(cosine.get_last_lr()[0])
            optimiser.step()
            cosine.step()
    assert [how.at(t, 10).lr for t in range(10)] == pytest.approx(rates)


@pytest.mark.parametrize("wrong", [(0,), (3, 3), (5, 2), (-1,)])
def test_restarts_are_rounds_in_order(wrong):
    with refuses("restarts-not-ascending", SettingError):
        Local(schedule="cosine", restarts=wrong)


@pytest.mark.parametrize("schedule", ["cosine", "constant"])
def test_a_run_of_either_schedule_is_extended(schedule, tmp_path):
    how = config(configure("fedavg+proximal", local__schedule=schedule), net=FAST_NET)
    for rounds in (2, 3):
        result = execute(replace(how, plan=replace(how.plan, rounds=rounds)), ONE, tmp_path)
    assert len(result.records) == 4
    assert ("restarts" in (tmp_path / "config.toml").read_text()) == (schedule == "cosine")


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("steps", [1, 2, 7])
def test_the_rate_of_a_round_makes_the_pseudo_gradient_a_sum_of_gradients_with_mean_weight_one(momentum, steps):
    """Every step has the gradient 1, so that theta_0 - theta_K is eta times the sum of the weights."""
    how = Local(lr=0.03, momentum=momentum, steps=steps)
    leaf, velocity = torch.zeros(1, dtype=torch.float64), list[torch.Tensor]()
    for _ in range(how.count(5)):
        velocity = descend([leaf], [torch.ones_like(leaf)], velocity, how)
    (got,) = pseudo_gradient({"w": torch.zeros_like(leaf)}, {"w": leaf}, how.rate(steps))["w"].tolist()
    assert got == pytest.approx(steps, rel=1e-12)


def test_without_momentum_the_rate_is_the_learning_rate_and_its_limit_is_that_of_many_steps():
    assert {Local(lr=0.03).rate(k) for k in (0, 1, 9)} == {0.03}
    how = Local(lr=0.03, momentum=0.9)
    assert how.rate(0) == pytest.approx(0.3)
    assert how.rate(100_000) == pytest.approx(how.rate(0), rel=1e-3)
    assert (how.count(33), Local(epochs=3, steps=5).count(33), Local(epochs=3).count(33)) == (2, 5, 6)
