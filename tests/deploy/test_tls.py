"""TLS of the server: what strangers get, and what is reported. Sockets of this machine only."""

import asyncio
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from fedlgd.core.errors import message
from fedlgd.deploy import superlink
from fedlgd.deploy.kit import Address, provision, read_kit
from fedlgd.deploy.processes import free_port
from fedlgd.deploy.superlink import CLOSED, EVENT_LOOP, tls_protocol

pytestmark = pytest.mark.enable_socket


@pytest.fixture
def kits(tmp_path):
    for name in ("ours", "other"):
        provision(tmp_path / name, ["a"], Address("127.0.0.1", 9443))
    return tmp_path


async def app(scope: Any, receive: Any, send: Any) -> None:
    body = f"{scope['scheme']} {scope['path']}".encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})


def serve(kits: Path, client: Callable[[int], Any]) -> tuple[Any, list[tuple[str, str]]]:
    """What the client gets from a server with the kit, and what the server reports."""
    port, reports = free_port(), list[tuple[str, str]]()
    http: Any = tls_protocol(read_kit(kits / "ours" / "server"), lambda peer, why: reports.append((peer, why)))
    server = uvicorn.Server(
        uvicorn.Config(app, port=port, http=http, ws="none", loop=EVENT_LOOP, lifespan="off", log_level="error")
    )

    async def both() -> Any:
        running = asyncio.ensure_future(server.serve())
        while not server.started and not running.done():
            await asyncio.sleep(0.01)
        found = await asyncio.to_thread(client, port)
        for _ in range(300):
            if reports:
                break
            await asyncio.sleep(0.01)
        server.should_exit = True
        await running
        return found

    return asyncio.run(both()), reports


def tls_client(kits: Path, authority: str, port: int) -> bytes:
    context = ssl.create_default_context(cafile=str(kits / authority / "site-a" / "ca.crt"))
    with (
        socket.create_connection(("127.0.0.1", port), 10) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as wrapped,
    ):
        wrapped.sendall(b"GET /one HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        return b"".join(iter(lambda: wrapped.recv(1000), b""))


def plain(port: int, *said: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), 10) as connection:
        for part in said:
            connection.sendall(part)
        try:
            return connection.recv(1000) if said else b""
        except ConnectionResetError:
            return b""


def test_a_client_that_trusts_the_authority_is_served_over_tls(kits):
    found, reports = serve(kits, lambda port: tls_client(kits, "ours", port))
    assert found.endswith(b"https /one")
    assert reports == []


def test_a_request_that_arrives_with_the_end_of_the_handshake_is_answered(kits):
    """The last bytes of the handshake and the request in one packet."""

    def client(port: int) -> bytes:
        context = ssl.create_default_context(cafile=str(kits / "ours" / "site-a" / "ca.crt"))
        into, out = ssl.MemoryBIO(), ssl.MemoryBIO()
        end = context.wrap_bio(into, out, server_hostname="127.0.0.1")
        with socket.create_connection(("127.0.0.1", port), 10) as connection:
            while True:
                try:
                    end.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    connection.sendall(out.read())
                    into.write(connection.recv(65536))
            end.write(b"GET /two HTTP/1.1\r\nHost: x\r\n\r\n")
            connection.sendall(out.read())
            found = b""
            while b"two" not in found:
                into.write(connection.recv(65536))
                try:
                    found += end.read(1000)
                except ssl.SSLWantReadError:
                    continue
            return found

    found, reports = serve(kits, client)
    assert found.endswith(b"https /two")
    assert reports == []


def test_a_client_of_another_authority_is_reported(kits):
    def client(port: int) -> str:
        with pytest.raises(ssl.SSLCertVerificationError) as error:
            tls_client(kits, "other", port)
        return str(error.value)

    found, reports = serve(kits, client)
    assert "certificate verify failed" in found
    assert reports == [("127.0.0.1", superlink.HANDSHAKE_FAULTS["UNKNOWN_CA"])]


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ([b"GET /v1/fleet/pull-messages HTTP/1.1\r\n\r\n"], "plain HTTP, not TLS"),
        ([b"\x00\x01 no TLS\r\n"], "does not speak TLS"),
        ([], CLOSED),
    ],
)
def test_a_client_without_tls_gets_no_answer_and_is_reported(said, why, kits):
    found, reports = serve(kits, lambda port: plain(port, *said))
    assert b"HTTP" not in found
    assert len(reports) == 1
    assert reports[0][0] == "127.0.0.1"
    assert why in reports[0][1]


def test_a_client_that_never_begins_is_reported(kits, monkeypatch):
    monkeypatch.setattr(superlink, "HANDSHAKE_SECONDS", 0.2)

    def client(port: int) -> bytes:
        with socket.create_connection(("127.0.0.1", port), 10) as connection:
            return connection.recv(10)

    found, reports = serve(kits, client)
    assert found == b""
    assert reports == [("127.0.0.1", message("handshake-too-slow", seconds=0.2))]
