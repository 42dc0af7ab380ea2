"""The data home, what a suite is, and the built-in suites by name. This module does not import torch, so that
`fedlgd data list` answers at once.

A suite is a class of settings that opens a federation. A suite of your own is named `package.module:Class`.
"""

import inspect
import os
from dataclasses import MISSING, dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Protocol

from platformdirs import user_cache_dir

from fedlgd.core.errors import DataError
from fedlgd.core.plugins import import_object
from fedlgd.core.settings import Settings

if TYPE_CHECKING:
    from fedlgd.data.federation import Federation

HOME_VARIABLE = "FEDLGD_DATA"
COMMON = ("name", "limit", "test_limit")  # settings that every federation has


def data_home() -> Path:
    """The directory named by FEDLGD_DATA, else the user's cache directory. It may not exist yet."""
    chosen = os.environ.get(HOME_VARIABLE)
    return Path(chosen).expanduser() if chosen else Path(user_cache_dir("fedlgd"))


class Opens(Protocol):
    """The settings of a suite: a frozen dataclass with a default for every field, which opens a federation."""

    def open(self) -> "Federation": ...


@dataclass(frozen=True, kw_only=True)
class SuiteSettings(Settings):
    """Base of the settings of a suite."""

    section: ClassVar[str] = "data"


@dataclass(frozen=True)
class Suite:
    """A named federation. The class of its settings, `source`, is imported on first use.

    files: what it needs in the data home. fetch: the data sets to ask `fedlgd data fetch` for. public: whether
    anyone may see its images.
    """

    about: str
    source: str
    files: tuple[str, ...] = ()
    fetch: str = ""
    public: bool = False

    @property
    def settings(self) -> type[Opens]:
        cls: type[Opens] = import_object(self.source, "the data suite", DataError)
        return cls

    @property
    def missing(self) -> list[str]:
        """Files it needs that are not in the data home."""
        return [file for file in self.files if not (data_home() / file).exists()]


def own_suite(spec: str) -> Suite:
    """The suite behind `package.module:Class`; a `DataError` says what the class lacks."""
    cls = import_object(spec, "the data suite", DataError)
    if not (isinstance(cls, type) and is_dataclass(cls) and callable(getattr(cls, "open", None))):
        raise DataError(
            f"{spec!r} is not a data suite; a suite is a frozen dataclass with a method open() "
            "that returns a Federation, for example from fedlgd.from_arrays"
        )
    required = [f.name for f in fields(cls) if f.default is MISSING and f.default_factory is MISSING]
    if required:
        raise DataError(f"data suite {spec!r} has no default for {', '.join(required)}; give every field a default")
    if taken := [f.name for f in fields(cls) if f.name in COMMON]:
        raise DataError(f"data suite {spec!r} has a field {taken[0]!r}, which every suite has already; rename it")
    return Suite((inspect.getdoc(cls) or spec).splitlines()[0], spec)


SUITES: dict[str, Suite] = {
    "builtin-digits": Suite(
        "five digit sites with real domain shift, 28x28 RGB, made from images inside PyPI packages",
        "fedlgd.data.builtin.digits:BuiltinDigits",
        public=True,
    ),
    "digits": Suite(
        "the paper's five digit sites: MNIST, SVHN, USPS, SynthDigits (or a stand-in, marked as such), MNIST-M",
        "fedlgd.data.published.digits:Digits",
        ("mnist.npz", "svhn.npz", "usps.npz", "mnist_m.npz"),
        "digits",
        public=True,
    ),
    "cifar10c": Suite(
        "57 sites: the 19 corruptions of CIFAR-10-C, three sites each with label shift; generated here or official",
        "fedlgd.data.published.cifar10c:Cifar10C",
        ("cifar10_test.npz",),
        "cifar10",
        public=True,
    ),
    "split": Suite(
        "one prepared domain partitioned among sites: evenly, by Dir(alpha), by size or in shards",
        "fedlgd.data.published.split:Split",
        ("mnist.npz",),
        "mnist",
    ),
    "retina": Suite(
        "glaucoma against normal, 96x96, at the paper's four eye clinics or any others in the data home",
        "fedlgd.data.published.retina:Retina",
        ("retina",),
        "retina",
    ),
    "retina-ab": Suite(
        "glaucoma against normal, 96x96, at two real sites that are not the paper's",
        "fedlgd.data.published.retina:RetinaPair",
        ("retina_a.npz", "retina_b.npz"),
    ),
    "folders": Suite(
        "your own images, one folder per site: fedlgd run --data DIR", "fedlgd.data.own.suite:Folders"
    ),
    "real-sites": Suite(
        "images at real sites, which keep them: fedlgd run --engine flower --kit KIT",
        "fedlgd.deploy.real_sites:RealSites",
    ),
}
