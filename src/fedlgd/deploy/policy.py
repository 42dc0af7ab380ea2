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

from fedlgd.core.errors import SettingError, did_you_mean, one_line
from fedlgd.core.text import plural
from fedlgd.runs.parse import read_toml

DISCLOSURES = ("counts", "scores", "seconds")
SETTING_PATH = re.compile(r"[a-z0-9_]+(\.[a-z0-9_]+)*")
CODE_NAME = re.compile(r"[\w.]+:\w+")  # package.module:Class


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

    def refusal(self, path: str, settings: Mapping[str, Any]) -> str:
        if path not in settings:
            return f"the run has no setting {path}, which this site requires" if self.required else ""
        value = settings[path]
        if self.values:
            allowed = any(type(value) is type(v) and value == v for v in self.values)
            return "" if allowed else f"{path} is {value!r}; allowed: {', '.join(map(repr, self.values))}"
        if isinstance(value, bool) or not isinstance(value, int | float):
            return f"{path} is {value!r}; this site allows numbers only"
        if self.least is not None and not value >= self.least:
            return f"{path} is {value}; this site allows {self.least} or more"
        if self.most is not None and not value <= self.most:
            return f"{path} is {value}; this site allows {self.most} or less"
        return ""


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
                raise SettingError(f"{where} has no {name}; add it, for example from a new kit")
        if type(given["rounds"]) is not int or given["rounds"] < 0:
            raise SettingError(f"{where}: rounds is {given['rounds']!r}; give a number of rounds, 0 or more")
        disclose = _words(where, "disclose", given["disclose"])
        _refuse_unknown(f"{where}: disclose", disclose, DISCLOSURES)
        bounds = given.get("settings", {})
        if not isinstance(bounds, Mapping):
            raise SettingError(f"{where}: settings is {bounds!r}; write a section [settings]")
        return cls(
            methods=_words(where, "methods", given["methods"]),
            nets=_words(where, "nets", given["nets"]),
            rounds=given["rounds"],
            disclose=frozenset(disclose),
            settings={path: _bound(where, path, bound) for path, bound in _leaves(bounds)},
        )

    def refusal(self, asked: Asked) -> str:
        """Why this site refuses what is asked; empty if it is allowed."""
        if not _listed(asked.method, self.methods):
            return f"method {asked.method!r} is not allowed here; allowed: {', '.join(self.methods) or 'none'}"
        if not _listed(asked.net, self.nets):
            return f"net {asked.net!r} is not allowed here; allowed: {', '.join(self.nets) or 'none'}"
        if not 0 <= asked.rounds <= self.rounds:
            return f"the run has {plural(asked.rounds, 'round')}; this site allows {self.rounds} or less"
        if not -1 <= asked.round < asked.rounds:
            return f"round {asked.round} is not a round of a run with {plural(asked.rounds, 'round')}"
        refusals = (bound.refusal(path, asked.settings) for path, bound in self.settings.items())
        return next(filter(None, refusals), "") or self._refuse_unlisted(asked.settings)

    def _refuse_unlisted(self, settings: Mapping[str, Any]) -> str:
        """Values that run code, or remove the protection of noise, are allowed only if they are listed."""
        for path, value in settings.items():
            if not isinstance(value, str) or (path in self.settings and value in self.settings[path].values):
                continue
            if CODE_NAME.fullmatch(value):
                return f"{path} is {value!r}, which would run code; list the value in [settings] to allow it"
            if value and path.rpartition(".")[2] == "test_key":
                return f"{path} is {value!r}: everyone could compute the noise of this site; leave it empty"
        return ""


def _listed(name: str, patterns: Sequence[str]) -> bool:
    """Patterns do not match names that import code; those are listed literally."""
    return name in patterns or (":" not in name and any(fnmatchcase(name, pattern) for pattern in patterns))


def _words(where: str, name: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
        raise SettingError(f"{where}: {name} is {value!r}; give a list of names in quotes")
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
        raise SettingError(f'{where}: {path!r} is not the name of a setting; write for example "distil.per_class"')
    if isinstance(given, list) and given:
        return Bound(values=tuple(given))
    if not isinstance(given, Mapping) or not given:
        raise SettingError(
            f"{where}: {path} is {given!r}; give a list of allowed values, or {{min = ..., max = ...}}"
        )
    _refuse_unknown(f"{where}: {path}", given, ("min", "max", "values", "required"))
    for side in ("min", "max"):
        if side in given and (isinstance(given[side], bool) or not isinstance(given[side], int | float)):
            raise SettingError(f"{where}: {side} of {path} is {given[side]!r}; give a number")
    if not isinstance(given.get("required", False), bool):
        raise SettingError(f"{where}: required of {path} is {given['required']!r}; use true or false")
    return Bound(
        values=tuple(given.get("values", ())),
        least=given.get("min"),
        most=given.get("max"),
        required=given.get("required", False),
    )


def _refuse_unknown(where: str, given: Sequence[str] | Mapping[str, Any], known: Sequence[str]) -> None:
    for word in given:
        if word not in known:
            hint = did_you_mean(word, known) or f"; available: {', '.join(known)}"
            raise SettingError(f"{where}: {word!r} is unknown{hint}")


MAX_LINE_LETTERS = 10_000  # letters of a line


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
