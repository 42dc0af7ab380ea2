"""The server refuses what no honest site sends, names the sender, and leaves the model as it was."""

import json
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlgd.core.errors import FedlgdError, RunError, SettingError, message
from fedlgd.core.types import Broadcast, Hello, Update
from fedlgd.engines.registry import Loop, Pool
from fedlgd.engines.server import SILENT
from fedlgd.engines.settings import RoundSettings
from fedlgd.engines.site import Answer, Task
from fedlgd.engines.validate import check_hello, check_quorum, check_update, listed
from fedlgd.methods import common
from fedlgd.methods.fedavg import FedAvg
from fedlgd.methods.parts import Part
from fedlgd.rundir.records import committed_records
from fedlgd.runs.run import execute
from tests import tiny
from tests.contract import battery
from tests.engines.hostile import PLAN, Honest, changed, honest, hostile, leaves, spoilt, value_at
from tests.errors import refuses
from tests.runs.folder import as_plain, config, everything, method, run_until

FIRST = Task(what="train", site="bee", round=0)


def checked(of: Honest, answer: Answer) -> Update:
    """The answer of "bee" in the first round as the server checks it."""
    task = replace(FIRST, message=of.method.broadcast(of.memory.server(), "bee"))
    return check_update(answer, task, of.method, of.net, of.memory.enrolment("bee").hello)


every_case = pytest.mark.parametrize("case", battery.CASES)
needs_fork = pytest.mark.skipif(sys.platform != "linux", reason="worker processes are forked")
every_engine = pytest.mark.parametrize("engine", ["loop", pytest.param("pool", marks=needs_fork)])


def engine_of(name: str) -> Any:
    return Loop() if name == "loop" else Pool(workers=2)


# Every method, every attack


@every_case
def test_every_hostile_update_is_refused_with_its_sender_named_and_the_model_stays(case):
    for exchange in range(battery.CASES[case].exchanges):
        of = honest(case).at(exchange)
        *others, sender = of.answers.values()
        before = battery.bits(of.memory.server())
        for attack, update in hostile(sender.update):
            server, memory = of.server([*others, replace(sender, update=update)])
            with refuses("too-few-updates", RunError, valid=len(others), asked=len(others) + 1) as refused:
                list(server.run())
            assert refused.value.values["sites"].startswith(repr(sender.site)), attack
            assert battery.bits(memory.server()) == before, attack


def test_there_are_enough_attacks_to_mean_something():
    found = [sum(1 for _ in hostile([*honest(case).answers.values()][-1].update)) for case in battery.CASES]
    assert min(found) >= 11
    assert sum(found) >= 540


@every_case
def test_honest_answers_are_accepted(case):
    for exchange in range(battery.CASES[case].exchanges):
        of = honest(case).at(exchange)
        server, _ = of.server(list(of.answers.values()))
        assert [record.refused for record in server.run()] == [{}]


@settings(deadline=None, max_examples=60)
@given(data=st.data(), bad=st.sampled_from([math.nan, math.inf, -math.inf]))
def test_one_bad_number_anywhere_is_found(data, bad):
    of = honest(data.draw(st.sampled_from(["scaffold-real", "fednova-prox", "fedproto-avg-uniform", "vhl-real"])))
    sender = of.answers["bee"]
    leaf = data.draw(st.sampled_from(leaves(sender.update)))
    value = value_at(sender.update, leaf)
    update = changed(sender.update, leaf, spoilt(value, bad, data.draw(st.integers(0, value.numel() - 1))))
    assert checked(of, sender).params.keys() == sender.update.params.keys()
    path = "/".join(["trees", *leaf] if leaf[0] else ["params", leaf[1]])
    with refuses("tensor-not-finite", paths=repr(path)):
        checked(of, replace(sender, update=update))


