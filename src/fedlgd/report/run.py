"""A run as the report sees it: what was asked, where it comes from, and what each round gave."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, Literal

import msgspec


@dataclass(frozen=True, slots=True)
class Score:
    """How the model of one round does on the test images of one site, with the counts by class behind it.

    A diverged loss may be missing; the area under the ROC curve is there for two classes only."""

    accuracy: float
    loss: float | None = None
    correct: tuple[int, ...] = ()
    total: tuple[int, ...] = ()
    auc: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One line of `records.jsonl`; round -1 is the enrolment."""

    round: int
    scores: Mapping[str, Score] = field(default_factory=dict)
    bytes_up: int = 0
    bytes_down: int = 0
    seconds: Mapping[str, float] = field(default_factory=dict)
    flops: Mapping[str, float] = field(default_factory=dict)
    sampled: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()

    @property
    def accuracy(self) -> float:
        """Unweighted mean over sites."""
        return fmean(score.accuracy for score in self.scores.values())

    @property
    def loss(self) -> float:
        """Unweighted mean over sites; not a number when a site has no finite loss."""
        losses = [math.nan if score.loss is None else score.loss for score in self.scores.values()]
        return fmean(losses) if all(map(math.isfinite, losses)) else math.nan


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteInfo:
    """A site as the manifest describes it; `folder` names its virtual images on disk."""

    name: str
    folder: str
    train: int
    test: int
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataInfo:
    """The federation a run was trained on."""

    name: str
    digest: str
    shape: tuple[int, ...]
    classes: tuple[str, ...]
    sites: tuple[SiteInfo, ...]
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NetInfo:
    """The network and its size."""

    label: str
    parameters: int
    flops: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What `manifest.json` says of where a run comes from. Runs with the same label are seeds of one another.

    A run that does not compete (personalised models, all data in one place) is shown beside the others, never best.
    """

    label: str
    method: str
    command: str
    threads: int
    versions: Mapping[str, str]
    data: DataInfo
    net: NetInfo
    competes: bool = True


@dataclass(frozen=True, slots=True)
class Sheet:
    """A contact sheet of virtual images: one row per class, one column per image."""

    folder: str
    version: str
    path: Path


@dataclass(frozen=True, slots=True)
class Distance:
    """How far each site's virtual set was from the anchors after one round."""

    round: int
    sites: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Cloud:
    """Where the map puts some images of one site, or the anchors."""

    kind: Literal["real", "virtual", "anchors"]
    site: str
    points: Annotated[tuple[tuple[float, float], ...], msgspec.Meta(min_length=1)]


Matrix = tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """`analysis.json`: how alike the sites are, by `images` images of each; matrices by "real" and "virtual"."""

    distances: tuple[Distance, ...] = ()
    sites: tuple[str, ...] = ()
    images: int = 0
    mmd: Mapping[Literal["real", "virtual"], Matrix] = field(default_factory=dict)
    map: tuple[Cloud, ...] = ()

    def __post_init__(self) -> None:
        size = len(self.sites)
        for kind, matrix in self.mmd.items():
            if [len(row) for row in matrix] != [size] * size:
                raise ValueError(f"mmd.{kind} is not {size} by {size}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run directory as far as it was written. `samples`: contact sheets of real images by folder;
    `damage`: what could not be read and is left out."""

    path: Path
    config: str
    settings: Mapping[str, Any]
    seed: int
    planned: int
    manifest: Manifest
    records: tuple[Round, ...] = ()
    cut: bool = False
    sheets: tuple[Sheet, ...] = ()
    samples: Mapping[str, Path] = field(default_factory=dict)
    analysis: Analysis | None = None
    audit: Mapping[str, Any] = field(default_factory=dict)
    damage: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        return self.manifest.label

    @property
    def done(self) -> int:
        """How many rounds are on record."""
        return sum(record.round >= 0 for record in self.records)

    @property
    def finished(self) -> bool:
        return self.done >= self.planned and not self.cut

    @property
    def evaluated(self) -> tuple[Round, ...]:
        return tuple(record for record in self.records if record.scores)

    @property
    def final(self) -> Round | None:
        """The last evaluated round."""
        return self.evaluated[-1] if self.evaluated else None


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A directory that was asked for and why it could not be read."""

    path: Path
    why: str
