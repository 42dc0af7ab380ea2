"""FedVCK: draws by importance, statistics of real images, a memory of rounds, and a contrast of related classes."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from fedlgd.core.errors import PrivacyError
from fedlgd.core.losses import supervised_contrastive
from fedlgd.core.train import Local
from fedlgd.core.types import LabelledSet, ServerState, SiteState, Stream
from fedlgd.distill.distribution import draws, match
from fedlgd.engines.settings import RoundSettings
from fedlgd.engines.wire import nbytes
from fedlgd.methods import common
from fedlgd.methods.feddm import FedDM
from fedlgd.methods.fedvck import (
    FedVCK,
    WithHead,
    importance,
    related_classes,
    relational_contrast,
    with_head,
    with_statistics,
)
from fedlgd.nets.registry import build_net
from tests import tiny
from tests.errors import refuses
from tests.vectors import close

K = 3
DATA = tiny.federation(missing={"bee": 1})
PLAN = RoundSettings(rounds=3, ratio=0.67, seed=4)
OFF = {"slope": 0.0, "beta": 0.0, "memory": 1}


def _fedvck(**values) -> FedVCK:
    few = {"local.epochs": 3, **{k.replace("__", "."): v for k, v in values.items()}}
    return tiny.settings(FedVCK(), tiny.SETTINGS | few)


def _random(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=Stream(seed).generator(*shape))


# Without its parts


def test_without_its_parts_it_is_feddm_at_the_model_with_new_images_from_noise_bit_for_bit():
    mine = tiny.Run(_fedvck(**OFF), DATA, PLAN)
    dm = FedDM(radius=0.0, logits=False, images="new")
    few = {"local.epochs": 3, "distil.start": "noise"}
    other = tiny.Run(tiny.settings(dm, tiny.SETTINGS | few), DATA, PLAN)
    assert all(tiny.equal(a.params, b.params) for a, b in zip(mine.states, other.states, strict=True))
    assert all(tiny.equal(a, b) for a, b in zip(mine.virtual, other.virtual, strict=True))
    assert [r.bytes_up for r in mine.records] == [r.bytes_up for r in other.records]
    assert mine.states[-1].trees == {}
    assert _fedvck(**OFF).sends == FedDM.sends


@pytest.mark.parametrize("one", [{"slope": 3.0}, {"beta": 0.5}, {"memory": 2}, {"clip": 1e-3}])
def test_each_of_its_parts_changes_the_model_from_the_second_round_on(one):
    mine, plain = (tiny.Run(_fedvck(**each), DATA, RoundSettings(rounds=2)) for each in (OFF | one, OFF))
    same = [tiny.equal(a.params, b.params) for a, b in zip(mine.states, plain.states, strict=True)]
    assert same == [True, True, False]


# Importance


@given(st.integers(0, 99), st.floats(0, 5), st.floats(0, 2))
def test_importance_is_a_softmax_of_the_sigmoid_of_the_loss(seed, slope, margin):
    z, y = _random(seed, 4, K), [0, 1, 2, 2]
    wanted = []
    for row, label in zip(z.tolist(), y, strict=True):
        loss = math.log(sum(map(math.exp, row))) - row[label]
        wanted.append(math.exp(1 / (1 + math.exp(-slope * (loss - margin)))))
    close(importance(z, torch.tensor(y), slope, margin), wanted)
    if slope == 0:
        assert len(set(wanted)) == 1


def test_real_images_are_drawn_by_their_chances_with_replacement():
    net, real = tiny.net(), tiny.labelled(tiny.net(), 4)
    chances = torch.zeros(len(real))
    chances[[1, 2, 4, 11]] = torch.tensor([1.0, 3.0, 1.0, 1.0])
    how = tiny.settings(FedVCK().distil, {"plan": "exact", "steps": 1, "real_per_class": 400, "augment": ()})
    params = tiny.params(net)
    (pair,) = draws(torch.arange(K), real, net, lambda _: params, how, Stream(0), chances)
    features = net.frozen(params, real.x).features
    torch.testing.assert_close(pair.target[1:], features[[4, 11]], rtol=1e-4, atol=1e-4)
    share = ((pair.target[0] - features[1]) @ (features[2] - features[1])) / (
        features[2] - features[1]
    ).square().sum()
    assert share.item() == pytest.approx(0.75, abs=0.08)


def test_a_site_averages_the_logits_of_the_model_and_of_the_one_before(monkeypatch):
    net, site, seen = tiny.net(), DATA.by_name["ape"], []
    method, old, new = _fedvck(slope=2.0, margin=0.4), tiny.params(net, 1), tiny.params(net, 2)
    monkeypatch.setattr("fedlgd.methods.union.match", lambda *a, **how: seen.append(how) or match(*a, **how))
    message = method.broadcast(ServerState(params=new, round=1), "ape")
    _, after = method.site(message, SiteState(trees={"model": old}), site, net, Stream(0))
    real = site.train.take(slice(None))
    z = (net.frozen(old, real.x).logits + net.frozen(new, real.x).logits) / 2
    torch.testing.assert_close(seen[0]["chances"], importance(z, real.y, 2.0, 0.4))
    assert tiny.equal(after.trees["model"], new)


def test_the_gradient_of_the_images_has_at_most_the_given_norm():
    net, real = tiny.net(), tiny.labelled(tiny.net(), 4)
    start, labels, params = _random(1, K, *net.shape).float(), torch.arange(K), tiny.params(net)
    one = {"plan": "exact", "steps": 1, "smooth": 0.0, "lr": 1.0, "augment": ()}
    how = tiny.settings(FedVCK().distil, one)
    plain, most, cut = (
        match(start, labels, real, net, lambda _: params, how, Stream(0), largest=largest) - start
        for largest in (0.0, 1e6, 0.01)
    )
    assert torch.equal(plain, most)
    assert cut.norm().item() == pytest.approx(0.01, rel=1e-3)
    torch.testing.assert_close(cut / cut.norm(), plain / plain.norm(), rtol=1e-2, atol=1e-3)


# The latent constraint


def test_statistics_of_batch_norm_become_those_of_the_real_images():
    net, real = tiny.net(norm="batch"), DATA.by_name["ape"].train
    theta = tiny.params(net)
    w = with_statistics(net, theta, real, Stream(0))
    assert all(torch.equal(w[name], theta[name]) for name in net.trainable)
    x = real.take(slice(None)).x
    first = F.conv2d(x, theta["blocks.0.weight"], theta["blocks.0.bias"], padding=1)
    torch.testing.assert_close(w["blocks.1.running_mean"], first.mean((0, 2, 3)), rtol=0.02, atol=0.01)
    assert not torch.equal(theta["blocks.1.running_mean"], w["blocks.1.running_mean"])


@pytest.mark.parametrize(("norm", "same"), [("batch", False), ("instance", True)])
def test_the_latent_constraint_acts_on_batch_norm_alone(norm, same):
    net, site = tiny.net(norm=norm), DATA.by_name["ape"]
    state = ServerState(params=tiny.params(net), round=1)
    sent = []
    for latent in (True, False):
        method = _fedvck(latent=latent, **OFF)
        update, _ = method.site(method.broadcast(state, "ape"), SiteState(), site, net, Stream(0))
        sent.append(update.trees["virtual"]["images"])
    assert torch.equal(*sent) == same


# Memory


def test_the_server_trains_on_the_images_of_the_last_rounds(monkeypatch):
    trained = []
    wrapped = common.fit_on
    monkeypatch.setattr(
        common, "fit_on", lambda net, w, data, *a, **how: trained.append(data) or wrapped(net, w, data, *a, **how)
    )
    run = tiny.Run(_fedvck(memory=2, beta=0.0), tiny.federation(), RoundSettings(rounds=4))
    sizes = [len(data) for data in trained]
    assert sizes == [18, 36, 36, 36]
    assert torch.equal(trained[3].x[:18], trained[2].x[18:])
    assert torch.equal(run.states[-1].trees["memory-0"]["x"], trained[3].x[18:])
    assert set(run.states[-1].trees) == {"memory-0"}


def test_the_second_half_of_a_round_has_a_smaller_learning_rate(monkeypatch):
    seen: list[Local] = []
    wrapped = common.fit_on
    monkeypatch.setattr(
        common, "fit_on", lambda n, w, d, local, *a, **how: seen.append(local) or wrapped(n, w, d, local, *a, **how)
    )
    tiny.Run(_fedvck(late=0.1, local__steps=7), tiny.federation(), RoundSettings(rounds=1))
    assert [(local.steps, round(local.lr, 6)) for local in seen] == [(3, 0.05), (4, 0.005)]


# The contrastive term


def test_related_are_the_largest_mean_logits_and_the_class_itself():
    means = torch.tensor([[3.0, 2.0, 1.0], [2.0, 1.0, 3.0], [0.0, 0.0, 0.0]])
    got = related_classes(means, torch.tensor([4.0, 1.0, 0.0]), 1)
    assert got.tolist() == [[True, False, False], [False, True, True], [True, True, True]]


@given(st.integers(0, 99), st.lists(st.booleans(), min_size=K * K, max_size=K * K))
def test_the_contrast_of_an_image_is_among_the_related_classes(seed, flags):
    related = torch.tensor(flags).view(K, K)
    z, centres, labels = _random(seed, 4, 5), _random(seed + 1, K, 5), [0, 1, 2, 2]
    total = 0.0
    for row, y in zip(z, labels, strict=True):
        if related[y, y]:
            s = [float(row @ c / row.norm() / c.norm()) / 0.2 for c in centres]
            total += math.log(sum(math.exp(s[k]) for k in range(K) if related[y, k])) - s[y]
    close(relational_contrast(z, torch.tensor(labels), centres, related, 0.2), total / 4)


def test_a_class_related_to_none_but_itself_has_no_contrast():
    z, centres, labels = _random(0, 4, 5).requires_grad_(), _random(1, K, 5), torch.tensor([0, 1, 2, 2])
    value = relational_contrast(z, labels, centres, torch.eye(K, dtype=torch.bool), 0.1)
    assert value.item() == 0
    assert not torch.autograd.grad(value, z)[0].any()


def test_with_all_classes_related_it_is_the_supervised_contrast_of_an_image_with_the_centres():
    """Of one image and one centre of each class, the row of the image in the supervised contrastive loss."""
    z, centres = _random(0, 1, 5), _random(1, K, 5)
    got = relational_contrast(z, torch.tensor([1]), centres, torch.ones(K, K, dtype=torch.bool), 0.3)
    together, labels = torch.cat([z, centres]), torch.tensor([1, 0, 1, 2])
    rows = (K + 1) * supervised_contrastive(together, labels, 0.3)
    swapped = relational_contrast(centres[1:2], torch.tensor([0]), torch.cat([z, centres[[0, 2]]]), _all(K), 0.3)
    close(got + swapped, rows)


def _all(k: int) -> torch.Tensor:
    return torch.ones(k, k, dtype=torch.bool)


def test_the_head_is_beside_the_network_and_only_the_term_applies_it():
    net = tiny.net()
    params, x = tiny.params(net), tiny.labelled(net).x
    both, w = with_head(net, params, 7, Stream(0))
    a, b = net(params, x), both(w, x)
    assert torch.equal(a.logits, b.logits)
    assert torch.equal(a.features, b.features)
    assert both.per_image == net.per_image
    hidden = (a.features @ w["first.weight"].T + w["first.bias"]).clamp(min=0)
    torch.testing.assert_close(WithHead.project(w, a.features), hidden @ w["second.weight"].T + w["second.bias"])


def test_centres_are_the_class_means_of_the_last_images_under_the_new_model():
    net, method = tiny.net(), _fedvck(memory=2)
    run = tiny.Run(method, DATA, RoundSettings(rounds=2))
    images, state = run.states[-1].trees["memory-0"], run.states[-1]
    assert set(state.params) == set(run.states[0].params)
    features = net.frozen(state.params, images["x"]).features
    for k in range(K):
        mean = features[images["y"] == k].mean(0)
        torch.testing.assert_close(state.trees["prototypes"]["means"][k], mean, rtol=1e-4, atol=1e-5)


def test_a_class_without_a_centre_is_not_contrasted():
    centres, z = _random(0, K, 5), _random(1, 2, 5)
    centres[1] = 0
    term = _fedvck(head=0, temperature=0.4)._contrast(0.5, centres, _all(K))
    labels = torch.tensor([1, 0])
    got = term({}, common.Batch(z, labels, z, z))
    s = F.normalize(z[1:], dim=1) @ F.normalize(centres[[0, 2]], dim=1).T / 0.4
    close(got, 0.5 * (s.logsumexp(1) - s[:, 0]).sum() / 2)


# What it sends, and what it refuses


def test_messages_have_the_published_sizes():
    """28x28 pixels, K = 10: as FedDM, and mean logits (400 bytes) with the numbers of images (40 bytes)."""
    net, method = build_net("convnet", (3, 28, 28), 10), FedVCK()
    message = method.broadcast(ServerState(params={"w": torch.zeros(311_050)}), "ape")
    expected = method.expects(message, net, method.expects_hello(net))
    assert nbytes({"trees": expected.trees}) == 940_800 + 40 + 400 + 40
    assert nbytes(message) == 4 * 311_050


def test_the_first_round_tells_no_logits_and_no_numbers_of_images():
    method, net, site = _fedvck(), tiny.net(), DATA.by_name["bee"]
    sent = []
    for t in (0, 1):
        message = method.broadcast(ServerState(params=tiny.params(net), round=t), "bee")
        sent.append(method.site(message, SiteState(), site, net, Stream(0))[0].trees["logits"])
    assert not any(tensor.any() for tensor in sent[0].values())
    assert sent[1]["counts"].tolist() == [6, 0, 6]
    real = site.train.take(slice(None))
    wanted = net.frozen(tiny.params(net), real.x).logits[real.y == 2].mean(0)
    torch.testing.assert_close(sent[1]["means"][2], wanted)


def test_it_offers_no_private_sets_and_no_copies_of_real_images():
    with refuses("private-not-offered", PrivacyError, epsilon=4.0, method="fedvck"):
        tiny.settings(FedVCK(), {"distil.private.epsilon": 4.0})
    with refuses("upload-of-copies", PrivacyError, start="real", method="fedvck"):
        tiny.settings(FedVCK(), {"distil.start": "real"})


def test_a_memory_of_rounds_survives_a_class_that_was_held_in_the_first_round_only():
    method, net = _fedvck(memory=3), tiny.net()
    run = tiny.Run(method, DATA, RoundSettings(rounds=1))
    state = run.states[-1]
    alone = tiny.federation(names=("bee",), missing={"bee": 1}).sites[0]
    update, _ = method.site(method.broadcast(state, "bee"), SiteState(), alone, net, Stream(0))
    after = method.server(state, iter([update]), net, Stream(1))
    assert all(bool(value.isfinite().all()) for value in after.params.values())
    assert not after.trees["prototypes"]["means"][1].any()
    assert set(LabelledSet(**after.trees["memory-0"]).y.tolist()) == {0, 1, 2}
