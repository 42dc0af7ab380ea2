"""The proxy in front of the server, without a network."""

import asyncio
import time
from collections.abc import Coroutine
from typing import Any

import pytest
from flwr.proto.fleet_pb2 import (
    PullMessagesRequest,
    PullMessagesResponse,
    PushMessagesRequest,
    PushMessagesResponse,
)
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, Metadata, PushObjectRequest
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import PushAppMessagesRequest
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER

from fedlgd.core.errors import message
from fedlgd.deploy import proxy
from fedlgd.deploy.proxy import (
    ASK,
    BEGIN,
    KEY_HEADER,
    MAX_REQUEST_BYTES,
    MIN_COUNTED_BYTES,
    PULL,
    PUSH,
    SECRET_HEADER,
    TAKE,
    UPLOAD,
    Proxy,
    Reports,
)

SECRET = "s3cret"
KEY = (FLEET_HTTP_PUBLIC_KEY_HEADER, "key of a")


class Server:
    """A proxy before an app that answers 200, or what it is told."""

    def __init__(self, status: int = 200, content: bytes = b"") -> None:
        self.status, self.content, self.passed = status, content, list[str]()
        self.reports: list[str] = []
        names = {b"key of a": "a", b"key of b": "b"}
        self.proxy = Proxy(
            self.app, SECRET, lambda key: names.get(key, ""), Reports(self.reports.append), 10 * MIN_COUNTED_BYTES
        )

    async def app(self, scope: Any, receive: Any, send: Any) -> None:
        self.passed.append(scope.get("path", scope["type"]))
        self.body = (await receive()).get("body")
        await send({"type": "http.response.start", "status": self.status, "headers": []})
        await send({"type": "http.response.body", "body": self.content})

    def ask(self, path: str, *headers: tuple[str, str], kind: str = "http", body: bytes = b"") -> Any:
        sent = asyncio.run(self.sent(path, *headers, kind=kind, body=body))
        return sent[0].get("status", sent[0]["type"])

    async def sent(
        self, path: str, *headers: tuple[str, str], kind: str = "http", body: bytes = b"", leaves: float = 60.0
    ) -> list[Any]:
        """What the proxy answers to a client that is gone after `leaves` seconds."""
        sent: list[Any] = []
        size = 1 + len(body) // 3
        parts = [{"body": body[i : i + size], "more_body": i + size < len(body)} for i in range(0, len(body), size)]
        parts = parts or [{"body": b""}]

        async def receive() -> Any:
            if not parts:
                await asyncio.sleep(leaves)
            return parts.pop(0) if parts else {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)

        encoded = [(name.encode(), value.encode()) for name, value in headers]
        scope = {"type": kind, "path": path, "headers": encoded, "client": ("10.0.0.9", 5)}
        await self.proxy(scope, receive, send)
        return sent


LENGTH = ("content-length", "12")


def test_a_registered_site_reaches_the_fleet_interface_and_nothing_else():
    server = Server()
    assert server.ask("/v1/fleet/get-run", KEY, LENGTH) == 200
    assert server.ask("/v1/control/start-run", KEY, LENGTH) == 403
    assert server.ask("/v1/runtime/acquire-task", KEY, LENGTH) == 403
    assert server.passed == ["/v1/fleet/get-run"]


def test_the_secret_of_the_kit_opens_the_other_interfaces():
    server = Server()
    assert server.ask("/v1/control/start-run", (SECRET_HEADER, SECRET), LENGTH) == 200
    assert server.ask("/v1/control/start-run", (SECRET_HEADER, SECRET + "x"), LENGTH) == 403
    assert server.ask("/v1/fleet/pull-messages", (SECRET_HEADER, SECRET), LENGTH) == 404


@pytest.mark.parametrize("path", ["/docs", "/", "/openapi.json", "/health", "/v1/fleetx", "/V1/FLEET/x"])
def test_other_addresses_do_not_exist(path):
    assert Server().ask(path, KEY, (SECRET_HEADER, SECRET), LENGTH) == 404


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ([("content-length", str(MAX_REQUEST_BYTES + 1))], 413),
        ([("content-length", str(MAX_REQUEST_BYTES))], 200),
        ([("content-length", "-1")], 411),
        ([], 411),
        ([LENGTH, ("transfer-encoding", "chunked")], 411),
    ],
)
def test_requests_have_a_length_with_a_limit(headers, status):
    assert Server().ask("/v1/fleet/push-object", KEY, *headers) == status


