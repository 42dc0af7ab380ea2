"""MOON: features pulled to the global model's and pushed from one's own previous model's."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch.nn import functional as F

from fedlgd.core.train import batches
from fedlgd.core.types import Broadcast, SiteState, Stream
from fedlgd.engines.settings import RoundSettings
from fedlgd.methods import moon
from fedlgd.methods.moon import Moon, model_contrastive
from fedlgd.nets.registry import build_net
from tests import tiny
from tests.vectors import close, floats, vector

V = vector("moon")
Z = [floats(V[name]) for name in ("z", "z_global", "z_prev")]


def _moon(**values) -> Moon:
    return tiny.settings(Moon(), tiny.SETTINGS | {k.replace("__", "."): v for k, v in values.items()})


# The term


def test_the_vector_of_the_specification():
    z = Z[0].clone().requires_grad_()
    value = model_contrastive(z, *Z[1:], V["temperature"])
    close(value.detach(), V["mean"])
    (gradient,) = torch.autograd.grad(value, z)
    close(gradient, V["grad_mean_wrt_z"])


@pytest.mark.parametrize("i", range(3))
def test_each_image_of_the_vector_as_a_batch_of_its_own(i):
    close(model_contrastive(*(z[i : i + 1] for z in Z), V["temperature"]), V["per_sample"][i])


def test_a_previous_model_like_the_global_one_is_log_two_without_a_gradient():
    z = Z[0].clone().requires_grad_()
    value = model_contrastive(z, Z[1], Z[1], V["temperature"])
    close(value.detach(), V["when_prev_equals_global"])
    close(value.detach(), math.log(2))
    close(torch.autograd.grad(value, z)[0], torch.zeros(3, 4))


def test_only_directions_of_features_matter():
    value = model_contrastive(*Z, 0.5)
    close(model_contrastive(5 * Z[0], 0.1 * Z[1], 7 * Z[2], 0.5), value)


def test_nothing_overflows_at_a_small_temperature():
    assert torch.isfinite(model_contrastive(*(z.float() for z in Z), 1e-4))


# A round at a site


class AtSite:
    def __init__(self, net=None, per_class: int = 2, dtype=torch.float64) -> None:
        self.net = net or tiny.net()
        self.data = tiny.labelled(self.net, per_class, dtype=dtype)
        self.site = tiny.site_of(self.data)
        self.params, self.previous = (tiny.params(self.net, seed) for seed in (0, 1))
        if dtype == torch.float64:
            self.params, self.previous = tiny.double(self.params), tiny.double(self.previous)

    def play(self, method, t: int = 3, previous: bool = True):
        kept = SiteState(trees={"previous": self.previous} if previous else {})
        return method.site(Broadcast(round=t, params=self.params), kept, self.site, self.net, Stream(3))


def test_local_training_against_a_plain_loop():
    """z_g and z_p are numbers made by theta_t and the previous model as they were before the first step."""
    at, method = AtSite(per_class=3), _moon(mu=2.0, local__lr=0.1)
    update, _ = at.play(method)
    w = {k: v.clone().requires_grad_() for k, v in at.params.items()}
    optimiser = torch.optim.SGD(w.values(), lr=0.1)
    for index in batches(9, method.local, Stream(3).generator("shuffle")):
        x, y = at.data.x[index], at.data.y[index]
        out = at.net(w, x)
        with torch.no_grad():
            z_g, z_p = at.net(at.params, x).features, at.net(at.previous, x).features
        near = [a @ b / (a.norm() * b.norm()) / 0.5 for a, b in zip(out.features, z_g, strict=True)]
        far = [a @ b / (a.norm() * b.norm()) / 0.5 for a, b in zip(out.features, z_p, strict=True)]
        terms = [-torch.log(n.exp() / (n.exp() + f.exp())) for n, f in zip(near, far, strict=True)]
        optimiser.zero_grad()
        (F.cross_entropy(out.logits, y) + 2 * sum(terms) / len(terms)).backward()
        optimiser.step()
    for name, value in w.items():
        torch.testing.assert_close(update.params[name], value.detach(), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("t", [0, 1, 7, 60])
def test_the_first_participation_has_no_term_however_late_it_is(t):
    at = AtSite()
    heavy, _ = at.play(_moon(mu=100.0), t, previous=False)
    plain, _ = at.play(tiny.fedavg(train_on="real"), t, previous=False)
    assert tiny.equal(heavy.params, plain.params)
    assert heavy.metrics == plain.metrics
    assert not tiny.equal(heavy.params, at.play(_moon(mu=100.0), t)[0].params)


def test_the_model_just_trained_is_the_previous_one_next_time():
    at = AtSite()
    for previous in (False, True):
        update, kept = at.play(_moon(), previous=previous)
        assert set(kept.trees) == {"previous"}
        assert tiny.equal(kept.trees["previous"], update.params)
        assert not tiny.equal(kept.trees["previous"], at.params)


def test_the_term_looks_at_the_model_kept_and_not_at_the_one_received():
    at = AtSite()
    a, _ = at.play(_moon())
    at.previous = tiny.double(tiny.params(at.net, 5))
    b, _ = at.play(_moon())
    assert not tiny.equal(a.params, b.params)


def test_a_sites_previous_model_is_what_it_sent_when_it_last_took_part():
    """Over a run in which sites are away for some rounds."""
    sent: dict[str, dict] = {}

    class Noted(Moon):
        def site(self, msg, state, site, net, rng):
            before = state.trees.get("previous")
            assert (before is None) == (site.name not in sent)
            assert before is None or tiny.equal(before, sent[site.name])
            update, after = super().site(msg, state, site, net, rng)
            sent[site.name] = update.params
            return update, after

    method = tiny.settings(Noted(), tiny.SETTINGS | {"mu": 1.0})
    run = tiny.Run(method, tiny.federation(), RoundSettings(rounds=6, ratio=0.34, seed=2))
    present = [record.sampled for record in run.records[1:]]
    assert any(a != b for a, b in pairwise(present))
    for name, model in sent.items():
        assert tiny.equal(run.memory.site(name).trees["previous"], model)


@pytest.fixture
def captured(monkeypatch) -> list:
    calls = []

    def contrastive(*args, wrapped=moon.model_contrastive):
        calls.append(args)
        return wrapped(*args)

    monkeypatch.setattr(moon, "model_contrastive", contrastive)
    return calls


def test_no_gradient_goes_through_the_global_and_the_previous_model(captured):
    at = AtSite()
    at.play(_moon())
    assert len(captured) == 2
    for z, z_global, z_previous, temperature in captured:
        assert z.requires_grad
        assert not z_global.requires_grad
        assert not z_previous.requires_grad
        assert temperature == 0.5


def test_the_global_and_the_previous_model_are_in_eval_mode_and_the_trained_one_is_not(captured):
    """Half of the pixels, which are the features here, drop out of the trained one alone."""
    at = AtSite(build_net("tests.nets.own:Dropping", (3, 4, 4), 3))
    at.play(_moon())
    for z, z_global, z_previous, _ in captured:
        assert (z == 0).any()
        assert not (z_global == 0).any()
        assert torch.equal(z_global, z_previous)


def test_frozen_passes_leave_running_statistics_alone():
    at = AtSite(build_net("tests.nets.own:Normed", (3, 4, 4), 3), dtype=torch.float32)
    before = {k: v.clone() for k, v in (at.params | {f"p.{k}": v for k, v in at.previous.items()}).items()}
    update, _ = at.play(_moon())
    assert tiny.equal(before, at.params | {f"p.{k}": v for k, v in at.previous.items()})
    assert update.params["norm.num_batches_tracked"].item() == 2


def test_a_batch_of_one_image_works():
    at = AtSite(per_class=1)
    update, _ = at.play(_moon(local__batch=1))
    assert all(torch.isfinite(v).all() for v in update.params.values())


def test_the_term_costs_two_forward_passes_more_from_the_second_participation_on():
    run = tiny.Run(_moon(train_on="real"), tiny.federation(names=("ape",)), RoundSettings(rounds=2))
    f, n = tiny.forward_flops(), 18
    assert [r.flops["train"] for r in run.records[1:]] == [3 * n * f, 5 * n * f]


def test_the_defaults_are_the_originals_temperature_and_no_head():
    assert (Moon().mu, Moon().temperature, Moon().head) == (1.0, 0.5, False)


# The original's projection head


def test_with_a_head_features_are_256_numbers_on_which_the_classifier_works():
    net = _moon(head=True).adapt(tiny.net())
    params, x = tiny.params(net), tiny.labelled(net).x
    out = net(params, x)
    assert out.features.shape == (6, 256)
    assert out.logits.shape == (6, 3)
    torch.testing.assert_close(
        out.logits, out.features @ params["classifier.weight"].T + params["classifier.bias"], rtol=1e-4, atol=1e-5
    )
    body = {k.removeprefix("body."): v for k, v in params.items() if k.startswith("body.")}
    hidden = tiny.net()(body, x).features
    for i in (0, 2):
        hidden = hidden @ params[f"projection.{i}.weight"].T + params[f"projection.{i}.bias"]
        hidden = hidden.relu() if i == 0 else hidden
    torch.testing.assert_close(out.features, hidden, rtol=1e-4, atol=1e-5)
    assert params["projection.0.weight"].shape == (16, 16)


def test_without_a_head_the_network_is_the_given_one():
    net = tiny.net()
    assert _moon().adapt(net) is net


def test_virtual_sets_under_a_head_are_distilled_by_the_network_without_it():
    net, site = tiny.net(), tiny.federation().by_name["ape"]
    method = _moon(head=True, train_on="virtual")
    a, _ = method.enrol(site, method.adapt(net), Stream(0))
    b, _ = replace(method, head=False).enrol(site, net, Stream(0))
    assert torch.equal(a.virtual.images, b.virtual.images)


def test_a_head_leaves_the_first_running_statistics_of_the_body_alone():
    net = tiny.net(norm="batch")
    plain, projected = (n.init(Stream(0)) for n in (net, _moon(head=True).adapt(net)))
    for name, value in plain.items():
        if not name.startswith("head."):
            assert torch.equal(projected[f"body.{name}"], value)


def test_a_head_takes_the_place_of_the_old_classifier():
    """Section 5.5: 1.61 M parameters more, net, on the ConvNet at 28x28."""
    net = build_net("convnet", (3, 28, 28), 10)
    d, k = 1152, 10
    wanted = (d * d + d) + (d * 256 + 256) + (256 * k + k) - (d * k + k)
    assert Moon(head=True).adapt(net).size - net.size == wanted
