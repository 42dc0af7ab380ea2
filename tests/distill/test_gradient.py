"""Federated gradient matching: Dist, its gradient, and the steps on the anchors."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from fedlgd.core.meter import metered, phase
from fedlgd.core.net import Net
from fedlgd.core.train import Local, sgd
from fedlgd.core.types import Params, Stream, VirtualSet
from fedlgd.distill.gradient import (
    NORM_FLOOR,
    _curvature,
    _inverse_curvature,
    anchor_gradient,
    distance,
    match_gradient,
    matched_names,
    pseudo_gradient,
)
from fedlgd.methods.anchors import Anchors
from fedlgd.nets.registry import build_net
from tests import tiny
from tests.vectors import close, floats, vector

DIST = vector("dist")


def exact(steps: int, lr: float, momentum: float) -> Anchors:
    return Anchors(plan="exact", steps=steps, lr=lr, momentum=momentum)


def _weights(part: str) -> list[Tensor]:
    """The tensors with rows."""
    return [t for t in map(floats, DIST[part]) if t.ndim > 1]


def test_dist_sums_over_the_rows_of_tensors_with_rows():
    close(distance(_weights("S"), _weights("T")), DIST["skip_1d_eps1e6_code"])


def test_dist_row_by_row():
    for s, t, name in zip(_weights("S"), _weights("T"), ("conv.weight", "fc.weight"), strict=True):
        rows = [distance([a[None]], [b[None]]) for a, b in zip(s, t, strict=True)]
        torch.testing.assert_close(torch.stack(rows), floats(DIST["rows"][name]), rtol=0, atol=2e-6)
        close(torch.stack(rows).sum(), distance([s], [t]))


def test_dist_has_the_epsilon_of_the_code():
    s, t = _weights("S"), _weights("T")
    close(distance(s, [19 * x for x in t]), DIST["scaled_T_by_19"])
    assert abs(DIST["skip_1d_eps1e6_code"] - DIST["skip_1d_eps0"]) > 1e-8


def test_a_row_of_zeros_counts_one_and_has_a_finite_gradient():
    s, t = _weights("S"), _weights("T")
    t[1][1] = 0
    close(distance(s, t), DIST["T_fc_row1_zero"])
    s[1][0] = 0
    leaves = [x.requires_grad_() for x in s]
    for gradient in torch.autograd.grad(distance(leaves, t), leaves):
        assert torch.isfinite(gradient).all()


def _random_tree(seed: int) -> list[Tensor]:
    g = Stream(seed).generator("gradients")
    return [torch.randn(*s, generator=g, dtype=torch.float64) for s in ((4, 3, 3, 3), (5, 7), (1, 2))]


def _dist_to_itself(g: list[Tensor]) -> float:
    """Dist(g, g) = sum_i 1 - |g_i|^2 / (|g_i|^2 + eps) = sum_i eps / (|g_i|^2 + eps): up to 1 for a short row."""
    return sum(float((NORM_FLOOR / (t.flatten(1).square().sum(1) + NORM_FLOOR)).sum()) for t in g)


@settings(deadline=None, max_examples=50)
@given(seed=st.integers(0, 10**6), exponent=st.integers(-6, 3))
def test_dist_of_a_gradient_with_itself_is_what_epsilon_leaves(seed, exponent):
    g = [10.0**exponent * x for x in _random_tree(seed)]
    assert distance(g, g).item() == pytest.approx(_dist_to_itself(g), rel=1e-6, abs=1e-12)


def test_dist_of_a_gradient_with_itself_its_multiple_and_its_opposite():
    g, t = _random_tree(0), _random_tree(1)
    rows = 4 + 5 + 1
    torch.testing.assert_close(distance([7 * x for x in g], t), distance(g, t), rtol=0, atol=1e-5)
    torch.testing.assert_close(distance([-x for x in g], g), floats(2 * rows - _dist_to_itself(g)))


@settings(deadline=None, max_examples=50)
@given(a=st.integers(0, 10**6), b=st.integers(0, 10**6), exponent=st.integers(-12, 12))
def test_dist_lies_between_zero_and_twice_the_rows(a, b, exponent):
    value = distance([10.0**exponent * x for x in _random_tree(a)], _random_tree(b)).item()
    assert -1e-9 <= value <= 2 * 10 + 1e-9


def test_biases_norms_and_buffers_are_not_matched():
    net = build_net("convnet", (3, 28, 28), 10)
    params = net.init(Stream(0))
    names = matched_names(params, net)
    assert names == ["blocks.0.weight", "blocks.4.weight", "blocks.8.weight", "head.weight"]
    assert sum(len(params[n]) for n in names) == 394
    normed = build_net("tests.nets.own:Normed", (3, 4, 4), 3)
    assert matched_names(normed.init(Stream(0)), normed) == ["head.weight"]


def test_pseudo_gradient_points_from_new_to_old():
    v = vector("aggregation")
    got = pseudo_gradient({"x": floats(v["x"])}, {"x": floats(v["fedavg_uniform"])}, v["lr"])
    close(got["x"], v["pseudo_gradient_uniform"])


def test_pseudo_gradient_of_one_full_batch_step_is_the_gradient():
    net = tiny.net()
    data, old = tiny.labelled(net, dtype=torch.float64), tiny.double(tiny.params(net))
    leaves = {k: v.clone().requires_grad_() for k, v in old.items()}
    loss = torch.nn.functional.cross_entropy(net(leaves, data.x).logits, data.y)
    gradient = dict(
        zip(leaves, torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True), strict=True)
    )
    new = {k: v - 0.03 * gradient[k] for k, v in old.items()}
    for name, value in pseudo_gradient(old, new, 0.03).items():
        torch.testing.assert_close(value, gradient[name], rtol=1e-9, atol=1e-12)


GM = vector("gradient_matching_linear")


def _softmax_regression() -> tuple[Net, Params, VirtualSet]:
    net = build_net("tests.nets.own:Linear", (1, 1, 4), 3)
    params = {"head.weight": floats(GM["W"]), "head.bias": floats(GM["b"])}
    x = floats(GM["X"]).view(5, 1, 1, 4)
    return net, params, VirtualSet(images=x, labels=torch.tensor(GM["labels"]), origin="server", round=-1)


def test_gradient_of_dist_on_softmax_regression():
    net, params, anchors = _softmax_regression()
    names = matched_names(params, net)
    got, value = anchor_gradient(net, params, anchors.images, anchors.labels, [floats(GM["target_gW"])], names)
    close(value, GM["dist"])
    close(got.view(5, 4), GM["dDist_dX"])


def test_own_gradient_is_matched_from_the_start():
    net, params, anchors = _softmax_regression()
    gradient = floats(GM["gW"])
    _, value = anchor_gradient(net, params, anchors.images, anchors.labels, [gradient], ["head.weight"])
    assert value == pytest.approx(_dist_to_itself([gradient]), abs=1e-9)


def test_one_step_of_matching_on_softmax_regression():
    net, params, anchors = _softmax_regression()
    target = {"head.weight": floats(GM["target_gW"]), "head.bias": floats([9.0, 9.0, 9.0])}
    moved, distances = match_gradient(anchors, net, params, target, exact(1, 1.0, 0.5), 3)
    close(moved.images.view(5, 4), GM["X_after_one_sgd_step_lr1"])
    close(distances[0], GM["dist"])
    assert len(distances) == 1
    assert moved.round == 3
    assert torch.equal(moved.labels, anchors.labels)


def _problem(seed: int = 0) -> tuple[Net, Params, VirtualSet, Params]:
    """Anchors of noise, and the gradient that other images have under the same model."""
    net = tiny.net()
    params, data = tiny.params(net, seed), tiny.labelled(net, per_class=3, seed=seed + 1)
    leaves = {k: v.clone().requires_grad_() for k, v in params.items()}
    loss = torch.nn.functional.cross_entropy(net(leaves, data.x).logits, data.y)
    target = dict(
        zip(leaves, torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True), strict=True)
    )
    anchors = tiny.labelled(net, per_class=2, seed=seed + 2)
    return net, params, VirtualSet(images=anchors.x, labels=anchors.y, origin="server", round=-1), target


def test_matching_brings_the_gradients_together():
    net, params, anchors, target = _problem()
    _, distances = match_gradient(anchors, net, params, target, exact(40, 0.3, 0.5), 0)
    assert len(distances) == 40
    assert distances[-1] < 0.7 * distances[0]
    assert sum(b < a for a, b in pairwise(distances)) > 30


def test_matching_changes_nothing_it_was_given():
    net, params, anchors, target = _problem()
    before = (
        anchors.images.clone(),
        {k: v.clone() for k, v in params.items()},
        {k: v.clone() for k, v in target.items()},
    )
    moved, _ = match_gradient(anchors, net, params, target, exact(3, 1.0, 0.5), 0)
    assert torch.equal(anchors.images, before[0])
    assert tiny.equal(params, before[1])
    assert tiny.equal(target, before[2])
    assert not torch.equal(moved.images, anchors.images)
    assert not any(v.requires_grad or v.grad is not None for v in params.values())
    assert not moved.images.requires_grad


def test_momentum_starts_at_rest():
    """Two calls of one step differ from one call of two steps just by the momentum."""
    net, params, anchors, target = _problem()

    def moved(steps: int, momentum: float, start: VirtualSet = anchors) -> VirtualSet:
        return match_gradient(start, net, params, target, exact(steps, 0.3, momentum), 0)[0]

    for momentum, alike in ((0.0, True), (0.5, False)):
        twice = moved(1, momentum, moved(1, momentum))
        assert torch.equal(twice.images, moved(2, momentum).images) == alike


def test_scale_of_the_target_hardly_matters():
    net, params, anchors, target = _problem()
    a, _ = match_gradient(anchors, net, params, target, exact(2, 0.3, 0.5), 0)
    b, _ = match_gradient(anchors, net, params, {k: 100 * v for k, v in target.items()}, exact(2, 0.3, 0.5), 0)
    torch.testing.assert_close(a.images, b.images, rtol=0, atol=1e-3)


def test_a_step_costs_eight_forward_passes_per_anchor():
    net, params, anchors, target = _problem()
    with metered() as meter, phase("server"):
        match_gradient(anchors, net, params, target, exact(5, 0.3, 0.5), 0)
    assert meter.flops["server"] == 5 * len(anchors) * 8 * tiny.forward_flops()


def test_anchors_are_matched_under_their_own_statistics_which_are_not_learned():
    net = build_net("tests.nets.own:Normed", (3, 4, 4), 3)
    params = tiny.params(net)
    before = {k: v.clone() for k, v in params.items()}
    data = tiny.labelled(net)
    anchors = VirtualSet(images=data.x, labels=data.y, origin="server", round=-1)
    moved, distances = match_gradient(anchors, net, params, params, exact(2, 0.3, 0.5), 0)
    assert tiny.equal(params, before)
    assert torch.isfinite(moved.images).all()
    assert distances[0] != distances[1]
    other = {k: v + 3 if "running" in k else v for k, v in params.items()}
    assert torch.equal(match_gradient(anchors, net, other, params, exact(2, 0.3, 0.5), 0)[0].images, moved.images)


def test_a_sites_gradient_in_training_can_be_matched_under_batch_norm():
    """G of one step of a site on the anchors themselves: Dist is 0 but for its epsilon."""
    net = tiny.net(norm="batch")
    params, data = tiny.params(net), tiny.labelled(net)
    trained = sgd(net, params, len(data), lambda w, i: tiny.cross_entropy(net, w, data.take(i)), Local(), Stream(0))
    anchors = VirtualSet(images=data.x, labels=data.y, origin="server", round=-1)
    target = pseudo_gradient(params, trained.params, Local().lr)
    _, distances = match_gradient(anchors, net, params, target, exact(1, 0.3, 0.5), 0)
    assert distances[0] < 0.01


def test_a_matrix_no_score_depends_on_does_not_stop_matching():
    net = build_net("tests.nets.own:Idle", (3, 4, 4), 3)
    data, params = tiny.labelled(net), tiny.params(net)
    anchors = VirtualSet(images=data.x, labels=data.y, origin="server", round=-1)
    moved, distances = match_gradient(anchors, net, params, params, exact(1, 0.3, 0.5), 0)
    assert torch.isfinite(moved.images).all()
    assert len(distances) == 1


def to_target(tolerance: float, steps: int = 200) -> Anchors:
    return Anchors(plan="target", tolerance=tolerance, steps=steps)


@pytest.mark.parametrize("seed", range(2))
def test_the_target_plan_needs_a_quarter_of_the_steps_for_the_same_distance(seed):
    """On images as large as digits; on a handful of pixels SGD finds its way as well."""
    net, y = build_net("convnet", (3, 28, 28), 10, {"width": 8}), torch.arange(20) % 10
    params, generator = net.init(Stream(seed)), Stream(seed).generator("x")
    images, other = torch.randn(2, 20, 3, 28, 28, generator=generator)
    weights = {name: value.clone().requires_grad_() for name, value in params.items()}
    loss = F.cross_entropy(net(weights, other).logits, y)
    target = dict(
        zip(weights, torch.autograd.grad(loss, list(weights.values()), materialize_grads=True), strict=True)
    )
    anchors = VirtualSet(images=images, labels=y, origin="server", round=-1)
    _, slow = match_gradient(anchors, net, params, target, exact(100, 1.0, 0.5), 0)
    _, fast = match_gradient(anchors, net, params, target, to_target(0.0, 25), 0)
    assert min(fast) < slow[-1] < 0.1 * slow[0]


def test_it_ends_at_the_tolerance_and_hands_over_what_it_saw_there():
    net, params, anchors, target = _problem()
    names = matched_names(params, net)
    wanted = [target[n] for n in names]
    rows = sum(len(w) for w in wanted)
    moved, distances = match_gradient(anchors, net, params, target, to_target(0.3), 0)
    assert distances[-1] <= 0.3 * rows < min(distances[:-1])
    assert anchor_gradient(net, params, moved.images, anchors.labels, wanted, names)[1] == distances[-1]


def test_it_never_hands_over_worse_images_than_it_saw():
    net, params, anchors, target = _problem()
    names = matched_names(params, net)
    wanted = [target[n] for n in names]
    for steps in (1, 2, 5, 30):
        moved, distances = match_gradient(anchors, net, params, target, to_target(0.0, steps), 0)
        assert len(distances) <= steps + 1
        assert anchor_gradient(net, params, moved.images, anchors.labels, wanted, names)[1] == min(distances)


def test_it_ends_where_the_distance_no_longer_falls():
    net, params, anchors, target = _problem()
    nowhere = {name: torch.zeros_like(value) for name, value in target.items()}
    _, distances = match_gradient(anchors, net, params, nowhere, to_target(0.0), 0)
    assert len(distances) == 11
    assert len(set(distances)) == 1


def test_no_step_is_longer_than_a_tenth_of_the_images():
    net, params, anchors, target = _problem()
    for lr in (1e-3, 1e6):
        how = Anchors(plan="target", tolerance=0.0, steps=1, lr=lr)
        moved, _ = match_gradient(anchors, net, params, target, how, 0)
        assert (moved.images - anchors.images).norm() <= 0.1001 * anchors.images.norm()


def test_curvature_of_a_quadratic_is_learnt():
    """With as many steps seen as there are dimensions, H y = s for the last step (the secant equation)."""
    torch.manual_seed(0)
    a = torch.diag(torch.tensor([1.0, 4.0, 9.0], dtype=torch.float64))
    steps = torch.randn(3, 3, dtype=torch.float64)
    seen = [found for s in steps for found in _curvature(s, a @ s)]
    torch.testing.assert_close(_inverse_curvature(a @ steps[-1], seen, 1.0), steps[-1])


def test_a_step_along_which_nothing_curves_up_teaches_nothing():
    s = torch.ones(3)
    assert _curvature(s, -s) == []
    assert _curvature(s, 0 * s) == []
