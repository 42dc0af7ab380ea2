"""Methods by name. The command line, the configuration and the tests find every class with `@register`.

A name is `fedavg`, a user-defined `package.module:Class`, or one of these with parts: `scaffold+anchors`.
"""

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, is_dataclass, make_dataclass
from functools import cache
from itertools import combinations
from typing import Any

from fedlgd.core.errors import SettingError, did_you_mean
from fedlgd.core.settings import Settings, import_object
from fedlgd.methods.anchors import Anchored, Anchors
from fedlgd.methods.fedopt import FedOpt
from fedlgd.methods.parts import Momentum, Part, innermost
from fedlgd.methods.protocol import Method
from fedlgd.methods.redraw import Redrawn
from fedlgd.methods.refine import Refined
from fedlgd.methods.regularisers import REGULARISERS, Pull, Regularised, Regulariser
from fedlgd.methods.robust import Median, Trimmed

FAMILY = (
    "fedlgd",
    "desa",
    "fedaf",
    "feddm",
    "fedlap",
    "fedmix",
    "fedmix-naive",
    "collabdm",
    "dynafed",
    "fedvck",
    "vhl",
)
"""The methods of federated learning on virtual images, distilled or not; `fedlgd methods` lists them apart."""

REQUIRED = ("enrol", "start", "broadcast", "site", "server")
_methods: dict[str, type[Method]] = {}


def register(cls: type) -> type:
    """Register a method by its `name`."""
    known = _methods.setdefault(cls.name, cls)  # type: ignore[attr-defined]
    if known.__qualname__ != cls.__qualname__ or known.__module__ != cls.__module__:
        defined = f"{known.__module__}:{known.__qualname__}"
        raise SettingError("method-defined-twice", method=known.name, defined=defined)
    _methods[known.name] = cls
    return cls


@cache
def _import_all() -> None:
    package = importlib.import_module("fedlgd.methods")
    for module in pkgutil.iter_modules(package.__path__):
        if module.name != "private":  # it has no method, only parts
            importlib.import_module(f"fedlgd.methods.{module.name}")


def names() -> list[str]:
    _import_all()
    return sorted(_methods)


@dataclass(frozen=True)
class Stack:
    """A part for a method: its kind, which a method accepts or not, a line about it, its sections with defaults,
    the function that wraps a method, and its presets.

    `defaults`: settings of the method that have another default under this part.
    """

    kind: str
    about: str
    sections: Mapping[str, Settings]
    wrap: Callable[..., Any]
    presets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)


def find_method(name: str) -> type[Any]:
    """The class of a method, without its parts."""
    _import_all()
    base = name.partition("+")[0]
    return _methods.get(base) or _own_method(base)


def base_name(method: str | Method) -> str:
    """The `name` of a method without its parts, as settings address it: `moon.mu`."""
    name: str = (find_method(method) if isinstance(method, str) else innermost(method)).name
    return name


def fixed(cls: type[Any]) -> dict[str, Any]:
    """The settings of its base classes that a method does not leave open, with their values."""
    inherited = {f.name for base in cls.__mro__[1:] if is_dataclass(base) for f in fields(base)}
    return {name: getattr(cls, name) for name in inherited - {f.name for f in fields(cls)}}


@dataclass(frozen=True)
class MethodRecipe:
    """How to create a method: `settings` is a dataclass of all settings, and `make` creates the method from it."""

    settings: type[Any]
    base: type[Any]
    stacked: tuple[Stack, ...] = ()

    def make(self, values: Any) -> Method:
        method: Method = self.base(**{f.name: getattr(values, f.name) for f in fields(self.base)})
        for stack in self.stacked:
            method = stack.wrap(method=method, **{section: getattr(values, section) for section in stack.sections})
        return method


def recipe(name: str) -> MethodRecipe:
    """The recipe of a method by its full name, such as `scaffold+anchors`."""
    parts = {part: _stack(part) for part in name.split("+")[1:]}
    for (one, first), (other, second) in combinations(parts.items(), 2):
        if shared := first.sections.keys() & second.sections.keys():
            raise SettingError("parts-share-section", name=name, one=one, other=other, section=min(shared))
    base, stacked = find_method(name), tuple(parts[part] for part in name.split("+")[1:])
    if not stacked:
        return MethodRecipe(base, base)
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
    return MethodRecipe(made, base, stacked)


def code_of(value: object) -> Iterator[object]:
    """The classes and functions that a method, its parts and their settings consist of.

    A setting such as `pull.loss=module:name` is the function of that name.
    """
    if is_dataclass(value) and not isinstance(value, type):
        yield type(value)
        for f in fields(value):
            yield from code_of(getattr(value, f.name))
    elif isinstance(value, tuple | list):
        for each in value:
            yield from code_of(each)
    elif isinstance(value, Mapping):
        yield from code_of([*value.values()])
    elif isinstance(value, str) and ":" in value:
        with suppress(SettingError):  # another text, or who needs the function says why it is not there
            yield import_object(value, "setting")
    elif callable(value):
        yield value