def test_a_reason_names_the_tensor_and_what_was_expected():
    of = honest("fedavg-real")
    answer = of.answers["bee"]
    sent, bias = answer.update, ("", "head.bias")
    for update, faults in (
        (changed(sent, bias, torch.zeros(2)), "'params/head.bias' is float32 (2,), not float32 (3,)"),
        (changed(sent, bias, None), "'params/head.bias' is missing"),
        (replace(sent, trees={"own": {"x": torch.zeros(1)}}), "'trees/own/x' (float32 (1,)) is not expected"),
    ):
        with refuses("tensors-differ", declared="FedAvg.expects", faults=faults):
            checked(of, replace(answer, update=update))
    with refuses("update-signed", signed="cat"):
        checked(of, replace(answer, update=replace(sent, site="cat")))


def test_all_faults_of_an_update_are_in_one_refusal():
    of = honest("fedavg-real")
    answer = of.answers["bee"]
    other = changed(changed(answer.update, ("", "head.bias"), torch.zeros(2)), ("", "head.weight"), None)
    update = replace(other, trees={"virtual": {"images": torch.zeros(6, 3, 8, 8), "present": torch.ones(3)}})
    with refuses("tensors-differ") as refused:
        checked(of, replace(answer, update=update))
    assert refused.value.values["faults"].split(", '") == [
        "'params/head.weight' is missing",
        "trees/virtual/images' (float32 (6, 3, 8, 8)) is not expected",
        "trees/virtual/present' (float32 (3,)) is not expected",
        "params/head.bias' is float32 (2,), not float32 (3,)",
    ]


def test_a_refusal_names_a_few_of_many_faults_and_the_class_that_declares():
    method = Hostile(method=FedAvg())
    names = [f"image {k}" for k in range(20)]
    answer = Answer(site="bee", update=Update(site="bee", params={n: torch.zeros(1) for n in names}, weight=1.0))
    task = replace(FIRST, message=Broadcast(round=0, params={}))
    hello = Hello(site="bee", counts=torch.ones(3, dtype=torch.int64))
    with refuses("tensors-differ", declared="FedAvg.expects") as refused:
        check_update(answer, task, method, tiny.net(), hello)
    assert [name in str(refused.value) for name in names] == [True] * 8 + [False] * 12
    assert str(refused.value).endswith("and 12 more")


# Who answers


def test_a_site_that_does_not_answer_or_sends_nothing_is_refused():
    of = honest("fedavg-real")
    ape, bee, cat = of.answers.values()
    unknown = message("version-unknown", version=7, after=-1, new=0)
    for answers, why in (
        ([ape, bee], SILENT),
        ([ape, bee, replace(cat, update=None)], message("update-missing")),
        ([ape, bee, replace(cat, version=7)], unknown),
    ):
        with refuses("too-few-updates", RunError, valid=2, asked=3, sites=listed({"cat": why})):
            list(of.server(answers)[0].run())


def test_an_answer_that_nobody_asked_for_is_not_averaged():
    of = honest("fedavg-real")
    answers = list(of.answers.values())
    more = [replace(answers[0], site="nobody"), answers[1]]
    (record,), (plain,) = (list(of.server(given)[0].run()) for given in ([*answers, *more], answers))
    assert set(record.refused) == {"nobody", "bee"}
    assert record.scores == plain.scores
    assert record.bytes_up == plain.bytes_up


def test_many_refused_sites_are_counted_and_a_few_named():
    of = honest("fedavg-real")
    with refuses("too-few-updates", RunError, valid=0, asked=3, quorum=1, least=3):
        list(of.server([])[0].run())


# Enrolment


def _hello(**changes: Any) -> Callable[[Any], Any]:
    return lambda hello: replace(hello, **changes)


HELLOS = {
    "shape": _hello(counts=torch.ones(7, dtype=torch.int64)),
    "dtype": _hello(counts=torch.ones(3)),
    "negative": _hello(counts=torch.tensor([3, -1, 2])),
    "empty": _hello(counts=torch.zeros(3, dtype=torch.int64)),
    "signed": _hello(site="ape"),
    "statistics": _hello(statistics=torch.zeros(3, 2, 3)),
    "nothing": lambda _: None,
}


