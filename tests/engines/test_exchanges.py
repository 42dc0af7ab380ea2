"""A method with several exchanges in a round: the same bits on every engine, and after a kill between them."""

import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedlgd.attacks import target
from fedlgd.core.device import Place
from fedlgd.core.errors import RunError, SettingError
from fedlgd.core.types import ServerState
from fedlgd.engines.registry import Loop, Pool
from fedlgd.engines.server import RoundTally, Server
from fedlgd.engines.settings import RoundSettings
from fedlgd.engines.site import LOST_STATE, Answer, Sites, Task
from fedlgd.engines.storage import FolderStates, version_after, version_name
from fedlgd.methods import common
from fedlgd.methods.fedproto import mean_prototypes, site_prototypes
from fedlgd.methods.parts import Momentum
from fedlgd.methods.regularisers import Proximal, Regularised
from fedlgd.runs.run import execute
from tests import tiny
from tests.engines.exchanging import MeansFirst
from tests.errors import refuses
from tests.runs.folder import config, everything

METHOD = tiny.settings(MeansFirst(), tiny.SETTINGS | {"train_on": "real"})
DATA = tiny.federation(train=3, test=1)
PLAN = RoundSettings(rounds=2)

needs_fork = pytest.mark.skipif(sys.platform != "linux", reason="worker processes are forked")


class StoppedError(Exception):
    pass


# What happens in a round


class Seen(MeansFirst):
    """Notes the calls of the server's half."""

    calls: list[tuple[str, int, int]] = []

    def broadcast(self, state, site):
        self.calls.append((site, state.round, state.exchange))
        return super().broadcast(state, site)

    def server(self, state, updates, net, rng):
        self.calls.append(("server", state.round, state.exchange))
        return super().server(state, updates, net, rng)


def test_the_server_works_after_each_exchange_and_the_round_ends_after_the_last():
    Seen.calls.clear()
    run = tiny.Run(tiny.settings(Seen(), tiny.SETTINGS | {"train_on": "real"}), DATA, PLAN)
    exchange = [*tiny.NAMES, "server"]
    assert Seen.calls == [(who, t, e) for t in range(2) for e in range(2) for who in exchange]
    assert [(state.round, state.exchange) for state in run.states] == [(0, 0), (1, 0), (2, 0)]
    assert [list(record.scores) for record in run.records[1:]] == [list(tiny.NAMES)] * 2
    assert [run.memory.version(name) for name in tiny.NAMES] == [1, 1, 1]
    assert [int(run.memory.site(name).trees["rounds"]["trained"]) for name in tiny.NAMES] == [2, 2, 2]


def test_a_round_is_what_its_two_exchanges_are_by_hand():
    run, net = tiny.Run(METHOD, DATA, RoundSettings(rounds=1)), tiny.net()
    start = run.states[0].params
    own = [site_prototypes(net, start, site.train) for site in DATA.sites]
    means = {"means": {"means": mean_prototypes(None, own, "uniform")}}
    state = ServerState(params=start, trees=means, exchange=1)
    updates = []
    for site in DATA.sites:
        message = replace(METHOD.broadcast(state, site.name), exchange=1)
        rng = tiny.Stream(0).at("site", site.name, 0, 1)
        updates.append(METHOD.site(message, common.SiteState(), site, net, rng)[0])
    assert tiny.equal(run.states[1].params, common.weighted_mean(updates))
    assert not tiny.equal(run.states[1].params, tiny.Run(replace(METHOD, weight=0.0), DATA, PLAN).states[1].params)


def test_a_record_has_the_messages_of_all_exchanges():
    record = tiny.Run(METHOD, DATA, PLAN).records[1]
    model, means = 4 * tiny.param_count(), 4 * tiny.CLASSES * (tiny.net().features + 1)
    assert record.bytes_up == 3 * (model + means)
    assert {path: (part.sites, part.bytes) for path, part in record.sent.items()} == {
        "metrics/loss": (3, 24),
        "params": (3, 3 * model),
        "trees/means": (3, 3 * means),
    }
    assert record.readers == 3
    assert list(record.metrics) == list(tiny.NAMES)


# Engines, and kills


