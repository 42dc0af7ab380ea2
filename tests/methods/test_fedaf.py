"""FedAF: two exchanges a round, images that agree with the logits of all sites, and soft labels at the server."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedlgd.core.errors import PrivacyError
from fedlgd.core.types import ServerState, SiteState, Stream, Update
from fedlgd.distill.distribution import Pair, draw_transforms, image_gradient, real_means
from fedlgd.engines.settings import RoundSettings
from fedlgd.engines.wire import nbytes
from fedlgd.methods.common import Batch
from fedlgd.methods.fedaf import FedAF, mean_of_known, mixed, sliced_distance, symmetric_divergence
from fedlgd.methods.feddm import FedDM
from fedlgd.nets.registry import build_net
from tests import tiny
from tests.errors import refuses
from tests.vectors import close

K = 3
PLAN = RoundSettings(rounds=3, ratio=0.67, seed=4)
DATA = tiny.federation(missing={"bee": 1})
OFF = {"agree": 0.0, "soft": 0.0, "gamma": 1.0}


def _fedaf(**values) -> FedAF:
    few = {"local.epochs": 3, **{k.replace("__", "."): v for k, v in values.items()}}
    return tiny.settings(FedAF(), tiny.SETTINGS | few)


def _random(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=Stream(seed).generator(*shape))


# Without its terms


@pytest.mark.parametrize("images", ["keep", "new"])
def test_without_its_terms_it_is_feddm_at_the_model_bit_for_bit(images):
    mine = tiny.Run(_fedaf(images=images, **OFF), DATA, PLAN)
    dm = tiny.settings(FedDM(radius=0.0, logits=False, images=images), tiny.SETTINGS | {"local.epochs": 3})
    other = tiny.Run(dm, DATA, PLAN)
    assert all(tiny.equal(a.params, b.params) for a, b in zip(mine.states, other.states, strict=True))
    assert all(tiny.equal(a, b) for a, b in zip(mine.virtual, other.virtual, strict=True))
    assert [r.bytes_up for r in mine.records] == [r.bytes_up for r in other.records]
    assert _fedaf(**OFF).sends == FedDM.sends


@pytest.mark.parametrize("one", [{"agree": 0.5}, {"soft": 0.5}, {"gamma": 0.5}])
def test_each_of_its_terms_changes_the_model_from_the_second_round_on(one):
    rounds = RoundSettings(rounds=2)
    mine, plain = (tiny.Run(_fedaf(**each), DATA, rounds) for each in (OFF | one, OFF))
    same = [tiny.equal(a.params, b.params) for a, b in zip(mine.states, plain.states, strict=True)]
    assert same[0]
    assert not same[2]
    if "agree" not in one:  # whose second exchange has random numbers of its own
        assert same[1]


def test_the_first_round_knows_no_logits_and_no_labels():
    method, net, site = _fedaf(), tiny.net(), DATA.sites[0]
    state = ServerState(params=tiny.params(net))
    first, kept = method.site(method.broadcast(state, "ape"), SiteState(), site, net, Stream(0))
    assert not first.trees["logits"]["means"].any()
    state = replace(method.server(state, iter([first]), net, Stream(0)), exchange=1)
    last, _ = method.site(replace(method.broadcast(state, "ape"), exchange=1), kept, site, net, Stream(0))
    assert not last.trees["labels"]["means"].any()
    plain = _fedaf(agree=0.0).site(
        _fedaf(agree=0.0).broadcast(replace(state, exchange=0, trees={}), "ape"), SiteState(), site, net, Stream(0)
    )
    assert torch.equal(last.trees["virtual"]["images"], plain[0].trees["virtual"]["images"])


# What is exchanged


def _second_round(method: FedAF, net, site) -> tuple[Update, Update, SiteState, torch.Tensor]:
    state = ServerState(params=tiny.params(net), round=1)
    first, kept = method.site(method.broadcast(state, site.name), SiteState(), site, net, Stream(0))
    state = replace(method.server(state, iter([first]), net, Stream(0)), exchange=1)
    message = replace(method.broadcast(state, site.name), exchange=1)
    last, after = method.site(message, kept, site, net, Stream(1))
    return first, last, after, kept.trees["network"]


def test_a_site_sends_the_class_means_of_its_real_images_under_its_network():
    method, net, site = _fedaf(temperature=2.0), tiny.net(), DATA.by_name["bee"]
    first, last, after, w = _second_round(method, net, site)
    real = site.train.take(slice(None))
    z = net.frozen(w, real.x).logits
    for k in (0, 2):
        torch.testing.assert_close(first.trees["logits"]["means"][k], z[real.y == k].mean(0))
        soft = (z[real.y == k] / 2).softmax(1).mean(0)
        torch.testing.assert_close(last.trees["labels"]["means"][k], soft)
    assert not first.trees["logits"]["means"][1].any()
    assert not last.trees["labels"]["means"][1].any()
    assert after.trees == {}


def test_the_network_of_a_site_is_between_the_model_and_a_random_one():
    net = tiny.net(norm="batch")
    theta, other = tiny.params(net), net.init(Stream(3))
    w = mixed(net, theta, 0.9, Stream(3))
    for name in net.trainable:
        torch.testing.assert_close(w[name], 0.9 * theta[name] + 0.1 * other[name])
    assert all(w[name] is theta[name] for name in theta.keys() - net.trainable)
    assert mixed(net, theta, 1.0, Stream(3)) is theta
    assert tiny.equal(mixed(net, theta, 0.0, Stream(3)), mixed(net, tiny.params(net, 5), 0.0, Stream(3)))


@given(st.lists(st.lists(st.booleans(), min_size=K, max_size=K), min_size=1, max_size=5), st.integers(0, 99))
def test_a_class_is_averaged_over_the_sites_that_have_it(has, seed):
    sent = [_random(seed + i, K, K) * torch.tensor(each)[:, None] for i, each in enumerate(has)]
    got = mean_of_known(each.float() for each in sent)
    for k in range(K):
        there = [each[k] for each, known in zip(sent, has, strict=True) if known[k]]
        wanted = sum(there) / len(there) if there else torch.zeros(K)
        torch.testing.assert_close(got[k].double(), wanted.double(), rtol=1e-5, atol=1e-6)


def test_of_one_site_the_mean_is_its_own():
    first, *_ = _second_round(_fedaf(), tiny.net(), DATA.sites[0])
    torch.testing.assert_close(mean_of_known([first.trees["logits"]["means"]]), first.trees["logits"]["means"])


def test_messages_have_the_published_sizes():
    """28x28 pixels, K = 10: as FedDM, and 400 bytes in each exchange up, 400 bytes and no second model down."""
    net = build_net("convnet", (3, 28, 28), 10)
    method, model = FedAF(), {"w": torch.zeros(311_050)}
    state = ServerState(params=model, round=3)
    first = method.broadcast(state, "ape")
    second = replace(
        method.broadcast(replace(state, exchange=1, trees={"logits": {"means": torch.zeros(10, 10)}}), "ape"),
        exchange=1,
    )
    hello = method.expects_hello(net)
    assert (nbytes(first), nbytes(second)) == (4 * 311_050, 400)
    ups = [nbytes({"trees": method.expects(each, net, hello).trees}) for each in (first, second)]
    dm = nbytes({"trees": FedDM().expects(first, net, hello).trees})
    assert dm == 940_800 + 40
    assert ups == [400, dm + 400]
    assert nbytes(first.trees) == 0


def test_a_run_costs_what_its_messages_have():
    run, sites = tiny.Run(_fedaf(), DATA, RoundSettings(rounds=2)), 3
    upload = 4 * 2 * K * 3 * tiny.SIDE**2 + 4 * K
    for record in run.records[1:]:
        assert record.bytes_up == sites * (upload + 2 * 4 * K * K)
        assert record.bytes_down == sites * 4 * (tiny.param_count() + K * K)
        assert set(record.sent) == {"trees/virtual", "trees/logits", "trees/labels"}


# The terms


@given(st.integers(2, 12), st.integers(0, 99))
def test_the_sliced_distance_is_the_mean_over_directions(k, seed):
    u, v = _random(seed, 2, k), _random(seed + 1, 2, k)
    directions = torch.nn.functional.normalize(_random(seed + 2, 100_000, k), dim=1)
    sampled = ((u - v) @ directions.T).abs().mean(1)
    torch.testing.assert_close(sliced_distance(u, v), sampled, rtol=0.02, atol=0)


def test_the_factor_of_ten_classes():
    u = torch.zeros(1, 10, dtype=torch.float64)
    assert sliced_distance(u, u + torch.eye(10)[:1]).item() == pytest.approx(0.2587, abs=5e-5)


def test_images_that_agree_have_no_distance_and_no_gradient():
    u = _random(0, 2, K).requires_grad_()
    value = sliced_distance(u, u.detach().clone()).sum()
    (gradient,) = torch.autograd.grad(value, u)
    assert value.item() == 0
    assert not gradient.any()


@given(st.integers(0, 99))
def test_the_divergence_of_labels_is_symmetric_and_zero_where_they_agree(seed):
    r, t = _random(seed, 2, K).softmax(1), _random(seed + 1, 2, K).softmax(1)
    kl = [sum(a * (a / b).log() for a, b in zip(x, y, strict=True)) for x, y in zip(r, t, strict=True)]
    back = [sum(a * (a / b).log() for a, b in zip(y, x, strict=True)) for x, y in zip(r, t, strict=True)]
    close(symmetric_divergence(r, t), (torch.stack(kl) + torch.stack(back)) / 2)
    close(symmetric_divergence(r, t), symmetric_divergence(t, r))
    assert not symmetric_divergence(r, r).any()


def test_the_gradient_of_the_images_is_that_of_both_terms():
    net, site = tiny.net(), DATA.by_name["bee"]
    w, method = tiny.double(tiny.params(net)), _fedaf(agree=0.7, distil__augment=())
    real = replace(site.train, x=site.train.take(slice(None)).x.double())
    labels, classes = torch.tensor([0, 0, 2, 2]), torch.tensor([0, 2])
    transforms = draw_transforms(classes, method.distil, net.shape[1:], Stream(0))
    target = real_means(net, w, real, [real.of_class(0), real.of_class(2)], transforms)
    v = _random(1, K, K)
    v[2] = 0  # known by no site
    images = _random(2, 4, *net.shape).requires_grad_()
    pair, term = Pair(w, transforms, target), method._agreement({"logits": {"means": v}})
    got = image_gradient(net, pair, images, labels, 1, term)
    out = net(w, images)
    loss = sum((target[i] - out.features[labels == k].mean(0)).square().sum() for i, k in enumerate((0, 2)))
    c = torch.special.gammaln(torch.tensor([K / 2, (K + 1) / 2], dtype=torch.float64)).exp()
    swd = c[0] / c[1] / torch.pi**0.5 * (out.logits[:2].mean(0) - v[0]).norm()
    (wanted,) = torch.autograd.grad(loss + 0.7 * swd, images)
    torch.testing.assert_close(got, wanted, rtol=1e-7, atol=1e-10)


def test_the_model_is_drawn_to_the_soft_labels_of_the_classes_in_its_batch():
    z, y = _random(0, 5, K), torch.tensor([0, 0, 2, 2, 2])
    r = _random(1, K, K).softmax(1)
    r[2] = 0  # known by no site
    batch = Batch(z, y, z, z)
    got = _fedaf(soft=0.6, temperature=1.7)._soft_labels(r)({}, batch)
    t = (z[:2] / 1.7).softmax(1).mean(0)
    wanted = 0.6 / K * ((r[0] * (r[0] / t).log()).sum() + (t * (t / r[0]).log()).sum()) / 2
    close(got, wanted)


# What it refuses


def test_it_offers_no_private_sets():
    with refuses("private-not-offered", PrivacyError, epsilon=4.0, method="fedaf"):
        tiny.settings(FedAF(), {"distil.private.epsilon": 4.0})


def test_the_server_expects_images_and_soft_labels_that_are_not_negative():
    method, net = _fedaf(), tiny.net()
    state = replace(ServerState(params={}, round=1), exchange=1)
    expected = method.expects(replace(method.broadcast(state, "ape"), exchange=1), net, method.expects_hello(net))
    assert expected.least["trees/labels/means"] == 0
    assert set(expected.trees) == {"virtual", "labels"}
