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
MAX_NAME_LETTERS = 100  # of a class, or of what a site sends
ANOTHER_FOLDER = "Choose a folder that you can write"

Extensions = Sequence[tuple[x509.ExtensionType, bool]]
"""Extensions of a certificate, and whether each is critical."""


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
    """The folder of one party: the server if `site` is empty. classes: those that all parties agreed on, if any."""

    folder: Path
    server: Address
    site: str = ""
    classes: tuple[str, ...] = ()

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


def provision(
    folder: Path,
    sites: Sequence[str],
    server: Address,
    days: int = CERTIFICATE_DAYS,
    classes: Sequence[str] = (),
) -> list[Path]:
    """Make a kit for the server and one for each site in a new folder; returns the kits.

    classes: a site with images of another class is refused when it joins.
    """
    _check_names(sites)
    check_classes(classes)
    if folder.exists():
        raise RunError("kits-exist", folder=str(folder))
    with writing(folder, ANOTHER_FOLDER), _whole(folder) as made:
        for part in ("ca", "server", "server/sites"):
            private_folder(made / part)
        usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
        authority: Extensions = [(x509.BasicConstraints(ca=True, path_length=0), True), (usage, True)]
        _certify(made / "ca" / "ca", "fedlgd federation CA", AUTHORITY_DAYS, authority)
        _write(made / "server" / "ca.crt", (made / "ca" / "ca.crt").read_bytes())
        _write(made / "server" / "secret", secrets.token_hex(32).encode())
        _certify_server(made, server, days, classes)
        for name in sites:
            _site_kit(made, name, server, classes)
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
        return [_site_kit(folder, name, kit.server, kit.classes) for name in sites]


def renew(folder: Path, days: int = CERTIFICATE_DAYS) -> Path:
    """A new key and certificate for the server, signed by the authority that the sites trust already."""
    kit = read_kit(folder / "server", expired=True)
    if not (folder / "ca" / "ca.key").exists():
        raise RunError("authority-key-missing", file=str(folder / "ca" / "ca.key"))
    _refuse_expired(folder / "ca" / "ca.crt", f"provision new kits: fedlgd provision FOLDER --server {kit.server}")
    with writing(folder, ANOTHER_FOLDER):
        _certify_server(folder, kit.server, days, kit.classes)
    return folder / "server"


def read_kit(folder: Path, role: str = "", expired: bool = False) -> Kit:
    """The kit in `folder`; `role` is what it must be for (server or site)."""
    if not (folder / "kit.toml").is_file():
        raise RunError("kit-missing", folder=str(folder))
    given = read_toml(folder / "kit.toml")
    try:
        site, classes = given["site"] if given["role"] == "site" else "", tuple(given.get("classes", ()))
        kit = Kit(folder.absolute(), address(given["server"]), site, classes)
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


def check_classes(classes: Sequence[str]) -> None:
    """Refuse names that no federation can have; none at all is legal: they are asked for before a run."""
    alike = {name.casefold() for name in classes}
    if classes and (len(alike) < max(2, len(classes)) or not all(map(is_name, classes))):
        raise SettingError("kit-classes", classes=list(classes))


def is_name(text: str) -> bool:
    """Whether a name can stand in tables and terminals."""
    return 0 < len(text) <= MAX_NAME_LETTERS and text.isprintable()


def _certify_server(folder: Path, server: Address, days: int, classes: Sequence[str]) -> None:
    """Write a key and a certificate for the address of the server into its kit, and until when that is valid."""
    signing = serialization.load_pem_private_key((folder / "ca" / "ca.key").read_bytes(), None)
    issuer = x509.load_pem_x509_certificate((folder / "ca" / "ca.crt").read_bytes()).subject
    assert isinstance(signing, ec.EllipticCurvePrivateKey)
    extensions: Extensions = [
        (x509.SubjectAlternativeName(_names(server)), False),
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False),
        (x509.AuthorityKeyIdentifier.from_issuer_public_key(signing.public_key()), False),
    ]
    _certify(folder / "server" / "server", server.host[:64], days, extensions, (issuer, signing))
    _describe(folder / "server", server, classes)


def _certify(
    file: Path,
    name: str,
    days: int,
    extensions: Extensions,
    authority: tuple[x509.Name, ec.EllipticCurvePrivateKey] | None = None,
) -> None:
    """Write FILE.key, which is new, and FILE.crt, signed by the authority or by itself. It is valid from yesterday,
    because clocks differ."""
    key, now = ec.generate_private_key(ec.SECP384R1()), dt.datetime.now(dt.UTC)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    issuer, signing = authority or (subject, key)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(now - dt.timedelta(days=1)).not_valid_after(now + dt.timedelta(days=days))
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    for extension, critical in ((identifier, False), *extensions):
        builder = builder.add_extension(extension, critical)
    _write(file.with_suffix(".key"), key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    _write(file.with_suffix(".crt"), builder.sign(signing, hashes.SHA384()).public_bytes(Encoding.PEM))


def _names(server: Address) -> list[x509.GeneralName]:
    """The names under which sites may reach the server; all names of this machine if it is a loopback address."""
    own: list[x509.GeneralName] = [x509.IPAddress(server.ip) if server.ip else x509.DNSName(server.host)]
    if (server.ip and server.ip.is_loopback) or server.host == "localhost":
        addresses = [x509.IPAddress(ipaddress.ip_address(text)) for text in ("127.0.0.1", "::1")]
        own += [name for name in (x509.DNSName("localhost"), *addresses) if name not in own]
    return own


def _site_kit(folder: Path, name: str, server: Address, classes: Sequence[str]) -> Path:
    """A kit with a new key pair; its public key also goes to the server, which registers it."""
    key = ec.generate_private_key(ec.SECP384R1())
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b"\n"
    with _whole(folder / f"site-{name}") as kit:
        _write(kit / "key", key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
        _write(kit / "key.pub", public)
        _write(kit / "ca.crt", (folder / "server" / "ca.crt").read_bytes())
        _write(kit / "site.toml", template("site.toml").encode())
        _describe(kit, server, classes, name)
    _write(folder / "server" / "sites" / f"{name}.pub", public)
    return folder / f"site-{name}"


def _describe(kit: Path, server: Address, classes: Sequence[str], site: str = "") -> None:
    """The settings, the start script and the README of a kit."""
    role, command, certificate = ("site", "join", "ca.crt") if site else ("server", "serve", "server.crt")
    settings: dict[str, Any] = {"role": role, **({"site": site} if site else {}), "server": str(server)}
    if classes:
        settings["classes"] = list(classes)
    _write(kit / "kit.toml", tomli_w.dumps(settings).encode())
    _write(kit / "start.sh", f'#!/bin/sh\nexec fedlgd {command} "$(dirname "$0")" "$@"\n'.encode())
    (kit / "start.sh").chmod(0o700)
    until = f"{expiry(kit / certificate):%Y-%m-%d}"
    agreed = f"the classes {', '.join(classes)}" if classes else "one folder per class, named as at the other sites"
    facts = {"site": site, "server": server, "until": until, "classes": agreed}
    _write(kit / "README.md", template(f"{role}.md").format(**facts).encode())


def _write(path: Path, content: bytes) -> None:
    write_atomic(path, content, private=True)


def _refuse_expired(certificate: Path, way_out: str) -> None:
    until = expiry(certificate)
    if until < dt.datetime.now(dt.UTC):
        raise RunError("certificate-expired", file=str(certificate), until=f"{until:%Y-%m-%d}", way_out=way_out)
