"""The proxy before Flower's three interfaces, and its quotas.

The fleet interface is for sites and checks their signatures. The other two start runs and register sites, and
Flower's open package asks nobody for a password there: the proxy asks for the secret of the server's kit. It also
refuses keys that are not in the kit, requests of more than `MAX_REQUEST_BYTES` before they are read, replies in
the name of another site, and uploads of a site of which `store` bytes wait already. It reports every refusal with
the name of the site if its key is known.

A site asks for messages again and again. The proxy holds such a request until there is one, because Flower's
SuperNode sleeps for 3 s after an empty answer.
"""

import asyncio
import hmac
import time
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from flwr.proto import fleet_pb2, message_pb2, runtime_pb2
from google.protobuf.message import DecodeError, Message

from fedlgd.core.errors import message, one_line
from fedlgd.core.text import plural

MIN_COUNTED_BYTES = 64 << 10  # that a stored request counts at least, so that their number is bounded too
REPORT_PERIOD = 60.0  # seconds for which the same refusal is not reported again
MAX_REPORTS = 100  # refusals that are reported in that time
SECRET_HEADER = "x-fedlgd-secret"
KEY_HEADER = b"flwr-public-key"
FLEET = "/v1/fleet/"
OPERATOR = ("/v1/control/", "/v1/runtime/")
ACTIVATE, PULL = "/v1/fleet/activate-node", "/v1/fleet/pull-messages"
PUSH, UPLOAD = "/v1/fleet/push-messages", "/v1/fleet/push-object"
ASK, TAKE, BEGIN = "/v1/runtime/push-messages", "/v1/runtime/confirm-message-received", "/v1/control/start-run"
MAX_REQUEST_BYTES = 32 << 20  # of a request; Flower cuts arrays into parts of 5 MiB
HOLD_SECONDS = 15.0  # for which a request for messages is held; a SuperNode waits 30 s for an answer
STATUS_TAKEN = 412  # Flower's answer to a site that is not registered yet, or was here less than a minute ago
STATUS_TRY_AGAIN = 503  # at this status a SuperNode tries again; at 412 and 500 it ends
STATUS_CODES = {403: "run-has-ended", STATUS_TAKEN: "site-not-accepted"}  # of messages

Kind = TypeVar("Kind", bound=Message)
Scope = MutableMapping[str, Any]
App = Callable[[Scope, Any, Any], Awaitable[None]]


class Reports:
    """Reports a refusal once a minute, and at most `MAX_REPORTS` of them: strangers choose parts of the texts."""

    def __init__(self, report: Callable[[str], object], clock: Callable[[], float] = time.monotonic) -> None:
        self._report, self._clock = report, clock
        self._began, self._told, self._more = -REPORT_PERIOD, set[str](), 0

    def __call__(self, peer: str, why: str, site: str = "") -> None:
        text = f"refused {f'site {site} at ' if site else ''}{peer}: {why}"
        if self._clock() - self._began >= REPORT_PERIOD:
            if self._more:
                self._report(f"{plural(self._more, 'more refusal')} in the last minute")
            self._began, self._told, self._more = self._clock(), set(), 0
        if text in self._told:
            return
        if len(self._told) >= MAX_REPORTS:
            self._more += 1
            return
        self._told.add(text)
        self._report(text)


class Uploads:
    """The bytes that each site has uploaded and nobody has taken. Flower stores them in sessions of one reply.

    replies: the reply of each session; none for one from before a restart of the server.
    """

    def __init__(self, store: int) -> None:
        self._store, self.replies, self._sizes = store, dict[str, str](), Counter[tuple[str, str]]()

    def add(self, site: str, reply: str, size: int) -> bool:
        """Count an upload; False if the site has too much stored already."""
        size = max(size, MIN_COUNTED_BYTES)
        if sum(stored for (owner, _), stored in self._sizes.items() if owner == site) + size > self._store:
            return False
        self._sizes[site, reply] += size
        return True

    def remove(self, site: str, reply: str, size: int) -> None:
        """Flower did not store an upload."""
        self._sizes[site, reply] -= max(size, MIN_COUNTED_BYTES)

    def take(self, reply: str) -> None:
        """The coordinator has read a reply, or does not wait for it any more: Flower deletes it."""
        self._sizes = Counter({key: size for key, size in self._sizes.items() if key[1] != reply})
        self.replies = {session: of for session, of in self.replies.items() if of != reply}

    def clear(self) -> None:
        """A new run begins: what earlier ones left is deleted."""
        self.replies.clear()
        self._sizes.clear()


