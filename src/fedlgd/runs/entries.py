"""Entries of a comparison or a search, their settings, and the runs that they plan.

An entry is a method object, or text: a label, a method with its parts, and its settings, such as `fedavg`,
`scaffold+anchors`, `vhl:labels=patch`, `mine=moon:mu=5:head=true`, or a configuration file, such as
`best-fedlgd.toml` of `fedlgd tune`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from fedlgd.core.errors import SettingError, did_you_mean
from fedlgd.methods import registry
from fedlgd.methods.parts import innermost, name_of
from fedlgd.methods.protocol import Method
from fedlgd.runs.config import NAMED, Config, RunSettings, preset_changes, resolve, setting_paths, with_setting
from fedlgd.runs.parse import check_axes, entry_folder, parse_assignment, points, read_toml

OF_RUN = frozenset(f.name for f in fields(RunSettings))

Given = Method | str
Labelled = Mapping[str, Given] | Iterable[Given | tuple[str, Given]]
"""Methods, some or all with a label: {"mine": FedAvg()}, or [("mine", FedAvg()), "fedprox"]."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of a comparison. `base`: the content of its configuration file, if it has one.

    spec: its text, or its label, which names its folder. note: what its label has in parentheses.
    """

    spec: str
    method: Given
    settings: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""
    base: Mapping[str, Any] = field(default_factory=dict)
    label: str = ""

    @property
    def name(self) -> str:
        """The name of its method, with parts."""
        return self.method if isinstance(self.method, str) else name_of(self.method)

    @property
    def folder(self) -> str:
        if not self.base or self.label:
            return entry_folder(self.spec)
        file, _, point = self.spec.rpartition(".toml")
        return entry_folder(Path(file).name + point)

    def has(self, path: str) -> bool:
        """Whether a path is a setting of a run of this entry."""
        return path in OF_RUN or path.startswith("net.") or path in setting_paths(self.method)

    def labelled(self, label: str) -> "Entry":
        return replace(self, spec=label, label=label, note="") if label else self

    def at(self, point: Mapping[str, Any]) -> "Entry":
        """The entry at a point of a sweep; text is read like that of `--set`."""
        texts = [f"{path}={value}" for path, value in point.items()]
        values = (
            parse_assignment(text) if isinstance(value, str) else (path, value)
            for text, (path, value) in zip(texts, point.items(), strict=True)
        )
        note = ", ".join(filter(None, (self.note, *texts)))
        return replace(
            self, spec=":".join((self.spec, *texts)), settings={**self.settings, **dict(values)}, note=note
        )


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """One run of a comparison. `folder` None: in memory.

    `library`: a folder of runs, of which one with the same configuration is copied.
    """

    entry: Entry
    config: Config
    folder: Path | None
    library: Path | None = None

    @property
    def label(self) -> str:
        label = self.entry.label or self.config.method.label
        return f"{label} ({self.entry.note})" if self.entry.note else label

    @property
    def title(self) -> str:
        return f"{self.label}, seed {self.config.plan.seed}"

    @property
    def group(self) -> tuple[int, str]:
        """Runs with the same seed and the same settings of distillation share virtual sets; others share none."""
        method: Any = self.config.method
        sets = repr(getattr(method, "distil", None)) if method.train_on == "virtual" else self.entry.folder
        return self.config.plan.seed, sets


@dataclass(frozen=True, slots=True)
class Addresses:
    """How the paths of settings are read beside these methods: `moon.mu` is `mu` of Moon alone.

    A name that is also a section of one of the methods is the section.
    """

    names: frozenset[str]
    sections: frozenset[str]

    @classmethod
    def beside(cls, methods: Iterable[Given]) -> "Addresses":
        methods = list(methods)
        paths = (path for method in methods for path in setting_paths(method))
        sections = {first for first, dot, _ in (path.partition(".") for path in paths) if dot}
        return cls(
            frozenset((*registry.names(), *map(registry.base_name, methods))), frozenset((*NAMED, *sections))
        )

    def own(self, method: Given, assignments: Mapping[str, Any]) -> dict[str, Any]:
        """The assignments that apply to a method, by their path in it. Those that name it win."""
        shared, named = {}, {}
        for path, value in assignments.items():
            first, dot, rest = path.partition(".")
            if not dot or first in self.sections or first not in self.names:
                shared[path] = value
            elif first == registry.base_name(method):
                named[rest] = value
        return {**shared, **named}

    def for_method(self, method: Given, assignments: Mapping[str, Any]) -> dict[str, Any]:
        """`own` without settings that the method fixes, such as `train_on`: they apply to the others."""
        fixed = registry.fixed(registry.find_method(method) if isinstance(method, str) else type(innermost(method)))
        return {path: value for path, value in self.own(method, assignments).items() if path not in fixed}

    def check(self, assignments: Iterable[str]) -> None:
        """Refuse a first word that is neither a section nor a name, but similar to a name."""
        for path in assignments:
            first, dot, _ = path.partition(".")
            known = (*self.sections, *self.names)
            if dot and first not in known and (hint := did_you_mean(first, self.names)):
                raise SettingError("setting-of-unknown-name", path=path, name=first, hint=hint)


def own_settings(entry: Entry, entries: Iterable[Entry], assignments: Mapping[str, Any]) -> dict[str, Any]:
    """The assignments that apply to one of these entries."""
    return Addresses.beside(each.method for each in entries).for_method(entry.method, assignments)


def for_run(method: str, assignments: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a single run; one that names another method is an error."""
    addresses = Addresses.beside([method])
    addresses.check(assignments)
    for path, value in assignments.items():
        if not addresses.own(method, {path: value}):
            raise SettingError("setting-of-no-method", path=path, methods=[method])
    return addresses.own(method, assignments)