@dataclass(frozen=True, kw_only=True)
class Greets(FedAvg):
    """Site "bee" sends a hostile message at enrolment."""

    how: str = ""

    def enrol(self, site, net, rng):
        state, hello = common.enrol(self, site, net, rng)
        return state, HELLOS[self.how](hello) if site.name == "bee" and self.how else hello


@every_engine
@pytest.mark.parametrize("how", HELLOS)
def test_a_hostile_hello_is_refused_and_the_others_stay_enrolled(how, engine):
    data, chosen = tiny.federation(), engine_of(engine)
    memory = tiny.Kept(chosen.states())
    with refuses("too-few-enrolled", RunError, enrolled=2, asked=3):
        list(tiny.play(Greets(how=how), data, tiny.net(), PLAN, memory, chosen))
    assert memory.server() is None
    assert memory.enrolment("bee") is None
    assert memory.enrolment("cat")
    rest = tiny.Run(Greets(), data, PLAN, memory)
    assert tiny.equal(rest.states[-1].params, tiny.Run(FedAvg(), data, PLAN).states[-1].params)


def test_statistics_are_checked_where_a_method_asks_for_them():
    of = honest("fedlgd-official")
    _, hello = of.method.enrol(of.data.by_name["bee"], of.net, tiny.Stream(0))
    good = hello.statistics
    assert check_hello(Answer(site="bee", hello=hello), of.method, of.net) is hello
    for statistics, code in (
        (None, "tensors-differ"),
        (good.double(), "tensors-differ"),
        (spoilt(good, math.nan, 0), "statistics-not-finite"),
        (spoilt(good, math.inf, 0), "statistics-not-finite"),
        (-good.abs(), "statistics-negative"),
    ):
        with refuses(code):
            check_hello(Answer(site="bee", hello=replace(hello, statistics=statistics)), of.method, of.net)


# Quorum


@dataclass(frozen=True, kw_only=True)
class Hostile(Part):
    """Some sites send NaN in some rounds."""

    kind = "regulariser"
    sites: tuple[str, ...] = ("bee",)
    rounds: tuple[int, ...] = ()

    @property
    def sections(self):
        return {}

    @property
    def name(self):
        return self.method.name

    def site(self, msg, state, site, net, rng, fit=common.fit):
        update, state = self.method.site(msg, state, site, net, rng, fit)
        if site.name in self.sites and msg.round in self.rounds:
            update = replace(update, weight=math.nan)
        return update, state


STATEFUL = ["fedavg", "scaffold", "moon", "fedbn", "fedlgd", "fedproto-local", "vhl"]


@every_engine
def test_the_round_goes_on_without_a_refused_site(engine):
    data, chosen, of = tiny.federation(), engine_of(engine), tiny.fedavg(train_on="real")
    plan, memory = RoundSettings(rounds=2, quorum=0.6), tiny.Kept(chosen.states())
    found = tiny.play(Hostile(method=of, rounds=(0,)), data, tiny.net(), plan, memory, chosen)
    records = list(found)
    assert records[1].sampled == ("ape", "bee", "cat")
    assert list(records[1].refused) == ["bee"]
    assert "weight is nan" in records[1].refused["bee"]
    assert list(records[1].metrics) == ["ape", "cat"]
    assert list(records[1].scores) == ["ape", "bee", "cat"]
    assert records[2].refused == {}
    assert list(records[2].metrics) == ["ape", "bee", "cat"]


def test_the_model_is_that_of_the_sites_that_were_not_refused():
    of = honest("fedavg-real")
    ape, bee, cat = of.answers.values()
    spoilt_bee = replace(bee, update=replace(bee.update, weight=-1.0))
    server, memory = of.server([ape, spoilt_bee, cat], replace(PLAN, quorum=0.5))
    (record,) = server.run()
    assert tiny.equal(memory.server().params, common.weighted_mean([ape.update, cat.update]))
    assert memory.version("bee") == -1
    assert record.bytes_up == 3 * record.bytes_down // 3


