"""Results that stand beside the records of a run: audits, inversions, the analysis, and pictures. No torch.

Results of one kind are numbered: `audit.json`, `audit-2.json`, and so on. Pictures are contact sheets; the text
chunks of a file say which classes its rows are, and by which number its values were divided for display.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from numpy.typing import ArrayLike
from PIL import Image, PngImagePlugin

from fedlgd.core.files import private_folder, write_atomic, writing
from fedlgd.rundir.manifest import Positive, Promise

AUDIT = "audit"  # the kind of its files
AUDIT_FORMAT = 1
PAPER_GREY = 255
RATES = (0.01, 0.001)  # false positive rates at which true positives are reported

Matrix = tuple[tuple[float, ...], ...]
Interval = tuple[float, float, float]
"""Low end, value, high end of a 95 % interval."""

Kind = Literal["run", "blind", "baseline", "positive"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One attack: which target, by which statistic, and how often it was right.

    kind: the audited `run`, or a control: `blind` (a release that saw neither side), a `baseline`, or `positive`
    (must leak). tpr: true positive rate by false positive rate; None: not measurable with so few images. exact: its
    Clopper-Pearson interval. roc: false positive rate, true positive rate, low, high. worst: the 99th percentile of
    the area over single images. accuracy: of the attacked models, mean over sites.
    """

    label: str
    kind: Kind
    target: Literal["model", "virtual", "anchors", "updates", "releases", "uploads", "features"]
    statistic: str
    federations: int
    n_in: int
    n_out: int
    auc: Interval
    tpr: Mapping[str, Interval | None]
    exact: Mapping[str, tuple[float, float] | None]
    roc: tuple[tuple[float, float, float, float], ...] = ()
    accuracy: float | None = None
    epsilon_lower: float | None = None
    worst: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """All findings of one audit of one site of a run.

    unattacked: the kind of everything that the site sent and no attack looked at, by its path in the message.
    """

    format: int
    attack: Literal["rmia", "lira", "paper"]
    site: str
    images: int
    federations: int
    findings: tuple[Finding, ...]
    settings: Mapping[str, str | int | float | bool] = field(default_factory=dict)
    promised: Promise | None = None
    notes: tuple[str, ...] = ()
    unattacked: Mapping[str, str] = field(default_factory=dict)


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
class Memorised:
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
    memorisation: tuple[Memorised, ...] = ()
    promise: str = ""


def results_of(folder: Path, kind: str) -> list[Path]:
    """The files of this kind, the oldest first."""
    numbers = {file: _number(file.stem, kind) for file in folder.glob(f"{kind}*.json")}
    return sorted((file for file, number in numbers.items() if number), key=numbers.__getitem__)


def unused_file(folder: Path, kind: str) -> Path:
    """A file for one more result of this kind."""
    last = max((_number(file.stem, kind) for file in results_of(folder, kind)), default=0)
    return folder / (f"{kind}-{last + 1}.json" if last else f"{kind}.json")


def _number(name: str, kind: str) -> int:
    """1 for `kind`, 2 for `kind-2`; 0: not of this kind."""
    found = re.fullmatch(rf"{kind}(?:-([1-9][0-9]{{0,5}}))?", name)
    return int(found[1] or 1) if found else 0


def contact_sheet(pixels: ArrayLike, columns: int, gap: int = 0) -> Image.Image:
    """Images (n, 1 or 3, h, w) in rows of `columns`, with `gap` white pixels between; empty cells are white."""
    images = np.asarray(pixels, np.uint8)
    n, c, h, w = images.shape
    rows = -(-n // columns)
    cells = np.full((rows * columns, h + gap, w + gap, c), PAPER_GREY, np.uint8)
    cells[:n, :h, :w] = images.transpose(0, 2, 3, 1)
    grid = cells.reshape(rows, columns, h + gap, w + gap, c).swapaxes(1, 2)
    sheet = grid.reshape(rows * (h + gap), columns * (w + gap), c)[: -gap or None, : -gap or None]
    return Image.fromarray(sheet[..., 0] if c == 1 else sheet)


def write_class_sheet(
    root: Path, file: Path, pixels: ArrayLike, labels: ArrayLike, notes: Mapping[str, str] | None = None
) -> None:
    """The sheet of images with these labels; where a class has fewer than others, its row ends with blank ones."""
    images, own = np.asarray(pixels), np.asarray(labels)
    classes, counts = np.unique(own, return_counts=True)
    rows = np.full((len(classes), counts.max(), *images.shape[1:]), PAPER_GREY, np.uint8)
    for row, k, count in zip(rows, classes, counts, strict=True):
        row[:count] = images[own == k]
    write_sheet(root, file, rows.reshape(-1, *images.shape[1:]), classes.tolist(), notes)


def write_sheet(
    root: Path, file: Path, pixels: ArrayLike, classes: Sequence[int], notes: Mapping[str, str] | None = None
) -> None:
    """One row for each class. Pictures are made from private images: only this user can read them."""
    images = np.asarray(pixels)
    text = PngImagePlugin.PngInfo()
    for key, value in {"classes": " ".join(map(str, classes)), **(notes or {})}.items():
        text.add_text(key, value)
    sheet = contact_sheet(images, len(images) // len(classes))
    with writing(file):
        private_folder(root)
        private_folder(file.parent)
        write_atomic(file, partial(sheet.save, format="PNG", optimize=False, pnginfo=text), private=True)
