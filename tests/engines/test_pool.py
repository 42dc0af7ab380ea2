"""The engine `pool` gives the bits of `loop`, whoever is first, and leaves no process behind."""

import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fedlgd.core.errors import DataError, PrivacyError, RunError, SettingError, did_you_mean
from fedlgd.core.meter import listening, spend
from fedlgd.data.federation import Federation
from fedlgd.engines.process import Crew, usable_cores
from fedlgd.engines.registry import Loop, Pool, choose, engine
from fedlgd.engines.settings import RoundSettings
from fedlgd.engines.site import Answer, Task
from fedlgd.methods import registry
from fedlgd.methods.fedavg import FedAvg
from fedlgd.runs.folder import locked_folder
from fedlgd.runs.resume import engine_info
from fedlgd.runs.run import execute, run
from tests import PATIENCE, tiny
from tests.contract import battery
from tests.errors import refuses
from tests.runs.folder import config, everything, method, run_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="worker processes are forked")

WITNESSES = [f"{name}-{guise}" for name in registry.names() for guise in ("anchored", "virtual")]
QUICK = {next((c for c in WITNESSES if c in battery.CASES and c.startswith(n)), n) for n in registry.names()}


def played(engine: Any, of: Any, data: Federation, plan: RoundSettings = battery.PLAN) -> tuple[Any, Any]:
    """Records without seconds, and the states after every commit as bytes."""
    net, diary = tiny.net(classes=len(data.classes)), battery.Diary(engine.states())
    data = battery.prepared(of, data, net, plan.seed)
    records = list(tiny.play(of, data, net, plan, diary, engine))
    return tiny.without_seconds(records), battery.bits(diary.pages)


TWO = Pool(workers=2)


def two(of: Any, plan: RoundSettings, memory: tiny.Kept | None = None) -> Any:
    """A run over the tiny federation with two workers."""
    return tiny.play(of, tiny.federation(), tiny.net(), plan, memory or tiny.Kept(TWO.states()), TWO)


def children() -> list[Any]:
    return multiprocessing.active_children()


@pytest.mark.parametrize(
    "case", [c if c in QUICK else pytest.param(c, marks=pytest.mark.slow) for c in battery.CASES]
)
def test_every_method_has_the_bits_of_the_loop(case):
    of, data = battery.CASES[case], battery.uneven()
    assert played(TWO, of, data) == played(Loop(), of, data)
    assert children() == []


@pytest.mark.parametrize("workers", [1, 3, 5])
def test_the_number_of_workers_changes_no_bit(workers):
    of, data = battery.CASES["scaffold-anchored"], battery.uneven()
    assert played(Pool(workers=workers), of, data) == played(Loop(), of, data)


@dataclass(frozen=True, kw_only=True)
class Unhurried(FedAvg):
    """The first sites by name take longest. `arrived` is where the server writes down whom it hears."""

    arrived: Any = None

    def site(self, msg, state, site, net, rng):
        time.sleep({"ape": 0.4, "bee": 0.2}.get(site.name, 0))
        return FedAvg.site(self, msg, state, site, net, rng)

    def server(self, state, updates, net, rng):
        return FedAvg.server(self, state, map(self._noted, updates), net, rng)

    def _noted(self, update):
        self.arrived.append(update.site)
        return update


def test_the_server_hears_the_sites_in_the_order_of_their_names_whoever_is_first():
    of, data = Unhurried(arrived=[]), tiny.federation()
    plan = RoundSettings(rounds=1)
    fast = played(Pool(workers=3), of, data, plan)
    assert of.arrived == ["ape", "bee", "cat"]
    assert fast == played(Loop(), FedAvg(), data, plan)


def test_waiting_for_sites_is_not_charged_to_the_server_and_their_work_is_charged_to_them(monkeypatch):
    """What is spent while the server waits stands for the time it waits."""
    work = Crew.work

    def waiting(crew: Crew, tasks: Iterator[Task]) -> Iterator[Answer]:
        for answer in work(crew, tasks):
            spend(10**15)
            yield answer

    monkeypatch.setattr(Crew, "work", waiting)
    *_, record = two(Unhurried(arrived=[]), RoundSettings(rounds=1))
    assert record.seconds["train"] > 0.6
    assert record.cpu["train"] > 0
    assert sum(record.flops.values()) < 10**15
    assert set(record.seconds) == set(record.cpu) == {"train", "server", "evaluate"}


