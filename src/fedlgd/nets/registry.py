"""Networks by name: built-in ones, user-defined ones as `package.module:Class`, or given as Python objects."""

import hashlib
import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args, get_origin, get_type_hints

import torch
from torch import nn

from fedlgd.core.errors import NetError, did_you_mean
from fedlgd.core.net import Net
from fedlgd.core.plugins import import_object
from fedlgd.core.rng import Stream
from fedlgd.core.settings import SettingInfo
from fedlgd.nets.builtin import ConvNet, ResNet18
from fedlgd.nets.hooked import Build, Shape, copies, with_features

NETS: dict[str, type[nn.Module]] = {"convnet": ConvNet, "resnet18": ResNet18}
MAX_OF_SETTING = {"depth": 64, "width": 4096}
MAX_PARAMETERS = 500_000_000  # parameters: 2 GB of float32, several times in memory during training

GIVEN = "given:"  # before the name of a network that exists only as a Python object

Kind = Callable[..., nn.Module]

CONTRACT = (
    "a network is an nn.Module class, or a function that returns a module, called as "
    "Class(shape=(channels, height, width), classes=K, **settings) with those of these arguments that it takes, "
    "whose forward(x) returns logits (n, K), or (features, logits) of shapes (n, d) and (n, K)"
)


def settings_of(name: str) -> dict[str, Any]:
    """The settings of a network with their defaults; `features` names a layer of a network of your own."""
    if name.startswith(GIVEN):
        return {}
    kind = find_net(name)
    parameters = inspect.signature(kind).parameters.values()
    own = {} if kind in NETS.values() else {"features": ""}
    return own | {p.name: p.default for p in parameters if p.default is not p.empty and p.name not in PASSED}


PASSED = ("shape", "classes")


def describe_net(name: str) -> list[SettingInfo]:
    """The settings of a network; the help lines are in the dictionary `help` of its class."""

    def bounds(key: str) -> dict[str, float]:
        return {"least": 1, "most": MAX_OF_SETTING[key]} if name in NETS and key in MAX_OF_SETTING else {}

    hints, lines = get_type_hints(find_net(name).__init__), getattr(find_net(name), "help", {})
    return [
        SettingInfo(f"net.{key}", default, lines.get(key, ""), bounds(key), get_args(hints.get(key)))
        for key, default in settings_of(name).items()
    ]


def named_net(given: Any, features: str = "") -> dict[str, Any]:
    """The configuration of a network that is given as a name, as settings with a name, or as a Python object."""
    if isinstance(given, str):
        named: dict[str, Any] = {"name": given}
    elif isinstance(given, Mapping):
        named = {"name": "convnet", **given}
    elif callable(given):
        module, name = getattr(given, "__module__", None), getattr(given, "__qualname__", type(given).__name__)
        found = module != "__main__" and getattr(sys.modules.get(module or ""), name, None) is given
        named = {"name": f"{module}:{name}" if found else f"{GIVEN}{name}"}
    else:
        raise NetError("net-given", given=given, contract=CONTRACT)
    return named | ({"features": features} if features else {})


def given_net(given: Any, shape: Shape, classes: int, named: Mapping[str, Any]) -> Net:
    """The network of a Python object: a module, whose architecture is used and not its weights, or its maker."""
    is_module, features = isinstance(given, nn.Module), named.get("features", "")
    label = named["name"] + (_edition(type(given), repr(given)) if is_module else _edition(given))
    label += f",features={features}" if features else ""
    build = copies(given) if is_module else _calls(given, shape, {})
    return _checked(build, shape, classes, label, features)


