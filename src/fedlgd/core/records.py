"""What is reported of a round, and how it is read back. This module imports no torch.

A run folder appends one JSON line a round to `records.jsonl`; a line counts once `state/head.json` says so.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from fedlgd.core.files import digest, read_json, reading, refuse_links

RECORDS = "records.jsonl"


@dataclass(frozen=True, slots=True)
class Score:
    """How a model does on one labelled set, with the counts behind the accuracy.

    `auc` is the area under the ROC curve of the second of two classes; None with more classes or only one there.
    """

    accuracy: float
    loss: float
    correct: tuple[int, ...]
    total: tuple[int, ...]
    auc: float | None = None

    @property
    def balanced(self) -> float:
        """Mean over the classes that have images of the share that is right: not lifted by a large class."""
        shares = [right / all_ for right, all_ in zip(self.correct, self.total, strict=True) if all_]
        return sum(shares) / len(shares)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRecord:
    """All that is reported of one round; `round` -1 is the enrolment before the first.

    Seconds and FLOPs are by phase: distil, train, server, evaluate. Flags say what moved: "virtual", "anchors".
    """

    round: int
    sampled: tuple[str, ...] = ()
    scores: Mapping[str, Score] = field(default_factory=dict)
    metrics: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    bytes_up: int = 0
    bytes_down: int = 0
    seconds: Mapping[str, float] = field(default_factory=dict)
    flops: Mapping[str, int] = field(default_factory=dict)
    flags: tuple[str, ...] = ()

    @property
    def accuracy(self) -> float:
        """Unweighted mean over sites: the headline number; NaN in a round that was not scored."""
        if not self.scores:
            return math.nan
        return sum(s.accuracy for s in self.scores.values()) / len(self.scores)


def encode_record(record: RoundRecord) -> bytes:
    """One line; JSON has no NaN and no infinity, so such a loss is written as null."""
    return msgspec.json.encode(record) + b"\n"


def decode_record(line: bytes) -> RoundRecord:
    """A loss that is null is read as NaN."""
    raw = json.loads(line)
    for score in raw["scores"].values():
        score["loss"] = math.nan if score["loss"] is None else score["loss"]
    return msgspec.convert(raw, RoundRecord)


def committed_bytes(folder: Path) -> bytes:
    """The committed part of a run's records, checked; all of them in a folder that was copied without its state."""
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
    """The committed records of a run, oldest first; none where there is no run yet."""
    return decode_records(folder, committed_bytes(folder))


def decode_records(folder: Path, content: bytes) -> list[RoundRecord]:
    with reading(folder / RECORDS):
        return [decode_record(line) for line in content.splitlines()]