def test_a_slow_site_holds_up_nobody_and_no_task_is_made_before_a_worker_is_free():
    pulled, gate = [], multiprocessing.get_context("fork").Event()

    def tasks() -> Iterator[Task]:
        for i in range(60):
            pulled.append(i)
            yield Task(what="enrol", site=str(i))

    def do(task: Task) -> Answer:
        if task.site == "0":
            gate.wait(PATIENCE)
        return Answer(site=task.site)

    crew = Crew(do, 3)
    answers = crew.work(tasks())
    first = next(answers)
    assert first.site != "0"
    assert len(pulled) <= 4
    heard = [first.site, *(next(answers).site for _ in range(8))]
    gate.set()
    heard += [answer.site for answer in answers]
    assert sorted(heard, key=int) == [str(i) for i in range(60)]
    assert heard.index("0") > 5
    crew.stop()


def test_answers_that_nobody_asks_for_any_more_are_not_taken_for_others():
    crew = Crew(lambda task: Answer(site=task.site), 2)
    asked = crew.work(Task(what="enrol", site=name) for name in "abcdef")
    assert next(asked).site in "ab"
    asked.close()
    assert {a.site for a in crew.work(Task(what="enrol", site=name) for name in "xyz")} == {"x", "y", "z"}
    crew.stop()


@dataclass(frozen=True, kw_only=True)
class Impatient(FedAvg):
    """A server that hears one site and no more."""

    def server(self, state, updates, net, rng):
        return replace(state, params=next(iter(updates)).params, round=state.round + 1)


def test_a_server_that_does_not_listen_to_the_end_gets_the_scores_it_asks_for():
    plan, data = RoundSettings(rounds=2), tiny.federation()
    records = [played(engine, Impatient(), data, plan)[0] for engine in (Loop(), TWO)]
    assert records[0][-1].scores == records[1][-1].scores
    assert children() == []


def test_progress_of_a_worker_is_heard():
    heard = []
    of = tiny.fedavg(distil__steps=4)
    with (
        listening(lambda *tick: heard.append(tick)),
        closing(two(of, RoundSettings())) as it,
    ):
        next(it)
    assert ("enrol", 3, 3) in heard
    assert {label for label, *_ in heard} >= {"distil (1)", "distil (2)"}
    assert heard.count(("distil (1)", 4, 4)) + heard.count(("distil (2)", 4, 4)) == 3


def test_a_run_that_is_left_early_leaves_no_process():
    rounds = two(tiny.fedavg(), RoundSettings(rounds=3))
    next(rounds)
    assert len(children()) == 2
    rounds.close()
    assert children() == []


def test_a_finished_run_starts_no_process(monkeypatch):
    memory, plan = tiny.Kept(), RoundSettings(rounds=1)
    list(tiny.play(tiny.fedavg(), tiny.federation(), tiny.net(), plan, memory))
    monkeypatch.setattr("fedlgd.engines.process.Child", None)
    assert list(two(tiny.fedavg(), plan, memory)) == []


# Failures


@dataclass(frozen=True, kw_only=True)
class Fails(FedAvg):
    """Site "bee" fails in round 1, in a worker: by an exception, or as if memory had run out."""

    how: str = "exception"
    at_home: int = 0

    def site(self, msg, state, site, net, rng):
        if msg.round == 1 and site.name == "bee" and os.getpid() != self.at_home:
            if self.how == "exception":
                raise RuntimeError("the cable is cut")
            if self.how == "setting":
                raise SettingError("training diverged; lower local.lr")
            os.kill(os.getpid(), signal.SIGKILL)
        return FedAvg.site(self, msg, state, site, net, rng)


AT_BEE = "site 'bee': "
CUT = "RuntimeError: the cable is cut; engine loop shows where"
FAILURES: dict[str, tuple[str, dict[str, str]]] = {
    "exception": ("worker-failed", {"where": AT_BEE, "said": CUT}),
    "setting": ("worker-failed", {"where": AT_BEE, "said": "training diverged; lower local.lr"}),
    "kill": ("worker-gone", {"site": "bee", "ending": "was killed by SIGKILL"}),
}


