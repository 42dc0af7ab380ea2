"""The live report: made anew when records change, never gone, and open to this machine alone."""

import base64
import hashlib
import html
import http.client
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedlgd.report import watch
from fedlgd.report.groups import group_runs
from fedlgd.report.summary import headline, progress
from fedlgd.report.watch import Watcher, WatchServer, policy, records_version
from fedlgd.rundir.read import Run, run_folders
from tests import PATIENCE
from tests.report.fake import SITES, append_round, commit, write_run

HOSTILE = "<script>alert(1)</script>"
PROBLEM = '<b data-kind="problem">'


def sketch(runs: tuple[Run, ...], unreadable: tuple[str, ...] = ()) -> str:
    """The words of a report without its pictures, which take seconds."""
    words = [headline(group_runs(runs)).title, *(progress(run) for run in runs), *unreadable]
    return "".join(f"<p>{html.escape(each)}</p>" for each in words) + "</body>"


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Sketches in place of pages, all that were made; records may change at once after one."""
    pages: list[str] = []
    monkeypatch.setattr(watch, "render", lambda *read: pages.append(sketch(*read)) or pages[-1])
    monkeypatch.setattr(watch, "PAUSE_FACTOR", 0)
    return pages


def text_of(watcher: Watcher) -> str:
    return watcher.page().body.decode()


# When the page is made


def test_the_page_is_made_once_until_the_records_change(tmp_path: Path, made: list[str]) -> None:
    run = write_run(tmp_path / "run", rounds=6, done=3)
    watcher = Watcher([tmp_path])
    first = watcher.page()
    assert watcher.page() is first
    assert watcher.version() == first.version
    assert len(made) == 1
    append_round(run, 3, dict.fromkeys(SITES, 0.123))
    assert watcher.version() != first.version
    assert len(made) == 1
    second = text_of(watcher)
    assert len(made) == 2
    assert "at 12.3 %" in second
    assert "4 of 6 rounds" in second


def test_after_a_page_that_took_long_records_rest_a_while(
    tmp_path: Path, made: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page of 2 s is not looked at again for 8 s: made without a pause it would take a core from the run."""
    now = [100.0]
    monkeypatch.setattr(watch, "PAUSE_FACTOR", 4)
    monkeypatch.setattr(watch, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def slow(*read: Any) -> str:
        now[0] += 2
        return sketch(*read)

    monkeypatch.setattr(watch, "render", slow)
    run = write_run(tmp_path / "run", rounds=6, done=3)
    watcher = Watcher([tmp_path])
    first = watcher.page()
    append_round(run, 3)
    now[0] = 109.9
    assert watcher.version() == first.version
    assert watcher.page() is first
    now[0] = 110.1
    assert watcher.version() != first.version
    assert "4 of 6 rounds" in text_of(watcher)


def test_a_round_appears_when_it_is_committed(tmp_path: Path, made: list[str]) -> None:
    run = write_run(tmp_path / "run", rounds=6, done=3)
    commit(run)
    watcher = Watcher([run])
    append_round(run, 3)
    assert "3 of 6 rounds" in text_of(watcher)
    before = watcher.version()
    commit(run)
    assert watcher.version() != before
    assert "4 of 6 rounds" in text_of(watcher)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("records.jsonl", True),
        ("manifest.json", True),
        ("analysis.json", True),
        ("virtual/start/site0.png", True),
        ("virtual/0003/site0.png", True),
        ("real/site0.png", True),
        ("report.html", False),
        ("track.json", False),
        ("state/head.json", True),
        ("state/server-1.safetensors", False),
        ("tensorboard/events", False),
    ],
)
def test_the_version_follows_what_the_report_reads_and_nothing_else(
    name: str, changes: bool, tmp_path: Path
) -> None:
    run = write_run(tmp_path / "run")
    (run / "virtual/start").mkdir(parents=True)
    before = records_version([run])
    (run / name).parent.mkdir(parents=True, exist_ok=True)
    (run / name).write_text("another content")
    assert (records_version([run]) != before) is changes


