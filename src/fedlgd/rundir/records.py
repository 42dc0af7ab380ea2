"""The record of a round, and the reader of records. This module does not import torch.

A run folder has one JSON line per round in `records.jsonl`; `state/head.json` states which lines are committed.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean

import msgspec

from fedlgd.core.files import digest, read_json, reading, refuse_links
from fedlgd.core.score import Score

RECORDS = "records.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRecord:
    """The record of one round; `round` -1 is the enrolment before the first round.

    Costs are by phase (distil, train, server, evaluate): `seconds` is wall time, which on a busy machine includes
    waiting; `cpu` is the CPU time of the processes that did the work, empty in older records. It does not measure
    the work of a GPU. Flags say what moved: "virtual", "anchors".
    `sampled` are the sites that were asked, `refused` those among them without a valid update, with the reason.
    `unscored` are sites without a score in a round that was evaluated, with the reason. `joined` are sites that
    enrolled in this round: late, or again because their state was lost.
    """

    round: int
    sampled: tuple[str, ...] = ()
    scores: Mapping[str, Score] = field(default_factory=dict)
    metrics: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    bytes_up: int = 0
    bytes_down: int = 0
    seconds: Mapping[str, float] = field(default_factory=dict)
    cpu: Mapping[str, float] = field(default_factory=dict)
    flops: Mapping[str, int] = field(default_factory=dict)
    flags: tuple[str, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)
    unscored: Mapping[str, str] = field(default_factory=dict)
    joined: tuple[str, ...] = ()

    @property
    def accuracy(self) -> float:
        """Unweighted mean over sites, the main result; NaN in a round that was not evaluated."""
        if not self.scores:
            return math.nan
        return sum(s.accuracy for s in self.scores.values()) / len(self.scores)

    @property
    def training_loss(self) -> float:
        """Mean over the sampled sites of the mean loss during training; NaN if no site was trained."""
        losses = [metrics["loss"] for metrics in self.metrics.values() if "loss" in metrics]
        return fmean(losses) if losses else math.nan


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


def committed_bytes(folder: Path) -> bytes:
    """The verified bytes of the committed records; all bytes if the folder was copied without its `state/`."""
    refuse_links(folder)
    file, head = folder / RECORDS, folder / "state" / "head.json"
    if not head.exists():
        return b"" if head.parent.exists() or not file.exists() else file.read_bytes()
    written = read_json(head)
    with reading(head):
        wanted = written["records"]["bytes"], written["records"]["digest"]
        if not isinstance(wanted[0], int) or wanted[0] < 0:
            raise ValueError(f"it counts {wanted[0]!r} bytes of records")
    with reading(file):
        content = file.read_bytes()[: wanted[0]]
        if digest(content) != wanted[1]:
            raise ValueError("the records are not those that were committed")
    return content


def committed_records(folder: Path) -> list[RoundRecord]:
    """The committed records of a run, oldest first; empty if there is no run yet."""
    return decode_records(folder, committed_bytes(folder))


def decode_records(folder: Path, content: bytes) -> list[RoundRecord]:
    with reading(folder / RECORDS):
        return [decode_record(line) for line in content.splitlines()]
