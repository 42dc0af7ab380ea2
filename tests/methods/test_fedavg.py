"""FedAvg: what sites train on and what the server does."""

import torch

from fedlgd.core.errors import SettingError
from fedlgd.core.train import batches
from fedlgd.core.types import Broadcast, ServerState, SiteState, Stream, Update
from fedlgd.engines.settings import RoundSettings
from fedlgd.methods.anchors import Anchored
from fedlgd.methods.fedavg import FedAvg
from tests import tiny
from tests.errors import refuses


def test_the_paper_preset_trains_on_virtual_sets():
    assert tiny.settings(FedAvg(), FedAvg.presets["paper"]).train_on == "virtual"


def test_real_images_are_trained_on_as_scaled_network_input():
    """One site, one round, against a plain loop; bit for bit."""
    net, site = tiny.net(), tiny.federation().by_name["ape"]
    method, start = tiny.fedavg(train_on="real"), tiny.params(net)
    state, hello = method.enrol(site, net, Stream(0))
    update, after = method.site(Broadcast(round=0, params=start), state, site, net, Stream(3))
    x = (site.train.x.float() / 255 - 0.5) / 0.5
    weights = {k: v.clone().requires_grad_() for k, v in start.items()}
    optimiser = torch.optim.SGD(weights.values(), lr=method.local.lr)
    for index in batches(len(x), method.local, Stream(3).generator("shuffle")):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(
            net(weights, x[index].contiguous()).logits, site.train.y[index]
        ).backward()
        optimiser.step()
    assert tiny.equal(update.params, {k: v.detach() for k, v in weights.items()})
    assert after is state
    assert state.virtual is None
    assert hello.counts.tolist() == [6, 6, 6]
    assert update.weight == 18


def test_images_that_are_neither_real_nor_virtual_are_refused():
    with refuses("setting-choice", SettingError, setting="train_on", value="vrtual"):
        FedAvg(train_on="vrtual")


def test_virtual_training_never_touches_real_images():
    net, site = tiny.net(), tiny.federation().by_name["ape"]
    data = tiny.labelled(net)
    state = SiteState(virtual=tiny.fedavg().enrol(site, net, Stream(0))[0].virtual)
    message = Broadcast(round=0, params=tiny.params(net))
    a, _ = tiny.fedavg().site(message, state, site, net, Stream(3))
    b, _ = tiny.fedavg().site(message, state, tiny.site_of(data), net, Stream(3))
    assert tiny.equal(a.params, b.params)


def test_the_server_sends_the_model_alone_to_everybody():
    net = tiny.net()
    state = ServerState(params=tiny.params(net), round=4)
    message = tiny.fedavg().broadcast(state, "ape")
    assert message.params is state.params
    assert (message.round, message.anchors, dict(message.trees)) == (4, None, {})


ANCHORED = {
    "anchors.per_class": 2,
    "anchors.plan": "exact",
    "anchors.steps": 2,
    "anchors.selected.every": 2,
    "anchors.selected.count": 2,
    "pull.weight": 1.0,
}


def test_with_anchors_fedavg_is_fedlgd_without_refinement_bit_for_bit():
    data, plan = tiny.federation(), RoundSettings(rounds=4, ratio=0.67, seed=5)
    a = tiny.Run(tiny.settings(Anchored(method=tiny.fedavg()), ANCHORED), data, plan)
    b = tiny.Run(tiny.fedlgd(refine__steps=0, pull__weight=1.0), data, plan)
    for mine, theirs in zip(a.states, b.states, strict=True):
        assert tiny.equal(mine.params, theirs.params)
        assert torch.equal(mine.anchors.images, theirs.anchors.images)
        assert mine.held == theirs.held
    assert tiny.without_seconds(a.records) == tiny.without_seconds(b.records)


def test_without_anchors_none_are_made_sent_or_kept():
    run = tiny.Run(tiny.fedavg(), tiny.federation(), RoundSettings(rounds=2))
    assert all(state.anchors is None and not state.held for state in run.states)
    assert all(run.memory.site(name).anchors is None for name in tiny.NAMES)


def test_anchors_join_real_images_too():
    data, net = tiny.federation(names=("ape",)), tiny.net()
    method = tiny.settings(Anchored(method=tiny.fedavg(train_on="real", local__epochs=2)), ANCHORED)
    run = tiny.Run(method, data, RoundSettings(rounds=2))
    steps = 2 * 6
    assert run.records[1].flops["train"] == 3 * 2 * 18 * net.flops
    assert run.records[2].flops["train"] == 3 * (2 * 18 + steps * 6) * net.flops


def test_the_server_reads_updates_once_and_in_order():
    net, read = tiny.net(), []

    def arriving():
        for i, name in enumerate(tiny.NAMES):
            read.append(name)
            yield Update(site=name, params=tiny.params(net, i), weight=1.0)

    got = tiny.fedavg().server(ServerState(params=tiny.params(net)), arriving(), net, Stream(0))
    assert read == list(tiny.NAMES)
    for name, value in got.params.items():
        mean = sum(tiny.params(net, i)[name].double() for i in range(3)) / 3
        assert torch.equal(value, mean.float())