def build_net(name: str, shape: Shape, classes: int, settings: Mapping[str, Any] | None = None) -> Net:
    """Build a network for images of `shape` and check its interface."""
    if name.startswith(GIVEN):
        raise NetError("net-object", net=name.removeprefix(GIVEN))
    settings = dict(settings or {})
    kind = find_net(name)
    accepted = settings_of(name)
    for key, value in settings.items():
        if key not in accepted:
            raise NetError("net-setting-unknown", net=name, key=key, hint=did_you_mean(key, accepted))
        _check_value(kind, key, value)
    label = name + _edition(kind) + "".join(f",{k}={v}" for k, v in sorted(settings.items()))
    features = settings.pop("features", "")
    build = _calls(kind, shape, settings)
    if kind in NETS.values():
        _check_size(build, classes, label)
    net = _checked(build, shape, classes, label, None if kind in NETS.values() else features)
    if isinstance(own := (accepted | settings).get("width"), int):
        net.narrow = lambda width: (  # the same family so wide; `net` itself if it is no wider
            net if width >= own else build_net(name, shape, classes, {**settings, "width": width})
        )
    return net


def _calls(make: Kind, shape: Shape, settings: Mapping[str, Any]) -> Build:
    """Calls `make` with the shape and the number of outputs, as far as it takes them."""
    parameters = inspect.signature(make).parameters
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters.values())

    def build(outputs: int) -> nn.Module:
        passed = {"shape": shape, "classes": outputs}
        return make(**{k: v for k, v in passed.items() if takes_all or k in parameters}, **settings)

    return build


def _edition(kind: Kind, layers: str = "") -> str:
    """A hash of the source of a user-defined class, so that an edited class is a different network."""
    if kind in NETS.values():
        return ""
    try:
        source = inspect.getsource(kind)
    except (OSError, TypeError):
        source = ""
    text = source + layers
    return "@" + hashlib.blake2b(text.encode(), digest_size=4).hexdigest() if text else ""


def _check_value(kind: Kind, key: str, value: Any) -> None:
    hint = get_type_hints(kind.__init__ if isinstance(kind, type) else kind).get(key)  # type: ignore[misc]
    if get_origin(hint) is Literal and value not in get_args(hint):
        raise NetError("net-setting-choice", key=key, value=value, choices=[*map(repr, get_args(hint))])
    most = MAX_OF_SETTING.get(key) if kind in NETS.values() else None
    if most and not (type(value) is int and 1 <= value <= most):
        raise NetError("net-setting-number", key=key, value=value, most=most)


def _check_size(build: Build, classes: int, label: str) -> None:
    """Count parameters without memory for them. An image too small for the net is an error here, too."""
    try:
        with torch.device("meta"):
            size = sum(p.numel() for p in build(classes).parameters())
    except ValueError as error:
        raise NetError("net-image", net=label, error=error) from error
    if size > MAX_PARAMETERS:
        raise NetError("net-too-large", net=label, size=size, most=MAX_PARAMETERS)


def find_net(name: str) -> Kind:
    """The class or function of a network."""
    if name in NETS:
        return NETS[name]
    if ":" not in name:
        raise NetError("net-unknown", name=name, hint=did_you_mean(name, NETS), available=[*NETS])
    try:
        kind: Kind = import_object(name, "net", NetError)
    except NetError as error:
        raise NetError("net-import", error=error, contract=CONTRACT) from error
    if not callable(kind) or (isinstance(kind, type) and not issubclass(kind, nn.Module)):
        raise NetError("net-contract", name=name, contract=CONTRACT)
    return kind


def _checked(build: Build, shape: Shape, classes: int, label: str, features: str | None = None) -> Net:
    """Build the network and run it on two blank images; `features` not None: it may return logits alone."""
    try:
        if features is not None:
            build = with_features(build, shape, classes, features, label)
        net = Net(build, shape, classes, label)
        output = net.frozen(net.init(Stream(0)), torch.zeros(2, *shape))
        sizes = [tuple(part.shape) for part in output]
    except NetError:
        raise
    except Exception as error:
        raise NetError("net-fails", net=label, shape=shape, error=error, contract=CONTRACT) from error
    if len(sizes[0]) != 2 or sizes[0][0] != 2 or sizes[1] != (2, classes):
        values = {"features": sizes[0], "logits": sizes[1], "classes": classes, "contract": CONTRACT}
        raise NetError("net-shapes", net=label, **values)
    return net
