"""Methods by name. A file with `@register` is picked up by the command line, the config and the tests.

A name is `fedavg`, a user's own `package.module:Class`, or either with parts stacked on it: `scaffold+anchors`.
"""

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, make_dataclass
from functools import cache
from typing import Any

from fedlgd.core.errors import SettingError
from fedlgd.core.settings import Settings
from fedlgd.core.suggest import did_you_mean, own_class
from fedlgd.methods.protocol import Method

FIVE = ("enrol", "start", "broadcast", "site", "server")
DEFAULTS = ("presets", "personal", "pooled", "expects", "expects_hello", "adapt", "model_at", "cost", "label")
_methods: dict[str, type[Method]] = {}


def register(cls: type) -> type:
    """Make a method known by its `name`."""
    known = _methods.setdefault(cls.name, cls)  # type: ignore[attr-defined]
    if known.__qualname__ != cls.__qualname__ or known.__module__ != cls.__module__:
        raise SettingError(f"a method is called {known.name!r} already, {known.__module__}:{known.__qualname__}")
    _methods[known.name] = cls
    return cls


@cache
def _import_all() -> None:
    package = importlib.import_module("fedlgd.methods")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"fedlgd.methods.{module.name}")


def names() -> list[str]:
    _import_all()
    return sorted(_methods)


@dataclass(frozen=True)
class Stack:
    """Something to stack on a method: its sections with their defaults, its presets, and how it wraps."""

    sections: Mapping[str, Settings]
    wrap: Callable[..., Any]
    presets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def find(name: str) -> type[Any]:
    """The class of a method, without what may be stacked on it."""
    _import_all()
    base = name.partition("+")[0]
    return _methods.get(base) or _own_method(base)


@dataclass(frozen=True)
class Recipe:
    """How a method of some name is made: a dataclass of all its settings, which `make` turns into the method."""

    settings: type[Any]
    base: type[Any]
    stacked: tuple[Stack, ...] = ()

    def make(self, values: Any) -> Method:
        method: Method = self.base(**{f.name: getattr(values, f.name) for f in fields(self.base)})
        for stack in self.stacked:
            method = stack.wrap(method=method, **{section: getattr(values, section) for section in stack.sections})
        return method


def recipe(name: str) -> Recipe:
    """Of a method by its whole name, such as `scaffold+anchors`."""
    base, stacked = find(name), tuple(_stack(part) for part in name.split("+")[1:])
    if not stacked:
        return Recipe(base, base)
    sections = {section: default for stack in stacked for section, default in stack.sections.items()}
    presets = {
        preset: {**settings, **{k: v for stack in stacked for k, v in stack.presets.get(preset, {}).items()}}
        for preset, settings in base.presets.items()
    }
    added = [(section, type(default), field(default=default)) for section, default in sections.items()]
    space = {"name": name, "presets": presets}
    made = make_dataclass(base.__name__, added, bases=(base,), namespace=space, frozen=True, kw_only=True)
    return Recipe(made, base, stacked)


def _own_method(name: str) -> type[Method]:
    if ":" not in name:
        raise SettingError(
            f"no method is called {name!r}{did_you_mean(name, names())}; there are: {', '.join(names())}; "
            "your own: package.module:Class"
        )
    cls: type[Method] = own_class(name, "method")
    if not is_dataclass(cls):
        raise SettingError(
            f"method {name!r} is not a dataclass; its fields are its settings (see methods/protocol.py)"
        )
    missing = [part for part in FIVE if getattr(cls, part, None) in (None, getattr(Method, part))]
    missing += [part for part in DEFAULTS if not hasattr(cls, part)]
    if missing:
        raise SettingError(
            f"method {name!r} lacks {', '.join(missing)}; inherit fedlgd.methods.protocol.Method, which has "
            "defaults for all but the five functions of a method"
        )
    return cls


def stacks() -> dict[str, Stack]:
    """What can be stacked on methods, by name. `noise` is the control for anchors: as many images in the loss, but
    noise that never moves and never pulls."""
    from fedlgd.methods.anchors import Anchors
    from fedlgd.methods.parts import Anchored, Refined
    from fedlgd.methods.refine import Refine
    from fedlgd.methods.regularisers import REGULARISERS, Pull
    from fedlgd.methods.robust import Median, Trim, Trimmed

    still = {"anchors": Anchors(steps=0, in_loss="always"), "pull": Pull(weight=0.0)}
    return {
        "anchors": Stack({"anchors": Anchors(), "pull": Pull()}, Anchored, Anchored.presets),
        "noise": Stack(still, Anchored),
        "refine": Stack({"refine": Refine()}, Refined, Refined.presets),
        "median": Stack({}, Median),
        "trimmed": Stack({"trimmed": Trim()}, Trimmed),
        **{name: _regulariser(cls) for name, cls in REGULARISERS.items()},
    }


def _regulariser(cls: type[Any]) -> Stack:
    from fedlgd.methods.parts import Regularised

    return Stack({cls.section: cls()}, lambda method, **term: Regularised(method=method, term=term[cls.section]))


def _stack(name: str) -> Stack:
    from fedlgd.methods.regularisers import Regulariser

    known = stacks()
    if name in known:
        return known[name]
    if ":" not in name:
        raise SettingError(
            f"nothing called {name!r} can be stacked on a method{did_you_mean(name, known)}; there are: "
            f"{', '.join(known)}; your own regulariser: package.module:Class"
        )
    cls = own_class(name, "regulariser")
    if not (isinstance(cls, type) and issubclass(cls, Regulariser)):
        raise SettingError(f"{name!r} is no fedlgd.methods.regularisers.Regulariser; inherit it and write `term`")
    return _regulariser(cls)


def settings_of(method: Method) -> dict[str, Any]:
    """The settings of a method and of what is stacked on it, by name."""
    inner = getattr(method, "method", None)
    if inner is not None:
        return {**settings_of(inner), **method.sections}  # type: ignore[attr-defined]
    return {f.name: getattr(method, f.name) for f in fields(method)}  # type: ignore[arg-type]


def name_of(method: Method) -> str:
    """The name by which `recipe` finds this method again."""
    inner = getattr(method, "method", None)
    if inner is not None:
        return f"{name_of(inner)}+{method.stack}"  # type: ignore[attr-defined]
    return qualified(type(method), "fedlgd.", method.name)


def qualified(cls: type, ours: str, name: str) -> str:
    """`name` for a class of this package, else `package.module:Class`."""
    return name if cls.__module__.startswith(ours) else f"{cls.__module__}:{cls.__qualname__}"
