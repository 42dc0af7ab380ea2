"""The server's half of a run, shared by all engines. It uses only the names and the answers of sites."""

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch

from fedlgd.core.device import Place
from fedlgd.core.meter import charge, metered, phase, tick
from fedlgd.core.net import Net
from fedlgd.core.score import Score
from fedlgd.core.types import Broadcast, Hello, ServerState, Stream
from fedlgd.engines import validate
from fedlgd.engines.settings import RoundSettings, sample_sites
from fedlgd.engines.site import READ, Answer, Sites, Task, moment
from fedlgd.engines.storage import Enrolment, Inbox, Storage
from fedlgd.engines.validate import Refused
from fedlgd.engines.wire import add_sent, has_undeclared, join_sent, nbytes
from fedlgd.methods.protocol import Method
from fedlgd.rundir.records import RoundRecord, SentPart

Rounds = Generator[RoundRecord, None, None]

Work = Callable[[Iterator[Task]], Iterator[Answer]]
"""Runs tasks at the sites; answers can have any order. A site that is lost has no answer, or one with a fault."""

SILENT = "it did not answer"
OBSERVED_ROUNDS = 2  # in which the record says what the messages of the sites had; later only if it is undeclared


@dataclass(slots=True)
class RoundTally:
    """What the server notes during one round: bytes, metrics, flags, who was refused, the states that the sites
    continue from (`versions`), the anchors that they hold, and who was lost between two exchanges."""

    up: int = 0
    down: int = 0
    metrics: dict[str, dict[str, float]] = field(default_factory=dict)
    versions: dict[str, int] = field(default_factory=dict)
    flags: set[str] = field(default_factory=set)
    refused: dict[str, str] = field(default_factory=dict)
    joined: list[str] = field(default_factory=list)
    held: dict[str, int] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)
    readers: set[str] = field(default_factory=set)
    sent: dict[int, dict[str, SentPart]] = field(default_factory=dict)

    def note(self, answer: Answer) -> None:
        """What a valid answer says beside its message."""
        self.flags.update(set(answer.flags) - {READ})
        if READ in answer.flags:
            self.readers.add(answer.site)

    def taking_part(self, state: ServerState, sampled: Sequence[str]) -> Sequence[str]:
        """The sites that are asked in an exchange: after the first of a round, those that were valid so far."""
        return [name for name in sampled if name in self.metrics] if state.exchange else sampled

    def without_joined(self, state: ServerState) -> ServerState:
        """Sites that have just joined have a new state: they hold no anchors."""
        return replace(state, held={site: v for site, v in state.held.items() if site not in self.joined})

    def lose(self, site: str) -> None:
        """A site that was valid before is refused in a later exchange: it continues as before the round."""
        self.lost.append(site)
        self.metrics.pop(site, None)
        self.versions.pop(site, None)
        if site in self.joined:
            self.versions[site] = -1

    def held_after(self, state: ServerState, before: ServerState) -> dict[str, int]:
        """The anchors that sites hold after the round: those of lost sites are as before it."""
        kept = {site: version for site, version in state.held.items() if site not in self.lost}
        again = [site for site in self.lost if site in before.held and site not in self.joined]
        return kept | {site: before.held[site] for site in again}

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
            readers=len(self.readers),
            sent=dict(sorted(join_sent(self.sent.values()).items())),
        )


