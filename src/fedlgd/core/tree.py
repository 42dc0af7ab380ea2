"""Arithmetic on `dict[str, Tensor]`. Integer leaves are counters: they are copied, not combined."""

from collections.abc import Callable, Set

import torch
from torch import Tensor

from fedlgd.core.types import Params


def _map(f: Callable[..., Tensor], *trees: Params) -> Params:
    first = trees[0]
    return {k: f(*(t[k] for t in trees)) if v.is_floating_point() else v for k, v in first.items()}


def add(a: Params, b: Params) -> Params:
    return _map(torch.add, a, b)


def sub(a: Params, b: Params) -> Params:
    return _map(torch.sub, a, b)


def scale(a: Params, factor: float) -> Params:
    return _map(lambda v: v * factor, a)


def cast(a: Params, like: Params) -> Params:
    return {k: v.to(like[k].dtype) for k, v in a.items()}


def double(a: Params) -> Params:
    return _map(torch.Tensor.double, a)


def zeros(a: Params) -> Params:
    return {k: torch.zeros_like(v) for k, v in a.items()}


def clone(a: Params) -> Params:
    return {k: v.detach().clone() for k, v in a.items()}


def dot(a: Params, b: Params) -> Tensor:
    return torch.stack([(v * b[k]).sum() for k, v in a.items() if v.is_floating_point()]).sum()


def sqnorm(a: Params) -> Tensor:
    return dot(a, a)


def only(a: Params, names: Set[str]) -> Params:
    return {k: v for k, v in a.items() if k in names}


class Mean:
    """Streaming weighted mean: sum_i w_i a_i / sum_i w_i, in float64: the mean of equal inputs is bit-identical.

    Integer leaves (counters of a normalisation layer) take the maximum.
    """

    def __init__(self) -> None:
        self.weight = 0.0
        self._sum: Params = {}
        self._like: Params = {}

    def add(self, a: Params, weight: float = 1.0) -> None:
        if not self._like:
            self._like = a
            self._sum = clone(_map(lambda v: torch.zeros_like(v, dtype=torch.float64), a))
        self.weight += weight
        for k, v in a.items():
            if v.is_floating_point():
                self._sum[k].add_(v.double(), alpha=weight)
            else:
                torch.maximum(self._sum[k], v, out=self._sum[k])

    def value(self) -> Params:
        return cast(_map(lambda v: v / self.weight, self._sum), self._like)
