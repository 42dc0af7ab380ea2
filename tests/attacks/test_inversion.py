"""Gradient inversion: the cost of the specification, what gradients hide and what they give away."""

import pytest
import torch

from fedlgd.attacks.gradient_inversion import Attack, Step, cosine_cost, invert, squared_cost, total_variation
from fedlgd.attacks.similarity import correlation_distances
from fedlgd.core.types import Scale, Stream
from fedlgd.methods.common import AnchorLoss
from fedlgd.nets.registry import build_net
from tests import tiny
from tests.errors import refuses
from tests.vectors import close, floats, vector

SHORT = Attack(iterations=60, tv=0.0)


def step(net, part, **more):
    settings = {"net": net, "params": tiny.params(net), "labels": part.y, "index": torch.arange(len(part))}
    return Step(**(settings | more))


def some(net, count, seed=0):
    """Network inputs in the range of pixels."""
    return tiny.labelled(net, 2, seed).take(torch.arange(count))


def inverted(known, part, attack=SHORT, seed=0):
    shape = tuple(part.x.shape)
    return invert(known.gradient, known.update(part.x, 0.05), shape, Scale(), attack, Stream(seed))


def linear():
    return build_net("tests.nets.own:Linear", (3, tiny.SIDE, tiny.SIDE), tiny.CLASSES, {})


def test_the_cost_is_that_of_the_vectors():
    known = vector("gradient_inversion")
    trial, target = ([floats(each) for each in known[f"{name}_grads"]] for name in ("trial", "target"))
    image = floats(known["image"])
    close(cosine_cost(trial, target), known["cosine_cost"])
    close(total_variation(image), known["tv_mean_abs"])
    close(cosine_cost(trial, target) + known["tv_weight"] * total_variation(image), known["total"])


def test_one_cosine_is_taken_over_all_parameters_and_not_one_for_each():
    small, large = [torch.tensor([1.0]), torch.tensor([100.0])], [torch.tensor([-1.0]), torch.tensor([100.0])]
    assert cosine_cost(small, large).item() < 1e-3


def test_the_gradient_does_not_see_contrast():
    net = build_net("convnet", (3, 28, 28), 10, {"width": 16})
    part = tiny.labelled(net, 1).take(torch.arange(2))
    known = step(net, part)
    once, twice = (torch.cat([g.flatten() for g in known.gradient(a * part.x)]).detach() for a in (1, 2))
    assert (once - twice).norm() / once.norm() < 1e-4


def test_one_image_of_a_linear_softmax_is_known_exactly():
    net = linear()
    part = some(net, 1)
    known = step(net, part)
    gradients = dict(zip(known.names, known.gradient(part.x), strict=True))
    weight = next(g for g in gradients.values() if g.ndim == 2)
    bias = next(g for g in gradients.values() if g.ndim == 1)
    torch.testing.assert_close(weight / bias[:, None], part.x.flatten(1).expand_as(weight), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("loss", ["cosine", "l2"])
def test_the_attack_finds_the_image_of_a_linear_softmax(loss):
    net = linear()
    part = some(net, 1)
    inside = part.x.clamp(-1, 1)
    known = step(net, part)
    target = known.update(inside, 0.05)
    attack = Attack(iterations=200, tv=0.0, loss=loss)
    found = invert(known.gradient, target, tuple(inside.shape), Scale(), attack, Stream(0))
    assert correlation_distances(found.images, inside).item() < 0.05


def test_an_update_is_the_gradient_of_the_true_images():
    net = tiny.net()
    part, anchors = some(net, 2), tiny.labelled(net, 1, seed=5)
    beside = AnchorLoss(anchors, True, None)
    known = step(net, part, index=torch.tensor([0, 1, 2, 4]), anchors_in_loss=beside)
    assert cosine_cost(known.gradient(part.x), known.update(part.x, 0.05)).item() < 1e-5
    alone = step(net, part).update(part.x, 0.05)
    assert cosine_cost(known.gradient(part.x), alone).item() > 1e-3  # anchors are part of it


def test_more_iterations_come_nearer_and_stay_in_the_range_of_pixels():
    net = tiny.net()
    part = some(net, 1)
    known = step(net, part)
    first, last = (inverted(known, part, Attack(iterations=n, tv=0.0)).cost for n in (1, 80))
    assert last < first / 2
    found = inverted(known, part).images
    assert found.min() >= -1
    assert found.max() <= 1


def test_the_best_of_several_restarts_is_kept_and_a_seed_repeats_it():
    net = tiny.net()
    part = some(net, 2)
    known = step(net, part)
    one, three = (inverted(known, part, Attack(iterations=10, restarts=r)) for r in (1, 3))
    assert three.cost <= one.cost
    assert torch.equal(one.images, inverted(known, part, Attack(iterations=10)).images)
    assert not torch.equal(one.images, inverted(known, part, Attack(iterations=10), seed=1).images)


def test_squared_distance_is_zero_only_at_the_same_gradient():
    a, b = [torch.tensor([1.0, 2.0])], [torch.tensor([1.0, 4.0])]
    assert squared_cost(a, a).item() == 0
    assert squared_cost(a, b).item() == 4


@pytest.mark.parametrize("wrong", [{"iterations": 0}, {"restarts": 0}, {"tv": -1.0}])
def test_impossible_attacks_are_refused(wrong):
    ((setting, value),) = wrong.items()
    with refuses("setting-value", setting=setting, value=value):
        Attack(**wrong)
