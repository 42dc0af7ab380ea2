"""The reference computes what ours computes where ours claims exactness: float64, tiny sizes."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor

from bench import published
from fedlgd.core.train import Local, batches, score, sgd
from fedlgd.core.tree import Mean, double
from fedlgd.core.types import LabelledSet, Params, Stream, VirtualSet
from fedlgd.distill.augment import Transform, color, crop, rotate
from fedlgd.distill.distribution import Pair, image_gradient, real_means
from fedlgd.distill.gradient import match_gradient
from fedlgd.methods.anchors import Anchors
from fedlgd.methods.common import plain, pulled
from fedlgd.methods.regularisers import Pull
from fedlgd.nets.registry import build_net

SHAPE, CLASSES, WIDTH, PER_CLASS = (3, 12, 12), 3, 4, 2
TRANSFORMS: list[Transform] = [
    partial(color, brightness=0.3, saturation=0.7, contrast=0.9),
    partial(crop, down=1, right=-1),
    partial(rotate, degrees=10.0),
]


NET = build_net("convnet", SHAPE, CLASSES, {"width": WIDTH})


def weights(seed: int) -> Params:
    return double(NET.init(Stream(seed)))


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)


def images(count: int, seed: int) -> LabelledSet:
    x = torch.randn(count, *SHAPE, generator=Stream(seed).generator(), dtype=torch.float64)
    return LabelledSet(x, torch.arange(CLASSES).repeat_interleave(count // CLASSES))


@pytest.fixture
def params() -> Params:
    return weights(1)


@pytest.fixture
def reference(params: Params) -> published.ConvNet:
    net = published.ConvNet(SHAPE, CLASSES, WIDTH).double()
    net.load_state_dict(params)
    return net


def test_a_step_of_distribution_matching(params: Params, reference: published.ConvNet):
    real, virtual = images(15, 2), images(CLASSES * PER_CLASS, 3)
    members = [real.of_class(k) for k in range(CLASSES)]
    theirs = virtual.x.clone().requires_grad_()
    published.dm_step(theirs, published.optimiser(theirs), reference, [real.x[m] for m in members], TRANSFORMS)
    target = real_means(NET, params, real, members, TRANSFORMS)
    gradient = image_gradient(NET, Pair(params, TRANSFORMS, target), virtual.x, virtual.y)
    close(theirs.detach(), virtual.x - gradient)


def test_steps_of_gradient_matching(params: Params, reference: published.ConvNet):
    anchors = images(CLASSES * PER_CLASS, 4)
    target = weights(5)
    theirs = anchors.x.clone().requires_grad_()
    optimiser, wanted = published.optimiser(theirs), [target[n] for n, _ in reference.named_parameters()]
    distances = [published.gm_step(theirs, anchors.y, optimiser, reference, wanted) for _ in range(3)]
    start = VirtualSet(images=anchors.x, labels=anchors.y, origin="server", round=-1)
    moved, mine = match_gradient(start, NET, params, target, Anchors(plan="exact", steps=3), 0)
    close(theirs.detach(), moved.images)
    assert mine == pytest.approx(distances, rel=1e-9)


@pytest.mark.parametrize("regularised", [False, True])
def test_an_epoch(params: Params, reference: published.ConvNet, monkeypatch: pytest.MonkeyPatch, regularised: bool):
    monkeypatch.setattr(published, "BATCH", 4)
    local, anchors = images(CLASSES * PER_CLASS, 6), images(CLASSES * PER_CLASS, 7)
    both = LabelledSet(torch.cat([local.x, anchors.x]), torch.cat([local.y, anchors.y]))
    how, rng = Local(batch=4, lr=0.01), Stream(8)
    order = torch.cat(list(batches(len(both), how, rng.generator("shuffle"))))
    if regularised:
        published.regularised_epoch(reference, both.x, both.y, anchors.x, anchors.y, 2.0, 0.01, order)
        objective = pulled(NET, local, anchors, Pull(weight=2.0, repeat=True))
    else:
        published.plain_epoch(reference, both.x, both.y, 0.01, order)
        objective = plain(NET, both)
    mine = sgd(NET, params, len(both), objective, how, rng).params
    for name, value in reference.state_dict().items():
        close(value, mine[name])
    assert not torch.equal(mine["blocks.0.weight"], params["blocks.0.weight"])


def test_evaluation_and_aggregation(params: Params, reference: published.ConvNet):
    data = images(63, 9)
    mine = score(NET, params, data, CLASSES)
    assert published.evaluate(reference, data.x, data.y)[1] == mine.accuracy
    other = published.ConvNet(SHAPE, CLASSES, WIDTH).double()
    mean = Mean()
    mean.add(params)
    mean.add({name: value.clone() for name, value in other.state_dict().items()})
    server = published.ConvNet(SHAPE, CLASSES, WIDTH).double()
    models = [reference, other]
    published.aggregate(server, models)
    for name, value in mean.value().items():
        for net in (server, *models):
            close(net.state_dict()[name], value)


def test_the_published_settings_are_those_of_the_exact_plan():
    exact = replace(Anchors(), plan="exact")
    assert exact.lr == published.IMAGE_LR
    assert exact.momentum == published.IMAGE_MOMENTUM
