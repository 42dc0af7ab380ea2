"""An architecture without weights: parameters are passed as values, and the module is only a workspace."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from fedlgd.core import meter
from fedlgd.core.compile import Pass, compiled, compiled_pass
from fedlgd.core.device import compiling, precision, to_device
from fedlgd.core.errors import NetError
from fedlgd.core.types import Params, Stream

ACTIVATION = 8 << 20  # bytes of one layer's output: fits in the cache, and is below the mmap threshold of malloc


class Output(NamedTuple):
    """The features psi(x), flattened, and the logits h(psi(x))."""

    features: Tensor
    logits: Tensor


class Flops(TorchDispatchMode):
    """Counts the FLOPs of all operations inside this context, by the formulas that torch has for them.

    `torch.utils.flop_counter.FlopCounterMode` gives the same number, but its first use imports the compiler of
    torch: 1.5 seconds and 75 MB.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Torch asks this; with True it imports its compiler, so that the compiler leaves this class out."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Operations without a formula are counted as those that they consist of."""
        kwargs = kwargs or {}
        formula = flop_registry.get(func.overloadpacket)
        if formula is None:
            with self:
                if (parts := func.decompose(*args, **kwargs)) is not NotImplemented:
                    return parts
        out = func(*args, **kwargs)
        self.total += int(formula(*args, **kwargs, out_val=out)) if formula else 0
        return out