def test_refusals_are_reported_with_the_name_of_the_site_if_it_is_known():
    server = Server(status=409)
    server.ask("/v1/fleet/activate-node", KEY, LENGTH)
    server.ask("/v1/fleet/activate-node", (FLEET_HTTP_PUBLIC_KEY_HEADER, "another"), LENGTH)
    known, stranger = server.reports
    assert known == "refused site a at 10.0.0.9: /v1/fleet/activate-node: status 409"
    assert stranger == "refused 10.0.0.9: /v1/fleet/activate-node: " + message("key-not-registered")


def test_a_site_that_comes_too_early_is_told_to_come_again():
    """At 412 a SuperNode ends; at 503 it tries again."""
    server = Server(status=412)
    assert server.ask("/v1/fleet/activate-node", KEY, LENGTH) == 503
    assert server.ask("/v1/fleet/pull-messages", KEY, LENGTH) == 412
    assert server.reports[0].endswith("/v1/fleet/activate-node: " + message("site-not-accepted"))


def test_a_reply_in_the_name_of_another_site_is_refused():
    server, path = Server(), PUSH
    for sender, status in ((7, 200), (8, 403)):
        reply = ProtoMessage(metadata=Metadata(src_node_id=sender, reply_to_message_id="x" * 50))
        body = PushMessagesRequest(node=Node(node_id=7), messages_list=[reply]).SerializeToString()
        assert server.ask(path, KEY, LENGTH, body=body) == status
        assert server.passed == [path]
    assert server.reports == [f"refused site a at 10.0.0.9: {path}: {message('reply-of-another')}"]
    assert server.ask(path, KEY, LENGTH, body=b"no message") == 200
    assert server.body == b"no message"


def test_websockets_are_closed():
    assert Server().ask("/v1/fleet/x", KEY, LENGTH, kind="websocket") == "websocket.close"


# Requests for messages are held

MESSAGE = PullMessagesResponse(messages_list=[ProtoMessage()]).SerializeToString()


def both(*given: Coroutine[Any, Any, Any]) -> list[Any]:
    async def run() -> list[Any]:
        return await asyncio.gather(*given)

    return asyncio.run(run())


async def sends(server: Server, after: float, node: int = 7) -> None:
    """The coordinator sends a message to a node."""
    await asyncio.sleep(after)
    server.content = MESSAGE
    message = ProtoMessage(metadata=Metadata(dst_node_id=node))
    body = PushAppMessagesRequest(messages_list=[message]).SerializeToString()
    await server.sent(ASK, (SECRET_HEADER, SECRET), LENGTH, body=body)


PULLS = PullMessagesRequest(node=Node(node_id=7)).SerializeToString()


def test_a_request_for_messages_is_answered_when_there_is_one(monkeypatch):
    monkeypatch.setattr(proxy, "HOLD_SECONDS", 30.0)
    server, began = Server(), time.monotonic()
    found, _ = both(server.sent(PULL, KEY, LENGTH, body=PULLS), sends(server, 0.2))
    assert 0.2 <= time.monotonic() - began < 10
    assert [part.get("body") for part in found] == [None, MESSAGE]
    assert server.passed == [PULL, ASK, PULL]
    assert not server.proxy._news


def test_a_message_wakes_the_site_that_it_is_for_and_no_other(monkeypatch):
    monkeypatch.setattr(proxy, "HOLD_SECONDS", 0.5)
    server, began = Server(), time.monotonic()
    both(server.sent(PULL, KEY, LENGTH, body=PULLS), sends(server, 0.1, node=8))
    assert time.monotonic() - began >= 0.5


def test_a_request_for_messages_is_answered_at_last_without_one(monkeypatch):
    monkeypatch.setattr(proxy, "HOLD_SECONDS", 0.2)
    server = Server()
    assert server.ask(PULL, KEY, LENGTH) == 200
    assert server.passed == [PULL, PULL]
    assert Server(status=403).ask(PULL, KEY, LENGTH) == 403


def test_no_message_is_taken_for_a_site_that_has_gone(monkeypatch):
    monkeypatch.setattr(proxy, "HOLD_SECONDS", 30.0)
    server = Server()
    found, _ = both(server.sent(PULL, KEY, LENGTH, body=PULLS, leaves=0.1), sends(server, 0.4))
    assert found == []
    assert server.passed == [PULL, ASK]


