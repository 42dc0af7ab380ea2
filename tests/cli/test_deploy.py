"""`fedlgd provision`, `serve`, `join` and `run --kit`: what they print and refuse, without a network."""

import json
import socket

import pytest

from fedlgd.cli.deploy import Connection, Follower
from fedlgd.core.device import Place
from fedlgd.core.errors import message
from fedlgd.deploy.client import SiteSettings
from tests.data.pictures import noise, save, tree

BACK = "Connection successful"


@pytest.fixture
def kits(fedlgd, tmp_path):
    assert fedlgd("provision", "kits", "--sites", "a,b", "--server", "127.0.0.1:9443").code == 0
    return tmp_path / "kits"


def test_provision_prints_the_kits_and_what_to_do(fedlgd):
    done = fedlgd("provision", "kits", "--sites", "a, b", "--server", "fl.org:9443")
    assert done.out.splitlines() == ["kits/server", "kits/site-a", "kits/site-b"]
    assert "valid until" in done.err
    assert "private key" in done.err
    added = json.loads(fedlgd("provision", "kits", "--add", "c", "--json").out)
    assert added["kits"] == ["kits/site-c"]
    assert fedlgd("provision", "kits", "--renew").code == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--sites", "a,b"], message("address-form", text="")),
        (["--sites", "a,b", "--server", "host"], message("address-form", text="host")),
        (["--sites", "a,a", "--server", "h:1"], message("kit-site-twice", site="a")),
        (["--sites", "a/b", "--server", "h:1"], message("site-name-invalid", site="a/b")),
        (["--sites", "a", "--server", "h:1", "--classes", "no"], message("kit-classes", classes=["no"])),
        (["--add", "c", "--classes", "no,yes"], message("classes-of-new-kits")),
        (["--server", "h:1"], message("provision-choice")),
        (["--sites", "a", "--add", "b"], message("provision-choice")),
        (["--add", "d"], "kit.toml"),
        (["--renew"], "kit.toml"),
    ],
)
def test_provision_refuses(fedlgd, tmp_path, arguments, says):
    done = fedlgd("provision", "new", *arguments)
    assert done.code == 2
    assert says in done.err
    assert not (tmp_path / "new").exists()


def test_a_kit_of_the_wrong_kind_is_refused(fedlgd, kits):
    assert "kit for a site" in fedlgd("serve", str(kits / "site-a")).err
    assert "kit for a server" in fedlgd("join", str(kits / "server"), "--data", ".").err
    assert "kit for a site" in fedlgd("run", "--engine", "flower", "--kit", str(kits / "site-a")).err
    assert "no kit.toml" in fedlgd("serve", "nowhere").err


@pytest.mark.enable_socket
def test_serve_says_that_its_address_is_taken_or_not_of_this_machine(fedlgd, kits):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        done = fedlgd("serve", str(kits / "server"), "--listen", f"127.0.0.1:{port}")
    assert done.code == 2
    assert f"127.0.0.1:{port} (Address already in use)" in done.err
    done = fedlgd("serve", str(kits / "server"), "--listen", "192.0.2.1:9443")
    assert "--listen HOST:PORT" in done.err


def test_join_stops_with_the_problems_of_the_images(fedlgd, kits, tmp_path):
    images = tree(tmp_path / "images", ("a",), {"no": 6, "yes": 6}) / "a"
    (images / "no" / "broken.png").write_bytes(b"not an image")
    done = fedlgd("join", str(kits / "site-a"), "--data", str(images))
    assert done.code == 1
    assert "1 error," in done.err
    assert not (kits / "site-a" / "join.json").exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], message("no-images-given")),
        (["--set", "data.size=8"], message("no-images-given")),
        (["--data", "absent"], "there is no folder"),
        (["--data", ".", "--set", "rounds=3"], message("not-a-data-setting", name="rounds")),
        (["--data", ".", "--set", "data.sise=3"], "did you mean 'data.size'"),
    ],
)
def test_join_refuses(fedlgd, kits, arguments, says):
    done = fedlgd("join", str(kits / "site-a"), *arguments)
    assert done.code in (1, 2)
    assert says in done.err


def test_join_refuses_a_policy_with_a_misspelled_key(fedlgd, kits, tmp_path):
    policy = kits / "site-a" / "site.toml"
    policy.write_text(policy.read_text().replace("rounds =", "round ="))
    save(tmp_path / "x.png", noise(1))
    done = fedlgd("join", str(kits / "site-a"), "--data", str(tmp_path))
    assert done.code == 2
    assert "'round' is unknown; did you mean 'rounds'?" in done.err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--engine", "flower"], message("real-sites-need-kit")),
        (["--engine", "loop", "--kit", "kits/server"], message("real-sites-need-kit")),
        (["builtin-digits", "--kit", "kits/server"], message("decided-at-sites", option="a federation")),
        (["--kit", "kits/server", "--workers", "2"], message("decided-at-sites", option="--workers")),
        (["--kit", "kits/server", "--estimate"], message("decided-at-sites", option="--estimate")),
    ],
)
def test_a_run_at_real_sites_refuses_what_is_decided_elsewhere(fedlgd, kits, arguments, says):
    done = fedlgd("run", *arguments)
    assert done.code == 2
    assert says in done.err


