"""The manifest of a run: what it is a run of, written at its start. No torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import msgspec

Positive = Annotated[int, msgspec.Meta(ge=1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteInfo:
    """A site in the manifest; `folder` is the file name of its images."""

    name: str
    folder: str
    train: int
    test: int
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataInfo:
    """The federation a run was trained on; `shape` is channels, height, width."""

    name: str
    digest: str
    shape: tuple[Positive, Positive, Positive]
    classes: tuple[str, ...]
    sites: tuple[SiteInfo, ...]
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NetInfo:
    """The network, its size, and the FLOPs of one forward pass of one image."""

    label: str
    parameters: int
    flops: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineInfo:
    """Where the work was done."""

    device: str = "cpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The content of `manifest.json` that the report uses.

    A run that does not compete (personalised models, pooled data) is shown beside the others and never marked best.
    """

    label: str
    method: str
    command: str
    threads: int
    versions: Mapping[str, str]
    data: DataInfo
    net: NetInfo
    competes: bool = True
    engine: EngineInfo = EngineInfo()
