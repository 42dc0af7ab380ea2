"""The process of `fedlgd serve`: Flower's SuperLink on one TLS port, behind a proxy.

uvicorn says nothing when a TLS handshake fails, so the handshake is done here and reported.
"""

import asyncio
import logging
import ssl
import sys
from base64 import b64decode
from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, cast

import uvicorn
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from fedlgd.core.errors import message
from fedlgd.deploy.kit import Address, Kit, address, read_kit
from fedlgd.deploy.processes import end_with_parent

EVENT_PREFIX = "fedlgd: "  # begins a line for the terminal of `serve`
EVENT_LOOP = "asyncio"  # for uvicorn: `start_tls` of uvloop waits forever on the side of the server
HANDSHAKE_SECONDS = 20.0  # for a handshake
CLOSED = "it closed the connection before the TLS handshake was done"
HANDSHAKE_FAULTS = {
    "HTTP_REQUEST": "it speaks plain HTTP, not TLS",
    "UNKNOWN_CA": "it does not trust the certificate of this server: its ca.crt is of another authority",
    "CERTIFICATE": "it does not accept the certificate of this server",
}


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


def site_with_key(kit: Kit, header: bytes) -> str:
    """The site whose public key is in Flower's header. Keys are read again when sites are added or removed."""
    try:
        given = load_pem_public_key(b64decode(header, validate=True))
        text = given.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    except (ValueError, UnsupportedAlgorithm):
        return ""
    return _sites(kit, (kit.folder / "sites").stat().st_mtime_ns).get(text, "")


@lru_cache(1)
def _sites(kit: Kit, changed: int) -> dict[bytes, str]:
    return {b" ".join(key.split()[:2]): name for name, key in kit.public_keys.items()}


class Handshake(asyncio.Protocol):
    """A connection until its TLS handshake is done. Then it is one of `http`, uvicorn's protocol."""

    def __init__(self, http: Any, context: ssl.SSLContext, report: Callable[[str, str], None]) -> None:
        self._http, self._context, self._report = http, context, report
        self._early: list[bytes] = []
        self._lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        plain = cast(asyncio.Transport, transport)
        plain.pause_reading()
        self._task = asyncio.ensure_future(self._begin(plain))

    def data_received(self, data: bytes) -> None:
        """Decrypted bytes that arrived together with the end of the handshake."""
        self._early.append(data)

    def connection_lost(self, error: Exception | None) -> None:
        self._lost = True

    async def _begin(self, plain: asyncio.Transport) -> None:
        peer = plain.get_extra_info("peername") or ("unknown", 0)
        try:
            tls = await asyncio.get_running_loop().start_tls(
                plain, self, self._context, server_side=True, ssl_handshake_timeout=HANDSHAKE_SECONDS
            )
        except OSError as error:
            self._report(str(peer[0]), handshake_fault(error))
            plain.abort()
            return
        if tls is None or self._lost:
            return
        tls.set_protocol(self._http)
        self._http.connection_made(tls)
        for data in self._early:
            self._http.data_received(data)


def handshake_fault(error: OSError) -> str:
    """Why a handshake failed; also a `ConnectionError` is an OSError."""
    name = getattr(error, "reason", None) or ""
    if isinstance(error, ConnectionAbortedError):
        return message("handshake-too-slow", seconds=HANDSHAKE_SECONDS)
    if not isinstance(error, ssl.SSLError) or not name:
        return CLOSED
    known = (words for sign, words in HANDSHAKE_FAULTS.items() if sign in name)
    return next(known, f"it does not speak TLS ({name})")


def tls_protocol(kit: Kit, report: Callable[[str, str], None]) -> Callable[..., Handshake]:
    """What uvicorn makes for each connection. `report` gets the address of a peer and why it is refused."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(kit.folder / "server.crt", kit.folder / "server.key")
    return lambda **given: Handshake(AutoHTTPProtocol(**given), context, report)


def run_superlink(folder: str, listen: str, store: str) -> None:
    """Run the server in this process; `fedlgd serve` starts it."""
    from flwr.superlink.cli.flower_superlink import SuperLinkLifespan, _parse_superlink_lifespan_config
    from flwr.superlink.main import create_app

    from fedlgd.deploy.proxy import Proxy, Reports

    end_with_parent()
    kit = read_kit(Path(folder), "server")
    sys.argv = ["flower-superlink", *superlink_arguments(kit, address(listen))]
    config = _parse_superlink_lifespan_config()
    logging.getLogger("flwr").setLevel(logging.WARNING)
    secret = (kit.folder / "secret").read_text()
    report = Reports(lambda text: sys.stdout.write(f"{EVENT_PREFIX}{text}\n"))
    uvicorn.run(
        Proxy(create_app(config, SuperLinkLifespan), secret, partial(site_with_key, kit), report, int(store)),
        host=config.host,
        port=config.port,
        http=tls_protocol(kit, report),  # type: ignore[arg-type]
        ws="none",
        loop=EVENT_LOOP,
        log_level="error",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=1,
    )


if __name__ == "__main__":
    run_superlink(*sys.argv[1:])