@pytest.mark.parametrize(
    ("quorum", "sites", "passes"),
    [(1.0, 1, False), (0.67, 1, False), (2 / 3, 1, True), (0.5, 1, True), (0.34, 2, False), (0.33, 2, True)],
)
def test_a_quorum_is_a_share_of_the_sites_that_were_asked(quorum, sites, passes):
    of = Hostile(method=FedAvg(), sites=tiny.NAMES[:sites], rounds=(0,))
    plan, memory = RoundSettings(rounds=1, quorum=quorum), tiny.Kept()
    if passes:
        assert len(tiny.Run(of, tiny.federation(test=1), plan, memory).records[-1].refused) == sites
        return
    with refuses("too-few-updates", RunError, round=1, valid=3 - sites, asked=3, quorum=quorum):
        tiny.Run(of, tiny.federation(test=1), plan, memory)
    assert memory.server().round == 0


def test_a_round_in_which_everybody_is_refused_never_counts():
    of = Hostile(method=FedAvg(), sites=tiny.NAMES, rounds=(0,))
    with refuses("too-few-updates", RunError, valid=0, asked=3):
        tiny.Run(of, tiny.federation(), RoundSettings(rounds=1, quorum=0.01))


@pytest.mark.parametrize("quorum", [0.0, -1.0, 1.1, math.nan])
def test_a_senseless_quorum_is_refused(quorum):
    with pytest.raises(SettingError, match="quorum"):
        RoundSettings(quorum=quorum)


