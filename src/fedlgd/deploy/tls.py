"""TLS of the server: uvicorn says nothing when a handshake fails, so the handshake is done here and reported."""

import asyncio
import ssl
from collections.abc import Callable
from typing import Any, cast

from uvicorn.protocols.http.auto import AutoHTTPProtocol

from fedlgd.deploy.kit import Kit

LOOP = "asyncio"  # for uvicorn: `start_tls` of uvloop waits forever on the side of the server
PATIENCE = 20.0  # seconds that a handshake may take
CLOSED = "it closed the connection before the TLS handshake was done"
REASONS = {
    "HTTP_REQUEST": "it speaks plain HTTP, not TLS",
    "UNKNOWN_CA": "it does not trust the certificate of this server: its ca.crt is of another authority",
    "CERTIFICATE": "it does not accept the certificate of this server",
}


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
                plain, self, self._context, server_side=True, ssl_handshake_timeout=PATIENCE
            )
        except OSError as error:
            self._report(str(peer[0]), reason(error))
            plain.abort()
            return
        if tls is None or self._lost:
            return
        tls.set_protocol(self._http)
        self._http.connection_made(tls)
        for data in self._early:
            self._http.data_received(data)


def reason(error: OSError) -> str:
    """Why a handshake failed; also a `ConnectionError` is an OSError."""
    name = getattr(error, "reason", None) or ""
    if isinstance(error, ConnectionAbortedError):
        return f"it did not finish the TLS handshake in {PATIENCE:g} s"
    if not isinstance(error, ssl.SSLError) or not name:
        return CLOSED
    return next((words for sign, words in REASONS.items() if sign in name), f"it does not speak TLS ({name})")


def protocols(kit: Kit, report: Callable[[str, str], None]) -> Callable[..., Handshake]:
    """What uvicorn makes for each connection. `report` gets the address of a peer and why it is refused."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(kit.folder / "server.crt", kit.folder / "server.key")
    return lambda **given: Handshake(AutoHTTPProtocol(**given), context, report)
