"""Configuration: one namespace for the settings of the run, the data, the network and the method.

Paths are the same in a TOML file and in `--set`: `rounds`, `data.limit`, `net.width`, `distil.per_class`.
"""

import difflib
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

import msgspec
import tomli_w

from fedlgd.core.errors import PrivacyError, SettingError, did_you_mean
from fedlgd.core.net import Net
from fedlgd.core.settings import flat, setting
from fedlgd.data import suites
from fedlgd.data.federation import Federation
from fedlgd.data.suites import DataChoice
from fedlgd.engines.settings import RoundSettings
from fedlgd.methods import registry
from fedlgd.methods.parts import Part, all_settings, default_settings, for_rounds, innermost, name_of
from fedlgd.methods.protocol import Method
from fedlgd.nets.registry import NETS, build_net, given_net, settings_of
from fedlgd.rundir.read import Tuned

NAMED = {
    "net": "convnet",
    "data": DataChoice.name,
}  # sections that can be given as only a name, with their defaults


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
    positive: str | None = setting(
        None, "Of two classes, the one that sensitivity is about; not set: the last one."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The complete configuration of a run."""

    method: Method
    plan: RunSettings = RunSettings()
    data: DataChoice = field(
        default_factory=lambda: DataChoice(suite=suites.find_suite(DataChoice.name).settings())
    )
    net: Mapping[str, Any] = field(default_factory=lambda: {"name": NAMED["net"]})
    tuned: Tuned | None = None

    def __post_init__(self) -> None:
        """What depends on several sections is decided here, so that `config.toml` says it."""
        protected = self.method.budget is not None
        plan = replace(self.plan, analysis=False) if protected else self.plan  # it reads features of real images
        if plan.real_samples < 0:
            plan = replace(plan, real_samples=samples(suites.is_public(self.data.name) and not protected))
        if protected and plan.real_samples:
            raise PrivacyError("private-samples", count=plan.real_samples)
        object.__setattr__(self, "plan", plan)
        object.__setattr__(self, "method", for_rounds(self.method, plan.rounds))

    def net_for(self, federation: Federation, given: Any = None) -> Net:
        """The network for the images of a federation; `given`: as a Python object instead of by name."""
        return net_of(self.net, federation.shape, len(federation.classes), given)

    @property
    def digest(self) -> str:
        """A short hash of this configuration."""
        return hashlib.blake2b(self.toml().encode(), digest_size=4).hexdigest()

    @property
    def variant(self) -> str:
        """A short hash of this configuration without its seed."""
        return replace(self, plan=replace(self.plan, seed=0)).digest

    def plain(self) -> dict[str, Any]:
        shared = {name: getattr(self.data, name) for name in suites.COMMON_SETTINGS}
        return {
            "method": name_of(self.method),
            **_plain(self.plan),
            "data": {**shared, **_plain(self.data.suite)},
            "net": dict(self.net),
            **_plain({**all_settings(self.method), "tuned": self.tuned}),
        }

    def toml(self) -> str:
        """The resolved configuration, including defaults."""
        return tomli_w.dumps(self.plain())


def net_of(settings: Mapping[str, Any], shape: tuple[int, int, int], classes: int, given: Any = None) -> Net:
    """The network of a section `net`; `given`: as a Python object instead of by name."""
    if given is not None:
        return given_net(given, shape, classes, settings)
    return build_net(settings["name"], shape, classes, {k: v for k, v in settings.items() if k != "name"})


def samples(public: bool) -> int:
    """Real images per class that a report shows unless asked for another number."""
    return 4 if public else 0


def on_federation(config: Config, federation: Federation, real_samples: int | None) -> Config:
    """The configuration of a run on a federation that is a Python object."""
    if real_samples is None:
        real_samples = samples(federation.public and config.method.budget is None)
    plan = replace(config.plan, real_samples=real_samples)
    return replace(config, plan=plan, data=DataChoice(name=federation.name))


def resolve(settings: Mapping[str, Any], assignments: Mapping[str, Any] | None = None, preset: str = "") -> Config:
    """Defaults, then the preset, then `settings` (a config file), then `assignments` by dotted path."""
    given, changed = msgspec.to_builtins(settings), dict(assignments or {})
    for section in NAMED:  # a federation or a network can be given as only its name
        if not isinstance(given.setdefault(section, {}), dict):
            given[section] = {"name": _name(section, given[section])}
    for path, value in changed.items():
        if path in NAMED and not isinstance(value, Mapping):
            path, value = f"{path}.name", _name(path, value)
        _assign(given, path, value)
    tuned: Tuned | None = _convert(given.pop("tuned"), Tuned, "tuned.") if "tuned" in given else None
    if tuned:  # a setting that is changed again is not a tuned one
        kept = tuple(path for path in tuned.settings if path not in changed)
        tuned = replace(tuned, settings=kept) if kept else None
    recipe = registry.recipe(_name("method", given.pop("method", "fedlgd")))
    net, data = ({"name": NAMED[section], **given.pop(section)} for section in NAMED)
    suite: Any = suites.find_suite(_name("data.name", data["name"])).settings
    known = known_paths(recipe.settings, _name("net.name", net["name"]), suite)
    raw = _merge(_begin(recipe.settings, preset), given)
    _refuse_unknown({**raw, "net": net, "data": data}, recipe.settings, known)
    plan, own = _split(raw, RunSettings)
    of_suite, shared = _split(data, suite)
    return Config(
        method=recipe.make(_convert(own, recipe.settings)),
        plan=_convert(plan, RunSettings),
        data=replace(_convert(shared, DataChoice, "data."), suite=_convert(of_suite, suite, "data.")),
        net=net,
        tuned=tuned,
    )


def _split(raw: Mapping[str, Any], cls: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The settings of a dataclass, and the others."""
    own = {f.name for f in fields(cls)}
    return {k: v for k, v in raw.items() if k in own}, {k: v for k, v in raw.items() if k not in own}


def configure(method: str | type[Method], preset: str = "", **settings: Any) -> Method:
    """A method by name or class with a preset and settings; write two underscores for a dot in a path."""
    recipe = registry.recipe(method) if isinstance(method, str) else registry.MethodRecipe(method, method)
    raw = _begin(recipe.settings, preset)
    for path, value in settings.items():
        _assign(raw, path.replace("__", "."), msgspec.to_builtins(value))
    _refuse_unknown(raw, recipe.settings, list(_field_paths(recipe.settings)))
    return recipe.make(_convert(raw, recipe.settings))


def with_setting(settings: Any, path: str, value: Any, whole: str = "") -> Any:
    """A method, or a section of its settings, with the setting at `path` changed."""
    (first, _, rest), known = path.partition("."), [f.name for f in fields(settings)]
    if first not in known:
        if isinstance(settings, Part):
            return replace(settings, method=with_setting(settings.method, path, value, whole))
        raise SettingError("setting-not-of-every-method", path=whole or path, hint=did_you_mean(first, known))
    inner = with_setting(getattr(settings, first), rest, value, whole or path) if rest else value
    return replace(settings, **{first: inner})


class PresetChanges(NamedTuple):
    """What a preset does to a method object: the settings that it gives, and those that the user gave before."""

    applied: dict[str, Any]
    kept: dict[str, Any]


def preset_changes(method: Method, preset: str) -> PresetChanges:
    """A preset gives the settings in which a method object has the defaults of its class; others are the user's."""
    base = type(innermost(method))
    if preset not in (presets := getattr(base, "presets", {})):
        known = list(presets) or ["none"]
        raise SettingError("preset-of-object", method=method.label, preset=preset, available=known)
    given, defaults = (dict(flat(_plain(each(method)))) for each in (all_settings, default_settings))
    wanted, part = dict[str, Any](), method
    while isinstance(part, Part):
        wanted = {**getattr(type(part), "presets", {}).get(preset, {}), **wanted}
        part = part.method
    applied, kept = dict[str, Any](), dict[str, Any]()
    for path, value in {**presets[preset], **wanted}.items():
        own = given.get(path)
        if path in registry.fixed(base) or own == msgspec.to_builtins(value):
            continue
        if own == defaults.get(path):
            applied[path] = value
        else:
            kept[path] = own
    return PresetChanges(applied, kept)


def setting_paths(method: str | Method) -> set[str]:
    """The paths of the settings of a method with its parts."""
    if isinstance(method, str):
        return set(_field_paths(registry.recipe(method).settings))
    found = set[str]()
    for name, value in all_settings(method).items():
        found |= set(_field_paths(type(value), f"{name}.")) if is_dataclass(value) else {name}
    return found


def _begin(cls: type[Method], preset: str) -> dict[str, Any]:
    """The default sections of a method, updated by the preset, of which a setting that the method fixes is left."""
    presets, fixed = getattr(cls, "presets", {}), registry.fixed(cls)
    if preset and preset not in presets:
        raise SettingError("unknown-preset", method=cls.name, preset=preset, available=list(presets) or ["none"])
    raw = {f.name: _plain(f.default) for f in fields(cls) if is_dataclass(f.default)}  # type: ignore[arg-type]
    for path, value in presets.get(preset, {}).items():
        if path not in fixed:
            _assign(raw, path, msgspec.to_builtins(value))
    return raw


def _name(path: str, value: Any) -> str:
    if not isinstance(value, str):
        raise SettingError("setting-no-name", path=path, value=value)
    return value


def _assign(raw: dict[str, Any], path: str, value: Any) -> None:
    *sections, last = path.split(".")
    for section in sections:
        raw = raw.setdefault(section, {})
        if not isinstance(raw, dict):
            raise SettingError("setting-no-section", path=path, section=section)
    raw[last] = value


def _merge(into: dict[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    for key, value in more.items():
        inner = into.get(key)
        into[key] = _merge(inner, value) if isinstance(value, Mapping) and isinstance(inner, dict) else value
    return into


def known_paths(cls: type[Method], net: str, suite: type) -> list[str]:
    """The paths of all settings of a run with this method, network and federation."""
    data = [*(f"data.{key}" for key in suites.COMMON_SETTINGS), *_field_paths(suite, "data.")]
    nets = ["net.name", *(f"net.{key}" for key in settings_of(net))]
    return [*_field_paths(RunSettings), *data, "method", *nets, *_field_paths(cls)]


def _refuse_unknown(raw: Mapping[str, Any], cls: type[Method], known: list[str]) -> None:
    fixed = registry.fixed(cls)
    sections = {path[:i] for path in known for i, letter in enumerate(path) if letter == "."}
    for path, _ in flat(raw):
        if path in fixed:
            raise SettingError("fixed-setting", path=path, method=cls.name, value=fixed[path])
        if path not in known and path not in sections:
            raise SettingError("unknown-setting", path=path, hint=_hint(path, known, cls.name))


def _hint(path: str, known: list[str], method: str) -> str:
    """Who has this setting, and the most similar path: with the same last word, or any if nobody has it."""
    having: dict[str, dict[str, Iterator[str]]] = {
        "method": {name: _field_paths(registry.find_method(name)) for name in registry.names()},
        "part": {
            f"+{name}": (p for key, own in stack.sections.items() for p in _field_paths(type(own), f"{key}."))
            for name, stack in registry.stacks().items()
        },
        "network": {name: (f"net.{key}" for key in settings_of(name)) for name in NETS},
        "federation": {name: _field_paths(suite.settings, "data.") for name, suite in suites.SUITES.items()},
    }
    found = {kind: [name for name, paths in each.items() if path in paths] for kind, each in having.items()}
    owners = [f"{kind if len(n) == 1 else kind + 's'} {', '.join(n)}" for kind, n in found.items() if n]
    section = path.rpartition(".")[0]
    here = f"the chosen {section}" if section in NAMED else method
    have = f"it is a setting of {' and '.join(owners)}, not of {here}" if owners else ""
    same_word = [k for k in known if k.rpartition(".")[2] == path.rpartition(".")[2]]
    near = [] if owners and section else difflib.get_close_matches(path, same_word, 1, cutoff=0)
    near = near or ([] if owners else difflib.get_close_matches(path, known, 1))
    guess = f"did you mean {near[0]!r}?" if near else ""
    return "; ".join(filter(None, (have, guess))) or f"available: {', '.join(sorted(known))}"


def _field_paths(cls: Any, prefix: str = "") -> Iterator[str]:
    """Dotted paths of all settings of a dataclass, including nested dataclasses."""
    hints = get_type_hints(cls)
    for f in fields(cls):
        if is_dataclass(hints[f.name]):
            yield from _field_paths(hints[f.name], f"{prefix}{f.name}.")
        else:
            yield prefix + f.name


def _plain(settings: Any) -> dict[str, Any]:
    """A dataclass or a mapping as plain values, with defaults; None is omitted: TOML cannot represent it."""
    if is_dataclass(settings):
        settings = {f.name: getattr(settings, f.name) for f in fields(settings)}
    return {
        name: _plain(value) if is_dataclass(value) else msgspec.to_builtins(value)
        for name, value in settings.items()
        if value is not None
    }


def _convert(raw: Mapping[str, Any], cls: Any, prefix: str = "") -> Any:
    try:
        return msgspec.convert(raw, cls)
    except msgspec.ValidationError as error:
        said, _, where = str(error).partition(" - at `$")
        path, hint = where.strip("`").lstrip("."), cls
        named = not path or said.startswith(f"{prefix}{path}.")
        for name in path.split("."):  # to the type of the setting
            hint = get_type_hints(hint).get(name) if is_dataclass(hint) else None
        choices = f"; available: {', '.join(map(repr, get_args(hint)))}" if get_origin(hint) is Literal else ""
        setting = "" if named else f"setting {prefix + path!r}: "
        raise SettingError(
            "invalid-setting", path=prefix + path, setting=setting, said=said, choices=choices
        ) from error
