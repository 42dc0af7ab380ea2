"""Federations by name, each with settings of its own."""

from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar

from fedlgd.core.errors import DataError, SettingError, did_you_mean
from fedlgd.core.settings import Settings, setting
from fedlgd.data.builtin.digits import BuiltinDigits
from fedlgd.data.catalogue import COMMON, SUITES, Opens, Suite, own_suite
from fedlgd.data.federation import Federation, limited


@dataclass(frozen=True, kw_only=True)
class DataChoice(Settings):
    """Which federation, and how many of its images. Other settings belong to the suite, see `fedlgd data list`."""

    section: ClassVar[str] = "data"
    name: str = setting("builtin-digits", "Name of the suite, or package.module:Class for a suite of your own.")
    limit: int = setting(0, "At most this many training images per site; 0 for all.", least=0, most=10**9)
    test_limit: int = setting(0, "At most this many test images per site; 0 for all.", least=0, most=10**9)
    suite: Opens = field(default_factory=BuiltinDigits)

    def open(self) -> Federation:
        """The federation of these settings."""
        whole = self.suite.open()
        if not isinstance(whole, Federation):
            raise DataError(
                f"open() of data suite {self.name!r} returned {type(whole).__name__}; return a Federation, "
                "for example from fedlgd.from_arrays"
            )
        part = limited(whole, self.limit, self.test_limit) if self.limit or self.test_limit else whole
        return replace(part, public=is_public(self.name))


def is_public(name: str) -> bool:
    """Whether these images are published; a user's own suite, folders and clinics are not."""
    return name in SUITES and SUITES[name].public


def find(name: str) -> Suite:
    """The suite of this name, or the suite of a user's own behind `package.module:Class`."""
    if ":" in name:
        return own_suite(name)
    if name not in SUITES:
        hint = did_you_mean(name, SUITES)
        raise DataError(
            f"no data suite and no folder is called {name!r}{hint or ';'} available: {', '.join(SUITES)}, "
            "your own images in a folder, or package.module:Class for a suite of your own"
        )
    return SUITES[name]


def load(name: str, limit: int = 0, test_limit: int = 0, **settings: Any) -> Federation:
    """The named federation; `limit` and `test_limit` cap the images per site (0: all)."""
    cls: Any = find(name).settings
    known = [f.name for f in fields(cls)]
    for key in settings:
        if key not in known:
            hint, available = did_you_mean(key, known) or ";", ", ".join([*COMMON[1:], *known])
            raise SettingError(f"data suite {name!r} has no setting {key!r}{hint} available: {available}")
    return DataChoice(name=name, limit=limit, test_limit=test_limit, suite=cls(**settings)).open()


def from_folders(path: str | Path, limit: int = 0, test_limit: int = 0, **settings: Any) -> Federation:
    """Your own images as a federation: a folder with one folder per site, a .csv table, or prepared .npz files.

    Settings are those of the suite `folders`, such as size=64. `fedlgd data check` lists what is wrong.
    """
    return load("folders", limit, test_limit, path=str(path), **settings)
