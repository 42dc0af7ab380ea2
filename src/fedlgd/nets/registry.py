"""Networks by name: built-in ones, or user-defined ones as `package.module:Class`."""

import hashlib
import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal, get_args, get_origin, get_type_hints

import torch
from torch import nn

from fedlgd.core.errors import NetError
from fedlgd.core.net import Net
from fedlgd.core.rng import Stream
from fedlgd.core.suggest import did_you_mean, own_class
from fedlgd.nets.convnet import ConvNet
from fedlgd.nets.resnet import ResNet18

NETS: dict[str, type[nn.Module]] = {"convnet": ConvNet, "resnet18": ResNet18}
MOST = {"depth": 64, "width": 4096}
LARGEST = 500_000_000  # parameters: 2 GB of float32, several times in memory during training

CONTRACT = (
    "a network is an nn.Module class called as Class(shape=(channels, height, width), classes=K, **settings) "
    "whose forward(x) returns (features, logits) of shapes (n, d) and (n, K)"
)


def settings_of(name: str) -> dict[str, Any]:
    """The settings of a network with their defaults."""
    parameters = inspect.signature(find_net(name)).parameters.values()
    return {p.name: p.default for p in parameters if p.default is not p.empty}


def build_net(
    name: str, shape: tuple[int, int, int], classes: int, settings: Mapping[str, Any] | None = None
) -> Net:
    """Build a network for images of `shape` and check its interface."""
    settings = dict(settings or {})
    kind = find_net(name)
    accepted = settings_of(name)
    for key, value in settings.items():
        if key not in accepted:
            raise NetError(f"net {name!r} has no setting {key!r}{did_you_mean(key, accepted)}")
        _check_choice(kind, key, value)
        _check_number(kind, key, value)
    label = name + _edition(kind) + "".join(f",{k}={v}" for k, v in sorted(settings.items()))

    def build(outputs: int) -> nn.Module:
        return kind(shape=shape, classes=outputs, **settings)

    if kind in NETS.values():
        _check_size(build, classes, label)
    net = _checked(build, shape, classes, label)
    if isinstance(own := (accepted | settings).get("width"), int):
        net.narrow = partial(_narrow, net, own, name, settings)
    return net


def _narrow(net: Net, own: int, name: str, settings: Mapping[str, Any], width: int) -> Net:
    """The same family so wide; `net` itself if it is no wider."""
    return net if width >= own else build_net(name, net.shape, net.classes, {**settings, "width": width})


def _edition(kind: type[nn.Module]) -> str:
    """A hash of the source of a user-defined class, so that an edited class is a different network."""
    if kind in NETS.values():
        return ""
    try:
        return "@" + hashlib.blake2b(inspect.getsource(kind).encode(), digest_size=4).hexdigest()
    except (OSError, TypeError):
        return ""


def _check_choice(kind: type[nn.Module], key: str, value: Any) -> None:
    hint = get_type_hints(kind.__init__).get(key)
    if get_origin(hint) is Literal and value not in get_args(hint):
        raise NetError(f"net.{key} is {value!r}; choose one of {', '.join(map(repr, get_args(hint)))}")


def _check_number(kind: type[nn.Module], key: str, value: Any) -> None:
    if kind in NETS.values() and key in MOST and not (type(value) is int and 1 <= value <= MOST[key]):
        raise NetError(f"net.{key} is {value!r}; use a whole number from 1 to {MOST[key]}")


def _check_size(build: Callable[[int], nn.Module], classes: int, label: str) -> None:
    """Count parameters without memory for them. An image too small for the net is an error here, too."""
    try:
        with torch.device("meta"):
            size = sum(p.numel() for p in build(classes).parameters())
    except ValueError as error:
        raise NetError(f"net {label!r}: {error}") from error
    if size > LARGEST:
        raise NetError(
            f"net {label!r} has {size:,} parameters for these images, more than {LARGEST:,}; "
            "lower net.width or net.depth, or use net.pooling=avg"
        )


def find_net(name: str) -> type[nn.Module]:
    """The class of a network."""
    if name in NETS:
        return NETS[name]
    if ":" not in name:
        raise NetError(
            f"no net is called {name!r}{did_you_mean(name, NETS)}; built in: {', '.join(NETS)}; "
            "your own: --net package.module:Class"
        )
    try:
        kind = own_class(name, "net", NetError)
    except NetError as error:
        raise NetError(f"{error}; {CONTRACT}") from error
    if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
        raise NetError(f"net {name!r} is not an nn.Module class; {CONTRACT}")
    return kind


def _checked(build: Callable[[int], nn.Module], shape: tuple[int, int, int], classes: int, label: str) -> Net:
    """Build the network and run it on two blank images."""
    try:
        net = Net(build, shape, classes, label)
        output = net.frozen(net.init(Stream(0)), torch.zeros(2, *shape))
        sizes = [tuple(part.shape) for part in output]
    except Exception as error:
        raise NetError(f"net {label!r} fails on two images of shape {shape}: {error}; {CONTRACT}") from error
    if len(sizes[0]) != 2 or sizes[0][0] != 2 or sizes[1] != (2, classes):
        raise NetError(
            f"net {label!r} returns shapes {sizes[0]} and {sizes[1]} for 2 images and {classes} classes; {CONTRACT}"
        )
    return net
