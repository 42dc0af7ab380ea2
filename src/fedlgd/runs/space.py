"""Search spaces: which settings `fedlgd tune` varies, and the candidates drawn from them.

A space is a TOML file like `space.toml` beside this module, which is the default.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec
import torch

from fedlgd.core.errors import SettingError, did_you_mean
from fedlgd.core.rng import Stream
from fedlgd.core.settings import describe_settings
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

    def at(self, u: float) -> float:
        """low + u (high - low), or low (high / low)^u on a logarithmic scale, to three digits."""
        if isinstance(self.low, int) and isinstance(self.high, int) and not self.log:
            return self.low + int(u * (self.high - self.low + 1))
        value = self.low * (self.high / self.low) ** u if self.log else self.low + u * (self.high - self.low)
        return round(value) if isinstance(self.low, int) and isinstance(self.high, int) else float(f"{value:.3g}")


SearchSpace = Mapping[str, Range | Sequence[Any]]
"""Ranges or values by the path of a setting."""


def read_space(given: Path | Mapping[str, Any] | None = None) -> SearchSpace:
    """The space in a TOML file or a mapping of the same form; by default that of this package."""
    if given is None:
        with resources.as_file(resources.files("fedlgd.runs") / "space.toml") as file:
            return dict(_ranges(read_toml(file)))
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
        if not isinstance(value, Range | list | tuple):
            with suppress(msgspec.ValidationError):
                value = msgspec.convert(value, Range)
        if isinstance(value, Range):
            good = value.low < value.high and (value.low > 0 or not value.log)
        else:
            good = isinstance(value, list | tuple) and len(value) > 0
        if not good:
            raise SettingError("space-value", path=path, value=raw[key], form=FORM)
        yield path, value


def paths(method: str, net: str) -> list[str]:
    """The settings of a method with its parts, and of the network."""
    return [info.path for info in (*describe_settings(registry.recipe(method).settings), *describe_net(net))]


def check_known(space: SearchSpace, methods: Sequence[str], net: str) -> None:
    """Every setting of a space of one's own must be a setting of a method of the search, or of the network."""
    known = {path for method in methods for path in paths(method, net)}
    bases = {method.partition("+")[0] for method in methods}
    for path in space:
        first, _, rest = path.partition(".")
        if path not in known and not (first in bases and rest in known):
            raise SettingError("space-unknown", path=path, methods=methods, hint=did_you_mean(path, known))


def space_of(space: SearchSpace, method: str, net: str, fixed: Collection[str]) -> SearchSpace:
    """The part of a space that a method has, without settings that are `fixed`. `fedprox.mu` is for FedProx."""
    base, known = method.partition("+")[0], set(paths(method, net))
    everyone = {path: values for path, values in space.items() if path in known}
    own = {path.removeprefix(f"{base}."): values for path, values in space.items() if path.startswith(f"{base}.")}
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
