"""The losses against loops."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedlgd.core.losses import class_means, mean_gap, mmd_rbf, supervised_contrastive
from fedlgd.core.types import Stream
from fedlgd.distill.gradient import distance
from tests.oracle import slow
from tests.vectors import close

seeds = st.integers(0, 10**6)
temperatures = st.sampled_from([0.07, 0.5, 2.0])


def _random(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=Stream(seed).generator("oracle", *shape))


@settings(deadline=None, max_examples=40)
@given(labels=st.lists(st.integers(0, 3), min_size=2, max_size=10), seed=seeds, temperature=temperatures)
def test_supervised_contrastive(labels, seed, temperature):
    features = _random(seed, len(labels), 4)
    got = supervised_contrastive(features, torch.tensor(labels), temperature)
    close(got, slow.contrastive(features.tolist(), labels, temperature))


@settings(deadline=None, max_examples=15)
@given(labels=st.lists(st.integers(0, 2), min_size=2, max_size=7), seed=seeds)
def test_supervised_contrastive_gradient(labels, seed):
    features, y = _random(seed, len(labels), 3).requires_grad_(), torch.tensor(labels)
    (got,) = torch.autograd.grad(supervised_contrastive(features, y, 0.2), features)
    value = slow.contrastive_tensor(features, y, 0.2)
    wanted = torch.autograd.grad(value, features)[0] if value.requires_grad else torch.zeros_like(features)
    torch.testing.assert_close(got, wanted, rtol=1e-7, atol=1e-9)


@settings(deadline=None, max_examples=25)
@given(n=st.integers(1, 6), m=st.integers(1, 6), seed=seeds, kernels=st.integers(1, 6))
def test_mmd_rbf(n, m, seed, kernels):
    a, b = _random(seed, n, 3), 1 + 2 * _random(seed + 1, m, 3)
    close(mmd_rbf(a, b, kernels), slow.mmd_rbf(a.tolist(), b.tolist(), kernels))


@settings(deadline=None, max_examples=25)
@given(data=st.data(), seed=seeds)
def test_class_mean_gap(data, seed):
    classes = sorted(data.draw(st.sets(st.integers(0, 5), min_size=1, max_size=4)))
    extra = st.lists(st.sampled_from(classes), max_size=6)
    real_y, made_y = (np.array(classes + data.draw(extra)) for _ in range(2))
    real, made = _random(seed, len(real_y), 3), _random(seed + 1, len(made_y), 3)
    names = torch.tensor(classes)
    got = mean_gap(class_means(real, torch.tensor(real_y), names), class_means(made, torch.tensor(made_y), names))
    close(got, slow.class_mean_gap(real.numpy(), real_y, made.numpy(), made_y))


@settings(deadline=None, max_examples=25)
@given(seed=seeds)
def test_dist(seed):
    shapes = ((4, 3, 3, 3), (4,), (2, 5), (1, 1))
    a, b = ([_random(s, *shape) for shape in shapes] for s in (seed, seed + 1))
    rows = [i for i, shape in enumerate(shapes) if len(shape) > 1]
    got = distance([a[i] for i in rows], [b[i] for i in rows])
    close(got, slow.dist([x.numpy() for x in a], [x.numpy() for x in b]))
