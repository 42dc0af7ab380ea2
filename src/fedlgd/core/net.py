"""An architecture without weights: parameters are values that flow, the module is scratch."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.flop_counter import FlopCounterMode

from fedlgd.core import meter
from fedlgd.core.rng import Stream
from fedlgd.core.types import Params


class Output(NamedTuple):
    """psi(x), flat, and the class scores h(psi(x))."""

    features: Tensor
    logits: Tensor


class Net:
    """(params, images) -> features and logits. Every pass is charged to the meter.

    A pass costs F = 2 * multiply-adds per image forward; 3 F with gradients for the weights,
    2 F with gradients for the images alone.
    """

    def __init__(
        self, build: Callable[[], nn.Module], shape: tuple[int, int, int], classes: int, label: str
    ) -> None:
        self.shape, self.classes, self.label = shape, classes, label
        self._build = build
        with torch.random.fork_rng(devices=[]):
            self._module = build().eval()
        self.trainable = frozenset(name for name, _ in self._module.named_parameters())

    def init(self, rng: Stream) -> Params:
        """Fresh weights by the framework's default initialisation, addressed by `rng`."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(rng.number())
            module = self._build()
        return {name: value.detach().clone() for name, value in module.state_dict().items()}

    def __call__(self, params: Params, x: Tensor) -> Output:
        meter.spend(self._passes(params, x) * len(x) * self.flops)
        return Output(*functional_call(self._module, params, (x,)))

    def frozen(self, params: Params, x: Tensor) -> Output:
        """A pass in eval mode that no gradient goes through."""
        with torch.no_grad(), self._mode(training=False):
            return self(params, x)

    def module(self, params: Params) -> nn.Module:
        """An ordinary module of its own with these weights, in eval mode."""
        with torch.random.fork_rng(devices=[]):
            module = self._build()
        module.load_state_dict(params)
        return module.eval()

    @contextmanager
    def training(self) -> Iterator[None]:
        """Passes inside are in train mode (dropout drops, batch norm learns)."""
        with self._mode(training=True):
            yield

    @contextmanager
    def _mode(self, *, training: bool) -> Iterator[None]:
        before = self._module.training
        self._module.train(training)
        try:
            yield
        finally:
            self._module.train(before)

    def _passes(self, params: Params, x: Tensor) -> int:
        if not torch.is_grad_enabled():
            return 1
        if any(p.requires_grad for p in params.values()):
            return 3
        return 2 if x.requires_grad else 1

    @cached_property
    def flops(self) -> int:
        """Forward FLOPs of one image (convolutions and matrix products)."""
        with FlopCounterMode(display=False) as counter, torch.no_grad(), self._mode(training=False):
            self._module(torch.zeros(1, *self.shape))
        return int(counter.get_total_flops())

    @cached_property
    def size(self) -> int:
        """Number of trainable parameters."""
        return sum(p.numel() for p in self._module.parameters())
