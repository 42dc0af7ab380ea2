"""What a user gives: settings, frozen dataclasses whose fields have a help line and bounds, and classes by name.

This module does not import torch.
"""

import importlib
import json
import operator
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache
from typing import Any, ClassVar, Literal, TypedDict, TypeVar, Unpack, get_args, get_origin, get_type_hints

from fedlgd.core.errors import FedlgdError, SettingError

T = TypeVar("T")


class Bounds(TypedDict, total=False):
    """Inclusive (least, most) or exclusive (above, below) bounds of a value."""

    least: float
    most: float
    above: float
    below: float


def setting(default: T, help: str, **bounds: Unpack[Bounds]) -> T:
    """A field of `Settings` with a help line and bounds."""
    value: T = field(default=default, metadata={"help": help, **bounds})
    return value


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Base class of settings. `section` is its path in a configuration, such as `distil`."""

    section: ClassVar[str] = ""

    def __post_init__(self) -> None:
        words = _words(type(self))  # type: ignore[arg-type]
        for f in fields(self):
            path, value = f"{self.section}.{f.name}".lstrip("."), getattr(self, f.name)
            check_bounds(path, value, f.metadata)
            for word in value if isinstance(value, tuple) else (value,):
                if f.name in words and word not in words[f.name]:
                    raise SettingError("setting-choice", setting=path, value=value, choices=words[f.name])


@cache
def _words(cls: Any) -> dict[str, tuple[str, ...]]:
    """The allowed values of each field that is a choice, or a tuple of choices."""
    hints = {
        name: get_args(hint)[0] if get_origin(hint) is tuple else hint for name, hint in get_type_hints(cls).items()
    }
    return {name: get_args(hint) for name, hint in hints.items() if get_origin(hint) is Literal}


BOUND_TESTS: dict[str, tuple[Callable[[Any, float], bool], str, str]] = {
    "least": (operator.ge, ">=", "{} or more"),
    "above": (operator.gt, ">", "more than {}"),
    "most": (operator.le, "<=", "{} or less"),
    "below": (operator.lt, "<", "less than {}"),
}


def check_bounds(path: str, value: Any, metadata: Mapping[str, Any]) -> None:
    """Raise an error for a value outside its bounds; NaN is outside all bounds."""
    for name, (holds, _, words) in BOUND_TESTS.items():
        if name in metadata and not holds(value, metadata[name]):
            bound, about = words.format(metadata[name]), metadata["help"].rstrip(".")
            raise SettingError("setting-out-of-bounds", setting=path, value=value, bound=bound, about=about)


def flat(raw: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """All values and empty sections by dotted path; a key that contains a dot is quoted."""
    for key, value in raw.items():
        path = prefix + (f'"{key}"' if "." in key else key)
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{path}.")
        else:
            yield path, value


@dataclass(frozen=True, slots=True)
class SettingInfo:
    """One setting: path, default, help line, `bounds` as in `setting`, and allowed `choices`."""

    path: str
    default: Any
    help: str = ""
    bounds: Mapping[str, float] = field(default_factory=dict)
    choices: tuple[Any, ...] = ()

    @property
    def allowed(self) -> str:
        """The allowed values: `"real" | "virtual"`, or `>= 0, < 1`; empty if there is no restriction."""
        limits = ", ".join(f"{BOUND_TESTS[k][1]} {self.bounds[k]}" for k in BOUND_TESTS if k in self.bounds)
        return " | ".join(json.dumps(choice) for choice in self.choices) or limits


def describe_settings(settings: Any, prefix: str = "") -> list[SettingInfo]:
    """All settings of a dataclass instance, or of a class with its defaults, including nested dataclasses."""
    settings = settings() if isinstance(settings, type) else settings
    hints, found = get_type_hints(type(settings)), []
    for f in fields(settings):
        path, value = prefix + f.name, getattr(settings, f.name)
        if is_dataclass(value):
            found += describe_settings(value, f"{path}.")
            continue
        bounds = {name: f.metadata[name] for name in BOUND_TESTS if name in f.metadata}
        choices = get_args(hints[f.name]) if get_origin(hints[f.name]) is Literal else ()
        default = [*value] if isinstance(value, tuple) else value
        found.append(SettingInfo(path, default, f.metadata.get("help", ""), bounds, choices))
    return found


def import_object(spec: str, what: str, kind: type[FedlgdError] = SettingError) -> Any:
    """Import `package.module:Class`, a class of a user's own; the current folder is searched too."""
    module, _, attribute = spec.partition(":")
    if "" not in sys.path:
        sys.path.append("")
    try:
        return getattr(importlib.import_module(module), attribute)
    except Exception as error:
        raise kind("cannot-import", what=what, spec=spec, error=error) from error
