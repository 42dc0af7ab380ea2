"""Optimisers of the server against Algorithm 2 of Reddi et al. by hand in float64, their limits, and resuming."""

import math

import pytest
import torch

from fedlgd.core.errors import SettingError
from fedlgd.core.types import ServerState, Update
from fedlgd.methods import registry
from fedlgd.methods.fedavg import FedAvg
from fedlgd.methods.fedopt import FedOpt, ServerOptimiser
from fedlgd.runs.config import RunSettings, resolve
from tests import tiny
from tests.contract import battery
from tests.errors import refuses

ACCEPTING = [name for name in registry.names() if "fedopt" in registry.find_method(name).stackable]
PLAN = RunSettings(rounds=3, ratio=0.67, seed=5, evaluate_every=3)


def by_hand(optimiser: str, deltas: list[float], lr: float, b1: float, b2: float, tau: float) -> list[float]:
    """theta after each round for one coordinate that starts at 0; `deltas` are the mean changes."""
    theta, m, v, found = 0.0, 0.0, tau**2, []
    for delta in deltas:
        if optimiser == "momentum":
            m = b1 * m + delta
            theta += lr * m
        else:
            m = b1 * m + (1 - b1) * delta
            if optimiser == "adagrad":
                v += delta**2
            elif optimiser == "adam":
                v = b2 * v + (1 - b2) * delta**2
            else:
                v -= (1 - b2) * delta**2 * math.copysign(1.0, v - delta**2) * (v != delta**2)
            theta += lr * m / (math.sqrt(v) + tau)
        found.append(theta)
    return found


@pytest.mark.parametrize("optimiser", ["momentum", "adagrad", "adam", "yogi"])
def test_four_rounds_are_those_of_algorithm_2_by_hand(optimiser):
    net, deltas = tiny.net(), [0.3, -0.8, 0.05, 0.4]
    part = FedOpt(
        method=FedAvg(), fedopt=ServerOptimiser(optimiser=optimiser, lr=0.7, beta1=0.6, beta2=0.9, tau=0.05)
    )
    params = {name: torch.zeros_like(value, dtype=torch.float64) for name, value in tiny.params(net).items()}
    state = ServerState(params=params)
    found = []
    for delta in deltas:
        # two sites whose weighted mean moves every coordinate by delta
        updates = [
            Update(site=site, params={k: v + delta + shift for k, v in state.params.items()}, weight=weight)
            for site, shift, weight in (("ape", 0.3, 1.0), ("bee", -0.1, 3.0))
        ]
        state = part.server(state, updates, net, tiny.Stream(0))
        values = torch.cat([value.flatten() for value in state.params.values()])
        torch.testing.assert_close(values, values[:1].expand_as(values), rtol=1e-12, atol=1e-12)
        found.append(float(values[0]))
    wanted = by_hand(optimiser, deltas, 0.7, 0.6, 0.9, 0.05)
    assert found == pytest.approx(wanted, rel=1e-9)
    assert state.round == len(deltas)


@pytest.mark.parametrize("name", ACCEPTING)
def test_a_step_of_one_without_momentum_is_the_method_itself_bit_for_bit(name):
    data = tiny.federation(test=1)
    bare = tiny.Run(battery.quick(name), data, PLAN)
    part = tiny.Run(battery.quick(f"{name}+fedopt", fedopt__beta1=0.0, fedopt__lr=1.0), data, PLAN)
    assert tiny.equal(bare.states[-1].params, part.states[-1].params)


@pytest.mark.parametrize("optimiser", ["momentum", "adagrad", "adam", "yogi"])
def test_every_optimiser_resumes_bit_equal_and_differs_from_the_mean(optimiser):
    data, of = tiny.federation(test=1), battery.quick("fedavg+fedopt", fedopt__optimiser=optimiser)
    whole = tiny.Run(of, data, PLAN)
    first = tiny.Run(of, data, PLAN, rounds=2)
    rest = tiny.Run(of, data, PLAN, memory=first.memory)
    assert tiny.equal(rest.states[-1].params, whole.states[-1].params)
    assert not tiny.equal(whole.states[-1].params, tiny.Run(battery.quick("fedavg"), data, PLAN).states[-1].params)
    assert of.name == "fedavg+fedopt"
    assert optimiser in of.label


def test_statistics_of_norm_layers_are_averaged_and_not_extrapolated():
    data, net = tiny.federation(test=1), tiny.net(norm="batch")
    of = battery.quick("fedavg+fedopt", fedopt__lr=3.0)
    run = tiny.Run(of, data, RunSettings(rounds=1, evaluate_every=1), using=net)
    bare = tiny.Run(battery.quick("fedavg"), data, RunSettings(rounds=1, evaluate_every=1), using=net)
    buffers = [name for name in net.init(tiny.Stream(0)) if name not in net.trainable]
    assert buffers
    after, mean = run.states[-1].params, bare.states[-1].params
    assert all(torch.equal(after[name], mean[name]) for name in buffers)
    assert not any(torch.equal(after[name], mean[name]) for name in net.trainable if mean[name].any())


def test_anchors_move_by_the_mean_gradient_and_not_by_that_of_the_optimiser():
    data, plan = tiny.federation(test=1), RunSettings(rounds=1, evaluate_every=1)
    runs = [
        tiny.Run(battery.quick(f"fedavg+anchors{stack}", train_on="virtual"), data, plan)
        for stack in ("", "+fedopt")
    ]
    a, b = (run.states[-1].anchors for run in runs)
    assert torch.equal(a.images, b.images)
    with refuses("part-not-accepted", SettingError, part="anchors", method="fedavg+fedopt"):
        resolve({"method": "fedavg+fedopt+anchors"})


@pytest.mark.parametrize("name", ["local-only", "pooled", "fedproto-local"])
def test_methods_whose_server_averages_no_model_refuse_it(name):
    with refuses("part-not-accepted", SettingError, part="fedopt"):
        resolve({"method": f"{name}+fedopt"})


def test_the_learning_rate_has_a_default_that_fits_the_optimiser():
    assert ServerOptimiser().rate == 1.0
    assert ServerOptimiser(optimiser="adam").rate == 0.01
    assert ServerOptimiser(optimiser="yogi", lr=0.3).rate == 0.3
    with refuses("setting-out-of-bounds", SettingError, setting="fedopt.beta1"):
        ServerOptimiser(beta1=1.0)


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("scaffold", "scaffold-needs-plain-sgd"),
        ("fednova", "setting-value"),
        ("fedavg+dp-sgd", "dp-sgd-with-adam"),
    ],
)
def test_formulas_that_hold_for_sgd_only_refuse_adam_at_the_sites(name, code):
    with refuses(code, SettingError):
        battery.quick(name, local__optimiser="adam")


def test_adam_at_the_sites_resumes_bit_equal():
    data, of = tiny.federation(test=1), battery.quick("fedavg", local__optimiser="adam")
    whole = tiny.Run(of, data, PLAN)
    rest = tiny.Run(of, data, PLAN, memory=tiny.Run(of, data, PLAN, rounds=1).memory)
    assert tiny.equal(rest.states[-1].params, whole.states[-1].params)
