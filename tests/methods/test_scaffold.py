"""SCAFFOLD, option II: drift corrected by control variates that are mean local gradients."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fedlgd.core.errors import SettingError
from fedlgd.core.train import Local
from fedlgd.core.types import Broadcast, ServerState, SiteState, Stream, Update
from fedlgd.engines.settings import RoundSettings
from fedlgd.methods import common
from fedlgd.methods.scaffold import Scaffold, new_variate
from fedlgd.nets.registry import build_net
from tests import tiny
from tests.errors import refuses
from tests.methods.own import quadratic_net, quadratic_site
from tests.vectors import close, floats, vector

V = vector("scaffold")
METHOD = Scaffold(local=Local(lr=V["lr"], batch=1), server_lr=V["global_lr"])


def _state() -> ServerState:
    trees = {"variate": {"w": floats(V["c"])}, "federation": {"sites": torch.tensor(V["N"])}}
    return ServerState(params={"w": floats(V["x"])}, trees=trees)


def _at_site(i: int, method: Scaffold = METHOD) -> tuple[Update, SiteState]:
    """Site i of the vector: as many images as it is to take steps."""
    site = quadratic_site(floats(V["A"][i]), floats(V["b"][i]), V["local_steps"][str(i)], f"s{i}")
    kept = SiteState(trees={"variate": {"w": floats(V["c_i"][i])}})
    return method.site(method.broadcast(_state(), site.name), kept, site, quadratic_net(2), Stream(i))


# Vectors


@pytest.mark.parametrize("i", V["selected"])
def test_every_point_of_the_local_paths_of_the_specification(i):
    for steps, point in enumerate(V["trajectories"][str(i)][1:], start=1):
        update, _ = _at_site(i, replace(METHOD, local=replace(METHOD.local, steps=steps)))
        close(update.params["w"], point)


@pytest.mark.parametrize("i", V["selected"])
def test_the_new_variates_of_the_specification_and_what_is_sent_of_them(i):
    update, kept = _at_site(i)
    close(kept.trees["variate"]["w"], V["c_i_new"][i])
    close(update.trees["variate"]["w"], floats(V["c_i_new"][i]) - floats(V["c_i"][i]))


def test_the_next_model_and_variate_of_the_specification():
    updates = [_at_site(i)[0] for i in V["selected"]]
    after = METHOD.server(_state(), iter(updates), quadratic_net(2), Stream(0))
    close(after.params["w"], V["x_new"])
    close(after.trees["variate"]["w"], V["c_new"])
    wrong = floats(V["c_new_WRONG_if_divided_by_S"])
    assert (after.trees["variate"]["w"] - wrong).abs().max() > 0.01
    assert after.trees["federation"]["sites"].item() == V["N"]


def test_the_formula_of_the_new_variate():
    got = new_variate({"w": floats([1.0])}, {"w": floats([10.0])}, {"w": floats([5.0])}, {"w": floats([3.0])}, 0.5)
    close(got["w"], [1 - 10 + (5 - 3) / 0.5])


# Option II is the mean gradient along the path


def _spied(monkeypatch, net) -> list[dict[str, Tensor]]:
    """Gradients of the cross-entropy alone at every step of local training."""
    gradients = []

    def plain(net_, data, terms=(), criterion=None, wrapped=common.plain):
        alone, whole = wrapped(net_, data), wrapped(net_, data, terms, criterion)

        def loss(w, index):
            names = sorted(net.trainable)
            found = torch.autograd.grad(alone(w, index), [w[name] for name in names], materialize_grads=True)
            gradients.append(dict(zip(names, found, strict=True)))
            return whole(w, index)

        return loss

    monkeypatch.setattr(common, "plain", plain)
    return gradients


@pytest.mark.parametrize("values", [{}, {"local.epochs": 2}, {"local.steps": 5}])
def test_the_new_variate_is_the_mean_local_gradient_along_the_path(monkeypatch, values):
    net = tiny.net()
    gradients = _spied(monkeypatch, net)
    method = tiny.settings(Scaffold(), tiny.SETTINGS | values)
    site = tiny.site_of(tiny.labelled(net, 3, dtype=torch.float64))
    random = [tiny.double(tiny.params(net, seed)) for seed in range(3)]
    message = Broadcast(round=4, params=random[0], trees={"variate": random[1]})
    _, kept = method.site(message, SiteState(trees={"variate": random[2]}), site, net, Stream(0))
    assert len(gradients) == {"": 3, "local.epochs": 6, "local.steps": 5}["".join(values)]
    for name, value in kept.trees["variate"].items():
        close(value, torch.stack([g[name] for g in gradients]).mean(0))


def test_local_steps_follow_the_gradient_less_ones_own_variate_plus_the_servers(monkeypatch):
    net = tiny.net()
    gradients = _spied(monkeypatch, net)
    method = tiny.settings(Scaffold(), tiny.SETTINGS)
    site = tiny.site_of(tiny.labelled(net, 3, dtype=torch.float64))
    start, c, mine = (tiny.double(tiny.params(net, seed)) for seed in range(3))
    message = Broadcast(round=4, params=start, trees={"variate": c})
    update, _ = method.site(message, SiteState(trees={"variate": mine}), site, net, Stream(0))
    for name, value in update.params.items():
        close(value, start[name] - 0.05 * sum(g[name] - mine[name] + c[name] for g in gradients))


def test_a_site_that_takes_part_for_the_first_time_has_a_variate_of_zero():
    zero = SiteState(trees={"variate": {"w": floats([0.0, 0.0])}})
    site = quadratic_site(floats(V["A"][0]), floats(V["b"][0]), 3)
    message = METHOD.broadcast(_state(), "ape")
    a, b = (METHOD.site(message, s, site, quadratic_net(2), Stream(0)) for s in (SiteState(), zero))
    assert tiny.equal(a[0].params, b[0].params)
    assert tiny.equal(a[1].trees["variate"], b[1].trees["variate"])


# Whose variates, and for what


@pytest.mark.parametrize("net", ["tests.nets.own:Normed", "tests.nets.own:HalfFrozen"])
def test_variates_are_for_trainable_parameters_only(net):
    net = build_net(net, (3, 8, 8), 3)
    run = tiny.Run(tiny.settings(Scaffold(), tiny.SETTINGS), tiny.federation(), RoundSettings(rounds=2), using=net)
    names = net.trainable
    assert names < set(run.states[0].params)
    assert all(set(state.trees["variate"]) == names for state in run.states)
    assert all(set(run.memory.site(name).trees["variate"]) == names for name in tiny.NAMES)


def test_everything_starts_from_zero_and_all_sites_are_counted():
    run = tiny.Run(tiny.settings(Scaffold(), tiny.SETTINGS), tiny.federation(), RoundSettings(rounds=1, ratio=0.34))
    start = run.states[0]
    assert all(not v.any() for v in start.trees["variate"].values())
    assert start.trees["federation"]["sites"].item() == 3
    assert all(not run.memory.site(n).trees for n in tiny.NAMES if n not in run.records[1].sampled)


@pytest.mark.parametrize("ratio", [1.0, 0.67, 0.34])
def test_the_servers_variate_stays_the_mean_of_all_sites_variates(ratio):
    """True of c <- c + 1/N sum (c_i+ - c_i) under any sampling, as all start at zero; false if divided by |S|."""
    method = tiny.settings(Scaffold(), tiny.SETTINGS)
    run = tiny.Run(method, tiny.federation(), RoundSettings(rounds=4, ratio=ratio))
    kept = [run.memory.site(name).trees.get("variate") for name in tiny.NAMES]
    for name, value in run.states[-1].trees["variate"].items():
        mean = sum(k[name].double() if k else torch.zeros(()) for k in kept) / 3
        torch.testing.assert_close(value.double(), mean.expand_as(value), rtol=1e-4, atol=1e-6)
    assert any(v.abs().max() > 1e-3 for v in run.states[-1].trees["variate"].values())


def test_sites_weigh_alike_whatever_their_number_of_images():
    net, method = tiny.net(), tiny.settings(Scaffold(), tiny.SETTINGS)
    state = method.start(tiny.params(net), [], net, Stream(0))
    for per_class in (1, 5):
        site = tiny.site_of(tiny.labelled(net, per_class))
        assert method.site(method.broadcast(state, "ape"), SiteState(), site, net, Stream(0))[0].weight == 1.0
    models = [{"w": floats([1.0])}, {"w": floats([4.0])}]
    updates = [
        Update(site=str(i), params=m, weight=w, trees={"variate": {"w": floats([0.0])}})
        for i, (m, w) in enumerate(zip(models, (9.0, 1.0), strict=True))
    ]
    trees = {"variate": {"w": floats([0.0])}, "federation": {"sites": torch.tensor(2)}}
    after = METHOD.server(ServerState(params=models[0], trees=trees), iter(updates), quadratic_net(1), Stream(0))
    close(after.params["w"], [2.5])


# The server's step


def _step(server_lr: float, net, before, models):
    zero = {k: torch.zeros_like(v) for k, v in before.items() if k in net.trainable}
    state = ServerState(params=before, trees={"variate": zero, "federation": {"sites": torch.tensor(2)}})
    updates = [Update(site=str(i), params=m, weight=1.0, trees={"variate": zero}) for i, m in enumerate(models)]
    return replace(METHOD, server_lr=server_lr).server(state, iter(updates), net, Stream(0)).params


@pytest.mark.parametrize("server_lr", [0.5, 1.0, 1.5])
def test_the_model_moves_the_servers_step_times_the_mean_move(server_lr):
    before, models = {"w": floats([1.0, 1.0])}, [{"w": floats([2.0, 1.0])}, {"w": floats([4.0, -1.0])}]
    got = _step(server_lr, quadratic_net(2), before, models)
    close(got["w"], [1 + server_lr * 2, 1 - server_lr * 1])


@pytest.mark.parametrize("server_lr", [0.5, 1.0, 2.0])
def test_buffers_are_averaged_and_counters_take_the_largest_whatever_the_servers_step(server_lr):
    """Discrepancy 29. A variance of 1 that falls to 0.1 at the sites would become negative at server_lr=2."""
    net = build_net("tests.nets.own:Normed", (3, 4, 4), 2)
    before = tiny.double(tiny.params(net))
    models = []
    for i in (1, 2):
        models.append({k: v.clone() for k, v in before.items()})
        models[-1]["norm.running_var"] = torch.full((3,), 0.1 * i, dtype=torch.float64)
        models[-1]["norm.num_batches_tracked"] = torch.tensor(3 * i)
    got = _step(server_lr, net, before, models)
    close(got["norm.running_var"], [0.15] * 3)
    assert got["norm.num_batches_tracked"].item() == 6


@pytest.mark.parametrize("local", [Local(momentum=0.9), Local(weight_decay=0.1)])
def test_what_breaks_the_identity_of_the_variate_is_refused(local):
    with refuses("scaffold-needs-plain-sgd", SettingError):
        Scaffold(local=local)
