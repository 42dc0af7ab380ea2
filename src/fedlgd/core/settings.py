"""Settings: frozen dataclasses whose fields carry a help line and bounds. This module imports no torch."""

from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, TypeVar

from fedlgd.core.errors import SettingError

T = TypeVar("T")


def setting(
    default: T,
    help: str,
    *,
    least: float | None = None,
    most: float | None = None,
    above: float | None = None,
    below: float | None = None,
) -> T:
    """A field of `Settings` with one line of help and inclusive (least, most) or open (above, below) bounds."""
    bounds = {"least": least, "most": most, "above": above, "below": below}
    value: T = field(default=default, metadata={"help": help, **{k: v for k, v in bounds.items() if v is not None}})
    return value


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Base of every group of settings. `section` is its path in a configuration, such as `distil`."""

    section: ClassVar[str] = ""

    def __post_init__(self) -> None:
        for f in fields(self):
            check_bounds(f"{self.section}.{f.name}".lstrip("."), getattr(self, f.name), f.metadata)


def check_bounds(path: str, value: Any, bounds: Any) -> None:
    """Refuse a value outside its bounds; NaN is outside of all."""
    tests = {
        "least": lambda v, b: v >= b,
        "most": lambda v, b: v <= b,
        "above": lambda v, b: v > b,
        "below": lambda v, b: v < b,
    }
    if not all(test(value, bounds[name]) for name, test in tests.items() if name in bounds):
        raise SettingError(f"{path} is {value}; use {_range(bounds)}. {bounds.get('help', '')}".rstrip())


def _range(bounds: Any) -> str:
    words = {"least": "{} or more", "above": "more than {}", "most": "{} or less", "below": "less than {}"}
    return " and ".join(text.format(bounds[name]) for name, text in words.items() if name in bounds)
