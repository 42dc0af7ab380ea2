"""FedNova: directions normalised by local work, and work that is known for momentum and the proximal term."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedlgd.core.errors import SettingError
from fedlgd.core.train import Local, sgd
from fedlgd.core.types import Broadcast, Params, ServerState, SiteState, Stream, Update
from fedlgd.methods.fedavg import FedAvg
from fedlgd.methods.fednova import FedNova, local_work
from fedlgd.methods.regularisers import proximal
from fedlgd.nets.registry import build_net
from tests import tiny
from tests.errors import refuses
from tests.methods.own import quadratic_net, quadratic_site
from tests.vectors import close, floats, vector

V = vector("fednova")


def _update(params: Params, weight: float, work: float, name: str = "ape") -> Update:
    work = torch.tensor(work, dtype=torch.float64)
    return Update(site=name, params=params, weight=weight, trees={"nova": {"work": work}})


def _serve(before: Tensor, models: list[Tensor], weights: list[float], work: list[float]) -> Tensor:
    updates = [_update({"w": m}, w, a) for m, w, a in zip(models, weights, work, strict=True)]
    net = quadratic_net(len(before))
    return FedNova().server(ServerState(params={"w": before}), iter(updates), net, Stream(0)).params["w"]


# Vectors


@pytest.mark.parametrize("momentum", ["0.0", "0.9"])
def test_local_work_of_the_specification(momentum):
    how = Local(momentum=float(momentum))
    got = [local_work(steps, how) for steps in V["tau_i"]]
    close(floats(got), V["by_momentum"][momentum]["a_i"])


@pytest.mark.parametrize("momentum", ["0.0", "0.9"])
def test_the_next_model_of_the_specification(momentum):
    wanted = V["by_momentum"][momentum]
    models = [floats(c) for c in V["clients"]]
    close(_serve(floats(V["x"]), models, V["n_i"], wanted["a_i"]), wanted["x_new"])


def test_the_effective_number_of_steps_of_the_specification():
    """Sites that all moved by a_c times one direction: the model moves tau_eff times that direction."""
    for wanted in V["by_momentum"].values():
        direction = floats([1.0, -2.0])
        models = [-a * direction for a in wanted["a_i"]]
        close(_serve(floats([0.0, 0.0]), models, V["n_i"], wanted["a_i"]), -wanted["tau_eff"] * direction)


@pytest.mark.parametrize("momentum", ["0.0", "0.9"])
def test_directions_of_the_specification(momentum):
    """AnchorLoss a site that did one step and went nowhere: half of d_c, times the mean of the work."""
    wanted = V["by_momentum"][momentum]
    x = floats(V["x"])
    for model, a, d in zip(V["clients"], wanted["a_i"], wanted["d_i"], strict=True):
        got = _serve(x, [floats(model), x], [1.0, 1.0], [a, 1.0])
        close((x - got) / ((a + 1) / 2 * 0.5), d)


# Work against simulation: a constant gradient enters the model a_c times


@settings(deadline=None, max_examples=25)
@given(steps=st.integers(1, 12), momentum=st.sampled_from([0.0, 0.3, 0.9]), mu=st.sampled_from([0.0, 0.5, 4.0]))
def test_local_work_is_how_often_a_constant_gradient_enters_the_model(steps, momentum, mu):
    mu = 0.0 if momentum else mu
    how = Local(lr=0.1, momentum=momentum, steps=steps)
    start, gradient = {"w": floats([0.5, -1.0])}, floats([2.0, -3.0])

    def objective(w: Params, index: Tensor) -> Tensor:
        return gradient @ w["w"] + proximal(w, start, mu, frozenset({"w"}))

    end = sgd(quadratic_net(2), start, 1, objective, how, Stream(0)).params["w"]
    close((start["w"] - end) / how.lr, local_work(steps, how, mu) * gradient)


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
def test_local_work_agrees_with_torchs_own_sgd(momentum):
    w = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.SGD([w], lr=0.01, momentum=momentum)
    for steps in range(1, 30):
        optimiser.zero_grad()
        w.sum().backward()
        optimiser.step()
        assert -w.item() / 0.01 == pytest.approx(local_work(steps, Local(lr=0.01, momentum=momentum)), rel=1e-10)


def test_local_work_of_plain_sgd_is_the_number_of_steps():
    assert [local_work(n, Local()) for n in (1, 4, 19)] == [1, 4, 19]


@pytest.mark.parametrize(
    ("values", "works"),
    [({}, [3, 2]), ({"local.epochs": 2}, [6, 4]), ({"local.steps": 5}, [5, 5]), ({"local.batch": 6}, [2, 1])],
)
def test_a_site_reports_the_work_it_did(values, works):
    net, method = tiny.net(), tiny.settings(FedNova(), tiny.SETTINGS | values)
    for train, work in zip((12, 6), works, strict=True):
        site = tiny.site_of(tiny.labelled(net, train // 3))
        update, _ = method.site(Broadcast(round=0, params=tiny.params(net)), SiteState(), site, net, Stream(0))
        assert update.trees["nova"]["work"].item() == work


def test_a_site_reports_the_work_under_its_momentum_or_proximal_term():
    net = tiny.net()
    site = tiny.site_of(tiny.labelled(net, 4))
    message = Broadcast(round=0, params=tiny.params(net))
    for values, work in (({"local.momentum": 0.5}, 1 + 1.5 + 1.75), ({"mu": 4.0}, 0.8 * (0.8 + 1) + 1)):
        method = tiny.settings(FedNova(), tiny.SETTINGS | values)
        update, _ = method.site(message, SiteState(), site, net, Stream(0))
        assert update.trees["nova"]["work"].item() == pytest.approx(work, rel=1e-12)


# The server


def test_equal_work_is_fedavg_and_unequal_work_is_not():
    x, models, weights = floats(V["x"]), [floats(c) for c in V["clients"]], V["n_i"]
    fedavg = vector("aggregation")["fedavg_weighted"]
    for work in (1.0, 7.0, 112.5):
        close(_serve(x, models, weights, [work] * 3), fedavg)
    uneven = _serve(x, models, weights, [1.0, 2.0, 1.0])
    assert (uneven - floats(fedavg)).abs().max() > 1e-3


def test_weights_are_shares_of_those_that_took_part():
    x, models, work = floats(V["x"]), [floats(c) for c in V["clients"]], [19.0, 10.0, 40.0]
    close(_serve(x, models, [60, 100, 40], work), _serve(x, models, [0.3, 0.5, 0.2], work))
    two = _serve(x, models[:2], [30, 50], work[:2])
    p = [3 / 8, 5 / 8]
    d = sum(q * (x - m) / a for q, m, a in zip(p, models, work, strict=False))
    close(two, x - (p[0] * 19 + p[1] * 10) * d)


def test_one_site_alone_keeps_its_model_whatever_its_work():
    x, model = floats(V["x"]), floats(V["clients"][0])
    for work in (1.0, 3.5, 400.0):
        close(_serve(x, [model], [12.0], [work]), model)


def test_a_round_on_quadratics_with_unequal_work_against_plain_arithmetic():
    """Sites of 5 and 2 steps; d_c has eta in it already, so that eta appears nowhere at the server."""
    net, method = quadratic_net(2), FedNova(mu=0.6, local=Local(lr=0.2, batch=1))
    x = floats([0.4, -0.7])
    functions = [(floats([1.0, 0.5]), floats([2.0, 1.0]), 5), (floats([0.3, 1.2]), floats([-1.0, 0.0]), 2)]
    updates, ends, works = [], [], []
    for i, (a, b, steps) in enumerate(functions):
        site = quadratic_site(a, b, steps, f"s{i}")
        updates.append(method.site(Broadcast(round=0, params={"w": x}), SiteState(), site, net, Stream(i))[0])
        w, work = x, 0.0
        for _ in range(steps):
            w = w - 0.2 * (a * (w - b) + 0.6 * (w - x))
            work = (1 - 0.2 * 0.6) * work + 1
        ends.append(w)
        works.append(work)
        close(updates[-1].params["w"], w)
    p = [5 / 7, 2 / 7]
    wanted = x - sum(q * a for q, a in zip(p, works, strict=True)) * sum(
        q * (x - w) / a for q, w, a in zip(p, ends, works, strict=True)
    )
    got = method.server(ServerState(params={"w": x}), iter(updates), net, Stream(0))
    close(got.params["w"], wanted)
    fedavg = FedAvg().server(ServerState(params={"w": x}), iter(updates), net, Stream(0))
    assert (fedavg.params["w"] - wanted).abs().max() > 0.01


def test_buffers_are_averaged_as_they_are_and_counters_take_the_largest():
    net = build_net("tests.nets.own:Normed", (3, 4, 4), 2)
    before = tiny.double(tiny.params(net))
    updates = []
    for i, (weight, work) in enumerate([(3.0, 2.0), (1.0, 8.0)]):
        params = {k: v + i + 1 if v.is_floating_point() else v + 5 * (i + 1) for k, v in before.items()}
        updates.append(_update(params, weight, work, f"s{i}"))
    got = FedNova().server(ServerState(params=before), iter(updates), net, Stream(0)).params
    assert got["norm.num_batches_tracked"].item() == 10
    close(got["norm.running_mean"], before["norm.running_mean"] + 1.25)
    step = (0.75 * 2 + 0.25 * 8) * (0.75 * 1 / 2 + 0.25 * 2 / 8)
    close(got["head.weight"], before["head.weight"] + step)
    assert got.keys() == before.keys()


def test_momentum_and_a_proximal_term_together_are_refused():
    with refuses("setting-value", SettingError):
        FedNova(mu=0.1, local=Local(momentum=0.9))