def test_runs_are_found_at_any_depth_and_a_run_is_itself(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / "a" / "seed0"), write_run(tmp_path / "b" / "c" / "seed1")]
    assert run_folders(tmp_path) == runs
    assert run_folders(runs[0]) == [runs[0]]
    assert run_folders(tmp_path / "nowhere") == []


# Before there is a run, and when one is caught half-written


def test_before_the_first_run_the_page_waits_and_then_becomes_the_report(tmp_path: Path, made: list[str]) -> None:
    place = tmp_path / "soon"
    watcher = Watcher([place])
    waiting = watcher.page()
    assert 'data-kind="waiting"' in waiting.body.decode()
    assert str(place) in waiting.body.decode()
    write_run(place / "run", label="FedAvg")
    assert watcher.version() != waiting.version
    assert "FedAvg ends at" in text_of(watcher)
    assert 'data-kind="waiting"' not in text_of(watcher)


def test_a_run_that_cannot_be_read_yet_is_waited_for_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.toml").write_text("seed = 0\nrounds = 4\n")
    page = text_of(Watcher([tmp_path]))
    assert 'data-kind="waiting"' in page
    assert "manifest.json' is missing" in html.unescape(page)


def test_while_the_only_run_is_damaged_the_last_good_page_stays_and_says_so(
    tmp_path: Path, made: list[str]
) -> None:
    run = write_run(tmp_path / "run", label="FedAvg")
    watcher = Watcher([run])
    assert PROBLEM not in text_of(watcher)
    good = (run / "manifest.json").read_bytes()
    (run / "manifest.json").write_text("{")
    page = text_of(watcher)
    assert "FedAvg ends at" in page
    assert PROBLEM in page
    assert "manifest.json' is damaged" in html.unescape(page)
    (run / "manifest.json").write_bytes(good)
    assert PROBLEM not in text_of(watcher)


def test_a_damaged_run_beside_a_good_one_is_shown_as_such(tmp_path: Path, made: list[str]) -> None:
    write_run(tmp_path / "good", label="FedAvg")
    (write_run(tmp_path / "bad") / "manifest.json").write_text("{")
    page = text_of(Watcher([tmp_path]))
    assert "FedAvg ends at" in page
    assert "manifest.json' is damaged" in html.unescape(page)
    assert PROBLEM not in page


