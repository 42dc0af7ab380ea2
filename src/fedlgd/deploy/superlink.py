"""The server of a federation: Flower's SuperLink on one TLS port, behind a gate.

Flower serves three interfaces on that port. The fleet interface is for sites and checks their signatures. The
other two start runs and register sites, and Flower's open package asks nobody for a password there: the gate
asks for the secret of the server's kit. It also refuses keys that are not in the kit, requests of more than
`LARGEST` bytes before they are read, and replies in the name of another site. It reports every refusal with the
name of the site if its key is known.
"""

import hmac
import logging
import sys
import time
from base64 import b64decode
from collections.abc import Awaitable, Callable, MutableMapping
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key
from flwr.proto.fleet_pb2 import PushMessagesRequest
from google.protobuf.message import DecodeError

from fedlgd.deploy.kit import Address, Kit, address, read_kit
from fedlgd.deploy.processes import end_with_parent

SECRET_HEADER = "x-fedlgd-secret"
KEY_HEADER = b"flwr-public-key"
FLEET = "/v1/fleet/"
PUSH = "/v1/fleet/push-messages"
OPERATOR = ("/v1/control/", "/v1/runtime/")
LARGEST = 32 << 20  # bytes of a request; Flower cuts arrays into parts of 5 MiB
QUIET = 60.0  # seconds for which the same refusal is not reported again
MOST_TOLD = 1000
ACTIVATE = "/v1/fleet/activate-node"
TAKEN = 412  # Flower's answer to a site that is not registered yet, or was here less than a minute ago
STATUS = {403: "the run has ended", TAKEN: "it is connected already, or not registered yet"}
EVENT = "fedlgd: "  # begins a line for the terminal of `serve`

Scope = MutableMapping[str, Any]
App = Callable[[Scope, Any, Any], Awaitable[None]]


class Gate:
    """Passes requests of sites and of the operator to `app`; refuses and reports all others.

    `site_of` is the name of the site that has a public key, in the form of Flower's header; empty if there is none.
    """

    def __init__(
        self, app: App, secret: str, site_of: Callable[[bytes], str], report: Callable[[str], None]
    ) -> None:
        self._app, self._secret, self._site_of, self._report = app, secret.encode(), site_of, report
        self._told: dict[str, float] = {}

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        status, why = self._refusal(scope)
        if not status and scope["path"] == PUSH:
            body, receive = await _read(receive)
            status, why = (0, "") if _in_own_name(body) else (403, "it sends a reply in the name of another site")
        if status:
            await self._refuse(scope, send, status, why)
            return

        async def watch(message: Scope) -> None:
            if message["type"] == "http.response.start" and message["status"] >= 400:
                self._tell(scope, STATUS.get(message["status"], f"status {message['status']}"))
                if message["status"] == TAKEN and scope["path"] == ACTIVATE:
                    message = {**message, "status": 503}  # at 412 a SuperNode ends, at 503 it tries again
            await send(message)

        await self._app(scope, receive, watch)

    def _refusal(self, scope: Scope) -> tuple[int, str]:
        headers, site = dict(scope.get("headers", ())), scope.get("path", "").startswith(FLEET)
        if scope["type"] != "http" or not scope["path"].startswith((FLEET, *OPERATOR)):
            return 404, "no such address"
        if site and not self._site_of(headers.get(KEY_HEADER, b"")):
            return 404, "the key is not registered"  # at 401 a SuperNode would end without a word
        given = headers.get(SECRET_HEADER.encode(), b"")
        if not site and not hmac.compare_digest(given, self._secret):
            return 403, "without the secret of the server's kit"
        length = headers.get(b"content-length", b"")
        if not length.isdigit() or b"transfer-encoding" in headers:
            return 411, "without a content-length"
        return (413, f"{int(length):,} bytes are too many") if int(length) > LARGEST else (0, "")

    async def _refuse(self, scope: Scope, send: Any, status: int, why: str) -> None:
        self._tell(scope, why)
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        headers = [(b"content-type", b"text/plain"), (b"connection", b"close")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": why.encode()})

    def _tell(self, scope: Scope, why: str) -> None:
        client = scope.get("client") or ("unknown", 0)
        site = self._site_of(dict(scope.get("headers", ())).get(KEY_HEADER, b""))
        path = scope.get("path", "")[:80].encode("ascii", "replace").decode()
        text = f"refused {f'site {site} at ' if site else ''}{client[0]}: {path}: {why}"
        if time.monotonic() - self._told.get(text, -QUIET) >= QUIET:
            self._told = {**(self._told if len(self._told) < MOST_TOLD else {}), text: time.monotonic()}
            self._report(text)


async def _read(receive: Any) -> tuple[bytes, Any]:
    """The body of a request, and a `receive` that gives it once more."""
    parts, more = [], True
    while more:
        message = await receive()
        parts.append(message.get("body", b""))
        more = message.get("more_body", False)
    whole = [{"type": "http.request", "body": b"".join(parts)}]

    async def again() -> Any:
        return whole.pop() if whole else await receive()

    return b"".join(parts), again


def _in_own_name(body: bytes) -> bool:
    """Whether the sender of each reply is the node of the request. Flower compares only that one with the key."""
    try:
        request = PushMessagesRequest.FromString(body)
    except DecodeError:
        return True  # Flower refuses it
    return all(reply.metadata.src_node_id == request.node.node_id for reply in request.messages_list)


def superlink_arguments(kit: Kit, listen: Address) -> list[str]:
    """The command line of Flower's SuperLink. It starts no further process."""
    folder = kit.folder
    return [
        *("--host", listen.host, "--port", str(listen.port)),
        *("--ssl-ca-certfile", str(kit.ca)),
        *("--ssl-certfile", str(folder / "server.crt"), "--ssl-keyfile", str(folder / "server.key")),
        *("--enable-supernode-auth", "--isolation", "process"),
        *("--disable-runtime-dependency-installation", "--database", str(kit.state / "superlink.db")),
    ]


def main(folder: str, listen: str) -> None:
    """Run the server in this process; `fedlgd serve` starts it."""
    import uvicorn
    from flwr.superlink.cli.flower_superlink import SuperLinkLifespan, _parse_superlink_lifespan_config
    from flwr.superlink.main import create_app

    end_with_parent()
    kit = read_kit(Path(folder), "server")
    sys.argv = ["flower-superlink", *superlink_arguments(kit, address(listen))]
    config = _parse_superlink_lifespan_config()
    logging.getLogger("flwr").setLevel(logging.WARNING)
    secret = (kit.folder / "secret").read_text()
    gate = Gate(create_app(config, SuperLinkLifespan), secret, partial(site_of, kit), _event)
    uvicorn.run(
        gate,
        host=config.host,
        port=config.port,
        ssl_certfile=config.ssl_certfile,
        ssl_keyfile=config.ssl_keyfile,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=3,
    )


def site_of(kit: Kit, header: bytes) -> str:
    """The site whose public key is in Flower's header. Keys are read again when sites are added or removed."""
    try:
        given = load_pem_public_key(b64decode(header, validate=True))
    except ValueError:
        return ""
    text = given.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    return _sites(kit, (kit.folder / "sites").stat().st_mtime_ns).get(text, "")


@lru_cache(1)
def _sites(kit: Kit, changed: int) -> dict[bytes, str]:
    return {b" ".join(key.split()[:2]): name for name, key in kit.public_keys.items()}


def _event(text: str) -> None:
    sys.stdout.write(f"{EVENT}{text}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
