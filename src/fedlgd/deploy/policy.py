"""What a site allows: its policy, `site.toml`.

It is compared with a task before the configuration of the run is interpreted (`check`), with what the method
declares before anything is computed (`check_declared`), and with every message before it leaves (`check_sent`).

Names of the form `package.module:Class` import code; they are refused unless the policy lists them literally.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from fedlgd.core.errors import FedlgdError, SettingError, did_you_mean, message
from fedlgd.rundir.disclosure import UNDECLARED, kind_of, may_read
from fedlgd.rundir.manifest import MethodInfo
from fedlgd.runs.parse import read_toml

OTHER_CODE = "other_code"
NEEDED_KEYS = ("methods", "nets", "rounds", "disclose")
LATER_KEYS: Mapping[str, tuple[str, ...]] = {"sends": ("weights", "loss", "counts"), "train_on": ("virtual",)}
"""Keys that policies of earlier versions do not have, and what holds without them."""
DISCLOSURES = ("counts", "scores", "seconds")
TRAINED_ON = ("virtual", "real")
NEEDED_DISCLOSURE = {"score": "scores", "enrol": "counts", "train": "counts"}  # by task
SETTING_PATH = re.compile(r"[a-z0-9_]+(\.[a-z0-9_]+)*")
CODE_NAME = re.compile(r"[\w.]+:\w+")  # package.module:Class


class TaskError(FedlgdError):
    """This site does not carry out a task: its policy or its images are against it. The coordinator is told why."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What the server asks for. `settings` are those of the run by their path, e.g. {"distil.per_class": 10}."""

    what: str
    method: str
    settings: Mapping[str, Any]
    net: str
    rounds: int
    round: int = -1


@dataclass(frozen=True, kw_only=True)
class Bound:
    """The allowed values of a setting: one of `values` if there are any, and from `least` to `most`."""

    values: tuple[Any, ...] = ()
    least: float | None = None
    most: float | None = None
    required: bool = False

    def check(self, path: str, settings: Mapping[str, Any]) -> None:
        if path not in settings:
            if self.required:
                raise TaskError("setting-required", path=path)
            return
        value = settings[path]
        if self.values:
            if not any(type(value) is type(v) and value == v for v in self.values):
                raise TaskError("setting-not-listed", path=path, value=value, allowed=list(map(repr, self.values)))
            return
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise TaskError("setting-no-number", path=path, value=value)
        if self.least is not None and not value >= self.least:
            raise TaskError("setting-too-low", path=path, value=value, least=self.least)
        if self.most is not None and not value <= self.most:
            raise TaskError("setting-too-high", path=path, value=value, most=self.most)