@dataclass(slots=True)
class Response:
    """What the app answers to a request."""

    parts: list[Scope] = field(default_factory=list)

    @property
    def accepted(self) -> bool:
        return bool(self.parts) and self.parts[0]["status"] < 400

    @property
    def content(self) -> bytes:
        return b"".join(part.get("body", b"") for part in self.parts[1:])


class Proxy:
    """Passes requests of sites and of the operator to `app`; refuses and reports all others.

    `site_of` is the name of the site that has a public key, in the form of Flower's header; empty if there is none.
    `store`: bytes for uploads of one site.
    """

    def __init__(self, app: App, secret: str, site_of: Callable[[bytes], str], report: Reports, store: int) -> None:
        self._app, self._secret, self._site_of, self._report = app, secret.encode(), site_of, report
        self._uploads, self._news = Uploads(store), dict[int, set[asyncio.Event]]()
        self._handlers = {PULL: self._hold, PUSH: self._announce, UPLOAD: self._upload}
        self._handlers |= dict.fromkeys((ASK, TAKE, BEGIN), self._operate)

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        status, why = self._refusal(scope)
        if status:
            await self._refuse(scope, send, status, why)
            return
        await self._handlers.get(scope["path"], self._pass)(scope, receive, send)

    async def _pass(self, scope: Scope, receive: Any, send: Any) -> None:
        await self._app(scope, receive, self._watched(scope, send))

    def _watched(self, scope: Scope, send: Any) -> Any:
        """`send` that also reports what Flower refuses."""

        async def watch(part: Scope) -> None:
            status = part.get("status", 0)  # of the first part of a response
            if status >= 400:
                self._tell(scope, message(STATUS_CODES.get(status, "status-of-flower"), status=status))
                if (scope["path"], status) in ((ACTIVATE, STATUS_TAKEN), (PULL, 500)):
                    part = {**part, "status": STATUS_TRY_AGAIN}
            await send(part)

        return watch

    def _refusal(self, scope: Scope) -> tuple[int, str]:
        headers, fleet = dict(scope.get("headers", ())), scope.get("path", "").startswith(FLEET)
        if scope["type"] != "http" or not scope["path"].startswith((FLEET, *OPERATOR)):
            return 404, message("no-such-address")
        if fleet and not self._site(scope):
            return 404, message("key-not-registered")  # at 401 a SuperNode would end without a word
        given = headers.get(SECRET_HEADER.encode(), b"")
        if not fleet and not hmac.compare_digest(given, self._secret):
            return 403, message("secret-missing")
        length = headers.get(b"content-length", b"")
        if not length.isdigit() or b"transfer-encoding" in headers:
            return 411, message("length-missing")
        if int(length) > MAX_REQUEST_BYTES:
            return 413, message("request-too-large", size=int(length))
        return 0, ""

    async def _hold(self, scope: Scope, receive: Any, send: Any) -> None:
        """Ask Flower for a message to a site, and again when there are new ones, until `HOLD_SECONDS` is over.

        Not for a site that has gone: what Flower hands out once is not sent again. When the server stops, the
        site is told to try again.
        """
        body, until = await _read(receive), time.monotonic() + HOLD_SECONDS
        node, news = _read_as(fleet_pb2.PullMessagesRequest, body).node.node_id, asyncio.Event()
        self._news.setdefault(node, set()).add(news)
        gone = asyncio.ensure_future(receive())
        try:
            while not gone.done():
                news.clear()
                answer, rest = await self._answer(scope, body), until - time.monotonic()
                if answer.content or not answer.accepted or rest <= 0:
                    await self._forward(scope, answer, send)
                    return
                woken = asyncio.ensure_future(news.wait())
                await asyncio.wait({gone, woken}, timeout=rest, return_when=asyncio.FIRST_COMPLETED)
                woken.cancel()
        except asyncio.CancelledError:
            await _respond(send, STATUS_TRY_AGAIN, "the server is stopping")
        finally:
            gone.cancel()
            self._news[node].discard(news)
            if not self._news[node]:
                del self._news[node]

    async def _announce(self, scope: Scope, receive: Any, send: Any) -> None:
        """A reply of which the parts follow."""
        body = await _read(receive)
        request = _read_as(fleet_pb2.PushMessagesRequest, body)
        # Flower compares only the node of the request with the key
        if not all(reply.metadata.src_node_id == request.node.node_id for reply in request.messages_list):
            await self._refuse(scope, send, 403, message("reply-of-another"))
            return
        reply = request.messages_list[0].metadata.message_id if request.messages_list else ""
        await self._store(scope, body, send, reply)

    async def _upload(self, scope: Scope, receive: Any, send: Any) -> None:
        """A part of a reply."""
        body = await _read(receive)
        session = _read_as(message_pb2.PushObjectRequest, body).session_id
        await self._store(scope, body, send, self._uploads.replies.get(session, ""))

    async def _store(self, scope: Scope, body: bytes, send: Any, reply: str) -> None:
        """Pass on what Flower stores, if the site has room for it."""
        site = self._site(scope)
        if not self._uploads.add(site, reply, len(body)):
            await self._refuse(scope, send, 413, message("store-full"))
            return
        answer = await self._answer(scope, body)
        if not answer.accepted:
            self._uploads.remove(site, reply, len(body))
        elif scope["path"] == PUSH:
            self._uploads.replies[_read_as(fleet_pb2.PushMessagesResponse, answer.content).session_id] = reply
        await self._forward(scope, answer, send)

    async def _operate(self, scope: Scope, receive: Any, send: Any) -> None:
        """A run begins, sends messages, or has taken a reply."""
        body = await _read(receive)
        answer = await self._answer(scope, body)
        if answer.accepted and scope["path"] == ASK:
            for message in _read_as(runtime_pb2.PushAppMessagesRequest, body).messages_list:
                for news in self._news.get(message.metadata.dst_node_id, ()):
                    news.set()
        elif answer.accepted and scope["path"] == TAKE:
            self._uploads.take(_read_as(message_pb2.ConfirmMessageReceivedRequest, body).message_object_id)
        elif answer.accepted:
            self._uploads.clear()
        await self._forward(scope, answer, send)

    async def _answer(self, scope: Scope, body: bytes) -> Response:
        whole, answer = [{"type": "http.request", "body": body}], Response()

        async def receive() -> Any:
            return whole.pop() if whole else await asyncio.Event().wait()

        async def send(message: Scope) -> None:
            answer.parts.append(message)

        try:
            await self._app(scope, receive, send)
        except Exception:  # it answers with 500 before
            traceback.print_exc()
        return answer

    async def _forward(self, scope: Scope, answer: Response, send: Any) -> None:
        watch = self._watched(scope, send)
        for part in answer.parts:
            await watch(part)

    async def _refuse(self, scope: Scope, send: Any, status: int, why: str) -> None:
        self._tell(scope, why)
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        await _respond(send, status, why)

    def _tell(self, scope: Scope, why: str) -> None:
        client = scope.get("client") or ("unknown", 0)
        self._report(client[0], f"{one_line(scope.get('path', ''), 80)}: {why}", self._site(scope))

    def _site(self, scope: Scope) -> str:
        return self._site_of(dict(scope.get("headers", ())).get(KEY_HEADER, b""))


def _read_as(kind: type[Kind], content: bytes) -> Kind:
    """A message of Flower; an empty one if it is malformed: Flower refuses that."""
    read: Kind = kind()
    with suppress(DecodeError):
        read = kind.FromString(content)
    return read


async def _respond(send: Any, status: int, text: str) -> None:
    headers = [(b"content-type", b"text/plain"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": text.encode()})


async def _read(receive: Any) -> bytes:
    """The body of a request."""
    parts, more = [], True
    while more:
        message = await receive()
        parts.append(message.get("body", b""))
        more = message.get("more_body", False)
    return b"".join(parts)
