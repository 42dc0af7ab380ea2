"""The gate in front of the server, without a network."""

import asyncio
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_public_key
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.proto.message_pb2 import Metadata
from flwr.proto.node_pb2 import Node
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER
from flwr.supercore.primitives.asymmetric import public_key_to_bytes

from fedlgd.deploy.kit import Address, add_sites, provision, read_kit
from fedlgd.deploy.superlink import KEY_HEADER, LARGEST, SECRET_HEADER, Gate, site_of, superlink_arguments

SECRET = "s3cret"
KEY = (FLEET_HTTP_PUBLIC_KEY_HEADER, "key of a")


class Server:
    """A gate before an app that answers 200, or what it is told."""

    def __init__(self, status: int = 200) -> None:
        self.status, self.passed = status, list[str]()
        self.reports: list[str] = []
        self.gate = Gate(self.app, SECRET, {b"key of a": "a"}.get, self.reports.append)  # type: ignore[arg-type]

    async def app(self, scope: Any, receive: Any, send: Any) -> None:
        self.passed.append(scope.get("path", scope["type"]))
        self.body = (await receive()).get("body")
        await send({"type": "http.response.start", "status": self.status, "headers": []})

    def ask(self, path: str, *headers: tuple[str, str], kind: str = "http", body: bytes = b"") -> Any:
        sent: list[Any] = []
        parts = [{"body": body[i : i + 9], "more_body": i + 9 < len(body)} for i in range(0, len(body) + 1, 9)]

        async def receive() -> Any:
            return parts.pop(0)

        async def send(message: Any) -> None:
            sent.append(message)

        encoded = [(name.encode(), value.encode()) for name, value in headers]
        scope = {"type": kind, "path": path, "headers": encoded, "client": ("10.0.0.9", 5)}
        asyncio.run(self.gate(scope, receive, send))
        return sent[0].get("status", sent[0]["type"])


LENGTH = ("content-length", "12")


def test_a_registered_site_reaches_the_fleet_interface_and_nothing_else():
    server = Server()
    assert server.ask("/v1/fleet/pull-messages", KEY, LENGTH) == 200
    assert server.ask("/v1/control/start-run", KEY, LENGTH) == 403
    assert server.ask("/v1/runtime/acquire-task", KEY, LENGTH) == 403
    assert server.passed == ["/v1/fleet/pull-messages"]


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
        ([("content-length", str(LARGEST + 1))], 413),
        ([("content-length", str(LARGEST))], 200),
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
    assert stranger == "refused 10.0.0.9: /v1/fleet/activate-node: the key is not registered"


def test_a_site_that_comes_too_early_is_told_to_come_again():
    """At 412 a SuperNode ends; at 503 it tries again."""
    server = Server(status=412)
    assert server.ask("/v1/fleet/activate-node", KEY, LENGTH) == 503
    assert server.ask("/v1/fleet/pull-messages", KEY, LENGTH) == 412
    assert server.reports[0].endswith("/v1/fleet/activate-node: it is connected already, or not registered yet")


def test_a_reply_in_the_name_of_another_site_is_refused():
    server, path = Server(), "/v1/fleet/push-messages"
    for sender, status in ((7, 200), (8, 403)):
        reply = ProtoMessage(metadata=Metadata(src_node_id=sender, reply_to_message_id="x" * 50))
        body = PushMessagesRequest(node=Node(node_id=7), messages_list=[reply]).SerializeToString()
        assert server.ask(path, KEY, LENGTH, body=body) == status
        assert server.passed == [path]
    assert server.reports == [f"refused site a at 10.0.0.9: {path}: it sends a reply in the name of another site"]
    assert server.ask(path, KEY, LENGTH, body=b"no message") == 200
    assert server.body == b"no message"


def test_websockets_are_closed():
    assert Server().ask("/v1/fleet/x", KEY, LENGTH, kind="websocket") == "websocket.close"


def test_a_site_is_known_by_its_key_also_if_it_was_added_later(tmp_path):
    assert KEY_HEADER.decode() == FLEET_HTTP_PUBLIC_KEY_HEADER
    provision(tmp_path / "kits", ["a"], Address("127.0.0.1", 9443))
    kit = read_kit(tmp_path / "kits" / "server")

    def header(name: str) -> bytes:
        key = load_ssh_public_key((tmp_path / "kits" / f"site-{name}" / "key.pub").read_bytes())
        assert isinstance(key, ec.EllipticCurvePublicKey)
        return b64encode(public_key_to_bytes(key))

    assert site_of(kit, header("a")) == "a"
    add_sites(tmp_path / "kits", ["b"])
    assert site_of(kit, header("b")) == "b"
    (kit.folder / "sites" / "a.pub").unlink()
    assert site_of(kit, header("a")) == ""
    assert site_of(kit, b"nonsense") == site_of(kit, b"") == ""


def test_the_server_has_tls_keys_and_a_database_and_runs_no_code():
    kit = read_kit_at(Path("/kits/server"))
    arguments = superlink_arguments(kit, Address("0.0.0.0", 443))
    assert "--enable-supernode-auth" in arguments
    assert "--disable-runtime-dependency-installation" in arguments
    for name, value in {
        "--host": "0.0.0.0",
        "--port": "443",
        "--isolation": "process",
        "--database": "/kits/server/state/superlink.db",
        "--ssl-certfile": "/kits/server/server.crt",
        "--ssl-keyfile": "/kits/server/server.key",
        "--ssl-ca-certfile": "/kits/server/ca.crt",
    }.items():
        assert arguments[arguments.index(name) + 1] == value
    assert "--insecure" not in arguments


def read_kit_at(folder: Path) -> Any:
    from fedlgd.deploy.kit import Kit

    return Kit(folder, Address("fl.org", 443))
