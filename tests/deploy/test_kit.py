"""Kits: what is in them, who can read it, and what is refused."""

import itertools
import ssl
import stat
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

from fedlgd.core.errors import RunError, SettingError
from fedlgd.deploy import kit as kits
from fedlgd.deploy.kit import Address, add_sites, address, expiry, provision, read_kit, renew
from fedlgd.deploy.policy import Policy
from tests.errors import refuses

HERE = Address("127.0.0.1", 9443)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    provision(tmp_path / "kits", ["a", "b"], HERE)
    return tmp_path / "kits"


def files(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.rglob("*")) if path.is_file()]


def secrets_of(folder: Path) -> dict[Path, bytes]:
    return {
        path: path.read_bytes() for path in files(folder) if path.name in ("key", "secret", "ca.key", "server.key")
    }


def names_in(certificate: Path) -> set[str]:
    found = x509.load_pem_x509_certificate(certificate.read_bytes()).extensions
    names = found.get_extension_for_class(x509.SubjectAlternativeName).value
    return {*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))}


def test_a_secret_is_in_one_kit_only(folder):
    secret = secrets_of(folder)
    assert {path.relative_to(folder).as_posix() for path in secret} == {
        "ca/ca.key",
        "server/secret",
        "server/server.key",
        "site-a/key",
        "site-b/key",
    }
    for (path, content), other in itertools.product(secret.items(), files(folder)):
        body = b"".join(content.splitlines()[1:-1]) or content
        assert other == path or body not in b"".join(other.read_bytes().splitlines())


def test_only_the_owner_can_read_a_kit(folder):
    for path in (folder, *folder.rglob("*")):
        wanted = 0o700 if path.is_dir() or path.suffix == ".sh" else 0o600
        assert stat.S_IMODE(path.stat().st_mode) == wanted, path


def test_the_key_of_a_site_belongs_to_the_public_key_that_the_server_registers(folder):
    private = load_ssh_private_key((folder / "site-a" / "key").read_bytes(), None)
    public = load_ssh_public_key((folder / "server" / "sites" / "a.pub").read_bytes())
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    assert isinstance(private.curve, ec.SECP384R1)
    assert private.public_key() == public


@pytest.mark.parametrize(
    ("server", "names"),
    [
        ("127.0.0.1:9443", {"127.0.0.1", "localhost", "::1"}),
        ("localhost:9443", {"127.0.0.1", "localhost", "::1"}),
        ("10.1.2.3:9443", {"10.1.2.3"}),
        ("[2001:db8::1]:9443", {"2001:db8::1"}),
        ("fl.hospital.org:443", {"fl.hospital.org"}),
    ],
)
def test_the_certificate_names_the_address_of_the_server(tmp_path, server, names):
    provision(tmp_path / "kits", ["a"], address(server))
    assert names_in(tmp_path / "kits" / "server" / "server.crt") == names
    assert str(read_kit(tmp_path / "kits" / "site-a").server) == server


def test_the_certificate_is_trusted_by_the_authority_of_the_sites_only(folder, tmp_path):
    provision(tmp_path / "other", ["a"], HERE)
    assert handshake(folder / "server", folder / "site-a" / "ca.crt") == ""
    assert "CERTIFICATE_VERIFY_FAILED" in handshake(folder / "server", tmp_path / "other" / "site-a" / "ca.crt")


def handshake(server: Path, trusted: Path) -> str:
    """A TLS handshake in memory; the error of the client, or nothing."""
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(server / "server.crt", server / "server.key")
    asking = ssl.create_default_context(cafile=str(trusted))
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    one = serving.wrap_bio(to_server, to_client, server_side=True)
    other = asking.wrap_bio(to_client, to_server, server_hostname="127.0.0.1")
    for end in (other, one, other, one):
        try:
            end.do_handshake()
        except ssl.SSLWantReadError:
            continue
        except ssl.SSLError as error:
            return str(error)
    return ""


def test_a_site_is_added_without_touching_the_others(folder):
    before = {path: path.read_bytes() for path in files(folder)}
    assert add_sites(folder, ["c"]) == [folder / "site-c"]
    after = {path: path.read_bytes() for path in files(folder)}
    assert before.items() <= after.items()
    new = {path.relative_to(folder).parts[0] for path in after.keys() - before.keys()}
    assert new == {"site-c", "server"}
    assert list(read_kit(folder / "server").public_keys) == ["a", "b", "c"]


def test_a_new_certificate_is_trusted_by_the_old_kits(folder):
    before = (folder / "server" / "server.crt").read_bytes()
    assert renew(folder, days=5000) == folder / "server"
    assert (folder / "server" / "server.crt").read_bytes() != before
    until = f"{expiry(folder / 'server' / 'server.crt'):%Y-%m-%d}"
    assert f"valid until {until}" in (folder / "server" / "README.md").read_text()
    assert handshake(folder / "server", folder / "site-a" / "ca.crt") == ""


