"""FedMix and NaiveMix against Mixup image by image, in float64."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fedlgd.core.net import Net
from fedlgd.core.types import LabelledSet, Params
from fedlgd.methods.fedmix import group_means, naive_mixup, soft_cross_entropy, taylor_mixup
from tests import tiny


class Smooth(nn.Module):
    """Differentiable everywhere: a ReLU has kinks, at which no expansion holds."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(3 * tiny.SIDE**2, 6), nn.Linear(6, classes)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.body(x.flatten(1)).tanh()
        return features, self.head(features)


NET = Net(Smooth, (3, tiny.SIDE, tiny.SIDE), tiny.CLASSES, "smooth")


def _drawn(seed: int, images: int = 4, group: int = 5) -> tuple[Params, LabelledSet, LabelledSet]:
    """A model, a batch of one site, and the group of another site."""
    generator = torch.Generator().manual_seed(seed)

    def some(count: int) -> LabelledSet:
        x = torch.randn(count, *NET.shape, generator=generator, dtype=torch.float64)
        return LabelledSet(x, torch.randint(NET.classes, (count,), generator=generator))

    return tiny.double(tiny.params(NET, seed)), some(images), some(group)


def _log_p(params: Params, x: Tensor) -> Tensor:
    logits = NET(params, x[None]).logits[0]
    return logits - logits.exp().sum().log()


def _mixup(params: Params, own: LabelledSet, group: LabelledSet, share: float) -> Tensor:
    """Mixup of every image of the batch with every image of the group: what FedMix approximates."""
    total = torch.zeros((), dtype=torch.float64)
    for x, y in zip(own.x, own.y, strict=True):
        for other, label in zip(group.x, group.y, strict=True):
            log_p = _log_p(params, (1 - share) * x + share * other)
            total = total - (1 - share) * log_p[y] - share * log_p[label]
    return total / (len(own) * len(group))


def _mean_of(group: LabelledSet) -> tuple[Tensor, Tensor]:
    label = torch.zeros(NET.classes, dtype=torch.float64)
    for y in group.y:
        label[y] += 1 / len(group)
    return group.x.sum(0) / len(group), label


@settings(max_examples=10)
@given(st.integers(0, 99), st.sampled_from([0.05, 0.2, 0.7]))
def test_naivemix_is_mixup_with_a_mean_in_place_of_an_image(seed, share):
    params, own, group = _drawn(seed)
    mean, label = _mean_of(group)
    wanted = torch.zeros((), dtype=torch.float64)
    for x, y in zip(own.x, own.y, strict=True):
        log_p = _log_p(params, (1 - share) * x + share * mean)
        wanted -= ((1 - share) * log_p[y] + share * (label * log_p).sum()) / len(own)
    got, out = naive_mixup(NET, params, own, mean, label, share)
    torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-11)
    assert torch.equal(out.logits, NET(params, (1 - share) * own.x + share * mean).logits)


@settings(max_examples=10)
@given(st.integers(0, 99), st.sampled_from([0.05, 0.2, 0.7]))
def test_the_slope_of_fedmix_is_that_of_finite_differences_summed_over_the_batch(seed, share):
    params, own, group = _drawn(seed)
    mean, label = _mean_of(group)
    h, wanted = 1e-5, torch.zeros((), dtype=torch.float64)
    for x, y in zip(own.x, own.y, strict=True):
        log_p, near = _log_p(params, (1 - share) * x), (1 - share) * x
        slope = (_log_p(params, near - h * mean)[y] - _log_p(params, near + h * mean)[y]) / (2 * h)
        value = -(1 - share) * log_p[y] - share * (label * log_p).sum() + share * (1 - share) * slope
        wanted += value / len(own)
    got, _ = taylor_mixup(NET, params, own, mean, label, share)
    torch.testing.assert_close(got.detach(), wanted, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("seed", range(3))
def test_the_error_of_fedmix_against_mixup_with_all_images_falls_with_the_square_of_lambda(seed):
    params, own, group = _drawn(seed)
    mean, label = _mean_of(group)

    def error(share: float, batchwise: float = 1.0) -> float:
        value, out = taylor_mixup(NET, params, own, mean, label, share)
        plain = NET(params, (1 - share) * own.x).logits
        torch.testing.assert_close(out.logits, plain)
        first = torch.nn.functional.cross_entropy(plain, own.y)
        slope = value - (1 - share) * first - share * soft_cross_entropy(plain, label)
        found = value - slope + batchwise * slope
        return float((found - _mixup(params, own, group, share)).abs().detach())

    halved = [error(share) / error(share / 2) for share in (4e-3, 2e-3)]
    assert all(3.8 < ratio < 4.2 for ratio in halved)
    divided_twice = [error(share, 1 / len(own)) / error(share / 2, 1 / len(own)) for share in (4e-3, 2e-3)]
    assert all(ratio < 2.5 for ratio in divided_twice)


def test_the_gradient_of_fedmix_is_that_of_its_value():
    """Twice differentiated: against finite differences along a direction of all weights."""
    params, own, group = _drawn(1)
    mean, label = _mean_of(group)
    weights = {name: value.clone().requires_grad_() for name, value in params.items()}
    value, _ = taylor_mixup(NET, weights, own, mean, label, 0.3)
    names = [name for name in weights if name in NET.trainable]
    grads = torch.autograd.grad(value, [weights[name] for name in names], materialize_grads=True)
    along = {name: torch.randn(params[name].shape, dtype=torch.float64) for name in names}
    inner = sum((g * along[name]).sum() for name, g in zip(names, grads, strict=True))

    def shifted(h: float) -> Tensor:
        moved = params | {name: params[name] + h * along[name] for name in names}
        return taylor_mixup(NET, moved, own, mean, label, 0.3)[0].detach()

    torch.testing.assert_close((shifted(1e-6) - shifted(-1e-6)) / 2e-6, inner.detach(), rtol=1e-5, atol=1e-7)


@given(st.lists(st.integers(1, 300), min_size=1, max_size=3), st.integers(0, 9))
@settings(max_examples=10)
def test_means_are_those_of_loops_over_images(sizes, seed):
    """Also of groups that do not fit into memory at once."""
    generator = torch.Generator().manual_seed(seed)
    data = LabelledSet(
        torch.randint(256, (sum(sizes), 1, 3, 2), generator=generator, dtype=torch.uint8),
        torch.randint(4, (sum(sizes),), generator=generator),
    )
    groups = torch.randperm(sum(sizes), generator=generator).split(sizes)
    got = group_means(data, groups, 4, 4)
    for g, group in enumerate(groups):
        x = sum(data.take(slice(i, i + 1)).x[0].double() for i in group.tolist()) / len(group)
        y = [sum(int(data.y[i]) == k for i in group.tolist()) / len(group) for k in range(4)]
        torch.testing.assert_close(got["images"][g], x.float())
        torch.testing.assert_close(got["labels"][g], torch.tensor(y))
    assert not got["images"][len(groups) :].any()
    assert not got["labels"][len(groups) :].any()
