"""Networks by name: built-in ones, user-defined ones as `package.module:Class`, or given as Python objects."""

import copy
import hashlib
import inspect
import sys
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

import torch
from torch import Tensor, nn

from fedlgd.core.errors import NetError, did_you_mean
from fedlgd.core.net import Net, Output
from fedlgd.core.settings import SettingInfo, import_object
from fedlgd.core.source import source_text
from fedlgd.core.types import Shape, Stream
from fedlgd.nets.builtin import ConvNet, ResNet18

NETS: dict[str, type[nn.Module]] = {"convnet": ConvNet, "resnet18": ResNet18}
BOUNDS: dict[str, dict[str, float]] = {"depth": {"least": 1, "most": 64}, "width": {"least": 1, "most": 4096}}
MAX_PARAMETERS = 500_000_000  # parameters: 2 GB of float32, several times in memory during training

GIVEN = "given:"  # before the name of a network that exists only as a Python object

Kind = Callable[..., nn.Module]
Build = Callable[[int], nn.Module]

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
    hints, lines = get_type_hints(find_net(name).__init__), getattr(find_net(name), "help", {})
    bounds = BOUNDS if name in NETS else {}
    return [
        SettingInfo(f"net.{key}", default, lines.get(key, ""), bounds.get(key, {}), get_args(hints.get(key)))
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
    net = _checked(build, shape, classes, label, features)
    net.made_of = tuple({type(layer) for layer in given.modules()}) if is_module else (given,)
    return net


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
    net.made_of = () if kind in NETS.values() else (kind,)
    if isinstance(own := (accepted | settings).get("width"), int):
        net.narrow = cache(  # one network for each width, so that it is compiled once
            lambda width: net if width >= own else build_net(name, shape, classes, {**settings, "width": width})
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
    return "@" + hashlib.blake2b((source_text(kind) + layers).encode(), digest_size=4).hexdigest()


def _check_value(kind: Kind, key: str, value: Any) -> None:
    hint = get_type_hints(kind.__init__ if isinstance(kind, type) else kind).get(key)  # type: ignore[misc]
    if get_origin(hint) is Literal and value not in get_args(hint):
        raise NetError("net-setting-choice", key=key, value=value, choices=[*map(repr, get_args(hint))])
    bounds = BOUNDS.get(key) if kind in NETS.values() else None
    if bounds and not (type(value) is int and bounds["least"] <= value <= bounds["most"]):
        raise NetError("net-setting-number", key=key, value=value, most=bounds["most"])


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


class Hooked(nn.Module):
    """A network that returns logits. Its features are the output of `layer`; of the head they are the input."""

    def __init__(self, body: nn.Module, layer: str, is_head: bool) -> None:
        super().__init__()
        self.body, self.layer, self.is_head = body, layer, is_head

    def forward(self, x: Tensor) -> Output:
        seen: list[Tensor] = []

        def note(layer: nn.Module, given: tuple[Tensor, ...], output: Tensor) -> None:
            seen.append(given[0] if self.is_head else output)

        with self.body.get_submodule(self.layer).register_forward_hook(note):
            logits = self.body(x)
        return Output(seen[-1].flatten(1), logits)


def with_features(build: Build, shape: Shape, classes: int, features: str, label: str) -> Build:
    """`build` itself if its network returns (features, logits); otherwise its network inside `Hooked`.

    Without the name of a layer in `features`, the last `nn.Linear` of a pass makes the logits; it gets as many
    outputs as are asked for.
    """
    with torch.random.fork_rng(devices=[]):
        module = build(classes).eval()
    executed: list[nn.Module] = []  # the layers of a pass in the order in which they end
    hooks = [m.register_forward_hook(lambda m, *_: executed.append(m)) for m in module.modules()]
    with torch.no_grad():
        output = module(torch.zeros(2, *shape))
    for hook in hooks:
        hook.remove()
    if not isinstance(output, Tensor) and not features:
        return build
    names = {m: name for name, m in module.named_modules() if name}
    linear = [m for m in executed if isinstance(m, nn.Linear)]
    if features and features not in names.values():
        raise NetError("net-without-layer", net=label, layer=features, available=[*names.values()][-12:])
    if not features and not linear:
        raise NetError("net-without-features", net=label)
    layer = features or names[linear[-1]]

    def hooked(outputs: int) -> nn.Module:
        body = build(outputs)
        head = body.get_submodule(layer)
        if not features and isinstance(head, nn.Linear) and head.out_features != outputs:
            body.set_submodule(layer, nn.Linear(head.in_features, outputs, head.bias is not None))
        return Hooked(body, layer, is_head=not features)

    return hooked


def copies(module: nn.Module) -> Build:
    """Copies of a network with newly drawn weights, because distillation needs random networks of this kind."""
    label = type(module).__name__
    for name, layer in module.named_modules():
        if _reset(layer) is None and any(True for _ in layer.parameters(recurse=False)):
            raise NetError("net-without-reset", layer=name or label, net=label, kind=type(layer).__name__)

    def build(outputs: int) -> nn.Module:
        made = copy.deepcopy(module).requires_grad_(True)
        for layer in made.modules():
            if reset := _reset(layer):
                reset()
        return made

    return build


def _reset(layer: nn.Module) -> Callable[[], None] | None:
    return getattr(layer, "reset_parameters", None) or getattr(layer, "_reset_parameters", None)
