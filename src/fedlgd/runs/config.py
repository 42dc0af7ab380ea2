"""Configuration: one namespace for the settings of the run, the data, the network and the method.

Paths are the same in a TOML file and in `--set`: `rounds`, `data.limit`, `net.width`, `distil.per_class`.
"""

import difflib
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec
import tomli_w

from fedlgd.core.errors import PrivacyError, SettingError
from fedlgd.core.net import Net
from fedlgd.core.settings import Tuned, flat, setting
from fedlgd.data import suites as suites
from fedlgd.data.federation import Federation
from fedlgd.data.suites import COMMON_SETTINGS, SUITES, DataChoice
from fedlgd.engines.settings import RoundSettings
from fedlgd.methods import registry
from fedlgd.methods.parts import all_settings, for_rounds, name_of
from fedlgd.methods.protocol import Method
from fedlgd.nets.registry import NETS, build_net, given_net, settings_of

NAMED = ("data", "net")  # sections that can be given as only a name


@dataclass(frozen=True, kw_only=True)
class RunSettings(RoundSettings):
    """The settings of a run that do not belong to the method, the data or the network."""

    real_samples: int = setting(
        -1,
        "Real images per class of every site copied for the report; -1: 4 of published data, none of your own.",
        least=-1,
        most=1_000,
    )
    analysis: bool = setting(True, "Measure the similarity of the sites' features for the report.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The complete configuration of a run."""

    method: Method
    plan: RunSettings = RunSettings()
    data: DataChoice = field(default_factory=DataChoice)
    net: Mapping[str, Any] = field(default_factory=lambda: {"name": "convnet"})
    tuned: Tuned | None = None

    def __post_init__(self) -> None:
        """What depends on several sections is decided here, so that `config.toml` says it."""
        protected = self.method.budget is not None
        plan = replace(self.plan, analysis=False) if protected else self.plan  # it reads features of real images
        if plan.real_samples < 0:
            plan = replace(plan, real_samples=samples(suites.is_public(self.data.name) and not protected))
        if protected and plan.real_samples:
            raise PrivacyError(
                f"real_samples is {plan.real_samples}, which copies private images to the run folder and its "
                "report; with differential privacy use real_samples=0"
            )
        object.__setattr__(self, "plan", plan)
        object.__setattr__(self, "method", for_rounds(self.method, plan.rounds))

    def net_for(self, federation: Federation, given: Any = None) -> Net:
        """The network for the images of a federation; `given`: as a Python object instead of by name."""
        shape, classes = federation.shape, len(federation.classes)
        if given is not None:
            return given_net(given, shape, classes, self.net)
        settings = {key: value for key, value in self.net.items() if key != "name"}
        return build_net(self.net["name"], shape, classes, settings)

    @property
    def digest(self) -> str:
        """A short hash of this configuration."""
        return hashlib.blake2b(self.toml().encode(), digest_size=4).hexdigest()

    @property
    def variant(self) -> str:
        """A short hash of this configuration without its seed."""
        return replace(self, plan=replace(self.plan, seed=0)).digest

    def plain(self) -> dict[str, Any]:
        shared = {name: getattr(self.data, name) for name in COMMON_SETTINGS}
        return {
            "method": name_of(self.method),
            **_spelled_out(self.plan),
            "data": {**shared, **_spelled_out(self.data.suite)},
            "net": dict(self.net),
            **_written({**all_settings(self.method), "tuned": self.tuned}),
        }

    def toml(self) -> str:
        """The resolved configuration, including defaults."""
        return tomli_w.dumps(self.plain())


def samples(public: bool) -> int:
    """Real images per class that a report shows unless asked for another number."""
    return 4 if public else 0


def resolve(settings: Mapping[str, Any], assignments: Mapping[str, Any] | None = None, preset: str = "") -> Config:
    """Defaults, then the preset, then `settings` (a config file), then `assignments` by dotted path."""
    raw = msgspec.to_builtins(settings)
    for path, value in (assignments or {}).items():
        _assign(raw, path, value)
    tuned = _tuned(raw.pop("tuned", None), assignments or {})
    recipe = registry.recipe(_word("method", raw.pop("method", "fedlgd")))
    cls = recipe.settings
    merged = _begin(cls, preset)
    _merge(merged, raw)
    for section in NAMED:
        given = merged.get(section, {})  # a federation or a network can be given as only its name
        merged[section] = dict(given) if isinstance(given, Mapping) else {"name": _word(section, given)}
    net = {"name": "convnet", **merged["net"]}
    data = {"name": DataChoice.name, **merged["data"]}
    suite = suites.find_suite(_word("data.name", data["name"])).settings
    _refuse_unknown(merged, _known(cls, _word("net.name", net["name"]), suite), cls)
    ours = {f.name for f in fields(RunSettings)}
    plan = {key: value for key, value in merged.items() if key in ours}
    method = {key: value for key, value in merged.items() if key not in ours and key not in NAMED}
    return Config(
        method=recipe.make(_convert(method, cls)),
        plan=_convert(plan, RunSettings),
        data=_data_choice(data, suite),
        net=net,
        tuned=tuned,
    )


def _tuned(raw: Any, assignments: Mapping[str, Any]) -> Tuned | None:
    """What was tuned and is not changed again."""
    found: Tuned | None = None if raw is None else _convert(raw, Tuned, "tuned.")
    kept = tuple(path for path in found.settings if path not in assignments) if found else ()
    return replace(found, settings=kept) if found and kept else None


def _data_choice(raw: Mapping[str, Any], suite: Any) -> DataChoice:
    own = {f.name for f in fields(suite)}
    settings = _convert({k: v for k, v in raw.items() if k in own}, suite, "data.")
    chosen: DataChoice = _convert({k: v for k, v in raw.items() if k not in own}, DataChoice, "data.")
    return replace(chosen, suite=settings)


def configure(method: str | type[Method], preset: str = "", **settings: Any) -> Method:
    """A method by name or class with a preset and settings; write two underscores for a dot in a path."""
    recipe = registry.recipe(method) if isinstance(method, str) else registry.MethodRecipe(method, method)
    cls = recipe.settings
    raw = _begin(cls, preset)
    for path, value in settings.items():
        _assign(raw, path.replace("__", "."), msgspec.to_builtins(value))
    _refuse_unknown(raw, list(_field_paths(cls)), cls)
    return recipe.make(_convert(raw, cls))


def _begin(cls: type[Method], preset: str) -> dict[str, Any]:
    """The default sections of a method, updated by the preset."""
    presets = getattr(cls, "presets", {})
    if preset and preset not in presets:
        raise SettingError(
            f"method {cls.name!r} has no preset {preset!r}; available: {', '.join(presets) or 'none'}"
        )
    raw = {f.name: _spelled_out(f.default) for f in fields(cls) if is_dataclass(f.default)}  # type: ignore[arg-type]
    for path, value in presets.get(preset, {}).items():
        _assign(raw, path, msgspec.to_builtins(value))
    return raw


def _word(path: str, value: Any) -> str:
    if not isinstance(value, str):
        raise SettingError(f"setting {path!r} is {value!r}; give a name in quotes")
    return value


def _assign(raw: dict[str, Any], path: str, value: Any) -> None:
    if path in NAMED and isinstance(value, str):
        path = f"{path}.name"
    *sections, last = path.split(".")
    for section in sections:
        inner = raw.setdefault(section, {})
        if isinstance(inner, str) and section in NAMED:
            inner = raw[section] = {"name": inner}
        if not isinstance(inner, dict):
            raise SettingError(
                f"setting {path!r}: {section!r} is a value, not a section; set it with {section}=VALUE"
            )
        raw = inner
    raw[last] = value


def _merge(into: dict[str, Any], more: Mapping[str, Any]) -> None:
    for key, value in more.items():
        if isinstance(value, Mapping) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = value


def _known(cls: type, net: str, suite: type) -> list[str]:
    """The paths of all settings of this method, network and federation."""
    data = [*(f"data.{key}" for key in COMMON_SETTINGS), *_field_paths(suite, "data.")]
    ours = [*_field_paths(RunSettings), *data, "method", "net.name"]
    return [*ours, *_field_paths(cls), *(f"net.{key}" for key in settings_of(net))]


def _refuse_unknown(raw: Mapping[str, Any], known: list[str], cls: type[Method]) -> None:
    sections = {path[:i] for path in known for i, letter in enumerate(path) if letter == "."}
    fixed = registry.fixed(cls)
    for path, _ in flat(raw):
        if path in fixed:
            raise SettingError(f"{path} of {cls.name} is always {fixed[path]!r}; leave {path} out")
        if path not in known and path not in sections:
            raise SettingError(f"unknown setting {path!r}; {_hint(path, known, cls.name)}")


def _hint(path: str, known: list[str], method: str) -> str:
    """Who has this setting, and the most similar path: with the same last word, or any if nobody has it."""
    owners, section = list(_owners(path)), path.rpartition(".")[0]
    here = f"the chosen {section}" if section in NAMED else method
    have = f"it is a setting of {' and '.join(owners)}, not of {here}" if owners else ""
    same_word = [k for k in known if k.rpartition(".")[2] == path.rpartition(".")[2]]
    near = [] if owners and section else difflib.get_close_matches(path, same_word, 1, cutoff=0)
    near = near or ([] if owners else difflib.get_close_matches(path, known, 1))
    guess = f"did you mean {near[0]!r}?" if near else ""
    return "; ".join(filter(None, (have, guess))) or f"available: {', '.join(sorted(known))}"


def _owners(path: str) -> Iterator[str]:
    """The methods, parts, networks and federations that have a setting."""
    others: dict[str, dict[str, Iterator[str]]] = {
        "method": {name: _field_paths(registry.find_method(name)) for name in registry.names()},
        "part": {
            f"+{name}": (
                p for section, own in stack.sections.items() for p in _field_paths(type(own), f"{section}.")
            )
            for name, stack in registry.stacks().items()
        },
        "network": {name: (f"net.{key}" for key in settings_of(name)) for name in NETS},
        "federation": {name: _field_paths(suite.settings, "data.") for name, suite in SUITES.items()},
    }
    for kind, settings in others.items():
        if names := [name for name, paths in settings.items() if path in paths]:
            yield f"{kind if len(names) == 1 else kind + 's'} {', '.join(names)}"


def _field_paths(cls: Any, prefix: str = "") -> Iterator[str]:
    """Dotted paths of all settings of a dataclass, including nested dataclasses."""
    hints = get_type_hints(cls)
    for f in fields(cls):
        if is_dataclass(hints[f.name]):
            yield from _field_paths(hints[f.name], f"{prefix}{f.name}.")
        else:
            yield prefix + f.name


def _spelled_out(settings: Any) -> dict[str, Any]:
    """A dataclass as plain values, including defaults; None is omitted, because TOML cannot represent it."""
    return _written({f.name: getattr(settings, f.name) for f in fields(settings)})


def _written(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: _spelled_out(value) if is_dataclass(value) else msgspec.to_builtins(value)
        for name, value in values.items()
        if value is not None
    }


def _convert(raw: Mapping[str, Any], cls: Any, prefix: str = "") -> Any:
    try:
        return msgspec.convert(raw, cls)
    except msgspec.ValidationError as error:
        message, _, where = str(error).partition(" - at `$")
        path = where.strip("`").lstrip(".")
        said = not path or message.startswith(f"{prefix}{path}.")
        setting = "" if said else f"setting {prefix + path!r}: "
        raise SettingError(setting + message + _choices(cls, path)) from error


def _choices(cls: Any, path: str) -> str:
    """The allowed values of the setting at `path`, if it is a choice."""
    for name in path.split("."):
        cls = get_type_hints(cls).get(name) if is_dataclass(cls) else None
    return f"; available: {', '.join(map(repr, get_args(cls)))}" if get_origin(cls) is Literal else ""
