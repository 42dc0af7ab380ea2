"""The engine flower in one process: the bits of `loop` for every method, and sites that are lost or lie."""

import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ConfigRecord, Error, Message, RecordDict

from fedlgd.core.device import Place
from fedlgd.core.errors import RunError, SettingError, message
from fedlgd.deploy import messages
from fedlgd.deploy.client import SiteSettings
from fedlgd.deploy.coordinator import AWAY, coordinate
from fedlgd.engines.registry import engine
from fedlgd.engines.site import Answer
from fedlgd.engines.validate import listed
from fedlgd.engines.wire import from_bytes, to_bytes
from fedlgd.runs.folder import RunDirectory
from fedlgd.runs.run import Result, execute
from tests import tiny
from tests.contract import battery
from tests.core.test_compile import needs_compiler
from tests.deploy import grid
from tests.deploy.grid import NODES, LocalGrid, Trick
from tests.errors import refuses


@pytest.fixture(autouse=True)
def _home(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDLGD_CACHE", str(tmp_path / "home"))


def run(at: LocalGrid, config: Any, out: Path, **how: Any) -> Result:
    sites = {name: node for node, name in at.names.items()}
    return coordinate(at, config, out, sites, timeout=0.0, pause=0.0, **how)


CASES = [case for case, method in battery.CASES.items() if not method.pooled and not case.endswith("-private")]
"""Real sites refuse the public key of the private cases: test_policy."""


@pytest.mark.parametrize("case", CASES)
def test_every_method_has_the_bits_of_loop(case, tmp_path):
    config = grid.config(battery.CASES[case], rounds=3, ratio=0.67, seed=5, evaluate_every=2)
    folders, data = grid.sites(tmp_path, battery.uneven())
    away = run(LocalGrid(folders), config, tmp_path / "run")
    here = execute(config, data)
    same(away, here)


def same(away: Result, here: Result) -> None:
    assert tiny.equal(away.params, here.params)
    assert tiny.without_seconds(away.records) == tiny.without_seconds(here.records)
    assert (away.anchors is None) == (here.anchors is None)
    if away.anchors and here.anchors:
        assert torch.equal(away.anchors.images, here.anchors.images)


@needs_compiler
@pytest.mark.slow
def test_compiled_sites_have_the_bits_of_a_compiled_loop(tmp_path):
    config = grid.config(battery.CASES["fedavg-virtual"], rounds=2, seed=5, evaluate_every=2)
    folders, data = grid.sites(tmp_path, tiny.federation())
    plain = execute(config, data)
    compiled = execute(config, data, engine=engine("loop", place=Place(compile="on")))
    for name, node in NODES.items():
        replace(SiteSettings.read(folders[node], name), place=Place(compile="on")).write()
    away = run(LocalGrid(folders), config, tmp_path / "run")
    assert tiny.equal(away.params, compiled.params)
    assert not tiny.equal(away.params, plain.params), "nothing was compiled"


def test_methods_that_join_the_images_of_all_sites_are_refused(tmp_path):
    pooled = next(method for method in battery.CASES.values() if method.pooled)
    folders, _ = grid.sites(tmp_path, battery.uneven())
    with pytest.raises(SettingError, match="real sites do not send"):
        run(LocalGrid(folders), grid.config(pooled, rounds=1), tmp_path / "run")


def test_engine_flower_by_name_says_what_it_needs():
    with refuses("flower-needs-kit", SettingError):
        engine("flower")


@pytest.mark.slow
def test_a_hundred_sites_have_the_bits_of_loop(tmp_path):
    names = [f"s{i:02}" for i in range(100)]
    config = grid.config(tiny.fedlgd(), rounds=2, ratio=0.3, evaluate_every=2)
    folders, data = grid.sites(tmp_path, tiny.federation(names, train=2, test=1))
    away = run(LocalGrid(folders), config, tmp_path / "run")
    same(away, execute(config, data))
    assert [len(record.sampled) for record in away.records] == [0, 30, 30]
    assert sorted(away.records[-1].scores) == names


# Sites that are lost, late, or say something wrong


def told(change: Any) -> Trick:
    """A site whose answers to tasks are changed: Answer -> Answer."""

    def trick(asked: Message, honest: Message) -> Message:
        answers = [from_bytes(Answer, part) for part in messages._contents(honest.content, "answers")]
        honest.content = messages.reply(asked.content, [to_bytes(change(answer)) for answer in answers])
        return honest

    return only_train(trick)


def only_train(trick: Trick) -> Trick:
    def chosen(asked: Message, honest: Message) -> Message | None:
        tasks = messages.read_question(asked.content)[1]
        return trick(asked, honest) if tasks and tasks[0].what == "train" else honest

    return chosen


def content(record: RecordDict) -> Trick:
    def trick(asked: Message, honest: Message) -> Message:
        honest.content = record
        return honest

    return only_train(trick)


def replayed() -> Trick:
    first: list[RecordDict] = []

    def trick(asked: Message, honest: Message) -> Message:
        first.append(honest.content)
        honest.content = first[0]
        return honest

    return only_train(trick)


def from_another_node(asked: Message, honest: Message) -> Message:
    honest.metadata.__dict__["_src_node_id"] = NODES["ape"]
    return honest


def large(answer: Answer) -> Answer:
    assert answer.update is not None
    return replace(answer, update=replace(answer.update, params={"x": torch.zeros(1 << 20)}))


TRICKS: dict[str, tuple[Trick, str]] = {
    "lost": (only_train(lambda asked, _: Message(Error(5), reply_to=asked)), "connection"),
    "crashed": (only_train(lambda asked, _: Message(Error(2), reply_to=asked)), "its program failed"),
    "late": (only_train(lambda *_: None), "within 0 s"),
    "another's name": (told(lambda a: replace(a, site="ape")), message("name-of-another", name="ape")),
    "another's node": (only_train(from_another_node), r"another node \(100\)"),
    "signed by another": (told(lambda a: replace(a, update=replace(a.update, site="ape"))), "signed 'ape'"),
    "too large": (told(large), "bytes; at most"),
    "empty": (content(RecordDict()), "cannot be read"),
    "no array": (
        content(RecordDict({"reply": ConfigRecord({"question": "x"}), "answers": ConfigRecord({})})),
        "read",
    ),
    "no number": (told(lambda a: replace(a, version="new")), "cannot be read"),
    "negative costs": (told(lambda a: replace(a, seconds={"train": -1.0})), "costs"),
    "infinite costs": (told(lambda a: replace(a, seconds={"train": float("inf")})), "costs"),
    "another state": (told(lambda a: replace(a, version=7)), "names state 7"),
    "a terminal sequence": (told(lambda a: replace(a, fault="\x1b[31mhello")), r"^\?\[31mhello$"),
    "a name that is not one": (told(lambda a: replace(a, flags=("a\nb",))), message("names-unprintable")),
    "nothing": (told(lambda a: replace(a, hello=None, update=None)), "sent no update"),
}


@pytest.mark.parametrize("trick", TRICKS)
def test_a_site_without_a_valid_answer_is_named_and_the_round_goes_on(trick, tmp_path):
    config = grid.config(tiny.fedlgd(), rounds=1, quorum=0.6)
    folders, _ = grid.sites(tmp_path, tiny.federation())
    does, reason = TRICKS[trick]
    result = run(LocalGrid(folders, {"bee": does}), config, tmp_path / "run")
    assert list(result.records[-1].refused) == ["bee"]

    assert re.search(reason, result.records[-1].refused["bee"])
    assert sorted(result.records[-1].metrics) == ["ape", "cat"]


def test_a_replayed_answer_is_refused(tmp_path):
    config = grid.config(tiny.fedavg(), rounds=2, quorum=0.6)
    folders, _ = grid.sites(tmp_path, tiny.federation())
    result = run(LocalGrid(folders, {"bee": replayed()}), config, tmp_path / "run")
    assert not result.records[1].refused
    assert result.records[2].refused["bee"] == message("reply-to-another-question")


def test_below_quorum_the_run_stops_and_resumes_with_the_bits_of_loop(tmp_path):
    config = grid.config(tiny.fedlgd(), rounds=4, evaluate_every=1)
    folders, data = grid.sites(tmp_path, tiny.federation())
    at = LocalGrid(folders)

    def leave(record):
        at.gone = {"cat"} if record.round == 1 else set()

    with refuses("too-few-updates", RunError, round=3, valid=2, asked=3, sites=listed({"cat": AWAY})):
        run(at, config, tmp_path / "run", on_round=leave)
    at.gone = set()
    same(run(at, config, tmp_path / "run"), execute(config, data))


def test_a_site_that_was_away_goes_on_from_its_own_last_state(tmp_path):
    """It holds no newer anchors than the server thinks, and nothing is lost at the others."""
    config = grid.config(tiny.fedlgd(), rounds=5, quorum=0.6, evaluate_every=1)
    folders, _ = grid.sites(tmp_path, tiny.federation())
    at = LocalGrid(folders)

    def move(record):
        at.gone = {"bee"} if record.round in (0, 1) else set()

    records = run(at, config, tmp_path / "run", on_round=move).records
    assert [list(record.refused) for record in records] == [[], [], ["bee"], ["bee"], [], []]
    assert [list(record.unscored) for record in records] == [[], [], ["bee"], ["bee"], [], []]
    assert all(not record.joined for record in records)
    assert sorted(records[-1].scores) == list(tiny.NAMES)


@pytest.mark.parametrize("case", {battery.CASES[case].name: case for case in CASES}.values())
def test_a_site_that_lost_its_state_enrols_again(case, tmp_path):
    config = grid.config(battery.CASES[case], rounds=3, seed=5, evaluate_every=1)
    folders, _ = grid.sites(tmp_path, battery.uneven())

    def lose(record):
        if record.round == 1:
            shutil.rmtree(folders[NODES["bee"]] / "state")

    records = run(LocalGrid(folders), config, tmp_path / "run", on_round=lose).records
    assert [record.joined for record in records] == [(), (), (), ("bee",)]
    assert sorted(records[-1].metrics) == sorted(records[-1].scores) == list(tiny.NAMES)


def test_a_site_that_lost_its_anchors_gets_them_again(tmp_path):
    config = grid.config(tiny.fedlgd(), rounds=4)
    folders, _ = grid.sites(tmp_path, tiny.federation())
    sent = []

    def lose(record):
        if record.round == 2:
            shutil.rmtree(folders[NODES["bee"]] / "state")

    def watch(asked, honest):
        sent.extend((task.round, task.message.anchors) for task in messages.read_question(asked.content)[1])
        return honest

    run(LocalGrid(folders, {"bee": only_train(watch)}), config, tmp_path / "run", on_round=lose)
    assert [(t, anchors is not None) for t, anchors in sent if t == 3] == [(3, True), (3, True)]


def test_a_site_that_comes_late_joins(tmp_path):
    config = grid.config(tiny.fedlgd(), rounds=3, quorum=0.6, evaluate_every=1)
    folders, _ = grid.sites(tmp_path, tiny.federation())
    at = LocalGrid(folders, gone={"cat"})

    def come(record):
        at.gone = set() if record.round == 0 else at.gone

    records = run(at, config, tmp_path / "run", on_round=come).records
    assert [list(record.refused) for record in records] == [["cat"], ["cat"], [], []]
    assert [record.joined for record in records] == [(), (), ("cat",), ()]
    assert list(records[1].unscored) == ["cat"]


def test_nobody_is_connected(tmp_path):
    folders, _ = grid.sites(tmp_path, tiny.federation())
    at = LocalGrid(folders, gone=set(tiny.NAMES))
    with refuses("too-few-enrolled", RunError, enrolled=0, asked=3):
        run(at, grid.config(tiny.fedavg(), rounds=1, quorum=0.1), tmp_path / "run")
    assert not (tmp_path / "run").exists()


# The coordinator is killed


class KilledError(Exception):
    pass


@pytest.mark.parametrize("number", [2, 4, 7, 8, 11, 13, 16])
def test_a_coordinator_that_is_killed_between_two_messages_resumes_with_the_same_bits(number, tmp_path):
    config = grid.config(tiny.fedlgd(), rounds=4, evaluate_every=2)
    folders, data = grid.sites(tmp_path, tiny.federation())
    at, count = LocalGrid(folders), 0

    def kill():
        nonlocal count
        count += 1
        if count == number:
            raise KilledError

    at.on_push = kill
    with pytest.raises(KilledError):
        run(at, config, tmp_path / "run")
    same(run(LocalGrid(folders), config, tmp_path / "run"), execute(config, data))


@pytest.mark.parametrize("round", [-1, 0, 1])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_coordinator_that_is_killed_around_a_commit_resumes_with_the_same_bits(
    round, when, tmp_path, monkeypatch
):
    config, commit = grid.config(tiny.fedlgd(), rounds=3), RunDirectory.commit

    def killed(self, state, record, versions):
        if when == "after" or record.round != round:
            commit(self, state, record, versions)
        if record.round == round:
            raise KilledError

    folders, data = grid.sites(tmp_path, tiny.federation())
    with monkeypatch.context() as patch:
        patch.setattr(RunDirectory, "commit", killed)
        with pytest.raises(KilledError):
            run(LocalGrid(folders), config, tmp_path / "run")
    same(run(LocalGrid(folders), config, tmp_path / "run"), execute(config, data))


def test_a_run_is_not_resumed_with_other_sites(tmp_path):
    config = grid.config(tiny.fedavg(), rounds=1)
    folders, _ = grid.sites(tmp_path, tiny.federation())
    run(LocalGrid(folders), config, tmp_path / "run")
    with refuses("kit-of-another-run", RunError, started=list(tiny.NAMES), given=["ape"]):
        coordinate(LocalGrid(folders), config, tmp_path / "run", {"ape": 100}, timeout=0.0, pause=0.0)