def test_an_expired_certificate_is_an_error_that_says_how_to_renew_it(tmp_path, monkeypatch):
    provision(tmp_path / "kits", ["a"], HERE, days=-1)
    with refuses("certificate-expired", RunError, file=str(tmp_path / "kits/server/server.crt")) as refused:
        read_kit(tmp_path / "kits" / "server")
    assert "--renew" in refused.value.values["way_out"]
    renew(tmp_path / "kits")
    assert read_kit(tmp_path / "kits" / "server").server == HERE
    monkeypatch.setattr(kits, "AUTHORITY_DAYS", -1)
    provision(tmp_path / "old", ["a"], HERE)
    with refuses("certificate-expired", RunError, file=str(tmp_path / "old/site-a/ca.crt")):
        read_kit(tmp_path / "old" / "site-a")


@pytest.mark.parametrize("file", ["site-a/key", "server/server.key", "server/secret", "site-a/ca.crt"])
def test_a_kit_without_one_of_its_secrets_is_refused_before_anything_starts(folder, file):
    (folder / file).unlink()
    code = "certificate-damaged" if file.endswith("ca.crt") else "kit-file-missing"
    with refuses(code, RunError, file=str(folder / file)):
        read_kit((folder / file).parent)


@pytest.mark.parametrize(
    ("sites", "code"),
    [
        (["a", "a"], "kit-site-twice"),
        (["a", "A"], "kit-site-twice"),
        (["a/b"], "site-name-invalid"),
        ([".."], "site-name-invalid"),
        (["a b"], "site-name-invalid"),
        (["x" * 41], "site-name-invalid"),
        ([], "no-site-names"),
    ],
)
def test_bad_names_leave_nothing_behind(tmp_path, sites, code):
    with refuses(code, SettingError):
        provision(tmp_path / "kits", sites, HERE)
    assert not (tmp_path / "kits").exists()


@pytest.mark.parametrize(
    "text",
    ["", "host", "host:", ":9443", "host:0", "host:70000", "host:x", "::1:9443", "a b:1", "1.2.3:4", "[x]:1"],
)
def test_an_address_has_a_host_and_a_port(text):
    with pytest.raises(SettingError) as refused:
        address(text)
    assert refused.value.values["text"] == text


def test_an_existing_folder_is_not_changed(folder):
    before = {path: path.read_bytes() for path in files(folder)}
    with refuses("kits-exist", RunError, folder=str(folder)):
        provision(folder, ["x"], HERE)
    with refuses("site-in-kits", SettingError, site="B"):
        add_sites(folder, ["B"])
    assert before == {path: path.read_bytes() for path in files(folder)}


def test_a_failure_leaves_nothing_behind(folder, tmp_path, monkeypatch):
    before = files(folder)

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(kits, "_describe", fail)
    with pytest.raises(RunError, match="No space left"):
        provision(tmp_path / "new", ["a"], HERE)
    with pytest.raises(RunError, match="No space left"):
        add_sites(folder, ["c"])
    assert list(tmp_path.iterdir()) == [folder]
    assert files(folder) == before


def test_a_kit_of_the_other_kind_and_a_damaged_one_are_named(folder, tmp_path):
    with refuses("kit-of-another-role", RunError, found="site", role="server", name="FOLDER/server"):
        read_kit(folder / "site-a", "server")
    with refuses("kit-missing", RunError, folder=str(tmp_path / "nothing")):
        read_kit(tmp_path / "nothing")
    (folder / "site-a" / "kit.toml").write_text("role = 'site'\n")
    with refuses("kit-damaged", RunError, file=str(folder / "site-a" / "kit.toml")):
        read_kit(folder / "site-a")
    (folder / "server" / "server.crt").write_text("?")
    with refuses("certificate-damaged", RunError, file=str(folder / "server" / "server.crt")):
        read_kit(folder / "server")


def test_the_readme_of_a_kit_has_its_address_and_validity(folder):
    text = (folder / "site-a" / "README.md").read_text()
    assert "Kit of site a" in text
    assert "127.0.0.1:9443" in text
    assert f"{kits.expiry(folder / 'site-a' / 'ca.crt'):%Y-%m-%d}" in text


def test_the_policy_of_a_kit_is_complete_and_allows_virtual_images_only(folder):
    for name in ("a", "b"):
        policy = Policy.read(folder / f"site-{name}" / "site.toml")
        assert (policy.train_on, policy.sends) == (("virtual",), ("weights", "loss", "counts"))
        assert policy.missing == ()
