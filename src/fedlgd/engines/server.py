"""The server's half of a run, shared by all engines. It uses only the names and the answers of sites."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from fedlgd.core.device import Place
from fedlgd.core.meter import charge, metered, phase, tick
from fedlgd.core.net import Net
from fedlgd.core.rng import Stream
from fedlgd.core.score import Score
from fedlgd.core.types import Broadcast, Hello, ServerState, Update
from fedlgd.engines.settings import RoundSettings, sample_sites
from fedlgd.engines.site import Answer, Task
from fedlgd.engines.storage import Enrolment, Inbox, Storage
from fedlgd.engines.validate import (
    check_enrolled,
    check_quorum,
    check_state,
    clip_update,
    cost_refusal,
    diverged,
    finite_metrics,
    hello_refusal,
    refusal,
    score_refusal,
)
from fedlgd.engines.wire import nbytes
from fedlgd.methods.common import in_round
from fedlgd.methods.protocol import Method
from fedlgd.rundir.records import RoundRecord

Work = Callable[[Iterator[Task]], Iterator[Answer]]
"""Runs tasks at the sites; answers can have any order. A site that is lost has no answer, or one with a fault."""

SILENT = "it did not answer"


@dataclass(slots=True)
class RoundTally:
    """The bytes, metrics, state and anchor versions, and flags of one round."""

    up: int = 0
    down: int = 0
    metrics: dict[str, dict[str, float]] = field(default_factory=dict)
    versions: dict[str, int] = field(default_factory=dict)
    flags: set[str] = field(default_factory=set)
    asked: dict[str, Task] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    joined: list[str] = field(default_factory=list)
    held: dict[str, int] = field(default_factory=dict)

    def accept(self, answer: Answer, message: Broadcast, metrics: dict[str, float]) -> None:
        self.metrics[answer.site] = metrics
        self.versions[answer.site] = answer.version
        self.flags.update(answer.flags)
        if message.anchors:
            self.held[answer.site] = message.anchors.round

    def record(self, t: int, chosen: Sequence[str]) -> RoundRecord:
        """What this ledger knows of round t with these sites."""
        return RoundRecord(
            round=t,
            sampled=tuple(chosen),
            metrics={name: self.metrics[name] for name in chosen if name in self.metrics},
            bytes_up=self.up,
            bytes_down=self.down,
            flags=tuple(sorted(self.flags)),
            refused=dict(sorted(self.refused.items())),
            joined=tuple(sorted(self.joined)),
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Server:
    """Enrols the sites in `names`, runs the rounds, and evaluates the model at the sites in `tested`."""

    method: Method
    names: Sequence[str]
    tested: Sequence[str]
    net: Net
    plan: RoundSettings
    memory: Storage
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
            enrolments, refused = self._enrolments()
            for enrolment in enrolments:
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
            refused=dict(sorted(refused.items())),
        )

    def _enrolments(self) -> tuple[list[Enrolment], dict[str, str]]:
        """The enrolments in the order of `names`, and the sites without one. They can still join in a round.

        A site that enrolled before a crash does not enrol again.
        """
        new = [name for name in self.names if self.memory.enrolment(name) is None]
        refused = dict.fromkeys(new, SILENT)
        answers = self.work(Task(what="enrol", site=name) for name in new)
        for done, answer in enumerate(answers, len(self.names) - len(new) + 1):
            refused[answer.site] = self._hello_refusal(answer)
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
        check_enrolled(len(self.names), refused, self.plan.quorum)
        found = map(self.memory.enrolment, self.names)
        return [enrolment for enrolment in found if enrolment], refused

    def _hello_refusal(self, answer: Answer) -> str:
        expected = self.method.expects_hello(self.net)
        return answer.fault or cost_refusal(answer) or hello_refusal(answer.hello, answer.site, expected)

    def _round(self, state: ServerState) -> tuple[ServerState, RoundRecord, dict[str, int]]:
        t, ledger = state.round, RoundTally()
        chosen = sample_sites(list(self.names), self.plan.ratio, self._root.at("sample", t))
        with metered() as meter, Inbox(chosen) as updates:
            self._collect(state, chosen, ledger, updates)
            if ledger.joined:  # their states are new: they hold no anchors
                state = replace(state, held={k: v for k, v in state.held.items() if k not in ledger.joined})
                self._collect(state, list(ledger.joined), ledger, updates)
            check_quorum(t, len(ledger.metrics), len(chosen), ledger.refused, self.plan.quorum)
            with phase("server"):
                new = self.place.do(partial(self._serve, updates), state)
            held = {name: ledger.held[name] for name in chosen if name in ledger.held}
            new = replace(new, held={**new.held, **held})
            check_state(new)
            scores, unscored = self._scores(new, ledger.versions) if self.plan.scores(t) else ({}, {})
        lost = diverged(t, scores, self.plan.quorum)
        if new.anchors and new.anchors.round == t:
            ledger.flags.add("anchors")
        record = replace(
            ledger.record(t, chosen),
            scores={name: score for name, score in scores.items() if name not in lost},
            unscored=dict(sorted((unscored | lost).items())),
            **meter.spent(),
        )
        return new, record, ledger.versions

    def _collect(self, state: ServerState, names: list[str], ledger: RoundTally, updates: Inbox) -> None:
        """Let these sites train, and add their valid updates."""
        for answer in self.work(self._trainings(state, names, ledger)):
            if not cost_refusal(answer):
                charge(answer)
            if self._has_joined(answer, ledger):
                continue
            if update := self._validated(answer, ledger):
                updates.add(update)
        ledger.refused |= dict.fromkeys(ledger.asked, SILENT)
        ledger.asked.clear()

    def _has_joined(self, answer: Answer, ledger: RoundTally) -> bool:
        """Whether a site without the state it was asked to continue from has enrolled instead; once per round."""
        first = answer.site in ledger.asked and answer.site not in ledger.joined
        if not first or answer.hello is None or self._hello_refusal(answer):
            return False
        del ledger.asked[answer.site]
        ledger.up += nbytes(answer.hello)
        ledger.versions[answer.site] = -1
        ledger.joined.append(answer.site)
        ledger.flags.update(answer.flags)
        return True

    def _trainings(self, state: ServerState, chosen: list[str], ledger: RoundTally) -> Iterator[Task]:
        for name in chosen:
            message = self.method.broadcast(state, name)
            ledger.down += nbytes(message)
            after = self._version(name, ledger.versions)
            task = Task(what="train", site=name, round=state.round, after=after, message=message)
            ledger.asked[name] = task
            yield task

    def _validated(self, answer: Answer, ledger: RoundTally) -> Update | None:
        """The update as it is averaged: valid, and clipped if the plan says so. None: it is refused."""
        task, update, bound = ledger.asked.pop(answer.site, None), answer.update, self.plan.clip_update
        reason = self._refusal(answer, task)
        ledger.up += nbytes(update) if task else 0
        if reason or task is None or task.message is None or update is None:
            ledger.refused[answer.site] = reason
            return None
        metrics = finite_metrics(update.metrics)
        if bound:
            update, norm = clip_update(update, task.message.params, bound, self.net.trainable)
            metrics |= {"clipped": norm} if norm > bound else {}
        ledger.accept(answer, task.message, metrics)
        return update

    def _refusal(self, answer: Answer, task: Task | None) -> str:
        """Why an answer is not used; empty if it is."""
        if task is None or task.message is None:
            return "it answered twice or was not asked"
        if answer.fault:
            return answer.fault
        if answer.version not in (task.round, task.after):
            return f"it names state {answer.version}; possible are {task.after} and {task.round}"
        expected = self.method.expects(task.message, self.net)
        return cost_refusal(answer) or refusal(answer.update, answer.site, expected)

    def _serve(self, updates: Inbox, state: ServerState) -> ServerState:
        method = in_round(self.method, state.round, self.plan.rounds)
        return method.server(state, updates, self.net, self._root.at("server", state.round))

    def _scores(self, state: ServerState, versions: dict[str, int]) -> tuple[dict[str, Score], dict[str, str]]:
        """Evaluate the new model at all tested sites, whether they were sampled or not.

        A site without a score is not in the mean of this round; the second part says why.
        """
        message = Broadcast(round=state.round, params=state.params)
        tasks = (
            Task(what="score", site=name, after=self._version(name, versions), message=message)
            for name in self.tested
        )
        scores: dict[str, Score] = {}
        unscored = dict.fromkeys(self.tested, SILENT)
        for answer in self.work(tasks):
            reason = answer.fault or cost_refusal(answer) or score_refusal(answer.score, self.net.classes)
            if reason or answer.score is None:
                unscored[answer.site] = reason
                continue
            charge(answer)
            unscored.pop(answer.site, None)
            scores[answer.site] = answer.score
        return {name: scores[name] for name in self.tested if name in scores}, dict(sorted(unscored.items()))

    def _version(self, name: str, versions: dict[str, int]) -> int:
        """The round of the state that a site continues from: as it said in this round, or as committed."""
        return versions[name] if name in versions else self.memory.version(name)

    @property
    def _root(self) -> Stream:
        return Stream(self.plan.seed)