@needs_fork
def test_loop_and_pool_have_the_same_bits():
    memories = {engine: tiny.Kept(engine.states()) for engine in (Loop(), Pool(workers=2))}
    found = [list(tiny.play(METHOD, DATA, tiny.net(), PLAN, memory, engine)) for engine, memory in memories.items()]
    assert tiny.without_seconds(found[0]) == tiny.without_seconds(found[1])
    loop, pool = memories.values()
    assert tiny.equal(loop.server().params, pool.server().params)
    for name in tiny.NAMES:
        assert tiny.equal(loop.site(name).trees["own"], pool.site(name).trees["own"])


def killing(real: Any, at: int, late: bool) -> Callable[..., None]:
    """`save` that ends the process before, or after, its call number `at`."""
    count = [0]

    def save(*given: Any, **more: Any) -> None:
        count[0] += 1
        if count[0] == at and not late:
            raise StoppedError
        real(*given, **more)
        if count[0] == at:
            raise StoppedError

    return save


@pytest.mark.parametrize(("counted", "rounds"), [(True, 2), (False, 1)])
def test_a_run_killed_at_any_state_of_a_site_resumes_bit_equal(counted, rounds, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDLGD_CACHE", str(tmp_path / "home"))
    monkeypatch.setattr(os, "fsync", lambda _: None)
    data, how = tiny.federation(tiny.NAMES[:2], train=3, test=1), config(replace(METHOD, counted=counted), rounds)
    real, saves = FolderStates.save, []
    monkeypatch.setattr(FolderStates, "save", lambda *given, **more: (saves.append(given), real(*given, **more)))
    execute(how, data, tmp_path / "straight")
    whole = everything(tmp_path / "straight")
    assert (
        len(saves) == 2 + 2 * 2 * rounds
    )  # also if exchange 1 changes nothing: the state of exchange 0 gets the round
    for n in range(1, len(saves) + 1):
        folder = tmp_path / f"killed-{n}"
        with monkeypatch.context() as patch:
            patch.setattr(FolderStates, "save", killing(real, n, late=n % 2 == 0))
            with pytest.raises(StoppedError):
                execute(how, data, folder)
        execute(how, data, folder)
        assert everything(folder) == whole, n


# Sites that are lost between two exchanges


def served(work: Any, memory: tiny.Kept, quorum: float = 0.6) -> Server:
    names, plan = list(DATA.by_name), RoundSettings(rounds=2, quorum=quorum)
    sites = Sites(METHOD, DATA, tiny.net(), plan, memory.states, Place())
    given = partial(work, sites)
    return Server(method=METHOD, names=names, tested=names, net=tiny.net(), plan=plan, memory=memory, work=given)


def is_bee(task: Task, exchange: int) -> bool:
    """In the first round."""
    return bool(task.message) and (task.what, task.site, task.round, task.message.exchange) == (
        "train",
        "bee",
        0,
        exchange,
    )


@pytest.mark.parametrize("folder", [True, False])
@pytest.mark.parametrize("works", [True, False])
def test_a_site_lost_in_the_second_exchange_continues_as_before_the_round(works, folder, tmp_path):
    """Whether or not it had stored its new state when its answer was lost."""
    asked: list[tuple[int, int, int]] = []

    def work(sites: Sites, tasks: Iterator[Task]) -> Iterator[Answer]:
        for task in tasks:
            if task.what == "train" and task.site == "bee":
                asked.append((task.round, task.message.exchange, task.after))
            answer = sites(task) if works or not is_bee(task, 1) else None
            yield Answer(site="bee", version=task.after, fault="lost") if is_bee(task, 1) else answer

    memory = tiny.Kept(FolderStates(tmp_path) if folder else None)
    rounds = served(work, memory).run()
    next(rounds)
    first = next(rounds)
    assert first.refused == {"bee": "lost"}
    assert list(first.metrics) == ["ape", "cat"]
    assert [memory.version(name) for name in tiny.NAMES] == [0, -1, 0]
    second = next(rounds)
    assert (second.refused, second.joined) == ({}, ())
    assert asked == [(0, 0, -1), (0, 1, version_after(0, 0, 2)), (1, 0, -1), (1, 1, version_after(1, 0, 2))]
    assert int(memory.site("bee").trees["rounds"]["trained"]) == 1


def test_a_site_refused_in_the_first_exchange_is_not_asked_in_the_second():
    asked = []

    def work(sites: Sites, tasks: Iterator[Task]) -> Iterator[Answer]:
        for task in tasks:
            asked.append((task.site, task.message.exchange if task.message else None))
            yield Answer(site="bee", fault="lost") if is_bee(task, 0) else sites(task)

    rounds = served(work, tiny.Kept()).run()
    next(rounds)
    asked.clear()
    assert next(rounds).refused == {"bee": "lost"}
    training = asked[: -len(tiny.NAMES)]
    assert training == [("ape", 0), ("bee", 0), ("cat", 0), ("ape", 1), ("cat", 1)]


def test_the_quorum_holds_in_every_exchange():
    def work(sites: Sites, tasks: Iterator[Task]) -> Iterator[Answer]:
        yield from (sites(task) for task in tasks if not is_bee(task, 1))

    memory = tiny.Kept()
    with refuses("too-few-updates", RunError, round=1, valid=2, asked=3):
        list(served(work, memory, quorum=1.0).run())
    assert (memory.server().round, memory.server().exchange) == (0, 0)


def test_a_site_that_lost_its_state_within_a_round_does_not_enrol_in_it():
    memory = tiny.Kept()

    def work(sites: Sites, tasks: Iterator[Task]) -> Iterator[Answer]:
        for task in tasks:
            if is_bee(task, 1):
                memory.states._kept["bee"].clear()
            yield sites(task)

    _, first, second = served(work, memory).run()
    assert (first.refused, first.joined) == ({"bee": LOST_STATE}, ())
    assert (second.refused, second.joined) == ({}, ("bee",))


def test_a_lost_site_holds_the_anchors_of_before_the_round():
    tally = RoundTally(joined=["dog"])
    for site in ("bee", "cat", "dog"):
        tally.lose(site)
    before = ServerState(params={}, held={"ape": 1, "bee": 1, "dog": 1})
    after = replace(before, held=dict.fromkeys(("ape", "bee", "cat", "dog"), 4))
    assert tally.held_after(after, before) == {"ape": 4, "bee": 1}
    assert tally.versions == {"dog": -1}


# Versions, and what else knows of exchanges


@given(st.integers(1, 5), st.sets(st.tuples(st.integers(0, 99), st.integers(0, 4)), max_size=9))
def test_every_state_has_a_version_and_a_file_of_its_own(exchanges, moments):
    moments = {(t, e) for t, e in moments if e < exchanges}
    versions = {version_after(t, e, exchanges) for t, e in moments} | {-1}
    assert len(versions) == len({version_name(v) for v in versions}) == len(moments) + 1
    assert {v for v in versions if v >= 0} == {t for t, e in moments if e == exchanges - 1}


def test_a_site_keeps_the_committed_state_until_the_next_round(tmp_path):
    states, within = FolderStates(tmp_path), version_after(3, 0, 2)
    one, two, three = (common.SiteState(trees={"x": {"x": torch.tensor(i)}}) for i in range(3))
    states.save("ape", 1, one, before=-1)
    states.save("ape", within, two, before=1)
    states.save("ape", 3, three, before=within)
    assert [states.has("ape", version) for version in (1, within, 3)] == [True, True, True]
    states.save("ape", version_after(4, 0, 2), one, before=3)
    assert [states.has("ape", version) for version in (1, within, 3)] == [False, False, True]


def test_parts_that_work_once_in_a_round_are_refused():
    with refuses("part-not-accepted", SettingError, method="means-first"):
        Momentum(method=tiny.settings(METHOD, {"local.momentum": 0.9}))
    plain = tiny.Run(METHOD, DATA, RoundSettings(rounds=1)).states[-1].params
    near = (
        tiny.Run(Regularised(method=METHOD, term=Proximal(mu=10.0)), DATA, RoundSettings(rounds=1))
        .states[-1]
        .params
    )
    assert not tiny.equal(near, plain)


def test_gradient_inversion_does_not_follow_several_exchanges(tmp_path, monkeypatch):
    run = SimpleNamespace(config=config(METHOD), result=None)
    monkeypatch.setattr(target, "reopen", lambda _: run)
    with refuses("exchanges-not-followed", RunError, exchanges=2):
        target.open_replay(tmp_path)


def test_there_is_no_estimate_of_several_exchanges():
    assert METHOD.cost(0, DATA.sites[0], tiny.CLASSES) is None


def test_files_of_states_within_a_round_are_named_apart():
    assert [Path(version_name(v)).name for v in (-1, 12, version_after(6, 1, 3))] == [
        "start",
        "0012",
        "within-0019",
    ]
