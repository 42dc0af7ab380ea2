"""FedProto: class prototypes, the pull to them, and what happens to a class that nobody has."""

import math
from itertools import pairwise

import pytest
import torch
from torch.nn import functional as F

from fedlgd.core.train import batches
from fedlgd.core.types import Broadcast, LabelledSet, ServerState, SiteState, Stream, Update
from fedlgd.engines.settings import RoundSettings
from fedlgd.methods import fedproto
from fedlgd.methods.baselines import LocalOnly
from fedlgd.methods.fedproto import (
    FedProtoAvg,
    FedProtoLocal,
    mean_prototypes,
    prototype_gap,
    site_prototypes,
)
from fedlgd.nets.registry import build_net
from tests import tiny
from tests.vectors import close, floats, vector

V = vector("fedproto")
NAN = math.nan


def _tiny(cls, **values):
    return tiny.settings(cls(), tiny.SETTINGS | {k.replace("__", "."): v for k, v in values.items()})


both = pytest.mark.parametrize("cls", [FedProtoLocal, FedProtoAvg])


# The term


def test_the_vector_of_the_specification():
    """Class 2 has no prototype: its image contributes 0 and counts in the mean."""
    prototypes = torch.stack([floats(V["global_protos"][k]) for k in "01"] + [floats([NAN] * 3)])
    features, labels = floats(V["features"]).requires_grad_(), torch.tensor(V["labels"])
    value = prototype_gap(features, labels, prototypes)
    close(value.detach(), V["mse_term"])
    (gradient,) = torch.autograd.grad(value, features)
    wanted = 2 * (features.detach() - prototypes[labels].nan_to_num()) / features.numel()
    wanted[3] = 0
    close(gradient, wanted)


def test_only_classes_without_a_prototype_make_a_term_of_zero_with_a_gradient_of_zero():
    features = floats(V["features"]).requires_grad_()
    value = prototype_gap(features, torch.tensor(V["labels"]), floats([[NAN] * 3] * 3))
    assert value.item() == 0
    assert not torch.autograd.grad(value, features)[0].any()


def test_the_mean_runs_over_images_and_dimensions():
    features, labels = floats([[3.0, 0.0], [0.0, 0.0]]), torch.tensor([0, 1])
    close(prototype_gap(features, labels, floats([[0.0, 0.0], [0.0, 1.0]])), (9 + 1) / 4)


# Prototypes of a site


def _pixels(features: torch.Tensor, labels: list[int]) -> LabelledSet:
    return LabelledSet(features.view(len(features), 1, 1, -1), torch.tensor(labels))


def test_the_prototypes_of_the_specification():
    """With a net whose features are its pixels; a class without images has count 0."""
    net = build_net("tests.nets.own:Linear", (1, 1, 3), 4)
    data = _pixels(floats(V["features"]), V["labels"])
    got = site_prototypes(net, tiny.double(tiny.params(net)), data)
    for k, wanted in V["local_protos"].items():
        close(got["means"][int(k)], wanted)
    assert got["counts"].tolist() == [1, 2, 1, 0]
    assert torch.isfinite(got["means"]).all()


@pytest.mark.parametrize("chunk", [1, 2, 3, 100])
def test_prototypes_do_not_depend_on_how_many_images_are_embedded_at_a_time(chunk):
    net = tiny.net()
    data, params = tiny.labelled(net, 3, dtype=torch.float64), tiny.double(tiny.params(net))
    got = site_prototypes(net, params, data, chunk)
    features = net(params, data.x).features
    for k in range(3):
        close(got["means"][k], features[data.y == k].mean(0))


def test_prototypes_are_made_in_eval_mode():
    net = build_net("tests.nets.own:Dropping", (3, 4, 4), 3)
    data = tiny.labelled(net, 2, dtype=torch.float64)
    with net.training():
        got = site_prototypes(net, tiny.double(tiny.params(net)), data)
    close(got["means"][1], data.x[2:4].flatten(1).mean(0))


@both
@pytest.mark.parametrize("train_on", ["real", "virtual"])
def test_a_site_sends_the_class_means_of_what_it_trained_on_under_the_model_it_ended_with(cls, train_on):
    net, site = tiny.net(), tiny.federation().by_name["ape"]
    method = _tiny(cls, train_on=train_on)
    state, _ = method.enrol(site, net, Stream(0))
    message = Broadcast(round=0, params=tiny.params(net))
    update, after = method.site(message, state, site, net, Stream(0))
    final = after.trees["model"] if cls is FedProtoLocal else update.params
    data = state.virtual.data if train_on == "virtual" else site.train.take(slice(None))
    features = net.frozen(final, data.x).features
    sent = update.trees["prototypes"]
    assert sent["counts"].tolist() == ([2, 2, 2] if train_on == "virtual" else [6, 6, 6])
    for k in range(3):
        torch.testing.assert_close(sent["means"][k], features[data.y == k].mean(0), rtol=1e-4, atol=1e-5)
    start = net.frozen(message.params, data.x).features
    assert not torch.allclose(sent["means"][0], start[data.y == 0].mean(0), rtol=1e-3)


