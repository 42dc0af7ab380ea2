"""The server of a federation: Flower's SuperLink on one TLS port, behind a gate.

Flower serves three interfaces on that port. The fleet interface is for sites and checks their keys. The other two start
runs and register sites, and Flower's open package asks nobody for a password there: the gate asks for the secret of the
server's kit. It also refuses requests of more than `LARGEST` bytes before they are read.
"""

import hmac
import logging
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

from fedlgd.deploy.kit import Address, Kit, address, read_kit
from fedlgd.deploy.processes import end_with_parent

SECRET_HEADER = "x-fedlgd-secret"
FLEET = "/v1/fleet/"
OPERATOR = ("/v1/control/", "/v1/runtime/")
LARGEST = 32 << 20  # bytes of a request; Flower cuts arrays into parts of 5 MiB
EVENT = "fedlgd: "  # begins a line for the terminal of `serve`

Scope = MutableMapping[str, Any]
App = Callable[[Scope, Any, Any], Awaitable[None]]


class Gate:
    """Passes requests of sites and of the operator to `app`; refuses and reports all others."""

    def __init__(self, app: App, secret: str, report: Callable[[str], None]) -> None:
        self._app, self._secret, self._report = app, secret.encode(), report

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        status, why = self._refusal(scope)
        if status:
            await self._refuse(scope, send, status, why)
            return

        async def watch(message: Scope) -> None:
            if message["type"] == "http.response.start" and message["status"] in (401, 403, 409, 413):
                self._tell(scope, f"status {message['status']}")
            await send(message)

        await self._app(scope, receive, watch)

    def _refusal(self, scope: Scope) -> tuple[int, str]:
        headers = dict(scope.get("headers", ()))
        if scope["type"] != "http":
            return 404, "not an HTTP request"
        if not scope["path"].startswith((FLEET, *OPERATOR)):
            return 404, "no such address"
        given = headers.get(SECRET_HEADER.encode(), b"")
        if scope["path"].startswith(OPERATOR) and not hmac.compare_digest(given, self._secret):
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
        path = scope.get("path", "")[:80].encode("ascii", "replace").decode()
        self._report(f"refused {client[0]}: {path}: {why}")


def superlink_arguments(kit: Kit, listen: Address) -> list[str]:
    """The command line of Flower's SuperLink. It starts no further process: the coordinator runs its half itself."""
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
    from flwr.superlink.cli import flower_superlink as flower
    from flwr.superlink.main import create_app

    end_with_parent()
    kit = read_kit(Path(folder), "server")
    sys.argv = ["flower-superlink", *superlink_arguments(kit, address(listen))]
    config = flower._parse_superlink_lifespan_config()
    logging.getLogger("flwr").setLevel(logging.WARNING)
    gate = Gate(create_app(config, flower.SuperLinkLifespan), (kit.folder / "secret").read_text(), _event)
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


def _event(text: str) -> None:
    sys.stdout.write(f"{EVENT}{text}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
