"""The record of a round, and the reader of records. This module does not import torch.

A run folder has one JSON line per round in `records.jsonl`; `state/head.json` states which lines are committed.
"""

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Annotated

import msgspec

from fedlgd.core.errors import RunError
from fedlgd.core.files import digest, read_json, reading
from fedlgd.core.score import Score

RECORDS = "records.jsonl"
MAX_NAMED = 5  # sites that a limit of the mean names
OURS = ("state", "virtual", "real", "audit", "invert")  # folders in a run folder, also `invert-2`; others: trackers


@dataclass(frozen=True, slots=True, kw_only=True)
class SentPart:
    """The part of the messages of a round under one path of their messages, such as `trees/prototypes`.

    tensors: in one message. form: of a single one, such as `float32 (10, 64)`. bytes: of all `sites` together.
    """

    tensors: int
    form: str
    bytes: int
    sites: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRecord:
    """The record of one round; `round` -1 is the enrolment before the first round.

    `wall` is the time from the start to the end of the round, in seconds; 0 in older records. Costs are by phase
    (distil, train, server, evaluate): `seconds` is the wall time of the work of all sites and of the server, added
    up also if sites work at the same time; on a busy machine it includes waiting. `cpu` is the CPU time of the
    processes that did the work, empty in older records. It does not measure the work of a GPU. Flags say what
    moved: "virtual", "anchors".
    `sampled` are the sites that were asked, `refused` those among them without a valid update, with the reason.
    `unscored` are sites without a score in a round that was evaluated, with the reason. `joined` are sites that
    enrolled in this round: late, or again because their state was lost.
    `readers` is the number of sites at which the method read private training images. `sent` is what the messages
    of the enrolment and of the first rounds had, by path.
    """

    round: int
    sampled: tuple[str, ...] = ()
    scores: Mapping[str, Score] = field(default_factory=dict)
    metrics: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    bytes_up: int = 0
    bytes_down: int = 0
    wall: float = 0.0
    seconds: Mapping[str, float] = field(default_factory=dict)
    cpu: Mapping[str, float] = field(default_factory=dict)
    flops: Mapping[str, int] = field(default_factory=dict)
    flags: tuple[str, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)
    unscored: Mapping[str, str] = field(default_factory=dict)
    joined: tuple[str, ...] = ()
    readers: int = 0
    sent: Mapping[str, SentPart] = field(default_factory=dict)

    @property
    def accuracy(self) -> float:
        """Unweighted mean over sites, the main result; NaN in a round that was not evaluated."""
        if not self.scores:
            return math.nan
        return sum(s.accuracy for s in self.scores.values()) / len(self.scores)

    @property
    def limits_of_mean(self) -> str:
        """What the mean over sites does not show: sites without a score, and sites where any model that predicts
        one class is right; empty if there are none."""
        asked = len(self.scores) + len(self.unscored)
        some = f"over {len(self.scores)} of {asked} sites" if self.scores and self.unscored else ""
        one = [site for site, score in self.scores.items() if len(score.total) > sum(map(bool, score.total)) == 1]
        more = f" and {len(one) - MAX_NAMED} more" if len(one) > MAX_NAMED else ""
        named = f"test images of one class only: {', '.join(one[:MAX_NAMED])}{more}" if one else ""
        return "; ".join(filter(None, (some, named)))

    @property
    def training_loss(self) -> float:
        """Mean over the sampled sites of the mean loss during training; NaN if no site was trained."""
        losses = [metrics["loss"] for metrics in self.metrics.values() if "loss" in metrics]
        return fmean(losses) if losses else math.nan


@dataclass(frozen=True, slots=True)
class Written:
    """The committed part of the records, in `state/head.json`."""

    bytes: Annotated[int, msgspec.Meta(ge=0)]
    digest: str


def in_order(record: RoundRecord, names: Sequence[str]) -> RoundRecord:
    """The record with its scores in the order of `names`, which is the order of tables; files have any order."""
    return replace(record, scores={name: record.scores[name] for name in names if name in record.scores})


def encode_record(record: RoundRecord) -> bytes:
    """One line. JSON has no NaN and no infinity: such a loss or metric is written as null."""
    return msgspec.json.encode(record) + b"\n"


def decode_record(line: bytes) -> RoundRecord:
    """Parse one line; a loss or a metric that is null becomes NaN."""
    raw = json.loads(line)
    for score in raw["scores"].values():
        score["loss"] = math.nan if score["loss"] is None else score["loss"]
    for metrics in raw.get("metrics", {}).values():
        metrics.update({name: math.nan for name, value in metrics.items() if value is None})
    return msgspec.convert(raw, RoundRecord)


def refuse_links(folder: Path) -> None:
    """Refuse a run folder in which a link or a special file leads out: what it names may be anyone's file."""
    folders = [folder] if folder.is_dir() else []
    with reading(folder):
        while folders:
            inside = folders.pop()
            for entry in sorted(os.scandir(inside), key=lambda each: each.name):
                if entry.is_dir(follow_symlinks=False):
                    ours = inside != folder or entry.name.partition("-")[0] in OURS
                    folders += [Path(entry.path)] if ours else []
                elif not entry.is_file(follow_symlinks=False) and os.path.lexists(entry.path):
                    kind = "a symbolic link" if entry.is_symlink() else "a special file"
                    raise RunError("no-ordinary-file", path=entry.path, kind=kind)


def committed_bytes(folder: Path) -> bytes:
    """The verified bytes of the committed records; all bytes if the folder was copied without its `state/`."""
    refuse_links(folder)
    file, head = folder / RECORDS, folder / "state" / "head.json"
    if not head.exists():
        return b"" if head.parent.exists() or not file.exists() else file.read_bytes()
    with reading(head):
        written = msgspec.convert(read_json(head)["records"], Written)
    with reading(file):
        content = file.read_bytes()[: written.bytes]
        if digest(content) != written.digest:
            raise ValueError("the records are not those that were committed")
    return content


def committed_records(folder: Path) -> list[RoundRecord]:
    """The committed records of a run, oldest first; empty if there is no run yet."""
    return decode_records(folder, committed_bytes(folder))


def decode_records(folder: Path, content: bytes) -> list[RoundRecord]:
    with reading(folder / RECORDS):
        return [decode_record(line) for line in content.splitlines()]
