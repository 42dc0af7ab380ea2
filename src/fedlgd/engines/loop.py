"""The engine `loop`: one process, site after site. And the server's half, which all engines share."""

from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial

import torch

from fedlgd.core.device import Place, to_device
from fedlgd.core.errors import SettingError
from fedlgd.core.meter import Meter, charge, metered, phase, track
from fedlgd.core.net import Net
from fedlgd.core.pack import nbytes
from fedlgd.core.records import RoundRecord, Score
from fedlgd.core.rng import Stream
from fedlgd.core.types import Broadcast, ServerState, Update
from fedlgd.data.federation import Federation
from fedlgd.engines.memory import Enrolment, Memory
from fedlgd.engines.site import Answer, Sites, Task
from fedlgd.methods.protocol import Method, adapted, model_at

Work = Callable[[Iterator[Task]], Iterator[Answer]]
"""Has tasks done at the sites; answers come in the order of the tasks."""

Rounds = Generator[RoundRecord, None, None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How long, how many sites at a time, from which seed. evaluate_every: the model is scored after so many
    rounds; 0: about ten times in a run.

    What a run folder keeps for its report: real_samples, training images a class of every site (0: none);
    analysis, how alike the sites' features are."""

    rounds: int = 100
    ratio: float = 1.0
    seed: int = 0
    evaluate_every: int = 0
    real_samples: int = 4
    analysis: bool = True

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise SettingError(f"rounds is {self.rounds}; run at least 1 round")
        if not 0 < self.ratio <= 1:
            raise SettingError(f"ratio is {self.ratio}; use a share of the sites above 0 and up to 1")
        if self.evaluate_every < 0:
            raise SettingError(f"evaluate_every is {self.evaluate_every}; use 1 (every round) or more, or 0")
        if self.real_samples < 0:
            raise SettingError(f"real_samples is {self.real_samples}; use 0 (none) or more")

    def scores(self, t: int) -> bool:
        """Is the model scored after round t? The last round always is."""
        every = self.evaluate_every or max(1, self.rounds // 10)
        return (t + 1) % every == 0 or t + 1 == self.rounds


@dataclass(slots=True)
class Traffic:
    """Bytes that crossed a site's border, counted from the tensors that did."""

    up: int = 0
    down: int = 0
    metrics: dict[str, dict[str, float]] = field(default_factory=dict)

    def sent(self, message: Broadcast) -> None:
        self.down += nbytes(message)

    def received(self, update: Update) -> None:
        self.up += nbytes(update)
        self.metrics[update.site] = dict(update.metrics)


def loop(
    method: Method, federation: Federation, net: Net, plan: Plan, memory: Memory, place: Place = Place()
) -> Rounds:
    """Enrol every site, then run the rounds that are not committed yet; a record after each commit."""
    net = adapted(method, net)
    sites = Sites(method, federation, net, plan.seed, place)
    yield from Server.of(method, federation, net, plan, memory, partial(map, sites), place).run()


def sample(names: list[str], ratio: float, rng: Stream) -> list[str]:
    """int(ratio * N) sites, at least one, uniformly without replacement; in the order of `names`."""
    count = max(1, int(ratio * len(names) + 1e-9))
    chosen = torch.randperm(len(names), generator=rng.generator())[:count].sort().values
    return [names[i] for i in chosen.tolist()]


@dataclass(frozen=True, kw_only=True, eq=False)
class Server:
    """The server's half of a run. It knows the sites by name and by what they answer, never their images."""

    method: Method
    names: list[str]
    tested: list[str]
    net: Net
    plan: Plan
    memory: Memory
    work: Work
    place: Place

    @classmethod
    def of(
        cls,
        method: Method,
        federation: Federation,
        net: Net,
        plan: Plan,
        memory: Memory,
        work: Work,
        place: Place,
    ) -> "Server":
        names, tested = list(federation.by_name), [site.name for site in federation.tested]
        return cls(
            method=method, names=names, tested=tested, net=net, plan=plan, memory=memory, work=work, place=place
        )

    def run(self) -> Iterator[RoundRecord]:
        """Every round that is not committed yet."""
        state = self.memory.server()
        if state is None:
            state, record = self._start()
            self.memory.commit(state, record)
            yield record
        while state.round < self.plan.rounds:
            state, record = self._round(state)
            self.memory.commit(state, record)
            yield record

    def _start(self) -> tuple[ServerState, RoundRecord]:
        seconds: Counter[str] = Counter()
        flops: Counter[str] = Counter()
        hellos, moved = [], set()
        for enrolment in self._enrolments():
            hellos.append(enrolment.hello)
            seconds.update(enrolment.seconds)
            flops.update(enrolment.flops)
            if enrolment.state.virtual:
                moved.add("virtual")
        with metered() as meter, phase("server"):
            first = self.net.init(self._root.at("init"))
            state = self.method.start(first, hellos, self.net, self._root.at("start"))
        seconds.update(meter.seconds)
        flops.update(meter.flops)
        up = sum(nbytes(hello) for hello in hellos)
        return state, RoundRecord(
            round=-1, bytes_up=up, seconds=dict(seconds), flops=dict(flops), flags=tuple(moved)
        )

    def _enrolments(self) -> Iterator[Enrolment]:
        """In the order of names. A site that joined before a crash does not join again."""
        new = (name for name in self.names if self.memory.enrolment(name) is None)
        answers = self.work(Task(what="enrol", site=name) for name in new)
        for i in track("enrol", len(self.names)):
            yield self.memory.enrolment(self.names[i]) or self._join(next(answers))

    def _join(self, answer: Answer) -> Enrolment:
        assert answer.state is not None
        assert answer.hello is not None
        enrolment = Enrolment(state=answer.state, hello=answer.hello, seconds=answer.seconds, flops=answer.flops)
        self.memory.enrol(answer.site, enrolment)
        return enrolment

    def _round(self, state: ServerState) -> tuple[ServerState, RoundRecord]:
        t = state.round
        chosen = sample(self.names, self.plan.ratio, self._root.at("sample", t))
        traffic = Traffic()
        moved: set[str] = set()
        with metered() as meter:
            with phase("server"), closing(self._updates(state, chosen, traffic, moved)) as updates:
                new = self.place.do(partial(self._serve, updates), state)
            scores = self._scores(new) if self.plan.scores(t) else {}
        if new.anchors and new.anchors.round == t:
            moved.add("anchors")
        return new, _record(t, chosen, scores, traffic, meter, moved)

    def _serve(self, updates: Iterator[Update], state: ServerState) -> ServerState:
        return self.method.server(state, map(to_device, updates), self.net, self._root.at("server", state.round))

    def _updates(
        self, state: ServerState, chosen: list[str], traffic: Traffic, moved: set[str]
    ) -> Generator[Update, None, None]:
        for answer in self._ask(self._trainings(state, chosen, traffic)):
            assert answer.update is not None
            traffic.received(answer.update)
            if answer.state:
                self.memory.keep(answer.site, answer.state)
                if answer.state.virtual and answer.state.virtual.round == state.round:
                    moved.add("virtual")
            yield answer.update

    def _trainings(self, state: ServerState, chosen: list[str], traffic: Traffic) -> Iterator[Task]:
        for name in chosen:
            with phase("server"):
                message, kept = self.method.broadcast(state, name), self.memory.site(name)
                traffic.sent(message)
            yield Task(what="train", site=name, round=state.round, message=message, state=kept)

    def _scores(self, state: ServerState) -> dict[str, Score]:
        """The global model, or the site's own, on every site's test images, sampled or not."""
        tasks = (Task(what="score", site=name, message=self._model_for(state, name)) for name in self.tested)
        return {answer.site: answer.score for answer in self._ask(tasks) if answer.score}

    def _model_for(self, state: ServerState, name: str) -> Broadcast:
        params = model_at(self.method, state, partial(self.memory.newest, name))
        return Broadcast(round=state.round, params=params)

    def _ask(self, tasks: Iterator[Task]) -> Iterator[Answer]:
        """Answers, charged with what the sites metered; the time they are waited for is not charged."""
        answers = self.work(tasks)
        while True:
            with phase(""):
                answer = next(answers, None)
            if answer is None:
                return
            charge(answer.seconds, answer.flops)
            yield answer

    @property
    def _root(self) -> Stream:
        return Stream(self.plan.seed)


def _record(
    t: int, chosen: list[str], scores: dict[str, Score], traffic: Traffic, meter: Meter, moved: set[str]
) -> RoundRecord:
    return RoundRecord(
        round=t,
        sampled=tuple(chosen),
        scores=scores,
        metrics=traffic.metrics,
        bytes_up=traffic.up,
        bytes_down=traffic.down,
        seconds=dict(meter.seconds),
        flops=dict(meter.flops),
        flags=tuple(sorted(moved)),
    )
