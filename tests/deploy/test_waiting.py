"""While a run waits, the terminal says for whom, for how long and what follows, within seconds."""

from collections.abc import Iterator

import httpx
import pytest

from fedlgd.core import meter
from fedlgd.core.errors import message
from fedlgd.deploy import coordinator
from fedlgd.deploy.connection import OUTAGE_SECONDS, _patient
from fedlgd.deploy.coordinator import GRACE_SECONDS, Post, tell_outage
from fedlgd.deploy.messages import Order
from tests import tiny
from tests.deploy import grid
from tests.deploy.grid import NODES, LocalGrid

ORDER = Order(run="r", config=grid.config(tiny.fedavg(), rounds=2).toml())


@pytest.fixture(autouse=True)
def _home(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDLGD_CACHE", str(tmp_path / "home"))


@pytest.fixture
def clock(monkeypatch) -> list[float]:
    """A clock that goes on when someone sleeps."""
    now = [0.0]
    monkeypatch.setattr(coordinator.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(coordinator.time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    return now


@pytest.fixture
def said() -> Iterator[list[str]]:
    found: list[str] = []
    with meter.told_waiting(found.append):
        yield found


@pytest.fixture
def at(tmp_path) -> LocalGrid:
    return LocalGrid(grid.sites(tmp_path, tiny.federation())[0])


def post(at: LocalGrid, timeout: float) -> Post:
    return Post(grid=at, nodes=NODES, timeout=timeout, pause=0.5)


def test_a_site_that_does_not_answer_is_named_within_seconds_with_what_follows(at, clock, said):
    at.tricks["bee"] = lambda *_: None
    list(post(at, 60.0).ask(ORDER, dict.fromkeys(NODES, ()), least=2))
    follows = message("late-left-out", timeout=60.0)
    state = {"sites": "bee", "answered": 2, "asked": 3, "follows": follows}
    assert said[0] == message("waiting-for-answers", seconds=GRACE_SECONDS, **state)
    assert len(said) > 100  # a live view counts the seconds
    assert said[-1] == ""


def test_without_the_quorum_it_says_that_the_run_will_stop(at, clock, said):
    at.tricks["bee"] = lambda *_: None
    list(post(at, 60.0).ask(ORDER, dict.fromkeys(NODES, ()), least=3))
    assert message("late-stops", timeout=60.0) in said[0]


def test_sites_that_are_as_slow_as_before_are_not_news(at, clock, said):
    now, pull = post(at, 60.0), at.pull_messages
    for begins in (0.0, 100.0):
        clock[0] = begins
        at.pull_messages = lambda keys, end=begins + 8.0: pull(keys) if clock[0] >= end else []
        list(now.ask(ORDER, dict.fromkeys(NODES, ())))
    assert now.slowest == {(name, ""): 8.0 for name in NODES}
    assert len([text for text in said if text]) == 6  # from 5 to 7.5 s, and only the first time
    assert "ape, bee, cat" in said[0]


def test_sites_that_are_not_connected_are_named_and_how_many_are_needed(at, clock, said):
    at.gone = {"bee", "cat"}
    assert post(at, 30.0).wait_for([*NODES], quorum=0.6) == ["ape"]
    state = {"here": 1, "asked": 3, "least": 2, "timeout": 30.0}
    assert said[0] == message("waiting-for-sites", seconds=GRACE_SECONDS, sites="bee, cat", **state)
    assert said[-1] == ""


def test_an_outage_of_the_server_is_said_at_once_and_its_end_too(said):
    tries = []

    def request() -> str:
        tries.append(1)
        if len(tries) < 3:
            raise httpx.ConnectError("refused")
        return "answer"

    patient = _patient(OUTAGE_SECONDS, tell_outage)
    patient.wait_function = lambda _: None
    assert patient.invoke(request) == "answer"
    assert said == [message("waiting-for-server", seconds=1.0, outage=OUTAGE_SECONDS)] * 2 + [""]
    assert patient.invoke(request) == "answer"
    assert len(said) == 3
