"""What a suite is: settings that open a federation. A suite of your own is named `package.module:Class`.

This module does not import torch.
"""

import inspect
from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

from fedlgd.core.errors import DataError
from fedlgd.core.settings import Settings
from fedlgd.core.suggest import own_class
from fedlgd.data.home import data_home

if TYPE_CHECKING:
    from fedlgd.data.federation import Federation

COMMON = ("name", "limit", "test_limit")  # settings that every federation has


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
        cls: type[Opens] = own_class(self.source, "the data suite", DataError)
        return cls

    @property
    def missing(self) -> list[str]:
        """Files it needs that are not in the data home."""
        return [file for file in self.files if not (data_home() / file).exists()]


def own_suite(spec: str) -> Suite:
    """The suite behind `package.module:Class`; a `DataError` says what the class lacks."""
    cls = own_class(spec, "the data suite", DataError)
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
