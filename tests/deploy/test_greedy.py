"""A coordinator that asks for too much, and methods that send or read too much: a careful site refuses."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fedlgd.core.errors import message
from fedlgd.deploy import coordinator
from fedlgd.deploy.client import NO_PROMISE, SiteSettings, answer_question
from fedlgd.deploy.coordinator import coordinate
from fedlgd.deploy.kit import template
from fedlgd.deploy.messages import Order, _contents, question
from fedlgd.engines.site import Answer, Task
from fedlgd.engines.wire import from_bytes
from fedlgd.methods.redraw import Redrawn
from fedlgd.rundir.records import RoundRecord
from tests import tiny
from tests.deploy import grid, own_methods
from tests.deploy.grid import NODES, POLICY, LocalGrid

OWN = [own_methods.Uploading, own_methods.Silent, own_methods.Telling, own_methods.Peeking, own_methods.Attentive]
LISTED = ", ".join(f'"{own.__module__}:{own.__name__}"' for own in OWN)
CAREFUL = template("site.toml").replace("methods = [", f"methods = [{LISTED}, ")
OPEN = POLICY.replace('methods = ["*"', f'methods = ["*", {LISTED}')


@pytest.fixture(autouse=True)
def _home(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDLGD_CACHE", str(tmp_path / "home"))


@dataclass
class Bench:
    """Three sites; bee is the careful one, as its kit is written."""

    root: Path

    def __post_init__(self) -> None:
        self.folders, _ = grid.sites(self.root, tiny.federation(), OPEN)
        self.bee = self.folders[NODES["bee"]]
        (self.bee / "site.toml").write_text(CAREFUL)

    def run(self, method: Any, **plan: Any) -> list[RoundRecord]:
        config = grid.config(method, **{"rounds": 2, "quorum": 0.6, **plan})
        at = LocalGrid(self.folders)
        return coordinate(at, config, self.root / "run", NODES, timeout=0.0, pause=0.0).records

    @property
    def journal(self) -> list[str]:
        return (self.bee / "journal.log").read_text().splitlines()


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def own(cls: Any, **settings: Any) -> Any:
    return tiny.settings(cls(train_on="virtual"), {**tiny.SETTINGS, **settings})


REAL = 'train_on = ["virtual", "real"]'
IMAGES = 'sends = ["weights", "loss", "counts", "images"]'
STARTS = ["'noise'", "'statistics'"]
GREEDY = {
    "real images": (
        lambda: tiny.fedavg(train_on="real"),
        message("train-on-not-listed", data="real", line=REAL),
    ),
    "virtual images that are real ones": (
        lambda: tiny.fedlgd(distil__start="real"),
        message("setting-not-listed", path="distil.start", value="real", allowed=STARTS),
    ),
    "means of few images": (
        lambda: Redrawn(method=tiny.fedlgd()),
        message("setting-too-high", path="redraw.selected.count", value=1_000_000, most=0),
    ),
    "means of few images to start from": (
        lambda: tiny.fedlgd(distil__start="neighbours"),
        message("setting-not-listed", path="distil.start", value="neighbours", allowed=STARTS),
    ),
    "statistics of the pixels": (
        lambda: tiny.fedlgd(anchors__start="statistics"),
        message("setting-not-listed", path="anchors.start", value="statistics", allowed=["'noise'"]),
    ),
    "images uploaded": (
        lambda: own(own_methods.Uploading),
        message("kind-not-listed", kind="images", path="trees/virtual", line=IMAGES),
    ),
    "private images in every round": (
        lambda: own(own_methods.Attentive),
        message("reads-in-every-round", line=REAL),
    ),
    "control variates": (
        lambda: tiny.settings(tiny.stacked("scaffold"), {**tiny.SETTINGS, "train_on": "virtual"}),
        message(
            "kind-not-listed",
            kind="control variates",
            path="trees/variate",
            line='sends = ["weights", "loss", "counts", "control variates"]',
        ),
    ),
}


@pytest.mark.parametrize("asked", GREEDY)
def test_what_is_declared_is_refused_before_any_work_and_the_others_go_on(asked, bench):
    method, why = GREEDY[asked]
    records = bench.run(method())
    assert [record.refused for record in records] == [{"bee": why}] * 3
    assert sorted(records[-1].metrics) == ["ape", "cat"]
    assert not (bench.bee / "state").exists()
    refused = [line for line in bench.journal if "refused: " in line]
    assert len(refused) == 6  # describe, enrol, and two rounds of training and evaluation
    assert all(why in line for line in refused)
    assert all("reason (" in line for line in bench.journal if "sent: " in line)


DISHONEST = {
    "images": (own_methods.Silent, message("path-not-declared", path="trees/virtual/images")),
    "text": (own_methods.Telling, message("path-not-declared", path="trees/notes/patient")),
    "reads": (own_methods.Peeking, message("read-not-declared", when="in round 1")),
}


@pytest.mark.parametrize("what", DISHONEST)
def test_what_is_not_declared_does_not_leave_and_the_others_go_on(what, bench):
    cls, why = DISHONEST[what]
    enrolment, first, *_ = bench.run(own(cls))
    assert not enrolment.refused
    assert first.refused == {"bee": why}
    assert sorted(first.metrics) == ["ape", "cat"]
    refused, sent = (line for line in bench.journal if " train in round 1 " in line)
    assert "refused: train in round 1 of run " in refused
    assert f"({own_methods.__name__}:{cls.__name__}): {why}; no result is sent" in refused
    assert ": reason (" in sent


def test_a_site_that_lists_the_kind_sends_it(bench):
    (bench.bee / "site.toml").write_text(CAREFUL.replace("sends = [", 'sends = ["images", '))
    records = bench.run(own(own_methods.Uploading))
    assert not any(record.refused for record in records)
    (sent,) = (line for line in bench.journal if " train in round 1 " in line)
    assert f"images ({4 * 2 * 3 * 3 * tiny.SIDE**2:,} bytes)" in sent


def test_a_task_that_differs_from_what_was_described_is_refused_too(bench):
    """The server sends the run with every task."""
    settings = SiteSettings.read(bench.bee, "bee")
    greedy = grid.config(tiny.fedavg(train_on="real"), rounds=2).toml()
    order = Order(run="r", config=greedy, classes=("0", "1", "2"), shape=(3, tiny.SIDE, tiny.SIDE))
    replied = answer_question(question(order, [Task(what="enrol", site="bee")]), settings)
    (answer,) = (from_bytes(Answer, part) for part in _contents(replied, "answers"))
    assert answer.hello is None
    assert answer.fault == message("train-on-not-listed", data="real", line=REAL)


def test_a_setting_that_the_server_leaves_out_is_judged_by_its_default(bench):
    """The default of `distil.start` is `statistics`."""
    (bench.bee / "site.toml").write_text(CAREFUL.replace('["noise", "statistics"]', '["noise"]'))
    settings = SiteSettings.read(bench.bee, "bee")
    whole = grid.config(tiny.fedlgd(distil__start="statistics"), rounds=2).toml()
    silent = "".join(line for line in whole.splitlines(True) if line != 'start = "statistics"\n')
    assert silent != whole
    shape = (3, tiny.SIDE, tiny.SIDE)
    for config in (whole, silent):
        order = Order(run="r", config=config, classes=("0", "1", "2"), shape=shape)
        replied = answer_question(question(order, [Task(what="enrol", site="bee")]), settings)
        (answer,) = (from_bytes(Answer, part) for part in _contents(replied, "answers"))
        allowed = ["'noise'"]
        assert answer.fault == message(
            "setting-not-listed", path="distil.start", value="statistics", allowed=allowed
        )
        assert answer.hello is None


def test_a_site_with_other_code_of_the_method_refuses_unless_its_policy_allows_it(bench, monkeypatch):
    edited = {"own_methods.py": "another digest"}
    monkeypatch.setattr(coordinator, "sources_of", lambda *_: edited)
    (bench.bee / "site.toml").write_text(CAREFUL.replace("sends = [", 'sends = ["images", '))
    for site in ("ape", "cat"):
        (bench.folders[NODES[site]] / "site.toml").write_text(f"other_code = true\n{OPEN}")
    enrolment, *rounds = bench.run(own(own_methods.Uploading))
    assert list(enrolment.refused) == ["bee"]
    assert "own_methods.py" in enrolment.refused["bee"]
    assert enrolment.refused["bee"].endswith("other_code = true")
    assert all(list(record.refused) == ["bee"] for record in rounds)
    assert not (bench.bee / "state").exists()


def test_the_default_policy_of_a_kit_allows_fedlgd_and_the_journal_says_all(bench):
    records = bench.run(tiny.fedlgd("quick"), quorum=1.0)
    assert not any(record.refused for record in records)
    _, enrol, first, *_ = bench.journal
    assert "answer to enrol of run " in enrol
    assert "(fedlgd): counts (24 bytes), " in enrol
    assert enrol.endswith(f"; private images: read; {NO_PROMISE}")
    assert f"(fedlgd): weights ({4 * tiny.param_count():,} bytes), loss (8 bytes), costs (" in first
    assert "; trained on virtual images; private images: " in first
    assert all(line.endswith(NO_PROMISE) for line in bench.journal[1:])


def test_a_promise_is_in_every_line_of_its_run(tmp_path):
    folders, _ = grid.sites(tmp_path, tiny.federation(train=200), template("site.toml"))
    private = {"distil__plan": "bank", "distil__private__epsilon": 8.0, "distil__private__releases": 1}
    method = tiny.fedlgd("quick", **private)
    coordinate(LocalGrid(folders), grid.config(method, rounds=1), tmp_path / "run", NODES, timeout=0.0, pause=0.0)
    lines = (folders[NODES["bee"]] / "journal.log").read_text().splitlines()[1:]
    assert all(line.endswith(method.budget.statement) for line in lines)
    assert sum("private images: only as sums with noise" in line for line in lines) == 2


def test_a_policy_of_an_earlier_version_holds_and_the_journal_says_what_it_lacks(bench):
    old = "".join(line for line in CAREFUL.splitlines(True) if not line.startswith(("sends =", "train_on =")))
    (bench.bee / "site.toml").write_text(old)
    records = bench.run(tiny.fedlgd("quick"), quorum=1.0)
    assert not any(record.refused for record in records)
    lines = [line.partition("note: ")[2] for line in bench.journal[:2]]
    assert lines == [
        message("key-missing", key="sends", line='sends = ["weights", "loss", "counts"]'),
        message("key-missing", key="train_on", line='train_on = ["virtual"]'),
    ]
