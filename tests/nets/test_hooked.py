"""Networks of any origin: a module, a class or a function, with or without features."""

import pytest
import torch
from torch import nn

import fedlgd
from fedlgd.core.errors import NetError
from fedlgd.core.types import Stream
from fedlgd.nets.registry import build_net, given_net, named_net
from tests import tiny
from tests.errors import refuses
from tests.nets import own
from tests.runs.folder import method

SHAPE = (3, 8, 8)


class Deep(nn.Module):
    """Defined head first: the last linear layer of a pass is not the last in the module."""

    def __init__(self, classes=5):
        super().__init__()
        self.head = nn.Linear(4, classes)
        self.body = nn.Sequential(nn.Conv2d(3, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(72, 4))

    def forward(self, x):
        return self.head(self.body(x))


def built(net, features="", classes=3):
    return given_net(net, SHAPE, classes, named_net(net, features))


@pytest.mark.parametrize("net", [Deep, Deep(), lambda: Deep(9), lambda classes: Deep(classes), own.function])
def test_every_kind_of_network_has_features_and_as_many_logits_as_classes(net):
    made = built(net)
    features, logits = made.frozen(made.init(Stream(0)), torch.rand(2, *SHAPE))
    assert logits.shape == (2, 3)
    assert features.shape == (2, 192 if net is own.function else 4)
    assert made.widened(7).frozen(made.widened(7).init(Stream(0)), torch.rand(1, *SHAPE)).logits.shape == (1, 7)


def test_the_features_are_the_input_of_the_head_and_gradients_go_through_them():
    made = built(Deep)
    params = {k: v.requires_grad_() for k, v in made.init(Stream(0)).items()}
    features, logits = made(params, torch.rand(2, *SHAPE))
    expected = features @ params["body.head.weight"].T + params["body.head.bias"]
    assert torch.allclose(logits, expected)
    (gradient,) = torch.autograd.grad(features.sum(), params["body.body.0.weight"])
    assert gradient.abs().sum() > 0


def test_features_can_be_named_and_a_wrong_name_lists_the_layers():
    assert built(Deep(3), "body.2").features == 72
    with refuses("net-without-layer", NetError, layer="bodi"):
        built(Deep(3), "bodi")
    assert build_net("tests.nets.test_hooked:Deep", SHAPE, 3, {"features": "body.2"}).features == 72


def test_a_module_gives_its_architecture_and_not_its_weights():
    given = Deep(3)
    made = built(given)
    a, b, again = made.init(Stream(0)), made.init(Stream(1)), made.init(Stream(0))
    assert not torch.equal(a["body.head.weight"], b["body.head.weight"])
    assert torch.equal(a["body.head.weight"], again["body.head.weight"])
    assert not torch.equal(a["body.head.weight"], given.head.weight)


def test_what_cannot_work_is_named():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(3))

        def forward(self, x):
            return x.mean((2, 3)) * self.scale

    with refuses("net-without-reset", NetError):
        built(Own())
    with refuses("net-without-features", NetError):
        built(Own)
    with refuses("net-given", NetError, given=3):
        named_net(3)


@pytest.mark.parametrize("name", ["fedlgd", "vhl", "moon", "fedbn"])
def test_methods_train_such_a_network(name):
    result = fedlgd.run(tiny.federation(), method(name), rounds=1, net=Deep)
    assert set(result.accuracy) == {"ape", "bee", "cat"}
