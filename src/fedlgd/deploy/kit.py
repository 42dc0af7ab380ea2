"""Kits: one folder per party with its keys, certificates and settings.

    FOLDER/ca/      key of the certificate authority; only `provision --renew` uses it. Keep it offline.
    FOLDER/server/  for the coordinator: TLS certificate and key, public keys of the sites, secret of the operator
    FOLDER/site-a/  for site a: its private key (EC P-384), the certificate of the authority, its policy

A kit holds no secret of another party: private keys are written into one kit only.
"""

import datetime as dt
import ipaddress
import re
import secrets
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import tomli_w
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedlgd.core.errors import RunError, SettingError
from fedlgd.core.files import private_folder, sync_folder, write_atomic, writing
from fedlgd.runs.parse import read_toml

CERTIFICATE_DAYS = 730  # validity of the server's certificate
AUTHORITY_DAYS = 3650
SITE_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,39}")
HOST_NAME = re.compile(
    r"(?=.{1,253}$)([A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?)(\.[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?)*"
)
KIT_NAMES = {"server": "FOLDER/server", "site": "FOLDER/site-NAME"}
ANOTHER_FOLDER = "Choose a folder that you can write"


class Address(NamedTuple):
    """Where the coordinator listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def ip(self) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
        try:
            return ipaddress.ip_address(self.host)
        except ValueError:
            return None


def address(text: str) -> Address:
    """HOST:PORT, with an IPv6 address in brackets."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or not 0 < int(port) < 65536:
        raise SettingError("address-form", text=text)
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    found = Address(bare, int(port))
    if found.ip is None and (
        ":" in bare or bare != host or not HOST_NAME.fullmatch(bare) or bare.replace(".", "").isdecimal()
    ):
        raise SettingError("address-host", text=text)
    if found.ip is not None and found.ip.version == 6 and bare == host:
        raise SettingError("address-brackets", text=text, host=host, port=port)
    return found


@dataclass(frozen=True)
class Kit:
    """The folder of one party: the server if `site` is empty."""

    folder: Path
    server: Address
    site: str = ""

    @property
    def ca(self) -> Path:
        return self.folder / "ca.crt"

    @property
    def state(self) -> Path:
        return self.folder / "state"

    @property
    def public_keys(self) -> dict[str, bytes]:
        """The registered sites and their public keys, for the server."""
        return {file.stem: file.read_bytes() for file in sorted((self.folder / "sites").glob("*.pub"))}


def provision(folder: Path, sites: Sequence[str], server: Address, days: int = CERTIFICATE_DAYS) -> list[Path]:
    """Make a kit for the server and one for each site in a new folder; returns the kits."""
    _check_names(sites)
    if folder.exists():
        raise RunError("kits-exist", folder=str(folder))
    with writing(folder, ANOTHER_FOLDER), _whole(folder) as made:
        authority = _authority(made / "ca")
        kit = private_folder(made / "server")
        _write(kit / "ca.crt", authority)
        _certify(made, server, days)
        _write(kit / "secret", secrets.token_hex(32).encode())
        private_folder(kit / "sites")
        _describe_server(kit, server)
        for name in sites:
            _site_kit(made, name, server)
    return [folder / "server", *(folder / f"site-{name}" for name in sites)]


def add_sites(folder: Path, sites: Sequence[str]) -> list[Path]:
    """Kits for more sites. Other kits keep their files; the server's gets a public key per site."""
    _check_names(sites)
    kit = read_kit(folder / "server")
    known = {name.lower() for name in kit.public_keys}
    for name in sites:
        if name.lower() in known or (folder / f"site-{name}").exists():
            raise SettingError("site-in-kits", site=name, folder=str(folder))
    with writing(folder, ANOTHER_FOLDER):
        return [_site_kit(folder, name, kit.server) for name in sites]


def renew(folder: Path, days: int = CERTIFICATE_DAYS) -> Path:
    """A new key and certificate for the server, signed by the authority that the sites trust already."""
    kit = read_kit(folder / "server", expired=True)
    if not (folder / "ca" / "ca.key").exists():
        raise RunError("authority-key-missing", file=str(folder / "ca" / "ca.key"))
    _refuse_expired(folder / "ca" / "ca.crt", f"provision new kits: fedlgd provision FOLDER --server {kit.server}")
    with writing(folder, ANOTHER_FOLDER):
        _certify(folder, kit.server, days)
        _describe_server(folder / "server", kit.server)
    return folder / "server"


def read_kit(folder: Path, role: str = "", expired: bool = False) -> Kit:
    """The kit in `folder`; `role` is what it must be for (server or site)."""
    if not (folder / "kit.toml").is_file():
        raise RunError("kit-missing", folder=str(folder))
    given = read_toml(folder / "kit.toml")
    try:
        kit = Kit(folder.absolute(), address(given["server"]), given["site"] if given["role"] == "site" else "")
    except (KeyError, TypeError, AttributeError) as error:
        raise RunError("kit-damaged", file=str(folder / "kit.toml")) from error
    if role and role != given["role"]:
        found, name = given["role"], KIT_NAMES[role]
        raise RunError("kit-of-another-role", folder=str(folder), found=found, role=role, name=name)
    if not expired:
        own = ("key",) if kit.site else ("server.key", "secret")
        if lost := [name for name in own if not (folder / name).is_file()]:
            raise RunError("kit-file-missing", file=str(folder / lost[0]))
        _refuse_expired(kit.ca, "ask the coordinator for a new kit")
        if not kit.site:
            _refuse_expired(folder / "server.crt", "renew it: fedlgd provision FOLDER --renew")
    return kit


