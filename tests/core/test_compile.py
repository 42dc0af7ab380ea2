"""A compiled network computes what the network does; only the last bits differ."""

from functools import partial

import pytest
import torch
from torch._dynamo.backends.common import aot_autograd

from fedlgd.core.compile import CompileWarning, find_compiler
from fedlgd.core.device import Place
from fedlgd.core.net import ACTIVATION
from fedlgd.core.train import score
from fedlgd.distill.distribution import Pair, image_gradient, real_features, real_means
from fedlgd.distill.gradient import anchor_gradient, matched_names
from tests import tiny
from tests.errors import refuses

COMPILED = Place(compile="on")
needs_compiler = pytest.mark.skipif(not find_compiler(), reason="no C++ compiler: g++, or what CXX names")


@pytest.fixture
def net():
    return tiny.net(depth=1)


def gradients(net, data, params):
    """Of the weights in training, for batches of several sizes, one of them a part of larger images."""
    found = []
    for part in (data.take(slice(0, 6)), data.take(slice(2, 5))):
        weights = {name: value.clone().requires_grad_() for name, value in params.items()}
        wide = torch.nn.functional.pad(part.x, (1, 1, 1, 1))[..., 1:-1, 1:-1]
        with net.training():
            loss = torch.nn.functional.cross_entropy(net(weights, wide).logits, part.y)
        found += torch.autograd.grad(loss, list(weights.values()), materialize_grads=True)
    return found


@needs_compiler
def test_compiled_training_has_the_gradients_of_eager_training_in_double_precision(net):
    data, params = tiny.labelled(net, 3, dtype=torch.float64), tiny.double(tiny.params(net))
    plain, compiled = (place.do(lambda p: gradients(net, data, p), params) for place in (Place(), COMPILED))
    torch.testing.assert_close(compiled, plain, rtol=1e-10, atol=1e-12)
    assert not all(map(torch.equal, compiled, plain)), "nothing was compiled"


def test_a_compiler_that_fails_on_the_backward_pass_leaves_the_work_to_eager_mode(net, monkeypatch):
    def fails(*given):
        raise RuntimeError("C++ compile error\nOutput:\na.cpp:1:9: fatal error: no header")

    breaks = aot_autograd(fw_compiler=lambda graph, _: graph.forward, bw_compiler=fails)
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=breaks))
    data, params = tiny.labelled(net, 3), tiny.params(net)
    with pytest.warns(CompileWarning, match="fatal error: no header$") as said:
        found = COMPILED.do(lambda p: gradients(net, data, p), params)
    assert len(said) == 1
    torch.testing.assert_close(found, gradients(net, data, params))


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("cache", [0, ACTIVATION])
def test_compiled_features_are_those_of_eager_mode_with_one_batch_or_one_for_each_class(net, cache, monkeypatch):
    monkeypatch.setattr("fedlgd.distill.distribution.ACTIVATION", cache)
    params, data = tiny.double(tiny.params(net)), tiny.labelled(net, 4, dtype=torch.float64)
    batches = [data.of_class(k)[: k + 1] for k in range(net.classes)]
    passes, calls = net.by_batch, []
    monkeypatch.setattr(net, "by_batch", lambda params, x: calls.append(len(x)) or passes(params, x))

    def work(params):
        return real_features(net, params, data, batches, [lambda x: x] * net.classes)

    plain, compiled = (place.do(work, params) for place in (Place(), COMPILED))
    torch.testing.assert_close(compiled, plain, rtol=1e-10, atol=1e-12)
    sizes = [len(batch) for batch in batches]
    assert calls == sizes + ([sum(sizes)] if cache else sizes)


@needs_compiler
@pytest.mark.slow
def test_compiled_matching_has_the_gradients_of_eager_matching_in_double_precision(net):
    params, data = tiny.double(tiny.params(net)), tiny.labelled(net, 4, dtype=torch.float64)
    names = matched_names(params, net)
    target = [torch.linspace(-1, 1, params[name].numel()).double().view_as(params[name]) for name in names]

    def work(params):
        batches, transforms = [data.of_class(k) for k in range(net.classes)], [lambda x: x] * net.classes
        means = real_means(net, params, data, batches, transforms)
        pixels = image_gradient(net, Pair(params, transforms, means + 1), data.x, data.y)
        anchors, dist = anchor_gradient(net, params, data.x, data.y, target, names)
        return means, pixels, anchors, torch.tensor(dist)

    plain, compiled = (place.do(work, params) for place in (Place(), COMPILED))
    torch.testing.assert_close(compiled, plain, rtol=1e-9, atol=1e-12)


@needs_compiler
@pytest.mark.slow
def test_a_compiled_network_with_batch_norm_keeps_its_statistics_and_scores():
    net = tiny.net(depth=1, norm="batch")
    params, data = tiny.params(net), tiny.federation().sites[0].test

    def work(params):
        kept = {name: value.clone() for name, value in params.items()}
        with net.training(), torch.no_grad():
            net(kept, data.take(slice(None)).x)
        return kept, score(net, kept, data, net.classes)

    (plain, one), (compiled, two) = (place.do(work, params) for place in (Place(), COMPILED))
    torch.testing.assert_close(compiled, plain, rtol=1e-5, atol=1e-6)
    assert not tiny.equal(compiled, params)
    assert (two.correct, two.loss) == (one.correct, pytest.approx(one.loss, rel=1e-5))


def test_an_unknown_mode_is_refused():
    with refuses("setting-choice", setting="compile", value="fast", choices=["auto", "on", "off"]):
        Place(compile="fast")
