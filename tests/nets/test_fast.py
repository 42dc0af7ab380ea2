"""Fast layers, against the framework's own layers in float64."""

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fedlgd.core.types import Stream
from fedlgd.nets.builtin import AvgPool2x2, Conv3x3, ConvNet, _CompiledImageConv
from fedlgd.nets.registry import build_net

SIDES = st.integers(2, 9)


def derivatives(pool, x):
    """Values, first and second derivative of a function with curvature."""
    leaf = x.clone().requires_grad_()
    y = pool(leaf)
    (first,) = torch.autograd.grad(y.pow(3).sum(), leaf, create_graph=True)
    (second,) = torch.autograd.grad(first.pow(2).sum(), leaf)
    return y, first, second


@settings(deadline=None, max_examples=60)
@given(SIDES, SIDES, st.integers(0, 3), st.integers(0, 99))
def test_values_and_two_derivatives_are_the_frameworks(height, side, images, seed):
    x = torch.randn(images, 3, height, side, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    wanted = derivatives(nn.AvgPool2d(2), x) if images else [torch.zeros(0, 3, height // 2, side // 2)]
    for a, b in zip(derivatives(AvgPool2x2(), x), wanted, strict=False):
        torch.testing.assert_close(a, b.to(a), rtol=1e-12, atol=1e-14)


def test_a_third_derivative_too():
    x = torch.randn(2, 1, 4, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda v: AvgPool2x2()(v).pow(3), x)


def test_memory_laid_out_otherwise_gives_the_same():
    x = torch.randn(2, 4, 6, 6).to(memory_format=torch.channels_last)
    assert torch.equal(AvgPool2x2()(x), AvgPool2x2()(x.contiguous()))


@pytest.mark.parametrize("idle", [True, False])
@pytest.mark.parametrize("frozen", [True, False])
def test_the_gradient_by_images_is_the_frameworks(idle, frozen):
    layer = Conv3x3(3, 5, idle).double().requires_grad_(not frozen)
    x = torch.randn(2, 3, 7, 6, dtype=torch.float64, requires_grad=True)

    def plain(v, w, b):
        return nn.functional.conv2d(v, w, None if idle else b, padding=1)

    leaves = [x] if frozen else [x, layer.weight, layer.bias]
    found = []
    for y in (layer(x), plain(x, layer.weight, layer.bias)):
        first = torch.autograd.grad(y.pow(3).sum(), leaves, create_graph=True, materialize_grads=True)
        second = torch.autograd.grad(sum(g.pow(2).sum() for g in first), leaves, materialize_grads=True)
        found.append((y, *first, *second))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("sides", [(6, 8), (7, 6), (5, 9), (1, 2)])
def test_the_gradient_by_images_that_is_compiled_is_the_frameworks(channels, sides):
    weight = torch.randn(5, channels, 3, 3, dtype=torch.float64)
    x = torch.randn(2, channels, *sides, dtype=torch.float64, requires_grad=True)
    convolutions = _CompiledImageConv.apply, partial(nn.functional.conv2d, padding=1)
    found = [derivatives(lambda v, conv=conv: conv(v, weight), x) for conv in convolutions]
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


def textbook(net, params):
    """The same network of the framework's layers, biases and all."""
    module = net.module(params)
    layers = []
    for layer in module.blocks:
        if isinstance(layer, AvgPool2x2):
            layers.append(nn.AvgPool2d(2))
        elif isinstance(layer, nn.Conv2d):
            conv = nn.Conv2d(layer.in_channels, layer.out_channels, 3, padding=1, dtype=torch.float64)
            conv.load_state_dict(layer.state_dict())
            layers.append(conv)
        else:
            layers.append(layer)
    return nn.Sequential(*layers, nn.Flatten(), module.head)


@pytest.mark.parametrize("norm", ["instance", "group", "none"])
@pytest.mark.parametrize("side", [8, 13])
def test_a_convnet_is_its_textbook_self(norm, side):
    net = build_net("convnet", (3, side, side), 4, {"width": 8, "norm": norm})
    params = {k: (v + 0.1 * torch.randn_like(v)).double() for k, v in net.init(Stream(1)).items()}
    x = torch.randn(5, 3, side, side, dtype=torch.float64)
    plain = textbook(net, params).double()
    wanted = plain(x)
    torch.testing.assert_close(net(params, x).logits, wanted, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(net(params, x.clone().requires_grad_()).logits, wanted, rtol=1e-9, atol=1e-9)
    leaves = {name: value.clone().requires_grad_() for name, value in params.items()}
    got = torch.autograd.grad(net(leaves, x).logits.pow(2).sum(), list(leaves.values()), materialize_grads=True)
    for a, b in zip(got, torch.autograd.grad(wanted.pow(2).sum(), list(plain.parameters())), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-8)


def test_only_an_instance_norm_cancels_a_bias():
    x = torch.randn(3, 1, 8, 8)
    for norm, cancelled in (("instance", True), ("group", False), ("batch", False), ("none", False)):
        net = ConvNet((1, 8, 8), 2, depth=1, width=16, norm=norm).eval()
        before = net(x).logits
        with torch.no_grad():
            net.blocks[0].bias[0] += 1
        assert torch.equal(before, net(x).logits) is cancelled