class Net:
    """(params, images) -> features and logits. The meter counts every pass.

    A forward pass costs F = 2 * multiply-adds per image; 3 F with gradients for the weights,
    2 F with gradients for only the images. `narrow(width)`, if available, is the same architecture with this width.
    made_of: the classes or the function of a user's own that its modules are made of.
    """

    def __init__(
        self,
        build: Callable[[int], nn.Module],
        shape: tuple[int, int, int],
        classes: int,
        label: str,
        outputs: int = 0,
        base: "Net | None" = None,
    ) -> None:
        self.shape, self.classes, self.label = shape, classes, label
        self.base = base or self
        self.narrow: Callable[[int], Net] | None = None
        self.made_of: tuple[object, ...] = ()
        self._graphs: dict[Callable[..., Any], Callable[..., Any]] = {}
        self._build, self._outputs = build, outputs or classes
        self._module = self._fresh().eval()
        stored = self._module.state_dict()
        self._constants = {n: b for n, b in self._module.named_buffers() if n not in stored}
        self._buffers = frozenset(n for n, _ in self._module.named_buffers())
        self.trainable = frozenset(n for n, p in self._module.named_parameters() if p.requires_grad)

    def widened(self, outputs: int) -> "Net":
        """The same architecture with more logits; the first `classes` logits are the classes."""
        return Net(self._build, self.shape, self.classes, f"{self.label},outputs={outputs}", outputs, self.base)

    def wrapped(self, wrap: Callable[[nn.Module, int], nn.Module], label: str) -> "Net":
        """The architecture inside another module: `wrap(module, outputs)`."""
        inner, label = self._build, f"{self.label},{label}"
        return Net(lambda n: wrap(inner(n), n), self.shape, self.classes, label, self._outputs, self.base)

    def init(self, rng: Stream) -> Params:
        """Initial weights by the default initialisation of PyTorch, from the stream `rng`."""
        module = self._fresh(rng.number())
        return to_device({name: value.detach().clone() for name, value in module.state_dict().items()})

    def _fresh(self, seed: int = 0) -> nn.Module:
        """A new module; the global random state is not changed."""
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            return self._build(self._outputs)

    def __call__(self, params: Params, x: Tensor) -> Output:
        trained = any(p.requires_grad for p in params.values())
        passes = 1 if not torch.is_grad_enabled() else 3 if trained else 1 + x.requires_grad
        meter.spend(passes * len(x) * self.flops)
        weights, run = {**to_device(self._constants), **params}, self._compiled if compiling() else self._pass
        try:
            with precision():
                parts = [run(weights, part) for part in self._chunks(x)]
        except ValueError as error:
            if "more than 1 value per channel" not in str(error):
                raise
            raise NetError("batch-without-variance", net=self.label, images=len(x)) from error
        both = parts[0] if len(parts) == 1 else map(torch.cat, zip(*parts, strict=True))
        return Output(*(part.to(x.dtype) for part in both))

    def _pass(self, weights: Params, x: Tensor) -> Any:
        return functional_call(self._module, weights, (x,))

    @cached_property
    def _compiled(self) -> Pass:
        return compiled_pass(self._pass)

    def _chunks(self, x: Tensor) -> Sequence[Tensor]:
        """Split a batch into equal parts with small activations, so that memory is reused between layers.

        Only on the CPU, and only if the output for an image does not depend on the rest of the batch.
        """
        if len(x) <= 1 or x.device.type != "cpu" or not getattr(self._module, "per_image", False):
            return [x]
        return x.tensor_split(math.ceil(len(x) / self.chunk))

    def frozen(self, params: Params, x: Tensor) -> Output:
        """A pass in eval mode without gradients."""
        with torch.no_grad(), self.training(False):
            return self(params, x)

    def by_batch(self, params: Params, x: Tensor) -> Output:
        """A pass whose norm layers use the statistics of `x`:  (h - mean_x h) / sqrt(var_x h + eps).

        Running statistics are neither used nor changed. All other layers are in eval mode.
        """
        scratch = {name: value.clone() if name in self._buffers else value for name, value in params.items()}
        with self._norms_by_batch():
            return self(scratch, x)

    def one_graph(self, function: Callable[..., Any], *given: Any) -> Any:
        """`function(run, *given)` as one compiled graph, in which `run(params, x)` is a pass as in `by_batch`.

        It takes gradients with `torch.func`, any number of times.
        """
        if function not in self._graphs:
            self._graphs[function] = compiled(partial(function, self._pass))
        with self._norms_by_batch(), precision():
            return self._graphs[function](*given)

    @contextmanager
    def _norms_by_batch(self) -> Iterator[None]:
        """Norm layers are in train mode and all others in eval mode."""
        norms = any(isinstance(layer, _NormBase) for layer in self._layers)
        with self.training(norms):
            for layer in self._layers if norms else ():
                layer.training = layer.training and isinstance(layer, _NormBase)
            yield

    @cached_property
    def per_image(self) -> bool:
        """Is an image's output independent of its batch? As the module says; else: has it no batch norm?"""
        batch_norm = any(isinstance(layer, _BatchNorm) for layer in self._module.modules())
        return bool(getattr(self._module, "per_image", not batch_norm))

    def module(self, params: Params) -> nn.Module:
        """A new module with these weights, in eval mode."""
        module = self._fresh()
        module.load_state_dict(params)
        return module.eval()

    @contextmanager
    def training(self, on: bool = True) -> Iterator[None]:
        """Use train mode (for dropout and batch norm) inside this context; off: eval mode."""
        before = [(layer, layer.training) for layer in self._layers]
        if any(mode != on for _, mode in before):
            self._module.train(on)
        try:
            yield
        finally:
            for layer, mode in before:
                if layer.training != mode:  # to assign an attribute of a module is slow
                    layer.training = mode

    @cached_property
    def _layers(self) -> list[nn.Module]:
        return list(self._module.modules())

    @cached_property
    def flops(self) -> int:
        """Forward FLOPs of one image (convolutions and matrix products)."""
        with Flops() as counted, torch.no_grad(), self.training(False):
            self._module(torch.zeros(1, *self.shape))
        return int(counted.total)

    @cached_property
    def features(self) -> int:
        """The number of features of psi(x)."""
        with torch.no_grad(), self.training(False):
            return int(self._module(torch.zeros(1, *self.shape))[0].shape[1])

    @cached_property
    def chunk(self) -> int:
        """Images per pass, so that every activation is below `ACTIVATION` bytes."""
        sizes = [1]

        def note(module: nn.Module, given: object, output: object) -> None:
            if isinstance(output, Tensor):
                sizes.append(output.numel() * output.element_size())

        hooks = [module.register_forward_hook(note) for module in self._module.modules()]
        with torch.no_grad(), self.training(False):
            self._module(torch.zeros(1, *self.shape))
        for hook in hooks:
            hook.remove()
        return max(1, ACTIVATION // max(sizes))

    @cached_property
    def own(self) -> frozenset[str]:
        """What FedBN leaves at a site: parameters of norm layers, and all buffers."""
        norms = (nn.GroupNorm, nn.LayerNorm, nn.RMSNorm, _NormBase)
        modules = [(n, m) for n, m in self._module.named_modules() if isinstance(m, norms)]
        inside = {f"{name}.{leaf}" for name, m in modules for leaf, _ in m.named_parameters()}
        return frozenset(inside | self._buffers)

    @cached_property
    def size(self) -> int:
        """Number of trainable parameters."""
        return sum(p.numel() for p in self._module.parameters() if p.requires_grad)
