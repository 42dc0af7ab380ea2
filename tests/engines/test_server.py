"""The server's half: what crosses a site's border, how deep training lies below it, and how updates wait."""

import math
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from functools import partial
from typing import Any, get_args, get_type_hints

import pytest
import torch

from fedlgd.core.device import Place
from fedlgd.core.errors import RunError, message
from fedlgd.core.score import Score
from fedlgd.core.types import LabelledSet, Site, SiteState, Update
from fedlgd.engines import storage
from fedlgd.engines.server import SILENT, Server
from fedlgd.engines.settings import RoundSettings
from fedlgd.engines.site import Answer, Sites, Task
from fedlgd.engines.storage import Inbox
from fedlgd.methods import common
from fedlgd.rundir.records import decode_record, encode_record
from tests import tiny
from tests.errors import refuses


def _types(kind: Any) -> Iterator[Any]:
    """All types inside a type."""
    yield kind
    for part in get_args(kind):
        yield from _types(part)
    if is_dataclass(kind):
        hints = get_type_hints(kind)
        for f in fields(kind):
            yield from _types(hints[f.name])


@pytest.mark.parametrize("kind", [Task, Answer])
def test_neither_images_nor_a_sites_state_can_cross_its_border(kind):
    inside = list(_types(kind))
    assert Update in inside or kind is Task
    assert [part for part in inside if part in (Site, SiteState, LabelledSet)] == []


def test_training_lies_few_calls_below_the_server(monkeypatch):
    depths = []

    def noted(logits, labels, wrapped=common.cross_entropy):
        frame, depth = sys._getframe(), 0
        while frame and frame.f_code.co_name != "_round":
            frame, depth = frame.f_back, depth + 1
        depths.append(depth)
        return wrapped(logits, labels)

    monkeypatch.setattr(common, "cross_entropy", noted)
    tiny.Run(tiny.fedlgd(), tiny.federation(), RoundSettings(rounds=2))
    assert max(depths) <= 10


def _update(site: str, seed: int) -> Update:
    return Update(site=site, params=tiny.params(tiny.net(), seed), weight=1.0, metrics={"loss": 0.5})


@pytest.mark.parametrize("room", [0, 3_000, 1 << 20])
def test_updates_are_read_in_the_order_of_names_as_often_as_wanted_from_memory_or_a_file(room, monkeypatch):
    monkeypatch.setattr(storage, "MAX_BYTES_IN_RAM", room)
    sent = {name: _update(name, i) for i, name in enumerate(tiny.NAMES)}
    with Inbox(tiny.NAMES) as updates:
        for name in reversed(tiny.NAMES):
            updates.add(sent[name])
        for _ in range(2):
            read = list(updates)
            assert [update.site for update in read] == list(tiny.NAMES)
            assert all(tiny.equal(update.params, sent[update.site].params) for update in read)
            assert all(update.metrics == {"loss": 0.5} for update in read)


def test_a_site_that_sent_nothing_is_left_out():
    with Inbox(tiny.NAMES) as updates:
        updates.add(_update("bee", 0))
        assert [update.site for update in updates] == ["bee"]


def test_a_run_whose_updates_wait_in_a_file_has_the_same_bits(monkeypatch):
    data, plan = tiny.federation(), RoundSettings(rounds=3, ratio=0.67)
    plain = tiny.Run(tiny.fedlgd(), data, plan)
    monkeypatch.setattr(storage, "MAX_BYTES_IN_RAM", 0)
    filed = tiny.Run(tiny.fedlgd(), data, plan)
    for a, b in zip(plain.states, filed.states, strict=True):
        assert tiny.equal(a.params, b.params)
        assert torch.equal(a.anchors.images, b.anchors.images)


def test_a_site_whose_update_was_lost_is_sent_the_anchors_again():
    def work(sites: Sites, tasks: Iterator[Task]) -> Iterator[Answer]:
        for task in tasks:
            if task.message and task.message.anchors:
                sent.append((task.round, task.site))
            lost = (task.what, task.round, task.site) == ("train", 3, "bee")
            yield Answer(site="bee", version=task.after, fault="it was lost") if lost else sites(task)

    sent, memory = [], tiny.Kept()
    held = [memory.server().held for _ in _server(work, RoundSettings(rounds=5, quorum=0.5), memory).run()]
    assert sent == [(1, "ape"), (1, "bee"), (1, "cat"), (3, "ape"), (3, "bee"), (3, "cat"), (4, "bee")]
    assert held[1:] == [
        {},
        dict.fromkeys(tiny.NAMES, 0),
        dict.fromkeys(tiny.NAMES, 0),
        {"ape": 2, "bee": 0, "cat": 2},
        dict.fromkeys(tiny.NAMES, 2),
    ]


def _server(work: Any, plan: RoundSettings, memory: Any = None) -> Server:
    method, data = tiny.fedlgd(), tiny.federation()
    memory = memory or tiny.Kept()
    sites = Sites(method, data, tiny.net(), plan, memory.states, Place())
    names = list(data.by_name)
    return Server(
        method=method,
        names=names,
        tested=names,
        net=tiny.net(),
        plan=plan,
        memory=memory,
        work=partial(work, sites),
    )


