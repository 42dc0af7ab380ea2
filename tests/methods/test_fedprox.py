"""FedProx: half mu times the squared distance to the received model, over what is trained."""

import math

import pytest
import torch

from fedlgd.core.train import Local, sgd
from fedlgd.core.types import Broadcast, SiteState, Stream
from fedlgd.methods.fedavg import FedAvg
from fedlgd.methods.fedprox import FedProx
from fedlgd.methods.regularisers import proximal
from fedlgd.nets.registry import build_net
from tests import tiny
from tests.methods.own import quadratic_net, quadratic_site
from tests.vectors import close, floats, vector

V = vector("fedprox")
W = frozenset({"w"})


def test_the_vector_of_the_specification():
    start = {"w": floats(V["w_global"])}
    w = floats(V["w"]).requires_grad_()
    value = proximal({"w": w}, start, V["mu"], W)
    close(value.detach(), V["prox_value"])
    (gradient,) = torch.autograd.grad(floats(V["grad_ce"]) @ w + value, w)
    close(gradient, V["total_grad"])


def test_a_step_of_the_vector_through_local_sgd():
    net, start = quadratic_net(3), {"w": floats(V["w_global"])}

    def objective(w, index):
        return floats(V["grad_ce"]) @ w["w"] + proximal(w, start, V["mu"], W)

    trained = sgd(net, {"w": floats(V["w"])}, 1, objective, Local(lr=0.1), Stream(0))
    close(trained.params["w"], V["w_after_step_lr_0_1"])


def test_the_norm_is_squared():
    start = {"w": floats([1.0, 2.0, 3.0])}
    one, two = (proximal({"w": start["w"] + k * floats([3.0, 0.0, 4.0])}, start, 1.0, W).item() for k in (1, 2))
    assert (one, two) == (12.5, 50.0)


def test_the_gradient_at_the_received_model_is_zero_and_finite():
    start = {"w": floats([1.0, -2.0])}
    w = start["w"].clone().requires_grad_()
    (gradient,) = torch.autograd.grad(proximal({"w": w}, start, 3.0, W), w)
    assert torch.equal(gradient, torch.zeros(2, dtype=torch.float64))


@pytest.mark.parametrize("net", ["tests.nets.own:Normed", "tests.nets.own:HalfFrozen"])
def test_buffers_and_frozen_parameters_do_not_count(net):
    net = build_net(net, (3, 4, 4), 2)
    start = tiny.double(tiny.params(net))
    moved = {k: v + 7 if k not in net.trainable else v for k, v in start.items()}
    assert len(net.trainable) < len(start)
    assert proximal(moved, start, 2.0, net.trainable) == 0
    every = {k: v + 1 for k, v in start.items()}
    assert proximal(every, start, 2.0, net.trainable) == sum(start[k].numel() for k in net.trainable)


def _play(method, copies: int, start: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    net, site = quadratic_net(len(start)), quadratic_site(a, b, copies)
    update, _ = method.site(Broadcast(round=0, params={"w": start}), SiteState(), site, net, Stream(0))
    return update.params["w"]


def test_local_training_is_the_recursion_around_the_fixed_received_model():
    """w <- w - eta (a (w - b) + mu (w - theta_t)); theta_t must not follow w."""
    start, a, b = floats([0.3, -1.0]), floats([1.5, 0.7]), floats([-0.4, 2.0])
    eta, mu, w = 0.1, 0.8, start
    for _ in range(6):
        w = w - eta * (a * (w - b) + mu * (w - start))
    close(_play(FedProx(mu=mu, local=Local(lr=eta, batch=1)), 6, start, a, b), w)


def test_the_first_step_feels_nothing_of_the_term():
    start, a, b = floats([0.3, -1.0]), floats([1.5, 0.7]), floats([-0.4, 2.0])
    local = Local(lr=0.1, batch=1)
    near, free = (_play(m, 1, start, a, b) for m in (FedProx(mu=1000.0, local=local), FedAvg(local=local)))
    assert torch.equal(near, free)


def test_the_larger_mu_the_nearer_the_model_stays():
    start, a, b = floats([0.3, -1.0]), floats([1.5, 0.7]), floats([-0.4, 2.0])
    far = [
        (_play(FedProx(mu=mu, local=Local(lr=0.1, batch=1)), 20, start, a, b) - start).norm().item()
        for mu in (0.0, 0.1, 1.0, 5.0)
    ]
    assert far == sorted(far, reverse=True)
    assert len(set(far)) == 4


def test_the_loss_that_is_reported_has_the_term_in_it():
    start, a, b = floats([0.0]), floats([1.0]), floats([1.0])
    net, site = quadratic_net(1), quadratic_site(a, b, 2)
    method = FedProx(mu=2.0, local=Local(lr=0.5, batch=1))
    update, _ = method.site(Broadcast(round=0, params={"w": start}), SiteState(), site, net, Stream(0))
    first, second = 1 + 0.5, 1 + 0.5 * 0.25 + 0.25
    assert math.isclose(update.metrics["loss"], (first + second) / 2, rel_tol=1e-9)


def test_the_default_weight_is_the_references():
    assert FedProx().mu == 0.01
