"""Replies of sites that arrive slowly, are damaged or too large, or name another sender."""

from types import SimpleNamespace
from typing import Any

import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.common.serde import message_to_proto
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree, iterate_object_tree
from flwr.supercore.inflatable.inflatable_utils import ObjectPullError, ObjectUnavailableError
from flwr.supercore.task_identity import TaskIdentity

from fedlgd.core.errors import RunError
from fedlgd.deploy import connection, coordinator
from fedlgd.deploy.connection import DAMAGED, OVERSIZED, ArrivingReply, KitGrid, reply_room

BEE, APE = 7, 8


@pytest.fixture(autouse=True)
def _identity():
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1


def message(data: bytes = b"0123456789") -> Message:
    array = Array(dtype="uint8", shape=(len(data),), stype="fedlgd", data=data)
    return Message(RecordDict({"x": ConfigRecord({"a": 1}), "y": ArrayRecord({"0": array})}), BEE, "train")


class Upload:
    """A reply and its parts, as the server holds them."""

    def __init__(self, data: bytes = b"0123456789") -> None:
        asked = message()
        asked.metadata.__dict__["_message_id"] = "question"
        self.reply = Message(message(data).content, reply_to=asked)
        self.reply.metadata.__dict__["_message_id"] = self.reply.object_id
        self.parts: dict[str, Any] = {k: v.deflate() for k, v in get_all_nested_objects(self.reply).items()}
        self.head, self.tree = message_to_proto(self.reply), get_object_tree(self.reply)

    def pull(self, part: str) -> bytes:
        if isinstance(self.parts[part], Exception):
            raise self.parts[part]
        return bytes(self.parts[part])

    def arriving(self, room: int = 10**6) -> ArrivingReply:
        return ArrivingReply(self.head, self.tree, room)


def test_a_whole_reply_is_read():
    upload = Upload()
    found = upload.arriving().receive(upload.pull)
    assert found.content == upload.reply.content
    assert found.metadata.reply_to_message_id == "question"


def test_a_reply_whose_upload_has_not_ended_is_no_reply_yet_and_nothing_is_pulled_twice():
    upload, pulled = Upload(), []
    slow = next(iter(upload.parts))
    whole, upload.parts[slow] = upload.parts[slow], ObjectUnavailableError(slow)
    reply = upload.arriving()

    def pull(part):
        pulled.append(part)
        return upload.pull(part)

    assert reply.receive(pull) is None
    upload.parts[slow] = whole
    assert reply.receive(pull).has_content()
    assert sorted(pulled) == sorted([*upload.parts, slow])


def test_of_a_reply_that_is_being_uploaded_nothing_is_held():
    """A SuperNode uploads the parts in the order of their tree, so many sites at once need little memory."""
    upload = Upload(b"".join(bytes([i]) * (5 << 20) for i in range(3)))
    order = [part.object_id for part in iterate_object_tree(upload.tree)]
    whole, reply = dict(upload.parts), upload.arriving(10**8)
    for count in range(len(order)):
        upload.parts = {part: ObjectUnavailableError(part) for part in order} | {p: whole[p] for p in order[:count]}
        assert reply.receive(upload.pull) is None
        assert not any(reply._parts.values())
    upload.parts = whole
    assert reply.receive(upload.pull).has_content()


def test_the_sender_and_the_question_are_those_of_the_server():
    upload = Upload()
    upload.head.metadata.src_node_id, upload.head.metadata.reply_to_message_id = APE, "another"
    found = upload.arriving().receive(upload.pull)
    assert (found.metadata.src_node_id, found.metadata.reply_to_message_id) == (APE, "another")


@pytest.mark.parametrize("change", [lambda _: b"", lambda c: c[:5], lambda c: b"x" + c, lambda c: bytes(len(c))])
def test_damaged_parts_are_an_error_of_the_site(change):
    upload = Upload()
    whole = upload.parts
    for part in whole:
        upload.parts = whole | {part: change(whole[part])}
        found = upload.arriving().receive(upload.pull)
        assert found.has_error()
        assert found.error.code == DAMAGED
        assert found.metadata.reply_to_message_id == "question"


def test_a_reply_of_another_kind_is_an_error_of_the_site():
    upload = Upload()
    upload.head.metadata.message_id = next(key for key, part in upload.parts.items() if part.startswith(b"Array"))
    assert upload.arriving().receive(upload.pull).error.code == DAMAGED


def test_a_reply_that_is_too_large_is_not_pulled_to_its_end():
    upload, pulled = Upload(b"".join(bytes([i]) * (5 << 20) for i in range(6))), []
    found = upload.arriving(8 << 20).receive(lambda part: pulled.append(part) or upload.pull(part))
    assert found.error.code == OVERSIZED
    assert len(pulled) < len(upload.parts) - 2
    many = Upload()
    assert many.arriving(connection.MIN_PART_BYTES).receive(many.pull).error.code == OVERSIZED


def test_a_reply_that_grows_when_it_is_read_is_not_read():
    upload = Upload(bytes(40 << 20))
    assert sum(map(len, upload.parts.values())) < 6 << 20
    assert upload.arriving(8 << 20).receive(upload.pull).error.code == OVERSIZED
    assert upload.arriving(41 << 20).receive(upload.pull).has_content()


def test_a_reply_that_was_given_up_is_lost_and_a_lost_server_is_not_the_fault_of_the_site():
    upload = Upload()
    upload.parts = dict.fromkeys(upload.parts, ObjectPullError("x", "gone"))
    assert upload.arriving().receive(upload.pull).error.code == 4
    upload.parts = dict.fromkeys(upload.parts, RunError("cannot reach the server"))
    with pytest.raises(RunError):
        upload.arriving().receive(upload.pull)


def test_the_engine_has_words_for_the_errors():
    assert (DAMAGED, OVERSIZED) == (coordinator.DAMAGED, coordinator.OVERSIZED)
    assert {DAMAGED, OVERSIZED} <= coordinator.LOST_REASONS.keys()


def test_the_room_grows_with_the_question():
    assert reply_room([message()]) == connection.MIN_REPLY_ROOM
    assert reply_room([message(), message(bytes(20 << 20))]) == 80 << 20


class Server:
    """The nodes of the sites as the server lists them."""

    def __init__(self) -> None:
        self.since = {BEE: "10:00", APE: "10:01"}

    def nodes(self) -> dict[str, Any]:
        if not self.since:
            raise RunError("server-unreachable", error="x")
        return {str(n): SimpleNamespace(node_id=n, last_activated_at=at) for n, at in self.since.items()}


def test_a_site_that_connected_anew_has_forgotten_its_question(monkeypatch):
    """Its SuperNode was killed after it had taken the question, and was back before Flower noticed."""
    grid, server, clock = object.__new__(KitGrid), Server(), iter(range(0, 1000, 10))
    monkeypatch.setattr(connection.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(KitGrid, "run", SimpleNamespace(run_id=1))
    grid.__dict__ |= {"_operator": server, "_next_look": 0.0}
    grid._asked = {"to bee": (BEE, ""), "to ape": (APE, ""), "answered": (APE, "")}
    asked = {"to bee", "to ape"}
    assert not list(grid._forgotten(asked))
    server.since, known = {}, server.since
    assert not list(grid._forgotten(asked))  # the server is away for a while
    server.since = known | {BEE: "10:05"}
    (lost,) = grid._forgotten(asked)
    assert lost.metadata.reply_to_message_id == "to bee"
    assert "connection" in coordinator.LOST_REASONS[lost.error.code]
    assert grid._asked.keys() == asked
