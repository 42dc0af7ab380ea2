"""Methods by name. The command line, the configuration and the tests find every class with `@register`.

A name is `fedavg`, a user-defined `package.module:Class`, or one of these with parts: `scaffold+anchors`.
"""

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, make_dataclass
from functools import cache
from itertools import combinations
from typing import Any

from fedlgd.core.errors import SettingError, did_you_mean
from fedlgd.core.plugins import import_object
from fedlgd.core.settings import Settings
from fedlgd.core.train import Local
from fedlgd.dp.fedavg import DpFedAvg, SiteDp
from fedlgd.dp.sgd import LOCAL, Dp, DpSgd
from fedlgd.methods.anchors import Anchored, Anchors
from fedlgd.methods.parts import Momentum
from fedlgd.methods.protocol import Method
from fedlgd.methods.refine import Refine, Refined
from fedlgd.methods.regularisers import REGULARISERS, Pull, Regularised, Regulariser
from fedlgd.methods.robust import Median, Trim, Trimmed

FIVE = ("enrol", "start", "broadcast", "site", "server")
DEFAULTS = ("presets", "personal", "pooled", "at", "expects", "expects_hello", "adapt", "model_at", "label")
_methods: dict[str, type[Method]] = {}


def register(cls: type) -> type:
    """Register a method by its `name`."""
    known = _methods.setdefault(cls.name, cls)  # type: ignore[attr-defined]
    if known.__qualname__ != cls.__qualname__ or known.__module__ != cls.__module__:
        raise SettingError(f"method {known.name!r} is already defined in {known.__module__}:{known.__qualname__}")
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
    """A part for a method: a line about it, its sections with defaults, its presets, and the function that wraps a
    method.

    `defaults`: settings of the method that have another default under this part.
    """

    about: str
    sections: Mapping[str, Settings]
    wrap: Callable[..., Any]
    presets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)


def find(name: str) -> type[Any]:
    """The class of a method, without its parts."""
    _import_all()
    base = name.partition("+")[0]
    return _methods.get(base) or _own_method(base)


def fixed(cls: type[Any]) -> dict[str, Any]:
    """The settings of its base classes that a method does not leave open, with their values."""
    inherited = {f.name for base in cls.__mro__[1:] if is_dataclass(base) for f in fields(base)}
    return {name: getattr(cls, name) for name in inherited - {f.name for f in fields(cls)}}


@dataclass(frozen=True)
class Recipe:
    """How to create a method: `settings` is a dataclass of all settings, and `make` creates the method from it."""

    settings: type[Any]
    base: type[Any]
    stacked: tuple[Stack, ...] = ()

    def make(self, values: Any) -> Method:
        method: Method = self.base(**{f.name: getattr(values, f.name) for f in fields(self.base)})
        for stack in self.stacked:
            method = stack.wrap(method=method, **{section: getattr(values, section) for section in stack.sections})
        return method


def recipe(name: str) -> Recipe:
    """The recipe of a method by its full name, such as `scaffold+anchors`."""
    parts = {part: _stack(part) for part in name.split("+")[1:]}
    for (one, first), (other, second) in combinations(parts.items(), 2):
        if shared := first.sections.keys() & second.sections.keys():
            raise SettingError(f"{name!r} has {one} and {other}, which both have {min(shared)}.*; use one of them")
    base, stacked = find(name), tuple(_stack(part) for part in name.split("+")[1:])
    if not stacked:
        return Recipe(base, base)
    sections = {section: default for stack in stacked for section, default in stack.sections.items()}
    presets = {
        preset: {**settings, **{k: v for stack in stacked for k, v in stack.presets.get(preset, {}).items()}}
        for preset, settings in base.presets.items()
    }
    added: list[Any] = [(section, type(default), field(default=default)) for section, default in sections.items()]
    changed = {name: value for stack in stacked for name, value in stack.defaults.items()}
    added += [
        (f.name, f.type, field(default=changed[f.name], metadata=f.metadata))
        for f in fields(base)
        if f.name in changed
    ]
    space = {"name": name, "presets": presets}
    made = make_dataclass(base.__name__, added, bases=(base,), namespace=space, frozen=True, kw_only=True)
    return Recipe(made, base, stacked)


def _own_method(name: str) -> type[Method]:
    if ":" not in name:
        raise SettingError(
            f"no method is called {name!r}{did_you_mean(name, names())}; available: {', '.join(names())}; "
            "your own: package.module:Class"
        )
    cls: type[Method] = import_object(name, "method")
    if not is_dataclass(cls):
        raise SettingError(
            f"method {name!r} is not a dataclass; its fields are its settings (see methods/protocol.py)"
        )
    missing = [part for part in FIVE if getattr(cls, part, None) in (None, getattr(Method, part))]
    missing += [part for part in DEFAULTS if not hasattr(cls, part)]
    if missing:
        raise SettingError(
            f"method {name!r} lacks {', '.join(missing)}; subclass fedlgd.methods.protocol.Method, which has "
            "defaults for all but the five functions of a method"
        )
    return cls


def stacks() -> dict[str, Stack]:
    """The parts by name. `noise` is the control for anchors: the same number of images in the loss, but noise that
    is never updated and has no regulariser."""
    still = {"anchors": Anchors(steps=0, in_loss="always"), "pull": Pull(weight=0.0)}
    return {
        "anchors": Stack(
            "images of the server beside those of a site, moved by gradient matching",
            {"anchors": Anchors(), "pull": Pull()},
            Anchored,
            Anchored.presets,
        ),
        "noise": Stack("control for anchors: as many images of noise, never moved", still, Anchored),
        "refine": Stack(
            "refines virtual sets in selected rounds; the method trains on virtual sets",
            {"refine": Refine()},
            Refined,
            Refined.presets,
            {"train_on": "virtual"},
        ),
        "momentum": Stack("local momentum is kept between rounds instead of reset", {}, Momentum),
        "median": Stack("the server takes the median of the models instead of the mean", {}, Median),
        "trimmed": Stack(
            "the server takes a mean without the smallest and largest values", {"trimmed": Trim()}, Trimmed
        ),
        "dp-sgd": Stack(
            "DP-SGD at each site: trains on real images with differential privacy",
            {"local": LOCAL, "dp": Dp()},
            _dp_sgd,
            DpSgd.presets,
        ),
        "dp-fedavg": Stack(
            "hides whether a site took part; needs about 50 sites and a trusted server",
            {"site_dp": SiteDp()},
            DpFedAvg,
        ),
        **{name: _regulariser(cls) for name, cls in REGULARISERS.items()},
    }


def _dp_sgd(method: Method, local: Local, dp: Dp) -> DpSgd:
    """`local` has other defaults with this part; the method has it already."""
    return DpSgd(method=method, dp=dp)


def _regulariser(cls: type[Any]) -> Stack:
    about = f"a term in the loss: {(inspect.getdoc(cls) or cls.__name__).partition(chr(10))[0]}"
    return Stack(
        about, {cls.section: cls()}, lambda method, **term: Regularised(method=method, term=term[cls.section])
    )


def _stack(name: str) -> Stack:
    known = stacks()
    if name in known:
        return known[name]
    if ":" not in name:
        raise SettingError(
            f"no part for methods is called {name!r}{did_you_mean(name, known)}; available: "
            f"{', '.join(known)}; your own regulariser: package.module:Class"
        )
    cls = import_object(name, "regulariser")
    if not (isinstance(cls, type) and issubclass(cls, Regulariser)):
        raise SettingError(f"{name!r} is not a Regulariser; subclass fedlgd.methods.regularisers.Regulariser")
    return _regulariser(cls)