def _own_method(name: str) -> type[Method]:
    if ":" not in name:
        raise SettingError("method-unknown", name=name, hint=did_you_mean(name, names()), available=names())
    cls: type[Method] = import_object(name, "method")
    if not is_dataclass(cls):
        raise SettingError("method-no-dataclass", name=name)
    missing = [part for part in REQUIRED if getattr(cls, part, None) in (None, getattr(Method, part))]
    rest = [part for part in vars(Method) if not part.startswith("_") and part not in REQUIRED]
    missing += [part for part in rest if not hasattr(cls, part)]
    if missing:
        raise SettingError("method-lacks", name=name, missing=missing)
    return cls


def stacks() -> dict[str, Stack]:
    """The parts by name."""
    regularisers = {name: _regulariser(cls) for name, cls in REGULARISERS.items()}
    return {**_plain_stacks(), **_private_stacks(), **regularisers}


def _plain_stacks() -> dict[str, Stack]:
    """`noise` is the control for anchors: as many images in the loss, but noise that is never updated and has no
    regulariser."""
    still = {"anchors": Anchors(steps=0, in_loss="always"), "pull": Pull(weight=0.0)}
    virtual: dict[str, Any] = {"train_on": "virtual"}
    refines = "refines virtual sets in selected rounds; the method trains on virtual sets"
    redraws = "new virtual images in every round, means of eight similar private images"
    return {
        "anchors": _as_stack(Anchored, "images of the server beside those of a site, moved by gradient matching"),
        "noise": Stack(Anchored.kind, "control for anchors: as many images of noise, never moved", still, Anchored),
        "refine": _as_stack(Refined, refines, **virtual),
        "redraw": _as_stack(Redrawn, redraws, **virtual),
        "fedopt": _as_stack(FedOpt, "an optimiser of the server: momentum (FedAvgM), Adagrad, Adam or Yogi"),
        "momentum": _as_stack(Momentum, "local momentum is kept between rounds instead of reset"),
        "median": _as_stack(Median, "the server takes the median of the models instead of the mean"),
        "trimmed": _as_stack(Trimmed, "the server takes a mean without the smallest and largest values"),
    }


def _private_stacks() -> dict[str, Stack]:
    from fedlgd.methods import private

    at_sites = "DP-SGD at each site: trains on real images with differential privacy"
    at_server = "hides whether a site took part; needs about 50 sites and a trusted server"
    return {
        "dp-sgd": _as_stack(private.DpSgd, at_sites, local=private.LOCAL),
        "dp-fedavg": _as_stack(private.DpFedAvg, at_server),
    }


def _as_stack(part: type[Part], about: str, **defaults: Any) -> Stack:
    sections: dict[str, Any] = {f.name: f.default for f in fields(part) if f.name != "method"}
    return Stack(part.kind, about, sections, part, getattr(part, "presets", {}), defaults)


def _regulariser(cls: type[Regulariser]) -> Stack:
    about = f"a term in the loss: {(inspect.getdoc(cls) or cls.__name__).partition(chr(10))[0]}"

    def wrap(method: Method, **term: Any) -> Regularised:
        return Regularised(method=method, term=term[cls.section])

    return Stack(Regularised.kind, about, {cls.section: cls()}, wrap)


def parts_of(kinds: tuple[str, ...]) -> list[str]:
    """The names of the parts of these kinds."""
    return [name for name, stack in stacks().items() if stack.kind in kinds]


def _stack(name: str) -> Stack:
    plain = _plain_stacks()  # first: a run without a private part enters no module of `fedlgd.dp`
    if name in plain:
        return plain[name]
    if name in REGULARISERS:
        return _regulariser(REGULARISERS[name])
    if ":" not in name:
        known = stacks()
        if name not in known:
            raise SettingError("part-unknown", name=name, hint=did_you_mean(name, known), available=[*known])
        return known[name]
    cls = import_object(name, "part")
    if isinstance(cls, type) and issubclass(cls, Regulariser):
        return _regulariser(cls)
    if not (isinstance(cls, type) and issubclass(cls, Part)):
        raise SettingError("no-part", name=name)
    if not isinstance(getattr(cls, "kind", None), str):
        raise SettingError("part-without-kind", name=name)
    for f in fields(cls):
        if f.name != "method" and not isinstance(f.default, Settings):
            raise SettingError("part-field", name=name, field=f.name)
    return _as_stack(cls, (inspect.getdoc(cls) or cls.__name__).partition("\n")[0])