@pytest.mark.parametrize("name", STATEFUL)
def test_a_run_resumed_after_a_refused_round_is_bit_equal(name, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDLGD_CACHE", str(tmp_path / "home"))
    data = tiny.federation(train=3, test=1)
    how = config(Hostile(method=method(name), rounds=(0, 2)), rounds=4, quorum=0.6)
    whole = execute(how, data, tmp_path / "straight")
    run_until(0, how, data, tmp_path / "run")
    run_until(2, how, data, tmp_path / "run")
    again = execute(how, data, tmp_path / "run")
    assert everything(tmp_path / "run") == everything(tmp_path / "straight")
    assert as_plain(again) == as_plain(whole)
    assert [list(r.refused) for r in committed_records(tmp_path / "run")] == [[], ["bee"], [], ["bee"], []]


@needs_fork
@pytest.mark.parametrize("name", ["scaffold", "fedlgd"])
def test_the_pool_refuses_as_the_loop_does(name, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDLGD_CACHE", str(tmp_path / "home"))
    data, how = tiny.federation(train=3, test=1), config(Hostile(method=method(name), rounds=(1,)), quorum=0.6)
    for engine in ("loop", "pool"):
        execute(how, data, tmp_path / engine, engine=engine_of(engine))
    assert everything(tmp_path / "pool") == everything(tmp_path / "loop")


class Honestly(Hostile):
    """What a hostile site runs once it is repaired: the same configuration, honest updates."""

    def site(self, *given, **more):
        return self.method.site(*given, **more)


Honestly.__qualname__ = Hostile.__qualname__  # a part is known by the name of its class


@every_engine
@pytest.mark.parametrize("bad", [0, 1, 2])
def test_below_the_quorum_nothing_is_committed_and_the_folder_resumes(bad, engine, tmp_path, monkeypatch):
    """Round 0, one in the middle, and the last, which must not end as a success."""
    monkeypatch.setenv("FEDLGD_CACHE", str(tmp_path / "home"))
    data, of = tiny.federation(train=3, test=1), method("scaffold")
    with refuses("too-few-updates", RunError, round=bad + 1, valid=2, asked=3):
        execute(config(Hostile(method=of, rounds=(bad,))), data, tmp_path / "run", engine=engine_of(engine))
    assert json.loads((tmp_path / "run/state/head.json").read_text())["round"] == bad
    execute(config(Honestly(method=of)), data, tmp_path / "run")
    execute(config(Honestly(method=of)), data, tmp_path / "straight")
    assert everything(tmp_path / "run") == everything(tmp_path / "straight")


# Metrics


@dataclass(frozen=True, kw_only=True)
class Talks(FedAvg):
    """Sites report numbers that are none."""

    def site(self, msg, state, site, net, rng, fit=common.fit):
        update, state = FedAvg.site(self, msg, state, site, net, rng, fit)
        return replace(update, metrics={"loss": 1.0, "a": math.nan, "b": math.inf, "c": "x", "d": 3}), state


def test_a_metric_that_is_no_number_is_recorded_as_nan_and_survives_a_resume(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDLGD_CACHE", str(tmp_path / "home"))
    data, how = tiny.federation(train=3, test=1), config(Talks())
    run_until(1, how, data, tmp_path / "run")
    records = execute(how, data, tmp_path / "run").records
    assert [r.round for r in records] == [-1, 0, 1, 2]
    for record in records[1:]:
        assert record.refused == {}
        said = record.metrics["bee"]
        assert (said["loss"], said["d"]) == (1.0, 3.0)
        assert all(math.isnan(said[name]) for name in "abc")


# Divergence


@every_engine
@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("name", ["fedavg", "scaffold", "local-only", "fedproto-local", "fedlgd"])
def test_a_learning_rate_that_diverges_is_an_error_that_names_a_site(name, steps, engine, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDLGD_CACHE", str(tmp_path / "home"))
    of = method(name, **{"local.lr": 1e38, "local.steps": steps})
    with pytest.raises(FedlgdError, match=r"round 1: .*'ape'.*training diverged.*lower local\.lr"):
        execute(config(of, rounds=1), tiny.federation(test=1), tmp_path / "run", engine=engine_of(engine))
    assert json.loads((tmp_path / "run/state/head.json").read_text())["round"] == 0


@dataclass(frozen=True, kw_only=True)
class Explodes(FedAvg):
    """Sites are fine; the server is not."""

    part: str = "params"

    def server(self, state, updates, net, rng):
        after = FedAvg.server(self, state, updates, net, rng)
        return replace(after, params={k: v / 0 for k, v in after.params.items()})


def test_a_model_that_is_not_finite_after_averaging_is_never_committed():
    memory = tiny.Kept()
    with refuses("model-diverged", RunError, round=1):
        tiny.Run(Explodes(), tiny.federation(), RoundSettings(rounds=1), memory)
    assert memory.server().round == 0


def test_anchors_that_are_not_finite_are_never_committed():
    of = honest("fedlgd")
    server, memory = of.server(list(of.answers.values()))
    broken = replace(of.memory.server().anchors, images=of.memory.server().anchors.images / 0)
    memory.commit(replace(of.memory.server(), anchors=broken), None, {})
    with refuses("anchors-diverged", RunError, round=1):
        list(server.run())


# What people see


def test_the_terminal_and_the_report_name_refused_sites(tmp_path: Path, monkeypatch, capsys):
    from fedlgd.cli.progress import Lines
    from fedlgd.report.page import write_report

    monkeypatch.setenv("FEDLGD_CACHE", str(tmp_path / "home"))
    how = config(Hostile(method=FedAvg(), rounds=(1,)), quorum=0.5)
    execute(how, tiny.federation(test=1), tmp_path / "run", Lines(3).round)
    lines = capsys.readouterr().err.splitlines()
    assert ["refused: 'bee' (weight is nan" in line for line in lines] == [False, False, True, False]
    page = write_report([tmp_path / "run"], tmp_path / "report.html").read_text()
    assert "round 2: weight is nan" in page
    assert page.count("<h2>Presence</h2>") == 1


def test_equal_reasons_are_said_once():
    refused = {f"site{i}": "training diverged" for i in range(7)} | {"bee": "it did not answer"}
    words = f"{', '.join(repr(f'site{i}') for i in range(5))} and 2 more (training diverged)"
    assert listed(refused) == f"'bee' (it did not answer), {words}"
    with refuses("too-few-updates", RunError, round=1, valid=0, asked=2, sites="'ape', 'bee' (no)"):
        check_quorum(0, 0, 2, {"ape": "no", "bee": "no"}, 1.0)
