"""Robust averages: a few sites that send arbitrary values cannot move the model far.

Coordinate-wise median and trimmed mean (Yin et al., ICML 2018). Every site counts alike: a weight is a claim of the
site, so it is not used.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from fedlgd.core.types import Params, ServerState
from fedlgd.methods.parts import Part
from fedlgd.methods.protocol import Net, Settings, Stream, Updates, setting

ROOM = 64 << 20  # bytes of all sites' tensors that are sorted at once; one tensor may need more


def middle_mean(values: Tensor, cut: int) -> Tensor:
    """1 / (n - 2 cut) * sum_{i = cut+1}^{n - cut} v_(i),  v_(1) <= ... <= v_(n) sorted for each coordinate.

    `values` is (n, ...). Means are in float64. Of integers, which have no mean, it is the lower median.
    """
    n = len(values)
    ordered = values.sort(dim=0).values
    if not values.is_floating_point():
        return ordered[(n - 1) // 2]
    return ordered[cut : n - cut].double().mean(0).to(values.dtype)


def middle_model(updates: Updates, share: float) -> Params:
    """`middle_mean` of every tensor without the `share` n smallest and largest values; share 1/2 is the median.

    Reads the updates several times, a few tensors each time, so that memory does not grow with the model.
    """
    found: Params = {}
    count, first = sum(1 for _ in updates), next(iter(updates)).params
    cut = min(int(share * count + 1e-9), (count - 1) // 2)
    for names in _groups(first, count):
        columns: dict[str, list[Tensor]] = {name: [] for name in names}
        for update in updates:
            for name in names:
                columns[name].append(update.params[name])
        found |= {name: middle_mean(torch.stack(columns.pop(name)), cut) for name in names}
    return {name: found[name] for name in first}


def _groups(params: Params, count: int) -> Iterator[list[str]]:
    """The names in groups whose tensors, of all sites, have about `ROOM` bytes."""
    group, room = list[str](), ROOM
    for name, value in params.items():
        room -= count * value.numel() * value.element_size()
        if group and room < 0:
            yield group
            group, room = [], ROOM - count * value.numel() * value.element_size()
        group.append(name)
    if group:
        yield group


@dataclass(frozen=True, kw_only=True)
class Robust(Part):
    """A method whose server averages models by `middle_model`. The method sees every update with that model: their
    weighted mean, whatever the weights, is the model itself."""

    kind: ClassVar[str] = "robust"

    @property
    def share(self) -> float:
        return 0.5

    def server(self, state: ServerState, updates: Updates, net: Net, rng: Stream) -> ServerState:
        model = middle_model(updates, self.share)
        return self.method.server(state, (replace(update, params=model) for update in updates), net, rng)


@dataclass(frozen=True, kw_only=True)
class Median(Robust):
    """theta_{t+1} = median_c theta_c for each coordinate; of an even number, the mean of the two in the middle."""

    stack: ClassVar[str] = "median"


@dataclass(frozen=True, kw_only=True)
class Trim(Settings):
    """How many values a trimmed mean leaves out."""

    section: ClassVar[str] = "trimmed"

    share: float = setting(
        0.2, "Share of the sites left out at each end of each coordinate, rounded down.", least=0, below=0.5
    )


@dataclass(frozen=True, kw_only=True)
class Trimmed(Robust):
    """theta_{t+1} = mean of theta_c for each coordinate, without its int(share n) smallest and largest values."""

    stack: ClassVar[str] = "trimmed"
    title: ClassVar[str] = "trimmed mean"

    trimmed: Trim = Trim()

    @property
    def share(self) -> float:
        return self.trimmed.share
