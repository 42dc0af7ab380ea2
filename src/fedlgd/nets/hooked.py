"""Networks of any origin under the interface of this package: forward(x) returns (features, logits)."""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from fedlgd.core.errors import NetError
from fedlgd.core.net import Output

Shape = tuple[int, int, int]
Build = Callable[[int], nn.Module]


class Hooked(nn.Module):
    """A network that returns logits. Its features are the output of `layer`; of the head they are the input."""

    def __init__(self, body: nn.Module, layer: str, is_head: bool) -> None:
        super().__init__()
        self.body, self.layer, self.is_head = body, layer, is_head

    def forward(self, x: Tensor) -> Output:
        seen: list[Tensor] = []

        def note(layer: nn.Module, given: tuple[Tensor, ...], output: Tensor) -> None:
            seen.append(given[0] if self.is_head else output)

        hook = self.body.get_submodule(self.layer).register_forward_hook(note)
        try:
            logits = self.body(x)
        finally:
            hook.remove()
        return Output(seen[-1].flatten(1), logits)


def with_features(build: Build, shape: Shape, classes: int, features: str, label: str) -> Build:
    """`build` itself if its network returns (features, logits); otherwise its network inside `Hooked`.

    Without the name of a layer in `features`, the last `nn.Linear` of a pass makes the logits; it gets as many
    outputs as are asked for.
    """
    with torch.random.fork_rng(devices=[]):
        module = build(classes).eval()
    executed, output = _executed(module, shape)
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


def _executed(module: nn.Module, shape: Shape) -> tuple[list[nn.Module], Any]:
    """The layers of a pass in the order in which they end, and what the network returns."""
    executed: list[nn.Module] = []
    hooks = [m.register_forward_hook(lambda m, *_: executed.append(m)) for m in module.modules()]
    with torch.no_grad():
        output = module(torch.zeros(2, *shape))
    for hook in hooks:
        hook.remove()
    return executed, output


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