def test_a_held_site_is_told_to_come_again_when_the_server_stops_or_fails(monkeypatch):
    """At 500 a SuperNode ends."""
    monkeypatch.setattr(proxy, "HOLD_SECONDS", 30.0)
    server = Server()

    async def stops() -> list[Any]:
        held = asyncio.ensure_future(server.sent(PULL, KEY, LENGTH))
        await asyncio.sleep(0.1)
        held.cancel()
        return await held

    assert asyncio.run(stops())[0]["status"] == 503
    assert server.reports == []
    assert Server(status=500).ask(PULL, KEY, LENGTH) == 503


def test_an_error_of_flower_after_its_answer_does_not_lose_the_answer(monkeypatch):
    server = Server(status=500)
    app = server.proxy._app

    async def raises(*given: Any) -> None:
        await app(*given)
        raise OSError("disk full")

    monkeypatch.setattr(server.proxy, "_app", raises)
    assert upload(server, "s", 1) == 500
    assert server.reports == [f"refused site a at 10.0.0.9: {UPLOAD}: status 500"]


# A site cannot fill the disk

OTHER = (KEY[0], "key of b")
OPERATOR = (SECRET_HEADER, SECRET)


def announce(server: Server, reply: str, session: str, key: Any = KEY) -> Any:
    server.content = PushMessagesResponse(session_id=session).SerializeToString()
    body = PushMessagesRequest(messages_list=[ProtoMessage(metadata=Metadata(message_id=reply))])
    return server.ask(PUSH, key, LENGTH, body=body.SerializeToString())


def upload(server: Server, session: str, size: int, key: Any = KEY) -> Any:
    body = PushObjectRequest(session_id=session, object_content=bytes(size)).SerializeToString()
    return server.ask(UPLOAD, key, LENGTH, body=body)


@pytest.fixture
def full():
    """A server with room for ten small uploads of a site, of which `a` has used all."""
    server = Server()
    assert [announce(server, "r", "s"), *(upload(server, "s", 10) for _ in range(9))] == [200] * 10
    return server


def test_a_site_with_too_much_that_nobody_has_taken_is_refused_and_named(full):
    before = len(full.passed)
    assert upload(full, "s", 10) == announce(full, "r2", "s2") == 413
    assert upload(full, "another", 10) == 413
    assert len(full.passed) == before
    assert full.reports[0] == f"refused site a at 10.0.0.9: {UPLOAD}: {message('store-full')}"
    assert upload(full, "other", 10, OTHER) == 200


def test_what_the_coordinator_has_taken_does_not_count(full):
    taken = ConfirmMessageReceivedRequest(message_object_id="r").SerializeToString()
    assert full.ask(TAKE, OPERATOR, LENGTH, body=taken.replace(b"r", b"x")) == 200
    assert upload(full, "s", 10) == 413
    assert full.ask(TAKE, OPERATOR, LENGTH, body=taken) == 200
    assert upload(full, "s", 10) == 200


def test_a_new_run_begins_with_room(full):
    assert full.ask(BEGIN, OPERATOR, LENGTH, body=b"x") == 200
    assert upload(full, "s", 10) == 200


def test_large_uploads_count_with_their_size_and_refused_ones_do_not_count():
    server = Server(status=403)
    assert [upload(server, "s", 6 * MIN_COUNTED_BYTES) for _ in range(3)] == [403] * 3
    server.status = 200
    assert [upload(server, "s", 6 * MIN_COUNTED_BYTES) for _ in range(2)] == [200, 413]


# Reports


def test_a_refusal_is_reported_once_a_minute_and_not_more_than_some():
    said, now = list[str](), [0.0]
    report = Reports(said.append, lambda: now[0])
    for _ in range(3):
        report("10.0.0.9", "here")
    assert said == ["refused 10.0.0.9: here"]
    for i in range(proxy.MAX_REPORTS + 6):
        report("10.0.0.9", f"path {i}")
    assert len(said) == proxy.MAX_REPORTS
    now[0] = proxy.REPORT_PERIOD
    report("10.0.0.9", "here")
    assert said[proxy.MAX_REPORTS].startswith("7 more refusals")
    assert said[proxy.MAX_REPORTS + 1 :] == ["refused 10.0.0.9: here"]


def test_a_stranger_cannot_write_other_lines_into_the_terminal():
    server = Server()
    assert server.ask("/v1/x\nfedlgd: \x1b[31mwell", LENGTH) == 404
    assert server.reports == ["refused 10.0.0.9: /v1/x?fedlgd: ?[31mwell: " + message("no-such-address")]


def test_the_header_of_a_key_is_the_one_of_flower():
    assert KEY_HEADER.decode() == FLEET_HTTP_PUBLIC_KEY_HEADER
