"""Arithmetic on trees of tensors, and the mean that a server takes."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedlgd.core import tree
from fedlgd.core.tree import Mean
from fedlgd.core.types import Params, Stream
from tests.tiny import equal
from tests.vectors import close, floats, vector


def _tree(seed: int, count: int = 3) -> Params:
    g = Stream(seed).generator("tree")
    return {
        "conv.weight": torch.randn(2, 3, generator=g) * 10 ** torch.randint(-6, 6, (2, 3), generator=g),
        "bias": torch.randn(4, generator=g),
        "batches": torch.tensor(count),
    }


def _mean(trees: list[Params], weights: list[float]) -> Params:
    mean = Mean()
    for one, weight in zip(trees, weights, strict=True):
        mean.add(one, weight)
    return mean.value()


def test_mean_weighted_by_numbers_of_images():
    v = vector("aggregation")
    trees = [{"x": floats(c)} for c in v["clients"]]
    close(_mean(trees, v["n_i"])["x"], v["fedavg_weighted"])
    close(_mean(trees, [0.1 * n for n in v["n_i"]])["x"], v["fedavg_weighted"])


def test_mean_is_uniform_unless_told():
    v = vector("aggregation")
    mean = Mean()
    for c in v["clients"]:
        mean.add({"x": floats(c)})
    close(mean.value()["x"], v["fedavg_uniform"])


def test_counters_take_the_largest_value_whatever_the_weights():
    got = _mean([_tree(0, 3), _tree(1, 9), _tree(2, 4)], [1.0, 0.1, 5.0])
    assert got["batches"].item() == 9
    assert got["batches"].dtype == torch.int64


def test_mean_leaves_its_inputs_alone_and_keeps_their_types():
    a, b = _tree(0), _tree(1, 8)
    before = tree.clone(a), tree.clone(b)
    got = _mean([a, b], [1.0, 2.0])
    assert equal(a, before[0])
    assert equal(b, before[1])
    assert all(got[k].dtype == v.dtype for k, v in a.items())
    got["batches"] += 1
    assert equal(a, before[0])


@settings(deadline=None, max_examples=50)
@given(seed=st.integers(0, 10**6), weights=st.lists(st.floats(1e-3, 1e6, allow_nan=False), min_size=1, max_size=60))
def test_mean_of_equal_trees_returns_them_bit_for_bit(seed, weights):
    one = _tree(seed)
    assert equal(_mean([one] * len(weights), weights), one)


@settings(deadline=None, max_examples=30)
@given(seeds=st.lists(st.integers(0, 99), min_size=1, max_size=6))
def test_mean_lies_between_the_smallest_and_the_largest(seeds):
    trees = [_tree(s) for s in seeds]
    got = _mean(trees, [1.0 + s for s in seeds])
    stacked = torch.stack([t["conv.weight"] for t in trees])
    assert (got["conv.weight"] >= stacked.amin(0)).all()
    assert (got["conv.weight"] <= stacked.amax(0)).all()


def test_sums_differences_and_multiples_number_by_number():
    a, b = _tree(0, 3), _tree(1, 8)
    for got, f in (
        (tree.add(a, b), lambda x, y: x + y),
        (tree.sub(a, b), lambda x, y: x - y),
        (tree.scale(a, 2.5), lambda x, _: x * 2.5),
    ):
        for name in ("conv.weight", "bias"):
            assert torch.equal(got[name], f(a[name], b[name]))
        assert got["batches"].item() == 3


def test_zeros_have_the_shapes_and_types():
    a = _tree(0)
    for name, value in tree.zeros(a).items():
        assert value.shape == a[name].shape
        assert value.dtype == a[name].dtype
        assert not value.any()


def test_clone_shares_nothing_and_carries_no_gradient():
    a = {"w": torch.ones(2, requires_grad=True)}
    b = tree.clone(a)
    b["w"].add_(1)
    assert torch.equal(a["w"].detach(), torch.ones(2))
    assert not b["w"].requires_grad


def test_products_skip_counters():
    a = {"w": torch.tensor([1.0, 2.0]), "n": torch.tensor(5)}
    b = {"w": torch.tensor([3.0, -1.0]), "n": torch.tensor(7)}
    assert tree.dot(a, b).item() == 1.0
    assert tree.sqnorm(a).item() == 5.0


def test_only_keeps_the_named_leaves_themselves():
    a = _tree(0)
    kept: dict[str, Tensor] = tree.only(a, frozenset({"bias", "unknown"}))
    assert list(kept) == ["bias"]
    assert kept["bias"] is a["bias"]