@dataclass(frozen=True, kw_only=True)
class Policy:
    """What a site allows. Without a `site.toml` nothing is allowed.

    sends: the kinds of what a method may send. train_on: what it may train on; `real` also allows that it reads
    private images in every round. other_code: whether the code of a method, of someone's own, may be another one
    here than at the coordinator. missing: the keys that the file does not have.
    """

    methods: tuple[str, ...]
    nets: tuple[str, ...]
    rounds: int
    disclose: frozenset[str]
    sends: tuple[str, ...] = LATER_KEYS["sends"]
    train_on: tuple[str, ...] = LATER_KEYS["train_on"]
    other_code: bool = False
    settings: Mapping[str, Bound] = field(default_factory=dict)
    missing: tuple[str, ...] = ()

    @classmethod
    def read(cls, file: Path) -> "Policy":
        """Read `site.toml`. Unknown keys are errors, because a misspelled bound would allow everything."""
        given = read_toml(file)
        where = f"policy {str(file)!r}"
        _refuse_unknown(where, given, [*NEEDED_KEYS, *LATER_KEYS, OTHER_CODE, "settings"])
        if missing := [name for name in NEEDED_KEYS if name not in given]:
            raise SettingError("policy-incomplete", where=where, name=missing[0])
        if type(given["rounds"]) is not int or given["rounds"] < 0:
            raise SettingError("policy-rounds", where=where, value=given["rounds"])
        if type(other := given.get(OTHER_CODE, False)) is not bool:
            raise SettingError("policy-other-code", where=where, value=other)
        bounds = given.get("settings", {})
        if not isinstance(bounds, Mapping):
            raise SettingError("policy-section", where=where, value=bounds)
        settings = {path: _bound(where, path, bound) for path, bound in _leaves(bounds)}
        if "neighbours" not in settings.get("refine.start", Bound(values=("neighbours",))).values:
            settings.setdefault(
                "redraw.selected.count", Bound(most=0)
            )  # what `refine.start` was before it was a part
        words = {name: _words(where, name, given[name]) for name in ("methods", "nets", "disclose")}
        later = {name: _words(where, name, given[name]) for name in LATER_KEYS if name in given}
        _refuse_unknown(f"{where}: disclose", words["disclose"], DISCLOSURES)
        _refuse_unknown(f"{where}: train_on", later.get("train_on", ()), TRAINED_ON)
        if "sends" not in given and "statistics" in settings.get("anchors.start", Bound()).values:
            later["sends"] = (*LATER_KEYS["sends"], "statistics")  # an explicit yes before there was the key
        return cls(
            methods=words["methods"],
            nets=words["nets"],
            rounds=given["rounds"],
            disclose=frozenset(words["disclose"]),
            other_code=other,
            settings=settings,
            missing=tuple(name for name in LATER_KEYS if name not in given),
            **later,
        )

    @property
    def notes(self) -> list[str]:
        """What holds in place of the keys that are missing."""
        return [message("key-missing", key=key, line=_line(key, getattr(self, key))) for key in self.missing]

    def check(self, asked: Asked) -> None:
        """Raise an error that says why this site refuses what is asked."""
        if not _listed(asked.method, self.methods):
            raise TaskError("method-not-allowed", method=asked.method, allowed=self.methods or ["none"])
        if not _listed(asked.net, self.nets):
            raise TaskError("net-not-allowed", net=asked.net, allowed=self.nets or ["none"])
        if not 0 <= asked.rounds <= self.rounds:
            raise TaskError("too-many-rounds", rounds=asked.rounds, allowed=self.rounds)
        if not -1 <= asked.round < asked.rounds:
            raise TaskError("round-outside-run", round=asked.round, rounds=asked.rounds)
        for path, bound in self.settings.items():
            bound.check(path, asked.settings)
        self._refuse_unlisted(asked.settings)
        if (needed := NEEDED_DISCLOSURE.get(asked.what)) and needed not in self.disclose:
            raise TaskError("not-disclosed", needed=needed)

    def check_declared(self, method: MethodInfo) -> None:
        """Refuse a method for what it declares: what it trains on, when it reads private images, what it sends."""
        if method.train_on not in (*self.train_on, "nothing"):
            line = _line("train_on", [*self.train_on, method.train_on])
            raise TaskError("train-on-not-listed", data=method.train_on, line=line)
        if "every" in method.reads and "real" not in self.train_on:
            raise TaskError("reads-in-every-round", line=_line("train_on", [*self.train_on, "real"]))
        unsent = () if "scores" in self.disclose else ("metrics",)
        self._check_kinds({p: kind for p, kind in method.sends.items() if p.partition("/")[0] not in unsent})

    def check_code(self, differing: Sequence[str]) -> None:
        """Refuse a method of someone's own of which these source files are others at the coordinator."""
        if differing and not self.other_code:
            raise TaskError("code-differs", files=differing, line=f"{OTHER_CODE} = true")

    def check_sent(self, paths: Iterable[str], method: MethodInfo) -> None:
        """Refuse a message that has something undeclared, or of a kind that is not listed, at one of its paths."""
        kinds = {path: kind_of(path, method) for path in paths}
        if undeclared := [path for path, kind in kinds.items() if kind == UNDECLARED]:
            raise TaskError("path-not-declared", path=undeclared[0])
        self._check_kinds(kinds)

    def check_read(self, round: int, method: MethodInfo) -> None:
        """Refuse a method that read private images in this round (-1: the enrolment) and does not declare it."""
        if not may_read(round, method):
            raise TaskError("read-not-declared", when=f"in round {round + 1}" if round >= 0 else "at the enrolment")

    def _check_kinds(self, kinds: Mapping[str, str]) -> None:
        for path, kind in kinds.items():
            if kind not in self.sends:
                raise TaskError("kind-not-listed", kind=kind, path=path, line=_line("sends", [*self.sends, kind]))

    def _refuse_unlisted(self, settings: Mapping[str, Any]) -> None:
        """Values that run code, or remove the protection of noise, are allowed only if they are listed."""
        for path, value in settings.items():
            if not isinstance(value, str) or (path in self.settings and value in self.settings[path].values):
                continue
            if CODE_NAME.fullmatch(value):
                raise TaskError("setting-runs-code", path=path, value=value)
            if value and path.rpartition(".")[2] == "test_key":
                raise TaskError("noise-is-public", path=path, value=value)


def _line(key: str, words: Sequence[str]) -> str:
    """The line of `site.toml` that allows these words."""
    return f"{key} = {json.dumps(words, ensure_ascii=False)}"


def _listed(name: str, patterns: Sequence[str]) -> bool:
    """Patterns do not match names that import code; those are listed literally."""
    return name in patterns or (":" not in name and any(fnmatchcase(name, pattern) for pattern in patterns))


def _words(where: str, name: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
        raise SettingError("policy-names", where=where, name=name, value=value)
    return tuple(value)


def _leaves(bounds: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Bounds by path: `"distil.per_class" = {...}` and `distil.per_class = {...}` mean the same."""
    found: list[tuple[str, Any]] = []
    for key, value in bounds.items():
        nested = isinstance(value, Mapping) and value and all(isinstance(v, Mapping | list) for v in value.values())
        found += _leaves(value, f"{prefix}{key}.") if nested else [(prefix + key, value)]
    return found


def _bound(where: str, path: str, given: Any) -> Bound:
    if not SETTING_PATH.fullmatch(path):
        raise SettingError("policy-path", where=where, path=path)
    if isinstance(given, list) and given:
        return Bound(values=tuple(given))
    if not isinstance(given, Mapping) or not given:
        raise SettingError("policy-bound", where=where, path=path, value=given)
    _refuse_unknown(f"{where}: {path}", given, ("min", "max", "values", "required"))
    for side in ("min", "max"):
        if side in given and (isinstance(given[side], bool) or not isinstance(given[side], int | float)):
            raise SettingError("policy-number", where=where, side=side, path=path, value=given[side])
    if not isinstance(given.get("required", False), bool):
        raise SettingError("policy-required", where=where, path=path, value=given["required"])
    least, most, required = given.get("min"), given.get("max"), given.get("required", False)
    return Bound(values=tuple(given.get("values", ())), least=least, most=most, required=required)


def _refuse_unknown(where: str, given: Sequence[str] | Mapping[str, Any], known: Sequence[str]) -> None:
    for word in given:
        if word not in known:
            hint = did_you_mean(word, known) or f"; available: {', '.join(known)}"
            raise SettingError("policy-unknown", where=where, word=word, hint=hint)
