"""`fedlgd watch` in a real browser: the page follows the records, and the reader keeps the place."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedlgd.report import watch
from fedlgd.report.watch import Watcher, WatchServer
from tests import PATIENCE
from tests.report.fake import append_round, write_run

pytestmark = pytest.mark.enable_socket


@pytest.fixture
def run(tmp_path: Path) -> Path:
    write_run(tmp_path / "runs" / "a", label="FedAvg", method="fedavg", rounds=12)
    return write_run(tmp_path / "runs" / "b", rounds=12, done=6, per_class=2)


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WatchServer]:
    monkeypatch.setattr(watch, "PAUSE_FACTOR", 0)
    with WatchServer(Watcher([tmp_path / "runs"]), 0) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_a_new_round_appears_and_the_reader_keeps_the_place(run: Path, server: WatchServer, browser) -> None:
    page = browser.new_page(viewport={"width": 900, "height": 700})
    problems: list[str] = []
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto(server.url)
    assert "6 of 12 rounds" in page.content()
    page.evaluate("scrollTo(0, 0)")
    closed = page.locator("#runs details").nth(0)
    closed.locator("summary").click()
    assert closed.evaluate("each => each.open")
    last = page.locator("#accuracy th button").last
    last.click()
    order = page.locator("#accuracy th[aria-sort]").first.get_attribute("aria-sort")
    slider = page.locator("input[type=range]").first
    slider.evaluate("each => { each.value = 0; each.dispatchEvent(new Event('input', { bubbles: true })); }")
    page.locator("#runs").scroll_into_view_if_needed()
    page.evaluate("scrollTo(0, document.getElementById('cost').offsetTop + 40)")
    where = page.locator("#cost").bounding_box()["y"]
    page.evaluate("window.before = true")

    append_round(run, 6)
    page.locator("#runs", has_text="7 of 12 rounds").wait_for(state="attached", timeout=1000 * PATIENCE)
    page.wait_for_load_state("load")

    assert page.evaluate("window.before") is None
    assert page.locator("#cost").bounding_box()["y"] == pytest.approx(where, abs=3)
    assert page.locator("#runs details").nth(0).evaluate("each => each.open")
    assert page.locator("#accuracy th[aria-sort]").first.get_attribute("aria-sort") == order
    assert page.locator("#accuracy th[aria-sort]").count() == 1
    assert page.locator("input[type=range]").first.input_value() == "0"
    assert problems == []


def test_the_waiting_page_turns_into_the_report(tmp_path: Path, server: WatchServer, browser) -> None:
    page = browser.new_page()
    page.goto(server.url)
    assert page.locator("h1").get_attribute("data-kind") == "waiting"
    write_run(tmp_path / "runs" / "a", label="FedAvg")
    page.locator("h1", has_text="FedAvg ends at").wait_for(timeout=1000 * PATIENCE)


def test_when_the_server_ends_the_page_stays_and_says_so(tmp_path: Path, browser) -> None:
    page = browser.new_page()
    with WatchServer(Watcher([tmp_path / "later"]), 0) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        page.goto(server.url)
        assert page.get_by_text("live", exact=True).is_visible()
        server.shutdown()
        thread.join()
    page.get_by_text("fedlgd watch has stopped").wait_for(timeout=1000 * PATIENCE)
    assert page.locator("h1").get_attribute("data-kind") == "waiting"
