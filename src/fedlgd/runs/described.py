"""What can be set: every setting with its default, its help line and its allowed values."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from fedlgd.nets.registry import MAX_OF_SETTING, NETS, find_net, settings_of


@dataclass(frozen=True, slots=True)
class SettingInfo:
    """One setting: path, default, help line, `bounds` as in `core.settings.setting`, and allowed `choices`."""

    path: str
    default: Any
    help: str = ""
    bounds: Mapping[str, float] = field(default_factory=dict)
    choices: tuple[Any, ...] = ()

    @property
    def allowed(self) -> str:
        """The allowed values: `"real" | "virtual"`, or `>= 0, < 1`; empty if there is no restriction."""
        signs = {"least": ">=", "above": ">", "most": "<=", "below": "<"}
        limits = ", ".join(f"{sign} {self.bounds[name]}" for name, sign in signs.items() if name in self.bounds)
        return " | ".join(msgspec.json.encode(choice).decode() for choice in self.choices) or limits


def described_net(name: str) -> list[SettingInfo]:
    """The settings of a network; the help lines are in the dictionary `help` of its class."""

    def bounds(key: str) -> dict[str, float]:
        return {"least": 1, "most": MAX_OF_SETTING[key]} if name in NETS and key in MAX_OF_SETTING else {}

    hints, lines = get_type_hints(find_net(name).__init__), getattr(find_net(name), "help", {})
    return [
        SettingInfo(f"net.{key}", default, lines.get(key, ""), bounds(key), get_args(hints.get(key)))
        for key, default in settings_of(name).items()
    ]


def described(settings: Any, prefix: str = "") -> list[SettingInfo]:
    """All settings of a dataclass instance, or of a class with its defaults, including nested dataclasses."""
    settings = settings() if isinstance(settings, type) else settings
    hints, found = get_type_hints(type(settings)), []
    for f in fields(settings):
        path, value = prefix + f.name, getattr(settings, f.name)
        if is_dataclass(value):
            found += described(value, f"{path}.")
            continue
        bounds = {name: f.metadata[name] for name in ("least", "most", "above", "below") if name in f.metadata}
        choices = get_args(hints[f.name]) if get_origin(hints[f.name]) is Literal else ()
        default = None if value is None else msgspec.to_builtins(value)
        found.append(SettingInfo(path, default, f.metadata.get("help", ""), bounds, choices))
    return found
