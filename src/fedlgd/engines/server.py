"""The server's half of a run, shared by all engines. It uses only the names and the answers of sites."""

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace

from fedlgd.core.device import Place
from fedlgd.core.meter import charge, metered, phase, tick
from fedlgd.core.net import Net
from fedlgd.core.rng import Stream
from fedlgd.core.score import Score
from fedlgd.core.types import Broadcast, ServerState
from fedlgd.engines.settings import RoundSettings, sample_sites
from fedlgd.engines.site import Answer, Task
from fedlgd.engines.storage import Enrolment, Inbox, Storage
from fedlgd.engines.validate import (
    Refused,
    check_costs,
    check_enrolled,
    check_hello,
    check_losses,
    check_quorum,
    check_score,
    check_state,
    check_update,
    clip_update,
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
    """What the server notes during one round: bytes, metrics, flags, who was refused, the states that the sites
    continue from (`versions`), and the anchors that they hold."""

    up: int = 0
    down: int = 0
    metrics: dict[str, dict[str, float]] = field(default_factory=dict)
    versions: dict[str, int] = field(default_factory=dict)
    flags: set[str] = field(default_factory=set)
    asked: dict[str, Task] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    joined: list[str] = field(default_factory=list)
    held: dict[str, int] = field(default_factory=dict)

    def record(self, t: int, sampled: Sequence[str]) -> RoundRecord:
        return RoundRecord(
            round=t,
            sampled=tuple(sampled),
            metrics={name: self.metrics[name] for name in sampled if name in self.metrics},
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

    def run(self) -> Generator[RoundRecord, None, None]:
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
        """The enrolment of the sites, and the first model."""
        with metered() as meter:
            enrolments, refused = self._enrol()
            for enrolment in enrolments:
                charge(enrolment)
            hellos = [enrolment.hello for enrolment in enrolments]
            with phase("server"):
                first = self.net.init(self._root.at("init"))
                state = self.method.start(first, hellos, self.net, self._root.at("start"))
        sizes, flags = map(nbytes, hellos), sorted({flag for enrolment in enrolments for flag in enrolment.flags})
        return state, RoundRecord(
            round=-1,
            bytes_up=sum(sizes),
            flags=tuple(flags),
            refused=dict(sorted(refused.items())),
            **meter.spent(),
        )

    def _enrol(self) -> tuple[list[Enrolment], dict[str, str]]:
        """The enrolments in the order of `names`, and why other sites have none. These can still join in a round.

        A site that enrolled before a crash does not enrol again.
        """
        new = [name for name in self.names if self.memory.enrolment(name) is None]
        refused = dict.fromkeys(new, SILENT)
        answers = self.work(Task(what="enrol", site=name) for name in new)
        for done, answer in enumerate(answers, len(self.names) - len(new) + 1):
            try:
                hello = check_hello(answer, self.method.expects_hello(self.net))
                costs = answer.seconds, answer.cpu, answer.flops
                self.memory.enrol(answer.site, Enrolment(hello, *costs, answer.flags))
                refused.pop(answer.site, None)
            except Refused as refusal:
                refused[answer.site] = str(refusal)
            tick("enrol", done, len(self.names))
        check_enrolled(len(self.names), refused, self.plan.quorum)
        found = map(self.memory.enrolment, self.names)
        return [enrolment for enrolment in found if enrolment], refused

    def _round(self, state: ServerState) -> tuple[ServerState, RoundRecord, dict[str, int]]:
        """One round of Algorithm 1: sample, broadcast, collect valid updates, aggregate, score, and record."""
        t, tally, quorum = state.round, RoundTally(), self.plan.quorum
        sampled = sample_sites(list(self.names), self.plan.ratio, self._root.at("sample", t))
        with metered() as meter, Inbox(sampled) as updates:
            self._collect(state, sampled, tally, updates)
            if tally.joined:  # their states are new: they hold no anchors
                state = replace(state, held={k: v for k, v in state.held.items() if k not in tally.joined})
                self._collect(state, list(tally.joined), tally, updates)
            check_quorum(t, len(tally.metrics), len(sampled), tally.refused, quorum)
            held = {name: tally.held[name] for name in sampled if name in tally.held}
            new = self._aggregate(state, updates, held)
            scores, unscored = self._score(new, tally.versions) if self.plan.scores(t) else ({}, {})
        if new.anchors and new.anchors.round == t:
            tally.flags.add("anchors")
        record = replace(tally.record(t, sampled), scores=scores, unscored=unscored, **meter.spent())
        return new, record, tally.versions

    def _broadcast(self, state: ServerState, names: Sequence[str], tally: RoundTally) -> Iterator[Task]:
        """A training task for each of these sites, with what the method sends it."""
        for name in names:
            message = self.method.broadcast(state, name)
            tally.down += nbytes(message)
            after = self._version(name, tally.versions)
            tally.asked[name] = Task(what="train", site=name, round=state.round, after=after, message=message)
            yield tally.asked[name]

    def _collect(self, state: ServerState, names: Sequence[str], tally: RoundTally, updates: Inbox) -> None:
        """Let these sites train, and keep every update that is valid."""
        for answer in self.work(self._broadcast(state, names, tally)):
            try:
                self._receive(answer, tally, updates)
            except Refused as refusal:
                tally.refused[answer.site] = str(refusal)
        tally.refused |= dict.fromkeys(tally.asked, SILENT)
        tally.asked.clear()

    def _receive(self, answer: Answer, tally: RoundTally, updates: Inbox) -> None:
        """Keep the update of a site, clipped if the settings say so.

        A site without the state that it was asked to continue from has enrolled instead, once per round.
        """
        task, bound = tally.asked.pop(answer.site, None), self.plan.clip_update
        check_costs(answer)
        charge(answer)  # also the work of an answer that is refused below
        if task is None or task.message is None:
            raise Refused("not-asked")
        if answer.hello and answer.site not in tally.joined:
            tally.up += nbytes(check_hello(answer, self.method.expects_hello(self.net)))
            tally.versions[answer.site] = -1
            tally.flags.update(answer.flags)
            tally.joined.append(answer.site)
            return
        tally.up += nbytes(answer.update)
        update = check_update(answer, task, self.method.expects(task.message, self.net))
        metrics = dict(update.metrics)
        if bound:
            update, norm = clip_update(update, task.message.params, bound, self.net.trainable)
            metrics |= {"clipped": norm} if norm > bound else {}
        tally.metrics[answer.site] = metrics
        tally.versions[answer.site] = answer.version
        tally.flags.update(answer.flags)
        if task.message.anchors:
            tally.held[answer.site] = task.message.anchors.round
        updates.add(update)

    def _aggregate(self, state: ServerState, updates: Inbox, held: dict[str, int]) -> ServerState:
        """The new model and anchors of the method, which are finite. `held`: the anchors that sites have now."""
        method, rng = in_round(self.method, state.round, self.plan.rounds), self._root.at("server", state.round)
        with phase("server"):
            new = self.place.do(lambda before: method.server(before, updates, self.net, rng), state)
        new = replace(new, held={**new.held, **held})
        check_state(new)
        return new

    def _score(self, state: ServerState, versions: dict[str, int]) -> tuple[dict[str, Score], dict[str, str]]:
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
            try:
                scores[answer.site] = check_score(answer, self.net.classes)
                charge(answer)
                unscored.pop(answer.site, None)
            except Refused as refusal:
                unscored[answer.site] = str(refusal)
        scores = {name: scores[name] for name in self.tested if name in scores}
        lost = check_losses(state.round, scores, self.plan.quorum)
        kept = {name: score for name, score in scores.items() if name not in lost}
        return kept, dict(sorted((unscored | lost).items()))

    def _version(self, name: str, versions: dict[str, int]) -> int:
        """The round of the state that a site continues from: as it said in this round, or as committed."""
        return versions[name] if name in versions else self.memory.version(name)

    @property
    def _root(self) -> Stream:
        return Stream(self.plan.seed)
