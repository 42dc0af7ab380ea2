"""A run as the report sees it: its settings, its manifest, its records and its images."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from fedlgd.core.settings import Tuned
from fedlgd.rundir.audits import Audit
from fedlgd.rundir.records import RoundRecord

Positive = Annotated[int, msgspec.Meta(ge=1)]
Matrix = tuple[tuple[float, ...], ...]


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


@dataclass(frozen=True, slots=True)
class Sheet:
    """A contact sheet of virtual images: one row per class, one column per image."""

    folder: str
    version: str
    path: Path


@dataclass(frozen=True, slots=True)
class Distance:
    """The distance of each site's virtual set to the anchors after one round."""

    round: int
    sites: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Cloud:
    """The t-SNE coordinates of some images of one site, or of the anchors, and their classes if recorded."""

    kind: Literal["real", "virtual", "anchors"]
    site: str
    points: Annotated[tuple[tuple[float, float], ...], msgspec.Meta(min_length=1)]
    labels: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """The content of `analysis.json`: how similar the sites are, measured on `images` images of each."""

    distances: tuple[Distance, ...] = ()
    sites: tuple[str, ...] = ()
    images: int = 0
    mmd: Mapping[Literal["real", "virtual"], Matrix] = field(default_factory=dict)
    map: tuple[Cloud, ...] = ()

    def __post_init__(self) -> None:
        size = len(self.sites)
        for kind, matrix in self.mmd.items():
            if not size or [len(row) for row in matrix] != [size] * size:
                raise ValueError(f"mmd.{kind} is not {size} by {size}")

    def ordered(self, names: Sequence[str]) -> "Analysis":
        """The same with the sites in the order of `names`, which is that of all tables; others follow."""

        def place(site: str) -> int:
            return names.index(site) if site in names else len(names)

        order = sorted(range(len(self.sites)), key=lambda at: place(self.sites[at]))
        return Analysis(
            distances=tuple(
                Distance(each.round, {site: each.sites[site] for site in sorted(each.sites, key=place)})
                for each in self.distances
            ),
            sites=tuple(self.sites[at] for at in order),
            images=self.images,
            mmd={kind: tuple(tuple(rows[i][j] for j in order) for i in order) for kind, rows in self.mmd.items()},
            map=tuple(sorted(self.map, key=lambda cloud: place(cloud.site))),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Attacked:
    """Gradient inversion of some updates: how often and how well their images were found."""

    title: str
    round: int
    batch: int
    images: Positive
    identified: float
    interval: tuple[float, float]
    chance: float
    rank: float
    candidates: int
    psnr: float
    psnr_aligned: float
    feature_distance: float
    picture: str
    ssim: float | None = None
    nearer_training: float | None = None
    expected: float | None = None
    p_value: float | None = None
    distance_training: float | None = None
    distance_held_out: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """How near the images of a virtual set, or the anchors, are to training images of a site."""

    what: str
    site: str
    round: int
    images: int
    nearer_training: float
    expected: float
    p_value: float
    closest: tuple[float, ...]
    picture: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InversionSettings:
    """The attacked site, whether its pictures may be shown, and what else tells results apart.

    of: the number of finished rounds of the run.
    """

    site: str
    show: bool
    attack: Mapping[str, Any] = field(default_factory=dict)
    batches: tuple[int, ...] = ()
    targets: int = 0
    rounds: tuple[int, ...] = ()
    seed: int = 0
    of: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Inversion:
    """The content of `invert.json` and its like."""

    settings: InversionSettings
    cells: Mapping[str, Attacked]
    memorisation: tuple[Memory, ...] = ()
    promise: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run folder. `samples`: contact sheets of real images by folder; `damage`: files that cannot be shown.

    Audits and inversions are by the name of their file, without `.json`.
    """

    path: Path
    config: str
    settings: Mapping[str, Any]
    seed: int
    planned: int
    manifest: Manifest
    records: tuple[RoundRecord, ...] = ()
    sheets: tuple[Sheet, ...] = ()
    samples: Mapping[str, Path] = field(default_factory=dict)
    analysis: Analysis | None = None
    audits: Mapping[str, Audit] = field(default_factory=dict)
    inversions: Mapping[str, Inversion] = field(default_factory=dict)
    damage: tuple[str, ...] = ()
    tuned: Tuned | None = None

    @property
    def label(self) -> str:
        return self.manifest.label

    @property
    def done(self) -> int:
        """The number of completed rounds."""
        return sum(record.round >= 0 for record in self.records)

    @property
    def finished(self) -> bool:
        return self.done >= self.planned

    @property
    def has_cpu_time(self) -> bool:
        """Is CPU time known for all the work, and was it done by processors?"""
        known = all(record.seconds.keys() <= record.cpu.keys() for record in self.records)
        return known and self.manifest.engine.device == "cpu"

    @property
    def evaluated(self) -> tuple[RoundRecord, ...]:
        return tuple(record for record in self.records if record.scores)

    @property
    def final(self) -> RoundRecord | None:
        """The last evaluated round."""
        return self.evaluated[-1] if self.evaluated else None