# Prototypes of the federation


def _uploads() -> list[dict[str, torch.Tensor]]:
    return [
        {"means": floats([row]), "counts": floats([count])}
        for row, count in zip(V["client_protos_one_class"], V["counts"], strict=True)
    ]


WEIGHED = {"uniform": V["aggregated_uniform_code"], "counts": V["aggregated_count_weighted"]}


@pytest.mark.parametrize("weigh", WEIGHED)
def test_aggregated_prototypes_of_the_specification(weigh):
    close(mean_prototypes(None, _uploads(), weigh)[0], WEIGHED[weigh])


def _sent(means: list[list[float]], counts: list[float]) -> dict[str, torch.Tensor]:
    return {"means": torch.tensor(means), "counts": torch.tensor(counts)}


@pytest.mark.parametrize(("weigh", "wanted"), [("counts", [2.5, 7.0]), ("uniform", [2.0, 7.0])])
def test_a_site_without_a_class_has_no_say_in_its_prototype(weigh, wanted):
    uploads = [_sent([[1.0], [0.0]], [1.0, 0.0]), _sent([[3.0], [7.0]], [3.0, 2.0])]
    assert mean_prototypes(None, uploads, weigh).flatten().tolist() == wanted


@pytest.mark.parametrize("weigh", ["counts", "uniform"])
def test_a_class_nobody_sent_keeps_its_old_prototype_or_stays_without_one(weigh):
    uploads = [_sent([[1.0], [0.0], [0.0]], [2.0, 0.0, 0.0])]
    old = torch.tensor([[9.0], [8.0], [NAN]])
    kept = mean_prototypes(old, uploads, weigh).flatten()
    assert kept[:2].tolist() == [1.0, 8.0]
    assert kept[2].isnan()
    first = mean_prototypes(None, uploads, weigh).flatten()
    assert first[0] == 1
    assert first[1:].isnan().all()


@both
def test_the_server_replaces_the_prototypes_of_classes_that_were_sent(cls):
    method, net = _tiny(cls), tiny.net()
    old = {"prototypes": {"means": torch.full((3, 16), 5.0)}}
    params = tiny.params(net)
    sent = {"means": torch.zeros(3, 16), "counts": torch.tensor([4.0, 0.0, 4.0])}
    updates = [
        Update(site="a", params=params if cls is FedProtoAvg else {}, weight=1.0, trees={"prototypes": sent})
    ]
    after = method.server(ServerState(params=params, trees=old, round=3), iter(updates), net, Stream(0))
    assert after.trees["prototypes"]["means"][:, 0].tolist() == [0.0, 5.0, 0.0]
    assert after.round == 4


@both
def test_prototypes_outlive_the_absence_of_the_only_site_that_has_the_class(cls):
    """Only "ape" has class 2; whenever it is away the prototype of class 2 is the last it sent."""
    data = tiny.federation(missing={"bee": 2, "cat": 2})
    run = tiny.Run(_tiny(cls), data, RoundSettings(rounds=6, ratio=0.34, seed=3))
    rows = [s.trees["prototypes"]["means"][2] if s.trees else torch.full((16,), NAN) for s in run.states]
    moved = [not torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in pairwise(rows)]
    assert moved == ["ape" in record.sampled for record in run.records[1:]]
    assert True in moved
    assert False in moved[moved.index(True) :]


# A round at a site


def _loop(net, data, start, prototypes, weight, method):
    w = {k: v.clone().requires_grad_() for k, v in start.items()}
    optimiser = torch.optim.SGD(w.values(), lr=method.local.lr)
    for index in batches(len(data), method.local, Stream(3).generator("shuffle")):
        x, y = data.x[index], data.y[index]
        out = net(w, x)
        squares = [
            (f - prototypes[k]).square() if not prototypes[k].isnan().any() else torch.zeros_like(f)
            for f, k in zip(out.features, y, strict=True)
        ]
        optimiser.zero_grad()
        (F.cross_entropy(out.logits, y) + weight * torch.stack(squares).mean()).backward()
        optimiser.step()
    return {k: v.detach() for k, v in w.items()}


