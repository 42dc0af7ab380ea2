"""FedDM: images match features and logits near the model, and the server trains on what all sites sent."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from fedlgd.core.errors import PrivacyError
from fedlgd.core.losses import mean_gap
from fedlgd.core.types import Broadcast, LabelledSet, ServerState, SiteState, Stream
from fedlgd.distill.distribution import match, perturbed, real_means
from fedlgd.engines.settings import RoundSettings
from fedlgd.methods import common
from fedlgd.methods.baselines import Pooled
from fedlgd.methods.feddm import FedDM, WithLogits
from tests import tiny
from tests.contract import battery
from tests.errors import refuses

EXACT = {"local.epochs": 1, "local.momentum": 0.0, "local.weight_decay": 0.0}


def feddm(**values: Any) -> FedDM:
    own = {name.replace("__", "."): value for name, value in values.items()}
    first = {"allow_copies": True} if own.get("distil.start") == "real" else {}
    return tiny.settings(FedDM(), first | tiny.SETTINGS | own)


def visited(method: FedDM, t: int, state: SiteState | None = None) -> tuple[Any, SiteState]:
    """What site `ape` sends in round t, and its state."""
    net, site = tiny.net(), tiny.federation().by_name["ape"]
    message = Broadcast(round=t, params=tiny.params(net, 3))
    return method.site(message, state or SiteState(), site, net, Stream(1).at("site", "ape", t))


def test_features_with_logits_are_both_and_their_gap_is_the_sum_of_both_gaps():
    net = tiny.net()
    params, x = tiny.params(net), tiny.labelled(net).x
    both = net.wrapped(lambda body, _: WithLogits(body), "logits")
    out, seen = net(params, x), both(WithLogits.weights(params), x)
    assert torch.equal(seen.features, torch.cat([out.features, out.logits], 1))
    assert torch.equal(seen.logits, out.logits)
    assert both.per_image == net.per_image
    a, b = seen.features[:3], seen.features[3:]
    features, logits = (mean_gap(part[:3], part[3:]) for part in (out.features, out.logits))
    assert float(mean_gap(a, b)) == pytest.approx(float(features + logits), rel=1e-6)


def test_without_radius_and_logits_a_site_does_what_refinement_of_fedlgd_does():
    """Bit for bit from the same images: the rounds after the first are Eq. 1 under theta_t."""
    method = feddm(radius=0.0, logits=False, distil__steps=3)
    _, before = visited(method, 0)
    update, after = visited(method, 1, before)
    lgd = tiny.fedlgd(
        refine__steps=3,
        refine__selected__first=1,
        refine__selected__every=1,
        distil__augment=method.distil.augment,
    )
    site, net, rng = tiny.federation().by_name["ape"], tiny.net(), Stream(1).at("site", "ape", 1)
    refined = lgd.refine.move(before, site, net, tiny.params(net, 3), lgd.distil, 1, rng)
    assert torch.equal(after.virtual.images, refined.virtual.images)
    assert torch.equal(update.trees["virtual"]["images"], after.virtual.images)
    assert not torch.equal(after.virtual.images, before.virtual.images)


def test_networks_are_random_in_the_first_round_and_around_the_model_later():
    net, method, rng = tiny.net(), feddm(logits=False, radius=0.5), Stream(4)
    theta = tiny.params(net, 3)
    first, drawn, _ = method.networks(Broadcast(round=0, params=theta), net, rng)
    assert tiny.equal(drawn(2), first.init(rng.at("net", 2)))
    later, drawn, _ = method.networks(Broadcast(round=1, params=theta), net, rng)
    assert later is net
    assert tiny.equal(drawn(2), perturbed(net, theta, 0.5, rng.at("net", 2)))


def test_the_steps_of_a_round_bring_the_means_of_features_and_logits_near_those_of_real_images():
    method = feddm(radius=0.01, distil__steps=40, distil__lr=0.1, distil__augment=(), distil__real_per_class=100)
    _, before = visited(feddm(distil__steps=0), 0)
    _, after = visited(method, 1, before)
    net, site = tiny.net(), tiny.federation().by_name["ape"]
    both = net.wrapped(lambda body, _: WithLogits(body), "logits")
    weights = WithLogits.weights(tiny.params(net, 3))

    def gap(images: torch.Tensor) -> float:
        made = LabelledSet(images, before.virtual.labels)
        sides = (data.take(slice(None)) for data in (site.train, made))
        still = [lambda x: x] * 3
        members = ((data, [data.of_class(k) for k in range(3)]) for data in sides)
        return float(mean_gap(*(real_means(both, weights, data, each, still) for data, each in members)))

    assert gap(after.virtual.images) < 0.2 * gap(before.virtual.images)


def test_images_are_kept_or_begin_anew_in_every_round():
    for images, begins in (("keep", False), ("new", True)):
        method = feddm(images=images, distil__steps=0)
        _, before = visited(method, 0)
        _, after = visited(method, 1, before)
        assert torch.equal(before.virtual.images, after.virtual.images) != begins
        assert after.virtual.round == 1


# Images that are all the data: training in one place


def everything(**values: Any) -> tuple[FedDM, Any]:
    """Sites upload every image that they have, unchanged."""
    data = tiny.federation(train=4, test=1)
    return feddm(distil__start="real", distil__steps=0, distil__per_class=4, **values), data


@pytest.mark.parametrize("tuned", [{}, {"local.momentum": 0.9, "local.augment": ("shift",)}])
def test_real_images_without_steps_make_the_server_train_on_all_data_bit_for_bit(tuned):
    method, data = everything(**{path.replace(".", "__"): value for path, value in (EXACT | tuned).items()})
    run = tiny.Run(method, data, RoundSettings(rounds=2))
    for t, (before, after) in enumerate(zip(run.states, run.states[1:], strict=False)):
        sent = [run.memory.site(name).virtual for name in run.names]  # "keep": they do not change
        x = torch.cat([v.images[v.labels == k] for k in range(3) for v in sent])
        y = torch.arange(3).repeat_interleave(12)
        trained = common.fit_on(
            tiny.net(), before.params, LabelledSet(x, y), method.local, Stream(0).at("server", t)
        )
        assert tiny.equal(after.params, trained.params)
    real = torch.cat([site.train.take(slice(None)).x for site in data.sites])
    assert {image.numpy().tobytes() for image in x} == {image.numpy().tobytes() for image in real}


def test_a_full_batch_step_on_all_images_is_the_step_of_the_pooled_baseline():
    """In whatever order the images are: the means differ by rounding alone."""
    batch = {"local__batch": 36, "local__momentum": 0.0, "local__weight_decay": 0.0, "local__steps": 1}
    method, data = everything(**batch)
    a = tiny.Run(method, data, RoundSettings(rounds=1))
    pooled = tiny.settings(Pooled(), tiny.SETTINGS | {k.replace("__", "."): v for k, v in batch.items()})
    b = battery.play(pooled, data, RoundSettings(rounds=1))
    for name, value in a.states[1].params.items():
        torch.testing.assert_close(value, b.states[1].params[name], rtol=1e-5, atol=1e-7)
    assert not tiny.equal(a.states[0].params, a.states[1].params)


def test_another_order_of_the_sites_is_another_order_of_the_same_images():
    method = feddm(local__batch=100, local__steps=1, local__momentum=0.0)
    updates = []
    for name in tiny.NAMES:
        net, site = tiny.net(), tiny.federation().by_name[name]
        message = Broadcast(round=0, params=tiny.params(net))
        updates.append(method.site(message, SiteState(), site, net, Stream(1).at("site", name, 0))[0])
    state = ServerState(params=tiny.params(tiny.net()))
    a, b = (method.server(state, each, tiny.net(), Stream(2)) for each in (updates, updates[::-1]))
    for name, value in a.params.items():
        torch.testing.assert_close(value, b.params[name], rtol=1e-5, atol=1e-7)


def test_the_model_is_sent_to_sites_and_none_comes_back():
    update, _ = visited(feddm(), 2)
    assert update.params == {}
    assert set(update.trees) == {"virtual"}
    assert update.metrics == {}


# Refusals


@pytest.mark.parametrize("start", ["real", "kmeans", "neighbours", "mean-image"])
def test_images_that_begin_as_private_ones_are_refused_unless_allowed(start):
    with refuses("upload-of-copies", PrivacyError, method="feddm", start=start):
        feddm(distil__start=start) if start != "real" else tiny.settings(FedDM(), {"distil.start": start})
    assert feddm(allow_copies=True, distil__start=start).distil.start == start
    assert FedDM.presets["paper"]["allow_copies"]


def test_a_promise_of_privacy_is_refused():
    with refuses("private-not-offered", PrivacyError, method="feddm", epsilon=2.0):
        tiny.settings(FedDM(), {"distil.private.epsilon": 2.0})


def test_matching_is_the_published_one_with_the_settings_of_the_paper():
    """A new network for every step, 256 real images of a class, and no smoothing."""
    preset = tiny.settings(FedDM(), FedDM.presets["paper"])
    assert (preset.distil.plan, preset.distil.steps, preset.distil.real_per_class) == ("exact", 1000, 256)
    small = tiny.settings(preset, {"distil.steps": 2, "distil.per_class": 2, "distil.real_per_class": 4})
    _, state = visited(small, 1)
    net, site, rng = tiny.net(), tiny.federation().by_name["ape"], Stream(1).at("site", "ape", 1)
    _, start = visited(replace(small, distil=replace(small.distil, steps=0)), 1)
    both = net.wrapped(lambda body, _: WithLogits(body), "logits")
    theta, here = tiny.params(net, 3), rng.at("refine")
    weights = [WithLogits.weights(perturbed(net, theta, 5.0, here.at("net", i))) for i in range(2)]
    images = match(
        start.virtual.images, start.virtual.labels, site.train, both, weights.__getitem__, small.distil, here
    )
    assert torch.equal(state.virtual.images, images)
