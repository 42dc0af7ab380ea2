"""Search spaces: which settings `fedlgd tune` varies, and the candidates drawn from them.

A space is a TOML file like `space.toml` beside this module, which is the default.
"""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
import torch

from fedlgd.core.errors import SettingError, did_you_mean
from fedlgd.core.settings import describe_settings
from fedlgd.core.types import Stream
from fedlgd.methods import registry
from fedlgd.nets.registry import describe_net
from fedlgd.runs.parse import read_toml

FORM = "give a list of values, or a range such as {low = 0.01, high = 0.1, log = true}"


@dataclass(frozen=True, slots=True)
class Range:
    """Values between `low` and `high`; whole numbers if both are."""

    low: int | float
    high: int | float
    log: bool = False

    def __post_init__(self) -> None:
        if not self.low < self.high or (self.log and self.low <= 0):
            raise ValueError(FORM)

    def at(self, u: float) -> float:
        """low + u (high - low), or low (high / low)^u on a logarithmic scale, to three digits."""
        if isinstance(self.low, int) and isinstance(self.high, int) and not self.log:
            return self.low + int(u * (self.high - self.low + 1))
        value = self.low * (self.high / self.low) ** u if self.log else self.low + u * (self.high - self.low)
        return round(value) if isinstance(self.low, int) and isinstance(self.high, int) else float(f"{value:.3g}")


Values = Annotated[list[Any], msgspec.Meta(min_length=1)]
SearchSpace = Mapping[str, Range | Sequence[Any]]
"""Ranges or values by the path of a setting."""


def read_space(given: Path | Mapping[str, Any] | None = None) -> SearchSpace:
    """The space in a TOML file or a mapping of the same form; by default that of this package."""
    given = Path(__file__).with_name("space.toml") if given is None else given
    space = dict(_ranges(read_toml(given) if isinstance(given, Path) else given))
    if not space:
        raise SettingError("space-empty", form=FORM)
    return space


def _ranges(raw: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Range | Sequence[Any]]]:
    for key, value in raw.items():
        path = prefix + key
        if isinstance(value, Mapping) and not value.keys() & {"low", "high", "log"}:
            yield from _ranges(value, f"{path}.")
            continue
        try:
            yield path, value if isinstance(value, Range) else msgspec.convert(value, Range | Values)
        except msgspec.ValidationError as error:
            raise SettingError("space-value", path=path, value=value, form=FORM) from error


def paths(method: str, net: str) -> list[str]:
    """The settings of a method with its parts, and of the network."""
    return [info.path for info in (*describe_settings(registry.recipe(method).settings), *describe_net(net))]


def check_known(space: SearchSpace, methods: Sequence[str], net: str) -> None:
    """Every setting of a space of one's own must be a setting of a method of the search, or of the network."""
    known = {path for method in methods for path in paths(method, net)}
    bases = {registry.base_name(method) for method in methods}
    for path in space:
        first, _, rest = path.partition(".")
        if path not in known and not (first in bases and rest in known):
            hint = did_you_mean(path, (*known, *(f"{base}.{own}" for base in bases for own in known)))
            raise SettingError("space-unknown", path=path, methods=methods, hint=hint)


def space_of(space: SearchSpace, method: str, net: str, fixed: Collection[str]) -> SearchSpace:
    """The part of a space that a method has, without settings that are `fixed`. `fedprox.mu` is for FedProx, unless
    it has a section of this name."""
    known = set(paths(method, net))
    name = f"{registry.base_name(method)}."
    everyone = {path: values for path, values in space.items() if path in known}
    named = {} if any(path.startswith(name) for path in known) else space
    own = {path.removeprefix(name): values for path, values in named.items() if path.startswith(name)}
    found = {p: v for p, v in {**everyone, **own}.items() if p in known and p not in fixed}
    if not found:
        raise SettingError("space-exhausted", method=method)
    return found


def draw_settings(space: SearchSpace, candidate: int, seed: int) -> dict[str, Any]:
    """The settings of a candidate. Number 0 changes nothing. Methods have the same values of shared settings."""
    drawn = {}
    for path, values in space.items() if candidate else ():
        generator = Stream(seed).generator("tune", candidate, path)
        u = torch.rand((), generator=generator, dtype=torch.float64).item()
        drawn[path] = values.at(u) if isinstance(values, Range) else values[int(u * len(values))]
    return drawn


def show_value(value: Any) -> str:
    """A value as text; a list as `rotate, zoom`, or `none` if it is empty."""
    if isinstance(value, list | tuple):
        return ", ".join(map(show_value, value)) or "none"
    return value if isinstance(value, str) else json.dumps(value)