@both
def test_local_training_against_a_plain_loop(cls):
    net, method = tiny.net(), _tiny(cls, weight=3.0)
    data = tiny.labelled(net, 3, dtype=torch.float64)
    start = tiny.double(tiny.params(net))
    prototypes = torch.randn(3, 16, dtype=torch.float64, generator=Stream(1).generator())
    prototypes[1] = NAN
    message = Broadcast(
        round=2, params=start if cls is FedProtoAvg else {}, trees={"prototypes": {"means": prototypes}}
    )
    kept = SiteState(trees={"model": start} if cls is FedProtoLocal else {})
    update, after = method.site(message, kept, tiny.site_of(data), net, Stream(3))
    got = after.trees["model"] if cls is FedProtoLocal else update.params
    for name, value in _loop(net, data, start, prototypes, 3.0, method).items():
        torch.testing.assert_close(got[name], value, rtol=1e-7, atol=1e-9)


def test_the_first_round_has_no_term():
    data, plan = tiny.federation(), RoundSettings(rounds=2)
    heavy, none = (tiny.Run(_tiny(FedProtoAvg, weight=w), data, plan) for w in (100.0, 0.0))
    assert tiny.equal(heavy.states[1].params, none.states[1].params)
    assert not tiny.equal(heavy.states[2].params, none.states[2].params)


def test_a_site_that_comes_late_is_pulled_at_once():
    net, method = tiny.net(), _tiny(FedProtoLocal, weight=100.0)
    site = tiny.site_of(tiny.labelled(net))
    prototypes = {"prototypes": {"means": torch.zeros(3, 16)}}
    a, b = (
        method.site(Broadcast(round=5, params={}, trees=trees), SiteState(), site, net, Stream(0))[1]
        for trees in (prototypes, {})
    )
    assert not tiny.equal(a.trees["model"], b.trees["model"])


# The two variants


def test_models_of_the_original_never_leave_their_site():
    run = tiny.Run(_tiny(FedProtoLocal), tiny.federation(), RoundSettings(rounds=3))
    assert all(tiny.equal(s.params, run.states[0].params) for s in run.states)
    models = [run.memory.site(name).trees["model"] for name in tiny.NAMES]
    assert not tiny.equal(models[0], models[1])
    assert [r.bytes_up for r in run.records[1:]] == [3 * 4 * 3 * 17] * 3
    assert [r.bytes_down for r in run.records[1:]] == [0, 3 * 4 * 3 * 16, 3 * 4 * 3 * 16]


def test_without_weight_the_original_is_every_site_for_itself_bit_for_bit():
    data, plan = tiny.federation(), RoundSettings(rounds=3, ratio=0.67)
    a = tiny.Run(_tiny(FedProtoLocal, weight=0.0), data, plan)
    b = tiny.Run(_tiny(LocalOnly), data, plan)
    for name in tiny.NAMES:
        assert tiny.equal(a.memory.site(name).trees["model"], b.memory.site(name).trees["model"])
    assert [r.scores for r in a.records] == [r.scores for r in b.records]


def test_the_original_differs_from_every_site_for_itself_from_the_second_round_on():
    data, plan = tiny.federation(), RoundSettings(rounds=2)
    a, b = (tiny.Run(_tiny(FedProtoLocal, weight=w), data, plan) for w in (1.0, 0.0))
    assert a.records[1].scores == b.records[1].scores
    assert not tiny.equal(a.memory.site("ape").trees["model"], b.memory.site("ape").trees["model"])


def test_prototypes_are_weighed_as_the_setting_says():
    data = tiny.federation(names=("ape", "bee"))
    small = data.by_name["bee"]
    keep = [0, 6, 12]
    small_train = LabelledSet(small.train.x[keep], small.train.y[keep], small.train.scale)
    net = tiny.net()
    got = {}
    for weigh in ("counts", "uniform"):
        method = _tiny(FedProtoAvg, weigh=weigh)
        state = ServerState(params=tiny.params(net))
        updates = [
            method.site(method.broadcast(state, s.name), SiteState(), s, net, Stream(0))[0]
            for s in (data.by_name["ape"], tiny.site_of(small_train, "bee"))
        ]
        got[weigh] = method.server(state, iter(updates), net, Stream(0)).trees["prototypes"]["means"]
        a, b = (u.trees["prototypes"]["means"] for u in updates)
        wanted = (6 * a + b) / 7 if weigh == "counts" else (a + b) / 2
        torch.testing.assert_close(got[weigh], wanted, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(got["counts"], got["uniform"], rtol=1e-3)


def test_the_extra_pass_for_prototypes_is_metered():
    run = tiny.Run(_tiny(FedProtoAvg), tiny.federation(names=("ape",)), RoundSettings(rounds=1))
    assert run.records[1].flops["train"] == (3 + 1) * 18 * tiny.forward_flops()


def test_prototypes_at_the_papers_size_are_46_080_bytes():
    assert 10 * 1152 * 4 == 46_080
    net = build_net("convnet", (3, 28, 28), 10, {"width": 128})
    data = LabelledSet(torch.zeros(2, 3, 28, 28), torch.tensor([0, 1]))
    means = fedproto.site_prototypes(net, net.init(Stream(0)), data)["means"]
    assert means.numel() * means.element_size() == 46_080
