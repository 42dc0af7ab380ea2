"""The server's half of a run, shared by all engines. It uses only the names and the answers of sites."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from fedlgd.core.device import Place
from fedlgd.core.errors import RunError
from fedlgd.core.meter import charge, metered, phase, tick
from fedlgd.core.net import Net
from fedlgd.core.pack import nbytes
from fedlgd.core.records import RoundRecord, Score
from fedlgd.core.rng import Stream
from fedlgd.core.types import Broadcast, Hello, ServerState, Update
from fedlgd.engines.clip import clipped
from fedlgd.engines.inbox import Inbox
from fedlgd.engines.memory import Enrolment, Memory
from fedlgd.engines.plan import Plan, sample
from fedlgd.engines.site import Answer, Task
from fedlgd.engines.validate import (
    check_quorum,
    check_scores,
    check_state,
    finite_metrics,
    hello_refusal,
    listed,
    refusal,
)
from fedlgd.methods.protocol import Method

Work = Callable[[Iterator[Task]], Iterator[Answer]]
"""Runs tasks at the sites; answers can have any order."""


@dataclass(slots=True)
class Ledger:
    """The bytes, metrics, state versions and flags of one round."""

    up: int = 0
    down: int = 0
    metrics: dict[str, dict[str, float]] = field(default_factory=dict)
    versions: dict[str, int] = field(default_factory=dict)
    flags: set[str] = field(default_factory=set)
    asked: dict[str, Task] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)

    def accept(self, answer: Answer, metrics: dict[str, float]) -> None:
        self.metrics[answer.site] = metrics
        self.versions[answer.site] = answer.version
        self.flags.update(answer.flags)


@dataclass(frozen=True, kw_only=True, eq=False)
class Server:
    """Enrols the sites in `names`, runs the rounds, and evaluates the model at the sites in `tested`."""

    method: Method
    names: Sequence[str]
    tested: Sequence[str]
    net: Net
    plan: Plan
    memory: Memory
    work: Work
    place: Place = Place()

    def run(self) -> Iterator[RoundRecord]:
        """Run every round that is not committed yet; yield a record after each commit."""
        state = self.memory.server()
        if state is None:
            state, record = self._start()
            self.memory.commit(state, record, {})
            yield record
        while state.round < self.plan.rounds:
            state, record, versions = self._round(state)
            self.memory.commit(state, record, versions)
            yield record

    def _start(self) -> tuple[ServerState, RoundRecord]:
        hellos: list[Hello] = []
        flags: set[str] = set()
        with metered() as meter:
            for enrolment in self._enrolments():
                hellos.append(enrolment.hello)
                flags.update(enrolment.flags)
                charge(enrolment)
            with phase("server"):
                first = self.net.init(self._root.at("init"))
                state = self.method.start(first, hellos, self.net, self._root.at("start"))
        return state, RoundRecord(
            round=-1,
            bytes_up=sum(nbytes(hello) for hello in hellos),
            flags=tuple(flags),
            **meter.spent(),
        )

    def _enrolments(self) -> list[Enrolment]:
        """All enrolments in the order of `names`. A site that enrolled before a crash does not enrol again."""
        new = [name for name in self.names if self.memory.enrolment(name) is None]
        expected, refused = self.method.expects_hello(self.net), dict.fromkeys(new, "it did not answer")
        answers = self.work(Task(what="enrol", site=name) for name in new)
        for done, answer in enumerate(answers, len(self.names) - len(new) + 1):
            refused[answer.site] = hello_refusal(answer.hello, answer.site, expected)
            if answer.hello and not refused[answer.site]:
                del refused[answer.site]
                joined = Enrolment(
                    hello=answer.hello,
                    seconds=answer.seconds,
                    cpu=answer.cpu,
                    flops=answer.flops,
                    flags=answer.flags,
                )
                self.memory.enrol(answer.site, joined)
            tick("enrol", done, len(self.names))
        if refused:
            raise RunError(f"enrolment: refused {listed(refused)}; correct these sites or leave them out")
        found = map(self.memory.enrolment, self.names)
        return [enrolment for enrolment in found if enrolment]

    def _round(self, state: ServerState) -> tuple[ServerState, RoundRecord, dict[str, int]]:
        t, ledger = state.round, Ledger()
        chosen = sample(list(self.names), self.plan.ratio, self._root.at("sample", t))
        with metered() as meter, Inbox(chosen) as updates:
            for answer in self.work(self._trainings(state, chosen, ledger)):
                charge(answer)
                if update := self._validated(answer, ledger):
                    updates.add(update)
            ledger.refused |= dict.fromkeys(ledger.asked, "it did not answer")
            check_quorum(t, len(ledger.metrics), len(chosen), ledger.refused, self.plan.quorum)
            with phase("server"):
                new = self.place.do(partial(self._serve, updates), state)
            check_state(new)
            scores = self._scores(new, ledger.versions) if self.plan.scores(t) else {}
        check_scores(t, scores)
        if new.anchors and new.anchors.round == t:
            ledger.flags.add("anchors")
        record = RoundRecord(
            round=t,
            sampled=tuple(chosen),
            scores=scores,
            metrics={name: ledger.metrics[name] for name in chosen if name in ledger.metrics},
            bytes_up=ledger.up,
            bytes_down=ledger.down,
            flags=tuple(sorted(ledger.flags)),
            **meter.spent(),
            refused=dict(sorted(ledger.refused.items())),
        )
        return new, record, ledger.versions

    def _trainings(self, state: ServerState, chosen: list[str], ledger: Ledger) -> Iterator[Task]:
        for name in chosen:
            message = self.method.broadcast(state, name)
            ledger.down += nbytes(message)
            after = self.memory.version(name)
            task = Task(what="train", site=name, round=state.round, after=after, message=message)
            ledger.asked[name] = task
            yield task

    def _validated(self, answer: Answer, ledger: Ledger) -> Update | None:
        """The update as it is averaged: valid, and clipped if the plan says so. None: it is refused."""
        task, update, bound = ledger.asked.pop(answer.site, None), answer.update, self.plan.clip_update
        reason = self._refusal(answer, task)
        ledger.up += nbytes(update) if task else 0
        if reason or task is None or task.message is None or update is None:
            ledger.refused[answer.site] = reason
            return None
        metrics = finite_metrics(update.metrics)
        if bound:
            update, norm = clipped(update, task.message.params, bound, self.net.trainable)
            metrics |= {"clipped": norm} if norm > bound else {}
        ledger.accept(answer, metrics)
        return update

    def _refusal(self, answer: Answer, task: Task | None) -> str:
        """Why an answer is not used; empty if it is."""
        if task is None or task.message is None:
            return "it answered twice or was not asked"
        if answer.fault:
            return answer.fault
        if answer.version not in (task.round, task.after):
            return f"it names state {answer.version}; possible are {task.after} and {task.round}"
        return refusal(answer.update, answer.site, self.method.expects(task.message, self.net))

    def _serve(self, updates: Inbox, state: ServerState) -> ServerState:
        method = self.method.at(state.round, self.plan.rounds)
        return method.server(state, updates, self.net, self._root.at("server", state.round))

    def _scores(self, state: ServerState, versions: dict[str, int]) -> dict[str, Score]:
        """Evaluate the new model at all tested sites, whether they were sampled or not."""
        message = Broadcast(round=state.round, params=state.params)
        tasks = (
            Task(what="score", site=name, after=versions.get(name, self.memory.version(name)), message=message)
            for name in self.tested
        )
        scores: dict[str, Score] = {}
        for answer in self.work(tasks):
            charge(answer)
            if answer.score:
                scores[answer.site] = answer.score
        return {name: scores[name] for name in self.tested}

    @property
    def _root(self) -> Stream:
        return Stream(self.plan.seed)
