"""Compiled functions: torch.compile, for a place with `compile="on"`.

A compiled pass fuses the layers between two convolutions into one loop. It rounds differently from the layers
themselves, so that the last bits of results depend on the mode. In one mode they are the same for the same seed,
machine and number of threads. The compiler of torch is imported by the first compilation: that takes seconds.
"""

import os
import shutil
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

MAX_GRAPHS = 64  # of one function: networks, modes, and what has gradients. After them torch would not compile

OF_THE_TRACER = "The .grad attribute|.* should not be instantiated"  # warnings about what only torch itself does

Pass = Callable[[Any, Tensor], Any]


class CompileWarning(UserWarning):
    """Why a function is not compiled. It goes on in eager mode, with other last bits."""


def find_compiler() -> str | None:
    """The C++ compiler that torch uses: $CXX, or g++."""
    return shutil.which(os.environ.get("CXX", "g++"))


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, compiled at the first call with tensors of other types, shapes or needs for gradients.

    In this process, because worker processes are forked from it and then have the graphs. Random numbers are drawn
    by the generators of eager mode. The backward pass is compiled with the forward pass, so that it fails here. If
    the compiler fails, a warning says why, once, and eager mode is used.
    """
    import torch._dynamo.config as tracing
    import torch._functorch.config as differentiating
    import torch._inductor.config as generating
    from torch._dynamo.exc import TorchDynamoException

    generating.compile_threads = 1
    generating.fallback_random = True
    with suppress(AttributeError):  # versions of torch that lack these settings
        tracing.recompile_limit = max(tracing.recompile_limit, MAX_GRAPHS)
        differentiating.force_non_lazy_backward_lowering = True
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # one module of torch about another
        ready: Callable[..., Any] = torch.compile(function, dynamic=False)

    def run(*given: Any) -> Any:
        nonlocal ready
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", OF_THE_TRACER)
                return ready(*given)
        except TorchDynamoException as error:
            ready, said = function, str(error).strip().splitlines()
            warnings.warn(next((x for x in said if "error: " in x), said[0]), CompileWarning, stacklevel=2)
        return ready(*given)

    return run


def compiled_pass(function: Pass) -> Pass:
    """A function of weights and a batch, with one or two graphs for all sizes of a batch.

    The batch is copied: torch would compile again for another layout in memory, such as that of a crop. Inference
    mode, which would have graphs of its own too, is left.
    """
    ready = compiled(function)

    def run(weights: Any, x: Tensor) -> Any:
        gradients = torch.is_grad_enabled()
        with torch.inference_mode(False), torch.set_grad_enabled(gradients):
            x = x.clone(memory_format=torch.contiguous_format)
            if len(x) > 1:
                torch._dynamo.mark_dynamic(x, 0)
            return ready(weights, x)

    return run