def test_whatever_happens_while_the_page_is_made_the_last_one_stays(
    tmp_path: Path, made: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = write_run(tmp_path / "run", label="FedAvg", rounds=6, done=3)
    watcher = Watcher([run])
    watcher.page()

    def broken(*_: object) -> str:
        raise ZeroDivisionError(HOSTILE)

    monkeypatch.setattr(watch, "render", broken)
    append_round(run, 3)
    page = text_of(watcher)
    assert "FedAvg stands at" in page
    assert "ZeroDivisionError: &lt;script&gt;" in page.partition(PROBLEM)[2]
    assert HOSTILE not in page


def test_runs_that_went_away_leave_the_last_page(tmp_path: Path, made: list[str]) -> None:
    run = write_run(tmp_path / "run", label="FedAvg")
    watcher = Watcher([run])
    watcher.page()
    for file in run.iterdir():
        file.unlink()
    run.rmdir()
    page = text_of(watcher)
    assert "FedAvg ends at" in page
    assert PROBLEM in page


# What a browser may do with it


def test_the_policy_admits_the_scripts_of_the_page_by_their_hash_and_no_other(tmp_path: Path) -> None:
    page = Watcher([write_run(tmp_path / "run", label=HOSTILE)]).page()
    text = page.body.decode()
    rules = dict(rule.split(" ", 1) for rule in page.policy.split("; "))
    assert rules["default-src"] == "'none'"
    assert rules["connect-src"] == "'self'"
    assert rules["frame-ancestors"] == rules["base-uri"] == rules["form-action"] == "'none'"
    scripts = re.findall(r"<script[^>]*>(.*?)</script>", text, re.S)
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    assert rules["script-src"].split() == [f"'sha256-{each}'" for each in hashes]
    assert "http-equiv" not in text
    assert HOSTILE not in text
    assert f'data-version="{page.version}"' in text


def test_the_policy_of_a_page_is_kept_where_watching_needs_no_more() -> None:
    page = '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; img-src data:">'
    rules = dict(rule.split(" ", 1) for rule in policy(page, "let x").split("; "))
    assert rules["img-src"] == "data:"
    assert rules["script-src"].startswith("'sha256-")
    assert "style-src" not in rules


# The server


@pytest.fixture
def server(tmp_path: Path, made: list[str]) -> Iterator[WatchServer]:
    write_run(tmp_path / "run", label="FedAvg")
    (tmp_path / "secret.txt").write_text("secret")
    with WatchServer(Watcher([tmp_path]), 0) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def ask(
    server: WatchServer, path: str, host: str | None = None, verb: str = "GET"
) -> tuple[int, dict[str, str], str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=PATIENCE)
    try:
        connection.putrequest(verb, path, skip_host=True)
        connection.putheader("Host", f"127.0.0.1:{server.server_port}" if host is None else host)
        connection.endheaders()
        answer = connection.getresponse()
        return answer.status, dict(answer.headers), answer.read().decode()
    finally:
        connection.close()


@pytest.mark.enable_socket
def test_the_page_and_its_version_are_served_to_this_machine(server: WatchServer) -> None:
    assert server.server_address[0] == "127.0.0.1"
    status, headers, page = ask(server, "/")
    assert status == 200
    assert "FedAvg ends at" in page
    assert headers["Content-Type"] == "text/html; charset=utf-8"
    assert headers["Content-Security-Policy"].startswith("default-src 'none'")
    assert headers["Cache-Control"] == "no-store"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert "Python" not in headers["Server"]
    status, _, version = ask(server, "/version")
    assert status == 200
    assert f'data-version="{version}"' in page


@pytest.mark.enable_socket
@pytest.mark.parametrize(
    "path",
    [
        "/secret.txt",
        "/run/records.jsonl",
        "/../secret.txt",
        "/%2e%2e/secret.txt",
        "/version/../secret.txt",
        "/version?x",
        "secret.txt",
        "/favicon.ico",
    ],
)
def test_nothing_else_is_served(path: str, server: WatchServer) -> None:
    status, headers, body = ask(server, path)
    assert status in (400, 404)
    assert "secret" not in body
    assert "FedAvg" not in body
    assert "text/html" not in headers["Content-Type"] or status == 400


@pytest.mark.enable_socket
@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1", 200),
        ("localhost", 200),
        ("localhost:{port}", 200),
        ("127.0.0.1:{port}", 200),
        ("localhost:1", 403),
        ("evil.example", 403),
        ("evil.example:{port}", 403),
        ("127.0.0.1.evil.example:{port}", 403),
        ("", 403),
    ],
)
def test_only_a_request_for_this_machine_by_name_is_answered(host: str, status: int, server: WatchServer) -> None:
    for path in ("/", "/version"):
        answered, _, body = ask(server, path, host=host.format(port=server.server_port))
        assert answered == status
        assert ("FedAvg" in body) is (status == 200 and path == "/")


@pytest.mark.enable_socket
@pytest.mark.parametrize("verb", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_nothing_can_be_sent_to_it(verb: str, server: WatchServer) -> None:
    assert ask(server, "/", verb=verb)[0] == 501


@pytest.mark.enable_socket
def test_many_may_look_at_once_and_one_page_is_made(server: WatchServer, made: list[str]) -> None:
    answers: list[int] = []
    threads = [threading.Thread(target=lambda: answers.append(ask(server, "/")[0])) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [200] * 6
    assert len(made) == 1