def test_without_flower_the_commands_say_how_to_install_it(fedlgd, monkeypatch):
    monkeypatch.setattr("fedlgd.deploy.find_spec", lambda _: None)
    for command in (["provision", "k", "--sites", "a"], ["serve", "k"], ["join", "k"], ["run", "--kit", "k"]):
        done = fedlgd(*command)
        assert done.code == 2
        assert "pip install 'fedlgd[flower]'" in done.err


def test_a_lost_connection_is_told_once():
    said: list[str] = []
    hear = Connection(lambda _: None, said.append)
    for line in ("INFO: SuperNode ID: 5", "Connection attempt failed, 1", "Connection attempt failed, 2", "other"):
        hear(line)
    hear(f"{BACK} after 3 tries.")
    assert said == [Connection.SIGNS[sign] for sign in ("SuperNode ID", "Connection attempt failed", BACK)]


def test_new_lines_of_the_journal_are_shown(tmp_path):
    said: list[str] = []
    file = tmp_path / "journal.log"
    file.write_text("2026 UTC  old\n")
    follow = Follower(file, said.append)
    with file.open("a") as journal:
        journal.write("2026 UTC  sent: one\n2026 UTC  sent: t")
        journal.flush()
        follow()
        journal.write("wo\n")
    follow()
    assert said == ["sent: one", "sent: two"]


@pytest.fixture
def joined(monkeypatch) -> list[object]:
    """The starts of the processes of a site, which do not start."""
    started: list[object] = []
    monkeypatch.setattr("fedlgd.deploy.processes.supervise", lambda *given: started.append(given))
    return started


def test_join_refuses_before_anything_is_sent_and_takes_the_mapping(fedlgd, tmp_path, joined):
    images = tree(tmp_path / "images", ["a"], {"normal": 8, "glaucomma": 8}) / "a"
    made = ("--sites", "a", "--server", "127.0.0.1:9443", "--classes", "normal, glaucoma")
    assert fedlgd("provision", "kits", *made).code == 0
    done = fedlgd("join", "kits/site-a", "--data", str(images))
    assert done.code == 2
    assert "--set data.classes=glaucoma=glaucomma" in done.err
    assert not joined
    assert not (tmp_path / "kits/site-a/join.json").exists()
    assert fedlgd("join", "kits/site-a").code == 2  # nothing is remembered of it
    mapped = fedlgd("join", "kits/site-a", "--data", str(images), "--set", "data.classes=glaucoma=glaucomma")
    assert mapped.code == 0
    assert len(joined) == 1
    assert SiteSettings.read(tmp_path / "kits/site-a", "a").classes == ("normal", "glaucoma")
    (images / "normal").rename(images / "healthy")
    again = fedlgd("join", "kits/site-a")  # with the settings of last time, and other folders
    assert again.code == 2
    assert "'healthy'" in again.err
    assert len(joined) == 1


def test_a_site_that_lacks_a_class_is_told_so_and_can_join(fedlgd, tmp_path, joined):
    images = tree(tmp_path / "images", ["a"], {"no": 8, "yes": 8})
    fedlgd("provision", "kits", "--sites", "a", "--server", "127.0.0.1:9443", "--classes", "no,yes,unsure")
    done = fedlgd("join", "kits/site-a", "--data", str(images / "a"))
    assert done.code == 0
    assert "'unsure'" in done.err
    assert len(joined) == 1


@pytest.mark.filterwarnings("always")
def test_a_site_that_joins_again_can_change_how_it_computes_and_is_told_what_is_missing(
    fedlgd, tmp_path, joined, monkeypatch
):
    monkeypatch.setenv("CXX", str(tmp_path / "none"))
    images = tree(tmp_path / "images", ["a"], {"no": 8, "yes": 8})
    fedlgd("provision", "kits", "--sites", "a", "--server", "127.0.0.1:9443", "--classes", "no,yes")
    assert "not compiled" not in fedlgd("join", "kits/site-a", "--data", str(images / "a")).err
    for arguments in (["--compile", "on"], []):  # the second time it is remembered
        done = fedlgd("join", "kits/site-a", *arguments)
        assert done.err.count("not compiled: there is no C++ compiler") == 1
        assert SiteSettings.read(tmp_path / "kits/site-a", "a").place == Place(compile="on")
    assert len(joined) == 3
