"""The process of the server: its command line, and the keys that it knows."""

from base64 import b64encode
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec, x25519
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_public_key
from flwr.supercore.primitives.asymmetric import public_key_to_bytes

from fedlgd.deploy.kit import Address, add_sites, provision, read_kit
from fedlgd.deploy.superlink import site_with_key, superlink_arguments


def test_a_site_is_known_by_its_key_also_if_it_was_added_later(tmp_path):
    provision(tmp_path / "kits", ["a"], Address("127.0.0.1", 9443))
    kit = read_kit(tmp_path / "kits" / "server")

    def header(name: str) -> bytes:
        key = load_ssh_public_key((tmp_path / "kits" / f"site-{name}" / "key.pub").read_bytes())
        assert isinstance(key, ec.EllipticCurvePublicKey)
        return b64encode(public_key_to_bytes(key))

    assert site_with_key(kit, header("a")) == "a"
    add_sites(tmp_path / "kits", ["b"])
    assert site_with_key(kit, header("b")) == "b"
    (kit.folder / "sites" / "a.pub").unlink()
    assert site_with_key(kit, header("a")) == ""
    other = x25519.X25519PrivateKey.generate().public_key()
    pem = other.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    assert site_with_key(kit, b64encode(pem)) == ""
    assert site_with_key(kit, b"nonsense") == site_with_key(kit, b"") == ""


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
