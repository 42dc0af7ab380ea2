"""Tasks and answers as Flower messages, bit for bit.

A question is the run (`Order`) with tasks for one site; without tasks it asks the site to describe itself. Every
message starts a new process at a site, so the run travels with it. An answer repeats the digest of its question: an
answer to an earlier question is refused. States of sites are in neither of them.

    question  ConfigRecord "order": {"json": the order};        ArrayRecord "tasks": "0", "1", ...
    answer    ConfigRecord "reply": {"question": its digest};   ArrayRecord "answers": "0", "1", ...

The arrays are raw bytes in the format of `wire`; Flower sends them in chunks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fedlgd.core.files import MALFORMED, digest
from fedlgd.engines.site import Task
from fedlgd.engines.validate import Refused
from fedlgd.engines.wire import from_bytes, to_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """The run that a task belongs to: an id for the states of the sites, the text of its `config.toml`, the names
    of the classes in their order, the shape of an image, and the digests of the code of a user's own."""

    run: str
    config: str
    classes: tuple[str, ...] = ()
    shape: tuple[int, ...] = ()
    sources: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """What a site tells about itself before a run. `images`: how many to train and test on, if it discloses that.
    `fault`: why it does not take part."""

    site: str
    classes: tuple[str, ...]
    shape: tuple[int, int, int]
    images: tuple[int, int] | None = None
    fault: str = ""


def question(order: Order, tasks: Sequence[Task]) -> RecordDict:
    head = ConfigRecord({"json": msgspec.json.encode(order)})
    return RecordDict({"order": head, "tasks": _parcel([to_bytes(task) for task in tasks])})


def read_question(content: RecordDict) -> tuple[Order, list[Task]]:
    try:
        order = msgspec.json.decode(_bytes(content["order"]["json"]), type=Order)
        return order, [from_bytes(Task, part, strict=True) for part in _contents(content, "tasks")]
    except MALFORMED as error:
        raise Refused("question-unreadable", error=error) from error


def question_digest(content: RecordDict) -> str:
    """Identifies a question by its content."""
    return digest(_bytes(content["order"]["json"]), *_contents(content, "tasks"))


def reply(asked: RecordDict, answers: Sequence[bytes]) -> RecordDict:
    """The answer to a question; `answers` are encoded."""
    head = ConfigRecord({"question": question_digest(asked)})
    return RecordDict({"reply": head, "answers": _parcel(answers)})


def read_reply(content: RecordDict, asked: str, kind: type[Any], count: int, limit: int) -> list[Any]:
    """The answers of type `kind` to the question with digest `asked`, of at most `limit` bytes."""
    try:
        found = content["reply"]["question"]
        parts = _contents(content, "answers")
    except MALFORMED as error:
        raise Refused("reply-unreadable", error=error) from error
    if found != asked:
        raise Refused("reply-to-another-question")
    if len(parts) != count:
        raise Refused("reply-count", answers=len(parts), tasks=count)
    if (size := sum(map(len, parts))) > limit:
        raise Refused("reply-too-large", size=size, limit=limit)
    try:
        return [from_bytes(kind, part, strict=True) for part in parts]
    except MALFORMED as error:
        raise Refused("reply-unreadable", error=error) from error


def _parcel(parts: Sequence[bytes]) -> ArrayRecord:
    arrays = [Array(dtype="uint8", shape=(len(part),), stype="fedlgd", data=part) for part in parts]
    return ArrayRecord({str(i): array for i, array in enumerate(arrays)})


def _contents(content: RecordDict, name: str) -> list[bytes]:
    record = content[name]
    if not isinstance(record, ArrayRecord):
        raise TypeError(f"{name} is a {type(record).__name__}")
    return [record[str(i)].data for i in range(len(record))]


def _bytes(value: object) -> bytes:
    if not isinstance(value, bytes):
        raise TypeError(f"a {type(value).__name__} stands where bytes are expected")
    return value
