"""FedBN: norm layers and buffers stay at their site, the rest is averaged."""

import pytest
import torch

from fedlgd.core.errors import FedlgdError
from fedlgd.core.types import ServerState, SiteState, Stream, Update
from fedlgd.engines.wire import pack
from fedlgd.methods.fedbn import FedBN
from fedlgd.methods.registry import find_method
from fedlgd.nets.registry import build_net
from fedlgd.runs.config import Config, RunSettings
from fedlgd.runs.run import execute
from tests import tiny

SAMPLED = RunSettings(rounds=4, ratio=0.67, seed=5)


def _fedbn(**values) -> FedBN:
    return tiny.settings(FedBN(), tiny.SETTINGS | {k.replace("__", "."): v for k, v in values.items()})


def _own(norm: str) -> set[str]:
    leaves = ["weight", "bias"]
    if norm == "batch":
        leaves += ["running_mean", "running_var", "num_batches_tracked"]
    return {f"blocks.{i}.{leaf}" for i in (1, 5) for leaf in leaves}


class Noted(FedBN):
    """Keeps every message."""

    messages: list = []

    def broadcast(self, state, site):
        message = super().broadcast(state, site)
        self.messages.append(message)
        return message

    def site(self, msg, state, site, net, rng):
        update, after = super().site(msg, state, site, net, rng)
        self.messages.append(update)
        return update, after


@pytest.mark.parametrize("norm", ["instance", "group", "batch"])
def test_norm_layers_and_buffers_never_leave_a_site(norm):
    Noted.messages = []
    net = tiny.net(norm=norm)
    assert net.own == _own(norm)
    run = tiny.Run(tiny.settings(Noted(), tiny.SETTINGS), tiny.federation(), SAMPLED, using=net)
    assert len(Noted.messages) == 2 * 2 * 4
    shared = set(net.init(Stream(0))) - _own(norm)
    for message in Noted.messages:
        assert set(message.params) == shared
        assert set(pack(message)[0]) == {f"params/{name}" for name in shared}
    assert all(set(state.params) == shared for state in run.states)
    for name in tiny.NAMES:
        assert set(run.memory.site(name).trees["own"]) == _own(norm)


@pytest.mark.parametrize("norm", ["instance", "batch"])
def test_norm_layers_start_alike_and_then_differ_between_sites(norm):
    net = tiny.net(norm=norm)
    run = tiny.Run(_fedbn(), tiny.federation(), RunSettings(rounds=2), using=net)
    first = net.init(Stream(0).at("init"))
    fresh, _ = _fedbn().enrol(tiny.federation().by_name["ape"], net, Stream(0).at("enrol", "ape"))
    assert all(torch.equal(v, first[k]) for k, v in fresh.trees["own"].items())
    kept = [run.memory.site(name).trees["own"] for name in tiny.NAMES]
    for leaf in _own(norm) - {"blocks.1.num_batches_tracked", "blocks.5.num_batches_tracked"}:
        assert not torch.equal(kept[0][leaf], kept[1][leaf])
        assert not torch.equal(kept[0][leaf], first[leaf])


def test_a_site_trains_the_shared_model_with_its_own_norm_layers():
    """The next round goes on from what the site kept, bit for bit as FedAvg would from the model put together."""
    net, site = tiny.net(norm="batch"), tiny.federation().by_name["ape"]
    method = _fedbn()
    other = tiny.params(net, 7)
    own = {k: other[k] for k in net.own}
    state = SiteState(trees={"own": own})
    server = method.start(tiny.params(net, 3), [], net, Stream(0))
    update, after = method.site(method.broadcast(server, "ape"), state, site, net, Stream(1))
    fedavg = tiny.fedavg(train_on="real")
    whole = ServerState(params={**server.params, **own})
    wanted, _ = fedavg.site(fedavg.broadcast(whole, "ape"), SiteState(), site, net, Stream(1))
    assert tiny.equal({**update.params, **after.trees["own"]}, wanted.params)
    assert after.trees["own"]["blocks.1.num_batches_tracked"].item() == 5
    assert state.trees["own"]["blocks.1.num_batches_tracked"].item() == 0


def test_the_rest_is_averaged_by_weight():
    net = tiny.net()
    names = set(net.init(Stream(0))) - net.own
    models = [{k: v for k, v in tiny.params(net, s).items() if k in names} for s in (1, 2)]
    updates = [Update(site=str(i), params=m, weight=w) for i, (m, w) in enumerate(zip(models, (3, 1), strict=True))]
    after = _fedbn().server(ServerState(params=models[0]), iter(updates), net, Stream(0))
    for name in names:
        wanted = (3 * models[0][name].double() + models[1][name].double()) / 4
        torch.testing.assert_close(after.params[name].double(), wanted, rtol=1e-6, atol=1e-7)


def test_a_net_without_norm_layers_makes_it_fedavg_bit_for_bit():
    data = tiny.federation()
    a = tiny.Run(_fedbn(), data, SAMPLED, using=tiny.net(norm="none"))
    b = tiny.Run(tiny.fedavg(train_on="real"), data, SAMPLED, using=tiny.net(norm="none"))
    for mine, theirs in zip(a.states, b.states, strict=True):
        assert tiny.equal(mine.params, theirs.params)
    assert [r.scores for r in a.records] == [r.scores for r in b.records]


@pytest.mark.parametrize("norm", ["instance", "batch"])
def test_every_site_is_scored_with_the_shared_model_and_its_own_norm_layers(norm):
    data, net = tiny.federation(), tiny.net(norm=norm)
    run = tiny.Run(_fedbn(), data, RunSettings(rounds=2, ratio=0.34, seed=1), using=net)
    for name, site in data.by_name.items():
        whole = {**run.states[-1].params, **run.memory.site(name).trees["own"]}
        logits = net.frozen(whole, site.test.take(slice(None)).x).logits
        loss = torch.nn.functional.cross_entropy(logits, site.test.y).item()
        assert run.records[-1].scores[name].loss == pytest.approx(loss, rel=1e-5)


def test_layers_of_a_users_own_net_stay_too():
    net = build_net("tests.nets.own:Normed", (3, 8, 8), 3)
    run = tiny.Run(_fedbn(), tiny.federation(), RunSettings(rounds=1), using=net)
    assert set(run.states[-1].params) == {"head.weight", "head.bias"}
    assert set(run.memory.site("ape").trees["own"]) == {
        f"norm.{leaf}" for leaf in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    }


@pytest.mark.parametrize("name", ["fedbn", "local-only", "fedproto-local"])
def test_asking_for_the_one_model_of_a_personal_method_says_where_the_models_are(name):
    method = tiny.settings(find_method(name)(), tiny.SETTINGS)
    config = Config(method=method, plan=RunSettings(rounds=1), net={"name": "convnet", "depth": 2, "width": 4})
    result = execute(config, tiny.federation(names=("ape",), train=2, test=1))
    with pytest.raises(FedlgdError, match="personal"):
        _ = result.model
