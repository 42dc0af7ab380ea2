"""The statistics that attacks use, recomputed by autograd or by hand."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import norm
from torch.nn import functional as F

from fedlgd.attacks import membership, signals
from fedlgd.attacks.signals import matched_filter
from fedlgd.core.losses import class_means
from fedlgd.core.train import area
from fedlgd.core.types import LabelledSet, Stream
from fedlgd.dp.budget import Level
from fedlgd.dp.ledger import generator_for
from fedlgd.dp.release import Told, add_noise, clipped_sums
from tests import tiny

LABELS = torch.arange(tiny.CLASSES).repeat_interleave(30)


@pytest.fixture
def data() -> LabelledSet:
    return tiny.federation().by_name["ape"].train.take(slice(None))


def test_confidence_is_the_logit_of_the_true_probability():
    logits, y = torch.randn(7, 4, dtype=torch.float64), torch.arange(7) % 4
    p = logits.softmax(1)[torch.arange(7), y]
    torch.testing.assert_close(signals.confidence(logits, y), (p / (1 - p)).log())


def test_queries_are_the_image_and_four_shifts_by_two_pixels(data):
    same, *shifted = signals.queries(data.x)
    assert torch.equal(same, data.x)
    assert len(shifted) == 4
    assert torch.equal(shifted[0][..., 2:, :], data.x[..., :-2, :])
    assert torch.equal(shifted[3][..., :-2], data.x[..., 2:])


def test_gradient_norms_are_those_of_autograd(data):
    net, few = tiny.net(), LabelledSet(data.x[:3], data.y[:3])
    params = tiny.params(net)
    found = signals.gradient_norms(net, params, few)
    module = net.module(params)
    for i in range(3):
        loss = F.cross_entropy(module(few.x[i : i + 1])[1], few.y[i : i + 1])
        found_by = torch.autograd.grad(loss, [*module.parameters()], materialize_grads=True)
        grads = dict(zip(dict(module.named_parameters()), found_by, strict=True))
        whole = torch.cat([g.flatten() for g in grads.values()]).norm().item()
        last = torch.cat([grads["head.weight"].flatten(), grads["head.bias"]]).norm().item()
        assert found.norm[i].item() == pytest.approx(whole, rel=1e-4)
        assert found.last_layer[i].item() == pytest.approx(last, rel=1e-4)
        assert found.loss[i].item() == pytest.approx(loss.item(), rel=1e-4)


def test_the_cosine_along_an_update_is_that_of_autograd(data):
    net = tiny.net()
    before, after = tiny.params(net, 0), tiny.params(net, 1)
    found = signals.update_cosine(net, before, after, data)
    module = net.module(before)
    loss = F.cross_entropy(module(data.x[:1])[1], data.y[:1])
    gradient = torch.autograd.grad(loss, [module.head.weight, module.head.bias])
    update = [before[f"head.{leaf}"] - after[f"head.{leaf}"] for leaf in ("weight", "bias")]
    flat = [torch.cat([t.flatten() for t in tensors]) for tensors in (gradient, update)]
    assert found is not None
    assert found[0].item() == pytest.approx(F.cosine_similarity(*flat, dim=0).item(), abs=1e-5)


def test_the_cosine_of_all_layers_is_that_of_autograd(data):
    net, few = tiny.net(), LabelledSet(data.x[:3], data.y[:3])
    before, after = tiny.params(net, 0), tiny.params(net, 1)
    module = net.module(before)
    names = list(dict(module.named_parameters()))
    update = torch.cat([(before[name] - after[name]).flatten() for name in names])
    for i, found in enumerate(signals.update_cosine_all_layers(net, before, after, few)):
        loss = F.cross_entropy(module(few.x[i : i + 1])[1], few.y[i : i + 1])
        grads = torch.autograd.grad(loss, [*module.parameters()], materialize_grads=True)
        wanted = F.cosine_similarity(torch.cat([g.flatten() for g in grads]), update, dim=0)
        assert found.item() == pytest.approx(wanted.item(), abs=1e-5)


def test_an_update_towards_an_image_has_the_cosine_one(data):
    net, one = tiny.net(), LabelledSet(data.x[:1], data.y[:1])
    before = tiny.params(net)
    leaves = {k: v.clone().requires_grad_() for k, v in before.items()}
    grads = torch.autograd.grad(tiny.cross_entropy(net, leaves, one), [*leaves.values()], materialize_grads=True)
    after = {k: v - 0.1 * g for (k, v), g in zip(before.items(), grads, strict=True)}
    found = signals.update_cosine(net, before, after, one)
    assert found is not None
    assert found.item() == pytest.approx(1, abs=1e-4)


def test_the_nearest_image_ignores_contrast_brightness_and_other_classes(data):
    copies = 3 * data.x + 1
    assert signals.nearest_correlation(data.x, data.y, copies, data.y).abs().max() < 1e-5
    assert (
        signals.nearest_correlation(
            data.x[:1], data.y[:1], copies[data.y != data.y[0]], data.y[data.y != data.y[0]]
        )
        == -2
    )


def test_tracing_a_mean_of_gaussians_reaches_its_expected_area():
    """A mean of n = 100 records of d = 200 normals: AUC = Phi(sqrt(d / 2 n)) = .84."""
    n, d, areas = 100, 200, []
    for seed in range(20):
        members, others = torch.randn(2, n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        released, reference = members.mean(0).expand(2 * n, d), torch.zeros(2 * n, d)
        scores = signals.traced(torch.cat([members, others]), released, reference)
        areas.append(area(scores, torch.arange(2 * n) < n))
    assert sum(areas) / 20 == pytest.approx(norm.cdf(math.sqrt(d / (2 * n))), abs=0.03)


def test_a_released_copy_of_the_members_is_traced(data):
    reference = tiny.federation().by_name["ape"].test.take(slice(None))
    tracer = signals.Tracer.of(tiny.net(), data, reference, Stream(0))
    members = torch.arange(len(data)) % 2 == 0
    found = tracer(data.x[members], data.y[members])
    assert area(found, members) > 0.8
    assert torch.equal(tracer(data.x[:0], data.y[:0]), torch.zeros(len(data), dtype=torch.float64))


def told(data, members, sigma: float, number: int) -> Told:
    """A release of class sums of these members, as `distil.private` makes it."""
    net = tiny.net(width=64)
    params = net.init(Stream(number).at("net"))
    half = LabelledSet(data.x[members], data.y[members])
    classes, sides = list(range(tiny.CLASSES)), [lambda x: x] * tiny.CLASSES
    centre, bound = class_means(net.by_batch(params, data.x).features, data.y, torch.tensor(classes)), 0.5
    clean = clipped_sums(net, params, half, [half.of_class(k) for k in classes], sides, centre, bound)
    noisy = add_noise(clean, sigma * bound, generator_for(b"k", str(number)))
    return Told(net, params, sides, classes, centre, bound, Level(sigma), noisy)


def test_the_matched_filter_finds_members_in_sums_with_little_noise_and_not_in_sums_with_much():
    data = LabelledSet(torch.randn(90, *tiny.net().shape, generator=torch.Generator().manual_seed(0)), LABELS)
    masks = np.random.default_rng(0).random((9, 90)) < 0.5
    areas = {}
    for sigma in (0.2, 1000.0):
        found = [
            sum(
                matched_filter(told(data, torch.from_numpy(mask), sigma, 4 * f + r), data.x, data.y)
                for r in range(4)
            )
            for f, mask in enumerate(masks)
        ]
        values = torch.stack(found).numpy()[:, :, None]
        scores = np.stack([membership.lira(values, masks, t, online=False) for t in range(9)])
        areas[sigma] = membership.roc(scores.ravel(), masks.ravel()).auc
    assert areas[0.2] > 0.8
    assert areas[1000.0] == pytest.approx(0.5, abs=0.08)


def test_the_matched_filter_is_the_inner_product_with_the_clipped_features_in_units_of_the_noise():
    data = LabelledSet(torch.randn(90, *tiny.net().shape, generator=torch.Generator().manual_seed(0)), LABELS)
    release = told(data, torch.ones(90, dtype=torch.bool), 2.0, 0)
    found = matched_filter(release, data.x, data.y)
    for i in (0, 1, 89):
        feature = release.net.by_batch(release.params, data.x[i : i + 1]).features[0].double()
        feature = feature - release.centre[int(data.y[i])].double()
        short = feature * min(1.0, 0.5 / float(feature.norm()))
        wanted = float(short @ release.sums[int(data.y[i])]) / (2.0 * 0.5) ** 2
        assert float(found[i]) == pytest.approx(wanted, rel=1e-3)
    unreleased = release._replace(classes=[1], centre=release.centre[1:2], sums=release.sums[1:2])
    assert matched_filter(unreleased, data.x, data.y)[data.y != 1].abs().max() == 0