def test_enrolment_obeys_the_quorum_and_a_missing_site_joins_in_a_round():
    """Bee does not answer its enrolment; in the first round it enrols and trains."""

    def work(sites: Sites, tasks: Iterator[Task]) -> Iterator[Answer]:
        yield from (sites(task) for task in tasks if (task.what, task.site) != ("enrol", "bee"))

    start, first, second = _server(work, RoundSettings(rounds=2, quorum=0.6)).run()
    assert start.refused == {"bee": SILENT}
    assert (first.joined, second.joined) == (("bee",), ())
    assert sorted(first.metrics) == sorted(first.scores or first.metrics) == list(tiny.NAMES)
    with refuses("too-few-enrolled", RunError, enrolled=2, asked=3, quorum=1, least=3):
        list(_server(work, RoundSettings(rounds=2)).run())


def test_a_round_without_some_scores_says_whose_and_why():
    def work(sites: Sites, tasks: Iterator[Task]) -> Iterator[Answer]:
        for task in tasks:
            if task.what == "score" and task.site == "bee":
                yield Answer(site="bee", fault="disk full")
            elif task.what == "score" and task.site == "cat":
                score = sites(task).score
                yield Answer(site="cat", score=replace(score, accuracy=7.0))
            else:
                yield sites(task)

    last = list(_server(work, RoundSettings(rounds=1)).run())[-1]
    assert list(last.scores) == ["ape"]
    assert last.unscored["bee"] == "disk full"
    assert "accuracy is 7.0" in last.unscored["cat"]
    assert not last.refused


LIES: dict[str, tuple[Callable[[Score], Score], str]] = {
    "more images than exist": (lambda s: replace(s, total=(10**30, 1, 1), correct=(10**30, 0, 0)), "images"),
    "more correct than images": (lambda s: replace(s, correct=tuple(n + 1 for n in s.total)), "more correct"),
    "another accuracy": (lambda s: replace(s, accuracy=1.0, correct=(0, 0, 0)), "0 of .* images? as correct"),
    "a negative loss": (lambda s: replace(s, loss=-1.0), "loss is -1.0"),
    "a loss beyond every float": (lambda s: replace(s, loss=1e308), r"loss is 1e\+308"),
    "an AUC that is no number": (lambda s: replace(s, auc=math.nan), "AUC"),
    "counts of other classes": (lambda s: replace(s, total=(1,), correct=(1,)), "counts of 3 classes"),
    "no number as loss": (lambda s: replace(s, loss=math.nan), "its loss is nan"),
    "an infinite loss": (lambda s: replace(s, loss=math.inf), "its loss is inf"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_score_that_cannot_be_true_is_left_out_and_named(lie):
    change, reason = LIES[lie]

    def work(sites: Sites, tasks: Iterator[Task]) -> Iterator[Answer]:
        for task in tasks:
            answer = sites(task)
            lies = task.what == "score" and task.site == "bee" and answer.score
            yield replace(answer, score=change(answer.score)) if lies and answer.score else answer

    last = list(_server(work, RoundSettings(rounds=1, quorum=0.6)).run())[-1]
    assert list(last.scores) == ["ape", "cat"]
    assert re.search(reason, last.unscored["bee"])
    assert decode_record(encode_record(last)) == last


@pytest.mark.parametrize("cost", [{"seconds": {"train": 1e308}}, {"cpu": {"x": 2e9}}, {"flops": {"x": 10**50}}])
def test_costs_that_cannot_be_true_are_not_added_up(cost):
    def work(sites: Sites, tasks: Iterator[Task]) -> Iterator[Answer]:
        for task in tasks:
            lies = task.what == "train" and task.site != "ape"
            yield replace(sites(task), **cost) if lies else sites(task)

    last = list(_server(work, RoundSettings(rounds=1, quorum=0.3)).run())[-1]
    assert sorted(last.refused) == ["bee", "cat"]
    assert last.refused["bee"].startswith("its costs")
    assert decode_record(encode_record(last)) == last


def test_a_site_that_never_keeps_its_state_is_refused_and_the_round_goes_on():
    def work(sites: Sites, tasks: Iterator[Task]) -> Iterator[Answer]:
        for task in tasks:
            forgetful = task.what == "train" and task.site == "bee"
            yield sites(Task(what="enrol", site="bee")) if forgetful else sites(task)

    last = list(_server(work, RoundSettings(rounds=1, quorum=0.6)).run())[-1]
    assert last.joined == ("bee",)
    assert last.refused == {"bee": message("update-missing")}


def test_wall_time_is_not_added_up_over_sites_that_work_at_the_same_time():
    """Every site says that it worked for an hour; a round took seconds."""

    def work(sites: Sites, tasks: Iterator[Task]) -> Iterator[Answer]:
        return (replace(sites(task), seconds={"train": 3600.0}) for task in tasks)

    for record in _server(work, RoundSettings(rounds=1)).run():
        assert sum(record.seconds.values()) > 3 * 3600
        assert 0 < record.wall < 3600
