"""A GPU that is not there: tensors in main memory that know where they pretend to be.

Inside `Pretend()`, `.to("cuda")` marks a tensor and `.to("cpu")` clears it. As on a real GPU, what comes of marked
tensors is marked, marked and unmarked ones do not mix (but for numbers, and for choosing by an index in main
memory), and a marked tensor has no numpy array.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

GPU = torch.device("cuda")
MOVES = {Tensor.to, Tensor.cuda, Tensor.cpu}
LOOKS = {Tensor.numpy, Tensor.__array__}
CHOICES = {Tensor.__getitem__, Tensor.__setitem__, Tensor.index_select}


class MixedError(AssertionError):
    """An operation that a GPU would have refused."""


def is_there(tensor: Tensor) -> bool:
    return getattr(tensor, "_there", False)


def mark(value: Any, there: bool = True) -> Any:
    """All tensors in it, in place."""
    for tensor in tensors(value):
        tensor._there = there  # type: ignore[attr-defined]
    return value


def tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from tensors(part)
    elif isinstance(value, Mapping):
        yield from tensors(list(value.values()))


class Pretend(TorchFunctionMode):
    """How many operations ran on the GPU is in `count`."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_function__(
        self, f: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if f == Tensor.device.__get__:  # type: ignore[attr-defined]
            return GPU if is_there(args[0]) else f(*args, **kwargs)
        if f in MOVES:
            return self._move(f, args, kwargs)
        made_there = kwargs.get("device") == GPU
        if made_there:
            kwargs["device"] = torch.device("cpu")
        given = list(tensors((args, kwargs)))
        there = made_there or any(is_there(t) for t in given)
        if there:
            self._check(f, args, given)
            self.count += 1
        result = f(*args, **kwargs)
        return mark(result) if there else result

    def _check(self, f: Callable[..., Any], args: tuple[Any, ...], given: list[Tensor]) -> None:
        if f in LOOKS:
            raise MixedError(f"{f} of a tensor on the GPU")
        if f in CHOICES:
            if is_there(args[0]):
                given = list(tensors((args[0], args[2:])))
            else:
                raise MixedError(f"{f} of a tensor in memory by one on the GPU")
        if any(t.ndim and not is_there(t) for t in given):
            raise MixedError(f"{f} of tensors here and there")

    def _move(self, f: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """`to` takes a device, a dtype or another tensor; where no device is named, it stays."""
        this, *rest = args
        there = is_there(this)
        for wanted in (*rest, kwargs.pop("device", None)):
            if isinstance(wanted, (torch.device, str)):
                there = torch.device(wanted).type == "cuda"
            elif isinstance(wanted, Tensor):
                there = is_there(wanted)
        there = {Tensor.cuda: True, Tensor.cpu: False}.get(f, there)
        same_place = there == is_there(this)
        types = [r.dtype if isinstance(r, Tensor) else r for r in rest if isinstance(r, (torch.dtype, Tensor))]
        result = this.to(*types, **kwargs) if types or kwargs else this
        if not same_place and result is this:
            result = this.clone()
        return mark(result, there)