def template(name: str) -> str:
    """A file for kits: `server.md` and `site.md` are instructions, `site.toml` is the policy of a site."""
    return (resources.files("fedlgd.deploy") / "templates" / name).read_text(encoding="utf-8")


def expiry(certificate: Path) -> dt.datetime:
    """The last moment at which a certificate is valid."""
    try:
        return x509.load_pem_x509_certificate(certificate.read_bytes()).not_valid_after_utc
    except (OSError, ValueError) as error:
        raise RunError("certificate-damaged", file=str(certificate), error=error) from error


@contextmanager
def _whole(folder: Path) -> Iterator[Path]:
    """A private folder that gets its name when it is complete; nothing stays behind if that fails."""
    made = private_folder(folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.part"))
    try:
        yield made
        made.rename(folder)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise
    sync_folder(folder.parent)


def _check_names(sites: Sequence[str]) -> None:
    if not sites:
        raise SettingError("no-site-names")
    for name in sites:
        if not SITE_NAME.fullmatch(name):
            raise SettingError("site-name-invalid", site=name)
    lowered = [name.lower() for name in sites]
    for name in sites:
        if lowered.count(name.lower()) > 1:
            raise SettingError("kit-site-twice", site=name)


def _authority(folder: Path) -> bytes:
    """Make the key of the authority; returns its certificate."""
    private_folder(folder)
    key = ec.generate_private_key(ec.SECP384R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fedlgd federation CA")])
    usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
    builder = _certificate(name, name, key.public_key(), AUTHORITY_DAYS)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    certificate = builder.add_extension(usage, critical=True).sign(key, hashes.SHA384())
    _write(folder / "ca.key", _pem(key))
    content = certificate.public_bytes(Encoding.PEM)
    _write(folder / "ca.crt", content)
    return content


def _certify(folder: Path, server: Address, days: int) -> None:
    """Write a key and a certificate for the address of the server into its kit."""
    signing = serialization.load_pem_private_key((folder / "ca" / "ca.key").read_bytes(), None)
    issuer = x509.load_pem_x509_certificate((folder / "ca" / "ca.crt").read_bytes())
    assert isinstance(signing, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP384R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, server.host[:64])])
    builder = _certificate(name, issuer.subject, key.public_key(), days)
    builder = builder.add_extension(x509.SubjectAlternativeName(_names(server)), critical=False)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    known = x509.AuthorityKeyIdentifier.from_issuer_public_key(signing.public_key())
    certificate = builder.add_extension(known, critical=False).sign(signing, hashes.SHA384())
    _write(folder / "server" / "server.key", _pem(key))
    _write(folder / "server" / "server.crt", certificate.public_bytes(Encoding.PEM))


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    """A certificate that is valid from yesterday, because clocks differ."""
    now = dt.datetime.now(dt.UTC)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key)
    builder = builder.serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(now - dt.timedelta(days=1)).not_valid_after(now + dt.timedelta(days=days))
    return builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)


def _names(server: Address) -> list[x509.GeneralName]:
    """The names under which sites may reach the server; all names of this machine if it is a loopback address."""
    own: list[x509.GeneralName] = [x509.IPAddress(server.ip) if server.ip else x509.DNSName(server.host)]
    if (server.ip and server.ip.is_loopback) or server.host == "localhost":
        loopback = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        own += [name for name in (*loopback, x509.IPAddress(ipaddress.ip_address("::1"))) if name not in own]
    return own


def _site_kit(folder: Path, name: str, server: Address) -> Path:
    """A kit with a new key pair; its public key also goes to the server, which registers it."""
    key = ec.generate_private_key(ec.SECP384R1())
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b"\n"
    with _whole(folder / f"site-{name}") as kit:
        _write(kit / "key", key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
        _write(kit / "key.pub", public)
        _write(kit / "ca.crt", (folder / "server" / "ca.crt").read_bytes())
        _write(kit / "site.toml", template("site.toml").encode())
        _describe(kit, {"role": "site", "site": name, "server": str(server)}, "join")
    _write(folder / "server" / "sites" / f"{name}.pub", public)
    return folder / f"site-{name}"


def _describe_server(kit: Path, server: Address) -> None:
    _describe(kit, {"role": "server", "server": str(server)}, "serve")


def _describe(kit: Path, settings: dict[str, Any], command: str) -> None:
    """The settings, the start script and the README of a kit."""
    _write(kit / "kit.toml", tomli_w.dumps(settings).encode())
    script = f'#!/bin/sh\nexec fedlgd {command} "$(dirname "$0")" "$@"\n'
    _write(kit / "start.sh", script.encode())
    (kit / "start.sh").chmod(0o700)
    until = expiry(kit / "server.crt" if settings["role"] == "server" else kit / "ca.crt")
    readme = template(f"{settings['role']}.md")
    _write(kit / "README.md", readme.format(**{"site": "", **settings}, until=f"{until:%Y-%m-%d}").encode())


def _write(path: Path, content: bytes) -> None:
    write_atomic(path, content, private=True)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _refuse_expired(certificate: Path, way_out: str) -> None:
    until = expiry(certificate)
    if until < dt.datetime.now(dt.UTC):
        raise RunError("certificate-expired", file=str(certificate), until=f"{until:%Y-%m-%d}", way_out=way_out)
