"""The device of computations: the CPU, or one GPU.

The inputs of a site or the server are copied to the device, and the results are copied back. Everything that is
stored or sent is in main memory. Random numbers and indices of images are drawn on the CPU, so they are the same
for every device.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Literal, TypeVar, get_args

import torch
from torch import Tensor

from fedlgd.core.errors import SettingError

T = TypeVar("T")
R = TypeVar("R")

MEMORY = torch.device("cpu")

Compile = Literal["auto", "on", "off"]
Precision = Literal["float32", "bf16"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """device: "cpu", "cuda", or one of several, "cuda:1".

    precision: with `bf16` activations are in bfloat16; weights, losses and sums are in float32 in any case.
    compile: whether passes are compiled; `auto` is decided before a run starts, and until then it is `off`.
    """

    device: str = "cpu"
    precision: Precision = "float32"
    compile: Compile = "off"

    def __post_init__(self) -> None:
        for name, allowed in (("precision", Precision), ("compile", Compile)):
            value, choices = getattr(self, name), [*get_args(allowed)]
            if value not in choices:
                raise SettingError("setting-choice", setting=name, value=value, choices=choices)
        kind, _, number = self.device.partition(":")
        if kind not in ("cpu", "cuda") or (number and not (kind == "cuda" and number.isdecimal())):
            raise SettingError("device-unknown", device=self.device)
        if kind == "cuda" and not torch.cuda.is_available():
            raise SettingError("no-gpu", device=self.device, torch=torch.__version__)
        if kind == "cuda" and int(number or 0) >= torch.cuda.device_count():
            raise SettingError("no-such-gpu", device=self.device, count=torch.cuda.device_count())

    @property
    def in_memory(self) -> bool:
        return self.device == "cpu"

    def do(self, work: Callable[[T], R], given: T) -> R:
        """`work(given)` on this device; `given` and the result are in main memory."""
        if self == Place():
            return work(given)
        exact = torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False)
        with assigned(_place, self), exact:
            return to_cpu(work(to_device(given)))


_place: ContextVar[Place] = ContextVar("place", default=Place())  # noqa: B039


@contextmanager
def assigned(variable: ContextVar[T], value: T) -> Iterator[T]:
    """The variable has this value inside the context."""
    token = variable.set(value)
    try:
        yield value
    finally:
        variable.reset(token)


def to_device(value: T) -> T:
    """A copy with all tensors on the current device."""
    return value if _place.get().in_memory else moved(value, torch.device(_place.get().device))


def to_cpu(value: T) -> T:
    """A copy with all tensors in main memory."""
    return value if _place.get().in_memory else moved(value, MEMORY)


def moved(value: Any, device: torch.device) -> Any:
    """Move messages, states, trees and tuples of tensors; a tensor that is already there is not copied."""
    if isinstance(value, Tensor):
        return value.to(device)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{f.name: moved(getattr(value, f.name), device) for f in fields(value)})
    if isinstance(value, Mapping):
        return {name: moved(part, device) for name, part in value.items()}
    if type(value) is tuple:
        return tuple(moved(part, device) for part in value)
    return value


def precision() -> AbstractContextManager[Any]:
    """The context of a pass: no change, or convolutions and matrix products in bfloat16."""
    place = _place.get()
    if place.precision == "float32":
        return nullcontext()
    return torch.autocast(torch.device(place.device).type, torch.bfloat16)


def compiling() -> bool:
    """Whether passes are compiled here."""
    return _place.get().compile == "on"


def uncompiled() -> AbstractContextManager[Any]:
    """The context of passes whose gradient has a gradient of its own: that of a compiled pass has none."""
    return assigned(_place, replace(_place.get(), compile="off")) if compiling() else nullcontext()


@contextmanager
def noise(seed: int) -> Iterator[None]:
    """Seed the global generators of torch, for example for dropout, and restore their states at the end."""
    gpus = [] if _place.get().in_memory else [torch.device(_place.get().device)]
    with torch.random.fork_rng(devices=gpus):
        torch.default_generator.manual_seed(seed)
        for gpu in gpus:
            torch.cuda.default_generators[gpu.index or 0].manual_seed(seed)
        yield


def settle() -> None:
    """Wait for the device: CUDA calls are asynchronous."""
    if not _place.get().in_memory:
        torch.cuda.synchronize(_place.get().device)