@dataclass(frozen=True, eq=False)
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

    def run(self) -> Rounds:
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
        """The enrolment of the sites, and the first model. A site that is refused can still join in a round.

        A site that enrolled before a crash does not enrol again.
        """
        began = time.perf_counter()
        found = {name: enrolment for name in self.names if (enrolment := self.memory.enrolment(name))}
        tasks = [Task(what="enrol", site=name) for name in self.names if name not in found]

        def keep(answer: Answer, task: Task) -> None:
            found[task.site] = self._enrol(answer)
            tick("enrol", len(found), len(self.names))

        with metered() as meter:
            for enrolment in found.values():
                charge(enrolment)
            refused = self._collect(tasks, keep)
            validate.check_enrolled(len(self.names), refused, self.plan.quorum)
            hellos = [found[name].hello for name in self.names if name in found]
            with phase("server", whole=True):
                first = self.net.init(self._root.at("init"))
                state = self.method.start(first, hellos, self.net, self._root.at("start"))
        sent: dict[str, SentPart] = {}
        for hello in hellos:
            add_sent(sent, hello)
        return state, RoundRecord(
            round=-1,
            bytes_up=sum(map(nbytes, hellos)),
            flags=tuple(sorted({flag for enrolment in found.values() for flag in enrolment.flags} - {READ})),
            refused=dict(sorted(refused.items())),
            readers=sum(READ in enrolment.flags for enrolment in found.values()),
            sent=sent,
            wall=time.perf_counter() - began,
            **meter.spent(),
        )

    def _enrol(self, answer: Answer) -> Enrolment:
        """Check what a site sent at its enrolment, and store it."""
        hello = validate.check_hello(answer, self.method, self.net)
        found = Enrolment(
            hello=hello, flags=answer.flags, seconds=answer.seconds, cpu=answer.cpu, flops=answer.flops
        )
        self.memory.enrol(answer.site, found)
        return found

    def _collect(self, tasks: Iterable[Task], keep: Callable[[Answer, Task], None]) -> dict[str, str]:
        """Let sites work; `keep` checks an answer and keeps it. Returns why other sites have no valid answer.

        The work of a site is charged even if its answer is refused.
        """
        asked: dict[str, Task] = {}
        refused: dict[str, str] = {}

        def send() -> Iterator[Task]:
            for task in tasks:
                asked[task.site] = task
                yield task

        for answer in self.work(send()):
            task = asked.pop(answer.site, None)
            try:
                validate.check_costs(answer)
                charge(answer)
                if task is None:
                    raise Refused("not-asked")
                if answer.fault:
                    raise Refused("site-fault", fault=answer.fault)
                keep(answer, task)
            except Refused as refusal:
                refused[answer.site] = str(refusal)
        return refused | dict.fromkeys(asked, SILENT)

    def _round(self, state: ServerState) -> tuple[ServerState, RoundRecord, dict[str, int]]:
        """One round of Algorithm 1: sample, broadcast, collect valid updates, aggregate, score, and record."""
        t, tally, began = state.round, RoundTally(), time.perf_counter()
        sampled = sample_sites(list(self.names), self.plan.ratio, self._root.at("sample", t))
        new = state
        with metered() as meter:
            while new.round == t:
                with Inbox(sampled) as updates:
                    asked, keep = tally.taking_part(new, sampled), partial(self._receive, tally, updates)
                    tally.refused |= self._collect(self._broadcast(new, asked, tally), keep)
                    if tally.joined and not new.exchange:
                        new = tally.without_joined(new)
                        tally.refused |= self._collect(self._broadcast(new, list(tally.joined), tally), keep)
                    new = self._conclude(new, sampled, updates, tally)
            if tally.lost:
                new = replace(new, held=tally.held_after(new, state))
            scores, unscored = self._score(new, tally.versions) if self.plan.scores(t) else ({}, {})
        if new.anchors and new.anchors.round == t:
            tally.flags.add("anchors")
        wall = time.perf_counter() - began
        record = replace(tally.record(t, sampled), scores=scores, unscored=unscored, wall=wall, **meter.spent())
        return new, record, tally.versions

    def _broadcast(self, state: ServerState, names: Sequence[str], tally: RoundTally) -> Iterator[Task]:
        """A training task for each of these sites, with what the method sends it."""
        for name in names:
            message = replace(self.method.broadcast(state, name), exchange=state.exchange)
            tally.down += nbytes(message)
            after = self._version(name, tally.versions)
            yield Task(what="train", site=name, round=state.round, after=after, message=message)

    def _receive(self, tally: RoundTally, updates: Inbox, answer: Answer, task: Task) -> None:
        """Keep the update of a site, clipped if the settings say so.

        A site without the state that it was asked to continue from has enrolled instead, once per round and before
        its first update.
        """
        message, bound = task.message, self.plan.clip_update
        assert message is not None
        if answer.hello and not message.exchange and answer.site not in tally.joined:
            tally.up += nbytes(self._enrol(answer).hello)
            tally.versions[answer.site] = -1
            tally.note(answer)
            tally.joined.append(answer.site)
            return
        tally.up += nbytes(answer.update)
        hello = known_hello(self.memory, answer.site, self.net)
        update = validate.check_update(answer, task, self.method, self.net, hello)
        metrics = dict(update.metrics)
        if bound:
            update, norm = validate.clip_update(update, message.params, bound, self.net.trainable)
            metrics |= {"clipped": norm} if norm > bound else {}
        tally.metrics[answer.site] = tally.metrics.get(answer.site, {}) | metrics
        tally.versions[answer.site] = answer.version
        tally.note(answer)
        if task.round < OBSERVED_ROUNDS or has_undeclared(update, self.method.sends):
            add_sent(tally.sent.setdefault(message.exchange, {}), update)
        version = message.anchors.round if message.anchors else message.kept
        if version is not None:
            tally.held[answer.site] = version
        updates.add(update)

    def _conclude(
        self, state: ServerState, sampled: Sequence[str], updates: Inbox, tally: RoundTally
    ) -> ServerState:
        """The state after an exchange, of which the model and the anchors are finite."""
        t, exchange, valid = state.round, state.exchange, updates.arrived()
        validate.check_quorum(t, len(valid), len(sampled), tally.refused, self.plan.quorum)
        for name in tally.taking_part(state, sampled):
            if exchange and name not in valid:
                tally.lose(name)
        method, rng = self.method.at(t, self.plan.rounds), self._root.at("server", *moment(t, exchange))
        with phase("server", whole=True):
            new = self.place.do(lambda before: method.server(before, updates, self.net, rng), state)
        validate.check_state(new, t)
        held = {name: tally.held[name] for name in sampled if name in tally.held}
        last = exchange >= self.method.exchanges - 1
        return replace(new, round=t + last, exchange=0 if last else exchange + 1, held={**new.held, **held})

    def _score(self, state: ServerState, versions: dict[str, int]) -> tuple[dict[str, Score], dict[str, str]]:
        """Evaluate the new model at all tested sites, whether they were sampled or not.

        A site without a score is not in the mean of this round; the second part says why.
        """
        message = Broadcast(round=state.round, params=state.params)
        tasks = (
            Task(what="score", site=name, after=self._version(name, versions), message=message)
            for name in self.tested
        )
        found: dict[str, Score] = {}

        def keep(answer: Answer, task: Task) -> None:
            found[task.site] = validate.check_score(answer, self.net.classes)

        refused = self._collect(tasks, keep)
        scores = {name: found[name] for name in self.tested if name in found}
        lost = validate.check_losses(state.round, scores, self.plan.quorum)
        kept = {name: score for name, score in scores.items() if name not in lost}
        return kept, dict(sorted((refused | lost).items()))

    def _version(self, name: str, versions: dict[str, int]) -> int:
        """The round of the state that a site continues from: as it said in this round, or as committed."""
        return versions[name] if name in versions else self.memory.version(name)

    @property
    def _root(self) -> Stream:
        return Stream(self.plan.seed)


def known_hello(memory: Storage, site: str, net: Net) -> Hello:
    """What a site sent at its enrolment. It can take part without a valid one; then all its counts are 0."""
    enrolment = memory.enrolment(site)
    return enrolment.hello if enrolment else Hello(site=site, counts=torch.zeros(net.classes, dtype=torch.int64))


def serve(sites: Sites, memory: Storage, work: Work) -> Rounds:
    """Run the server's half for these sites. `work` is their half, wherever they are."""
    names, tested = list(sites.federation.by_name), [site.name for site in sites.federation.tested]
    return Server(sites.method, names, tested, sites.net, sites.plan, memory, work, sites.place).run()
