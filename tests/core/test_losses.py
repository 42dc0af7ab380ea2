"""The losses, against the vectors and the facts of the specification."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedlgd.core.losses import class_means, cross_entropy, mean_gap, mmd_rbf, supervised_contrastive
from fedlgd.core.types import LabelledSet, Stream
from fedlgd.nets.registry import build_net
from tests.vectors import close, floats, vector

CASES = vector("supcon")["cases"]


def _random(n: int, d: int, seed: int) -> Tensor:
    return torch.randn(n, d, dtype=torch.float64, generator=Stream(seed).generator("features"))


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c['case']}-{c['temperature']}")
def test_contrastive_loss_is_the_mean_over_all_members(case):
    features, labels = floats(case["features"]).requires_grad_(), torch.tensor(case["labels"])
    loss = supervised_contrastive(features, labels, case["temperature"])
    close(loss.detach(), case["mean_all_anchors_code"])
    close(loss.detach() * len(labels), case["sum_paper_eq"])


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c['case']}-{c['temperature']}")
def test_contrastive_gradient(case):
    features, labels = floats(case["features"]).requires_grad_(), torch.tensor(case["labels"])
    (gradient,) = torch.autograd.grad(supervised_contrastive(features, labels, case["temperature"]), features)
    close(gradient, case["grad_of_mean_all_anchors"])


def test_the_vectors_tell_the_two_means_apart():
    lonely = [c for c in CASES if 0 in c["n_positives"]]
    assert lonely
    for case in lonely:
        assert abs(case["mean_all_anchors_code"] - case["mean_over_anchors_with_positive"]) > 1e-3


def test_members_without_a_positive_contribute_nothing_but_count():
    labels = torch.tensor([0, 0, 1])
    alone = torch.tensor([5, 0, 1])
    features = _random(3, 4, 0)
    assert supervised_contrastive(features, alone, 0.5) == 0
    pair = supervised_contrastive(features, labels, 0.5)
    per_member = _members(features, 0.5)
    close(pair, (per_member[0] + per_member[1]) / 3)


def _members(features: Tensor, temperature: float) -> list[Tensor]:
    """For three members of which 0 and 1 are a pair: -log p(other) of both."""
    z = features / features.norm(dim=1, keepdim=True)
    s = (z @ z.T / temperature).exp()
    return [-(s[0, 1] / (s[0, 1] + s[0, 2])).log(), -(s[1, 0] / (s[1, 0] + s[1, 2])).log()]


def test_a_single_member_is_worth_zero_with_a_finite_gradient():
    features = _random(1, 3, 0).requires_grad_()
    loss = supervised_contrastive(features, torch.tensor([0]), 0.07)
    (gradient,) = torch.autograd.grad(loss, features)
    assert loss == 0
    assert torch.equal(gradient, torch.zeros_like(gradient))


def test_small_temperatures_do_not_overflow_in_float32():
    features = torch.tensor([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0]]).requires_grad_()
    loss = supervised_contrastive(features, torch.tensor([0, 1, 0]), 0.001)
    assert torch.isfinite(loss)
    assert torch.isfinite(torch.autograd.grad(loss, features)[0]).all()


groups = st.lists(st.integers(0, 3), min_size=2, max_size=9)


@settings(deadline=None, max_examples=40)
@given(labels=groups, seed=st.integers(0, 10**6), data=st.data())
def test_order_of_members_does_not_matter_to_the_contrastive_loss(labels, seed, data):
    order = torch.tensor(data.draw(st.permutations(range(len(labels)))))
    features, y = _random(len(labels), 3, seed), torch.tensor(labels)
    close(supervised_contrastive(features[order], y[order], 0.3), supervised_contrastive(features, y, 0.3))


@settings(deadline=None, max_examples=40)
@given(labels=groups, seed=st.integers(0, 10**6), data=st.data())
def test_length_of_features_does_not_matter_to_the_contrastive_loss(labels, seed, data):
    lengths = data.draw(st.lists(st.floats(1e-3, 1e3), min_size=len(labels), max_size=len(labels)))
    features, y = _random(len(labels), 3, seed), torch.tensor(labels)
    scaled = features * floats(lengths)[:, None]
    close(supervised_contrastive(scaled, y, 0.3), supervised_contrastive(features, y, 0.3))


@settings(deadline=None, max_examples=40)
@given(labels=groups, seed=st.integers(0, 10**6))
def test_names_of_labels_do_not_matter_and_the_loss_is_never_negative(labels, seed):
    features, y = _random(len(labels), 3, seed), torch.tensor(labels)
    loss = supervised_contrastive(features, y, 0.3)
    assert loss >= 0
    assert torch.equal(loss, supervised_contrastive(features, 7 - y, 0.3))


def _classes(part: dict) -> tuple[Tensor, Tensor]:
    x = torch.cat([floats(rows) for rows in part.values()])
    return x, torch.tensor([int(k) for k, rows in part.items() for _ in rows])


def test_class_mean_gap_and_its_gradient():
    v = vector("mmd_class_mean")
    classes = torch.tensor([0, 1])
    (real, real_y), (made, made_y) = _classes(v["real"]), _classes(v["syn"])
    made.requires_grad_()
    gap = mean_gap(class_means(real, real_y, classes), class_means(made, made_y, classes))
    close(gap.detach(), v["value"])
    (gradient,) = torch.autograd.grad(gap, made)
    close(gradient, v["grad_syn"]["0"] + v["grad_syn"]["1"])


def test_class_mean_gap_is_the_sum_over_classes():
    v = vector("mmd_class_mean")
    (real, real_y), (made, made_y) = _classes(v["real"]), _classes(v["syn"])
    for name, wanted in v["per_class"].items():
        k = torch.tensor([int(name)])
        close(mean_gap(class_means(real, real_y, k), class_means(made, made_y, k)), wanted)


def test_gap_gradient_summed_over_a_class_is_minus_twice_the_difference_of_means():
    classes = torch.tensor([0, 1])
    real, real_y = _random(7, 5, 1), torch.tensor([0, 1, 1, 0, 1, 1, 0])
    made, made_y = _random(5, 5, 2).requires_grad_(), torch.tensor([0, 0, 1, 1, 1])
    gap = mean_gap(class_means(real, real_y, classes), class_means(made, made_y, classes))
    (gradient,) = torch.autograd.grad(gap, made)
    for k in (0, 1):
        difference = real[real_y == k].mean(0) - made.detach()[made_y == k].mean(0)
        close(gradient[made_y == k].sum(0), -2 * difference)


def test_class_means_come_in_the_order_asked_for_and_ignore_other_classes():
    features = floats([[1, 0], [3, 0], [0, 10], [7, 7]])
    rows = class_means(features, torch.tensor([4, 4, 2, 9]), torch.tensor([4, 2]))
    close(rows, [[2, 0], [0, 10]])


def test_mmd_rbf_value_parts_and_symmetry():
    v = vector("mmd_rbf")
    a, b = floats(v["source"]), floats(v["target"])
    close(mmd_rbf(a, b, v["kernel_num"]), v["value"])
    close(mmd_rbf(b, a), v["value"])
    close(v["mean_xx"] + v["mean_yy"] - 2 * v["mean_xy"], v["value"])


def test_mmd_rbf_of_equal_sets_is_zero():
    a = floats(vector("mmd_rbf")["source"])
    close(mmd_rbf(a, a), vector("mmd_rbf")["value_identical_sets"])


def test_no_gradient_goes_through_the_bandwidth_of_mmd_rbf():
    v = vector("mmd_rbf")
    a, b = floats(v["source"]).requires_grad_(), floats(v["target"])
    (gradient,) = torch.autograd.grad(mmd_rbf(a, b), a)

    def with_fixed_bandwidths(x: Tensor) -> Tensor:
        def mean_kernel(left: Tensor, right: Tensor) -> Tensor:
            square = (left[:, None] - right[None]).square().sum(2)
            return sum(torch.exp(-square / s) for s in v["bandwidths"]).mean()

        return mean_kernel(x, x) + mean_kernel(b, b) - 2 * mean_kernel(x, b)

    close(gradient, torch.autograd.grad(with_fixed_bandwidths(a), a)[0])


def test_mmd_rbf_of_points_that_all_coincide_is_zero():
    point = torch.ones(2, 3, dtype=torch.float64)
    close(mmd_rbf(point, point), 0.0)


def test_cross_entropy_is_the_mean_over_images():
    v = vector("gradient_matching_linear")
    net = build_net("tests.nets.own:Linear", (1, 1, 4), 3)
    params = {"head.weight": floats(v["W"]), "head.bias": floats(v["b"])}
    batch = LabelledSet(floats(v["X"]).view(5, 1, 1, 4), torch.tensor(v["labels"]))
    close(cross_entropy(net(params, batch.x).logits, batch.y), v["ce"])
