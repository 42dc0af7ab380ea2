"""The published data sets of `sources.toml`: their files, their terms, and what they are prepared into."""

import tomllib
from dataclasses import dataclass
from pathlib import Path

import msgspec


@dataclass(frozen=True, slots=True, kw_only=True)
class Original:
    """One file as its authors publish it. hash: "md5:..." or "sha256:...", "" if unknown; size 0: unknown."""

    name: str
    urls: tuple[str, ...] = ()
    hash: str = ""
    size: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """One data set: its terms, its files, the prepared files below the data home, and their total size (`room`).

    counts: the numbers of training and test images of each published release. by_hand: how to get it manually.
    optional: whether its group is complete without it.
    """

    name: str
    group: str = ""
    optional: bool = False
    what: str
    terms: str
    page: str
    files: tuple[Original, ...] = ()
    makes: tuple[str, ...]
    room: int = 0
    counts: tuple[tuple[int, int], ...] = ()
    by_hand: str = ""


DATASETS: dict[str, Dataset] = {
    source["name"]: msgspec.convert(source, Dataset)
    for source in tomllib.loads(Path(__file__).with_name("sources.toml").read_text(encoding="utf-8"))["source"]
}
GROUPS = {
    group: tuple(source for source in DATASETS.values() if source.group == group)
    for group in ("digits", "cifar10c", "retina")
}