def read_entries(methods: Labelled) -> list[Entry]:
    """Entries of methods given in Python."""
    pairs: Iterable[Any] = methods.items() if isinstance(methods, Mapping) else methods
    labelled = (each if isinstance(each, tuple) else ("", each) for each in pairs)
    return [
        (parse_entry(method) if isinstance(method, str) else Entry(method.label, method)).labelled(label)
        for label, method in labelled
    ]


def decision_entries() -> list[Entry]:
    """What sites need to decide whether to join: each alone, three ways to join, and all images in one place."""
    methods = {
        "local-only": ("local-only", "real"),
        "fedavg-real": ("fedavg", "real"),
        "fedavg-virtual": ("fedavg", "virtual"),
        "fedlgd": ("fedlgd", ""),
        "pooled": ("pooled", "real"),
    }
    entries = [Entry(spec, name, {"train_on": on} if on else {}) for spec, (name, on) in methods.items()]
    return [replace(entries[0], label="Each site alone"), *entries[1:]]


def parse_entry(text: str) -> Entry:
    """Parse `label=method+part:setting=value:...`; a colon before a word without `=` is part of `module:Class`."""
    label, equals, spec = (word.strip() for word in text.partition("="))
    if not equals or not label or ":" in label or "/" in label:
        label, spec = "", text.strip()
    if spec.endswith(".toml"):
        base = read_toml(Path(spec))
        config = resolve(base)
        note = "tuned" if config.tuned else Path(spec).stem
        return Entry(spec, name_of(config.method), {}, note, base).labelled(label)
    words = spec.split(":")
    assignments = [word for word in words if "=" in word]
    method = ":".join(word for word in words if "=" not in word)
    registry.recipe(method)
    return Entry(spec, method, dict(map(parse_assignment, assignments)), ", ".join(assignments)).labelled(label)


def sweep_entries(entries: Sequence[Entry], axes: Mapping[str, Sequence[Any]]) -> tuple[list[Entry], str]:
    """Every entry at every point of a sweep, and a line about those that are skipped: they lack its settings.

    If all lack them none is skipped, so that the error says what they have.
    """
    check_axes(axes)
    if not axes:
        return list(entries), ""
    addresses = Addresses.beside(entry.method for entry in entries)
    addresses.check(axes)
    own = [addresses.own(entry.method, axes) for entry in entries]
    having = [
        len(each) == len(axes) and all(map(entry.has, each)) for entry, each in zip(entries, own, strict=True)
    ]
    if not any(having):
        return [entry.at(point) for entry in entries for point in points(axes)], ""
    found = [
        entry.at(point)
        for entry, each, has in zip(entries, own, having, strict=True)
        for point in (points(each) if has else ())
    ]
    skipped = [entry.spec for entry, has in zip(entries, having, strict=True) if not has]
    return (
        found,
        f"The sweep of {', '.join(axes)} skips methods without it: {', '.join(skipped)}" if skipped else "",
    )


def plan_jobs(
    entries: Sequence[Entry],
    seeds: int,
    out: Path | None,
    assignments: Mapping[str, Any],
    preset: str = "",
    steps: int = 0,
) -> list[Job]:
    """Each entry with each seed, all entries of a seed first, so that a comparison has a first answer early.

    `assignments` apply to all entries; `steps` above 0: SGD steps per round. Refused: a setting that applies to no
    method, an entry given twice, and configuration files for different data.
    """
    addresses = Addresses.beside(entry.method for entry in entries)
    addresses.check(assignments)
    for path, value in assignments.items():
        if not any(addresses.for_method(entry.method, {path: value}) for entry in entries):
            raise SettingError("setting-of-no-method", path=path, methods=[entry.name for entry in entries])
    seen: dict[str, Entry] = {}
    for entry in entries:
        if (first := seen.setdefault(entry.folder, entry)) is not entry:
            both = repr(entry.spec) if entry.spec == first.spec else f"{first.spec!r} and {entry.spec!r}"
            raise SettingError("entry-twice", entries=both, method=entry.name)
    more = {"local.steps": steps} if steps else {}
    jobs = [
        job_of(
            replace(entry, settings={**entry.settings, **more}),
            addresses.for_method(entry.method, {**assignments, "seed": seed}),
            out / entry.folder / f"seed{seed}" if out else None,
            preset,
        )
        for seed in range(seeds)
        for entry in entries
    ]
    for job in jobs:
        if job.config.data != jobs[0].config.data:
            spec, data = job.entry.spec, job.config.data.name
            other, other_data = jobs[0].entry.spec, jobs[0].config.data.name
            raise SettingError(
                "entries-of-different-data", entry=spec, data=data, other=other, other_data=other_data
            )
    return jobs


def job_of(entry: Entry, assignments: Mapping[str, Any], folder: Path | None, preset: str = "") -> Job:
    """The run of an entry with these settings, of which the entry's own win."""
    settings = {**assignments, **entry.settings}
    if isinstance(entry.method, str):
        try:
            return Job(entry, resolve(entry.base, {**settings, "method": entry.method}, preset), folder)
        except SettingError as error:
            raise SettingError("setting-of-entry", method=entry.method, error=error) from error
    method = entry.method
    changes = preset_changes(method, preset).applied if preset else {}
    for path, value in {**changes, **settings}.items():
        if path not in OF_RUN and path != "net":
            method = with_setting(method, path, value)
    plan = RunSettings(**{path: value for path, value in settings.items() if path in OF_RUN})
    return Job(entry, Config(method=method, plan=plan, net=settings["net"]), folder)
