"""What a site allows, and what left it.

The policy (`site.toml`) says which tasks of the server the site carries out, and what it discloses. The journal
says in plain words everything that left the site, and what it refused: one line per event.

Names of the form `package.module:Class` import code; they are refused unless the policy lists them literally.
"""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from fedlgd.core.errors import FedlgdError, SettingError, did_you_mean, one_line
from fedlgd.runs.parse import read_toml

DISCLOSURES = ("counts", "scores", "seconds")
NEEDED_DISCLOSURE = {"score": "scores", "enrol": "counts", "train": "counts"}  # by task
SETTING_PATH = re.compile(r"[a-z0-9_]+(\.[a-z0-9_]+)*")
MAX_LINE_LETTERS = 10_000  # of the journal
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
    """What a site allows. Without a `site.toml` nothing is allowed."""

    methods: tuple[str, ...]
    nets: tuple[str, ...]
    rounds: int
    disclose: frozenset[str]
    settings: Mapping[str, Bound] = field(default_factory=dict)

    @classmethod
    def read(cls, file: Path) -> "Policy":
        """Read `site.toml`. Unknown keys are errors, because a misspelled bound would allow everything."""
        given = read_toml(file)
        where = f"policy {str(file)!r}"
        _refuse_unknown(where, given, [f.name for f in fields(cls)])
        for name in ("methods", "nets", "rounds", "disclose"):
            if name not in given:
                raise SettingError("policy-incomplete", where=where, name=name)
        if type(given["rounds"]) is not int or given["rounds"] < 0:
            raise SettingError("policy-rounds", where=where, value=given["rounds"])
        disclose = _words(where, "disclose", given["disclose"])
        _refuse_unknown(f"{where}: disclose", disclose, DISCLOSURES)
        bounds = given.get("settings", {})
        if not isinstance(bounds, Mapping):
            raise SettingError("policy-section", where=where, value=bounds)
        return cls(
            methods=_words(where, "methods", given["methods"]),
            nets=_words(where, "nets", given["nets"]),
            rounds=given["rounds"],
            disclose=frozenset(disclose),
            settings={path: _bound(where, path, bound) for path, bound in _leaves(bounds)},
        )

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

    def _refuse_unlisted(self, settings: Mapping[str, Any]) -> None:
        """Values that run code, or remove the protection of noise, are allowed only if they are listed."""
        for path, value in settings.items():
            if not isinstance(value, str) or (path in self.settings and value in self.settings[path].values):
                continue
            if CODE_NAME.fullmatch(value):
                raise TaskError("setting-runs-code", path=path, value=value)
            if value and path.rpartition(".")[2] == "test_key":
                raise TaskError("noise-is-public", path=path, value=value)


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


class Journal:
    """Appends to a private file. A line is on the disk before the answer is sent."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def left(self, what: str, round: int, parts: Mapping[str, int]) -> None:
        """What was sent, with its number of bytes: {"model": 80_000, "scores": 120}."""
        listed = ", ".join(f"{name} ({size:,} bytes)" for name, size in parts.items()) or "nothing"
        self._add(f"sent: answer to {what}{_during(round)}: {listed}; in total {sum(parts.values()):,} bytes")

    def refused(self, what: str, round: int, why: str) -> None:
        self._add(f"refused: {what}{_during(round)}: {why}; no result is sent")

    def _add(self, text: str) -> None:
        """One line, whatever the text contains: parts of it come from the server."""
        line = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC  {one_line(text, MAX_LINE_LETTERS)}\n"
        handle = os.open(self._file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(handle, line.encode())
            os.fsync(handle)
        finally:
            os.close(handle)


def _during(round: int) -> str:
    """Rounds are counted from 1 here, as in the terminal of the coordinator."""
    return "" if round < 0 else f" in round {round + 1}"