@pytest.mark.parametrize("how", FAILURES)
def test_a_worker_that_fails_names_the_site_and_the_finished_rounds_are_kept(how, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDLGD_CACHE", str(tmp_path / "home"))
    data, of = tiny.federation(), Fails(how=how, at_home=os.getpid())
    code, values = FAILURES[how]
    with refuses(code, RunError, **values) as raised:
        execute(config(of), data, tmp_path / "run", engine=Pool(workers=2))
    if how != "kill":
        assert "in site" in str(raised.value.__cause__)
    assert children() == []
    assert everything(tmp_path / "run")["round"] == 1
    execute(config(of), data, tmp_path / "run")
    execute(config(of), data, tmp_path / "straight")
    assert everything(tmp_path / "run") == everything(tmp_path / "straight")


class OwnError(DataError):
    """A class that the parent cannot look up by its name."""


RAISED = {
    "of the project": (PrivacyError("rounds-beyond-budget", section="dp", given=2, rounds=3), PrivacyError),
    "a list and a path": (SettingError("method-lacks", name=Path("own.py"), missing=["site"]), SettingError),
    "of ones own": (OwnError("set-missing", file="bee.npz"), DataError),
}


@pytest.mark.parametrize("case", RAISED)
def test_an_error_in_a_worker_has_its_class_code_and_values_in_the_parent(case):
    error, kind = RAISED[case]

    def fail(task: Task) -> Answer:
        raise error

    crew = Crew(fail, 1)
    with refuses(error.code, kind, **json.loads(json.dumps(error.values, default=str))) as raised:
        list(crew.work(iter([Task(what="enrol", site="bee")])))
    assert type(raised.value) is kind
    assert str(raised.value).removeprefix(AT_BEE) == str(error)
    assert "'bee'" in str(raised.value)
    assert "in fail" in str(raised.value.__cause__)
    assert children() == []


def test_a_worker_killed_while_it_waits_is_missed_at_the_next_task():
    crew = Crew(lambda task: Answer(site=task.site), 1)
    assert [a.site for a in crew.work(iter([Task(what="enrol", site="ape")]))] == ["ape"]
    os.kill(children()[0].pid, signal.SIGKILL)
    with refuses("worker-gone", RunError, site="bee", ending="was killed by SIGKILL"):
        list(crew.work(iter([Task(what="enrol", site="bee")])))
    crew.stop()


@pytest.mark.parametrize("engines", [("pool", "loop"), ("loop", "pool")])
@pytest.mark.parametrize("name", ["fedlgd", "fedbn", "scaffold"])
def test_a_run_begun_with_one_engine_goes_on_with_the_other(name, engines, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDLGD_CACHE", str(tmp_path / "home"))
    how, data = config(method(name), ratio=0.7), tiny.federation(train=3, test=1)
    first, second = map(engine, engines)
    monkeypatch.setattr("tests.runs.folder.execute", lambda *a: execute(*a, engine=first))
    run_until(0, how, data, tmp_path / "run")
    assert children() == []
    manifest = json.loads((tmp_path / "run/manifest.json").read_text())
    assert manifest["engine"] == asdict(engine_info(first, data))
    execute(how, data, tmp_path / "run", engine=second)
    execute(how, data, tmp_path / "straight")
    assert everything(tmp_path / "run") == everything(tmp_path / "straight")


# Signals

LONG = {"local.epochs": 3}
DRIVER = """
import sys
from pathlib import Path
from fedlgd.engines.registry import Pool
from fedlgd.runs.run import execute
from tests import tiny
from tests.errors import refuses
from tests.engines.test_pool import LONG
from tests.runs.folder import config, method

how = config(method("fedavg", **LONG), rounds=2000, evaluate_every=2000)
execute(how, tiny.federation(), Path(sys.argv[1]), engine=Pool(workers=2))
"""


@pytest.fixture
def started(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """A long run in a session of its own that has committed rounds, and its workers."""
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", DRIVER, str(tmp_path / "run")],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        cwd=Path(__file__).parents[2],
        env=os.environ | {"FEDLGD_CACHE": str(tmp_path / "home"), "OMP_NUM_THREADS": "1"},
    )
    try:
        while not list(tmp_path.glob("run/state/server-[2-9]*")):
            assert process.poll() is None, process.communicate()[1]
            time.sleep(0.01)
        workers = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        yield process, [int(pid) for pid in workers]
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def gone(pids: list[int]) -> bool:
    """Do all end?"""
    until = time.monotonic() + PATIENCE
    while any(alive(pid) for pid in pids) and time.monotonic() < until:
        time.sleep(0.02)
    return not any(alive(pid) for pid in pids)


def alive(pid: int) -> bool:
    """A zombie, which only waits for its parent, is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("by", ["ctrl-c", "kill -9"])
def test_a_run_that_is_stopped_or_killed_takes_its_workers_along_and_goes_on_later(
    by, started, tmp_path, monkeypatch
):
    process, workers = started
    assert len(workers) == 2
    if by == "ctrl-c":
        os.killpg(process.pid, signal.SIGINT)
    else:
        process.kill()
    _, said = process.communicate(timeout=PATIENCE)
    assert gone(workers)
    assert said.count("Traceback") == (1 if by == "ctrl-c" else 0), said  # its own; the workers are silent
    done = everything(tmp_path / "run")["round"]
    assert done >= 1
    monkeypatch.setenv("FEDLGD_CACHE", str(tmp_path / "home"))
    how, data = config(method("fedavg", **LONG), rounds=2000, evaluate_every=2000), tiny.federation()
    for folder in ("run", "straight"):
        run_until(done, how, data, tmp_path / folder)
    assert everything(tmp_path / "run") == everything(tmp_path / "straight")


def test_stopped_workers_do_not_keep_the_run_folder_of_a_parent_that_was_killed(started, tmp_path, monkeypatch):
    process, workers = started
    for pid in workers:
        os.kill(pid, signal.SIGSTOP)
    process.kill()
    process.wait()
    assert all(alive(pid) for pid in workers)
    with locked_folder(tmp_path / "run"):
        pass


def test_who_is_waited_for_is_said(monkeypatch, caplog):
    monkeypatch.setattr("fedlgd.engines.process.SILENCE_SECONDS", 0.05)

    def stop_self(task: Task) -> Answer:
        os.kill(os.getpid(), signal.SIGSTOP)
        return Answer(site=task.site)

    crew = Crew(stop_self, 1)

    def let_go() -> None:
        while not caplog.messages:
            time.sleep(0.01)
        os.kill(children()[0].pid, signal.SIGCONT)

    helper = threading.Thread(target=let_go)
    answers = crew.work(iter([Task(what="enrol", site="ape")]))
    helper.start()
    assert [answer.site for answer in answers] == ["ape"]
    helper.join()
    pid = children()[0].pid
    assert re.fullmatch(rf"waiting for site 'ape' \(worker 1, pid {pid}\) for \d+ s", caplog.messages[0])
    crew.stop()


# The choice


def test_by_default_the_pool_works_where_it_helps(monkeypatch):
    many, one = tiny.federation(), tiny.federation(names=("ape",))
    monkeypatch.setattr("fedlgd.engines.registry.usable_cores", lambda: 2)
    assert choose(None, 0, many, threads=1) == Pool()
    assert choose(None, 0, one, threads=1).name == "loop"
    assert choose(None, 0, many, threads=2).name == "loop"
    assert choose("loop", 0, many, threads=1).name == "loop"
    monkeypatch.setattr("fedlgd.engines.registry.usable_cores", lambda: 1)
    assert choose(None, 0, many, threads=1).name == "loop"
    assert choose(None, 3, many, threads=1) == Pool(workers=3)


def test_there_are_as_many_workers_as_cores_and_no_more_than_sites(monkeypatch):
    data = tiny.federation()
    assert Pool(workers=2).processes(data) == 2
    assert Pool(workers=9).processes(data) == 3
    assert Pool().processes(data) == min(usable_cores(), 3)
    assert Loop().processes(data) == 1


@pytest.mark.parametrize(
    ("make", "code", "values"),
    [
        (lambda: engine("lop"), "engine-unknown", {"name": "lop", "hint": did_you_mean("lop", ["loop"])}),
        (lambda: engine("pool", workers=-1), "setting-value", {"setting": "workers", "value": -1}),
        (lambda: engine(workers=2), "loop-has-no-workers", {"workers": 2}),
        (lambda: choose("pool", 0, tiny.federation(), threads=2), "pool-has-one-thread", {"threads": 2}),
    ],
)
def test_a_choice_that_makes_no_sense_is_refused(make, code, values):
    with refuses(code, SettingError, **values):
        make()


def test_where_processes_cannot_be_forked_the_loop_works_and_the_pool_says_why(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    assert choose(None, 0, tiny.federation(), threads=1).name == "loop"
    with refuses("processes-need-linux", SettingError, platform="darwin"):
        engine("pool")


def test_from_python_the_pool_runs_a_method_of_ones_own_and_leaves_the_threads_as_they_were(tmp_path):
    @dataclass(frozen=True, kw_only=True)
    class Own(FedAvg):
        """Defined where no other process could import it."""

        def site(self, msg, state, site, net, rng):
            update, state = FedAvg.site(self, msg, state, site, net, rng)
            return replace(update, metrics={"threads": torch.get_num_threads()}), state

    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        how = {"rounds": 1, "net": {"depth": 2, "width": 4}, "engine": "pool", "workers": 2}
        result = run(tiny.federation(), Own(), **how)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    assert result.records[-1].metrics["ape"] == {"threads": 1}
