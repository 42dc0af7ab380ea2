"""The engine `loop`: one process, site after site. A generator of `RoundRecord`s."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

import torch

from fedlgd.core.errors import SettingError
from fedlgd.core.evaluate import score
from fedlgd.core.meter import Meter, metered, phase, track
from fedlgd.core.net import Net
from fedlgd.core.pack import nbytes, same
from fedlgd.core.rng import Stream
from fedlgd.core.types import Broadcast, RoundRecord, Score, ServerState, Update
from fedlgd.data.federation import Federation
from fedlgd.engines.memory import Enrolment, Memory
from fedlgd.methods.protocol import Method, adapted, model_at


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How long, how many sites at a time, from which seed, and how often the model is scored."""

    rounds: int = 100
    ratio: float = 1.0
    seed: int = 0
    evaluate_every: int = 1

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise SettingError(f"rounds is {self.rounds}; run at least 1 round")
        if not 0 < self.ratio <= 1:
            raise SettingError(f"ratio is {self.ratio}; use a share of the sites above 0 and up to 1")
        if self.evaluate_every < 1:
            raise SettingError(f"evaluate_every is {self.evaluate_every}; use 1 (every round) or more")

    def scores(self, t: int) -> bool:
        """Is the model scored after round t? The last round always is."""
        return (t + 1) % self.evaluate_every == 0 or t + 1 == self.rounds


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


def loop(method: Method, federation: Federation, net: Net, plan: Plan, memory: Memory) -> Iterator[RoundRecord]:
    """Enrol every site, then run the rounds that are not committed yet; a record after each commit."""
    root, net = Stream(plan.seed), adapted(method, net)
    state = memory.server()
    if state is None:
        state, record = _enrol_all(method, federation, net, root, memory)
        memory.commit(state, record)
        yield record
    while state.round < plan.rounds:
        state, record = _round(method, federation, net, plan, root, memory, state)
        memory.commit(state, record)
        yield record


def sample(names: list[str], ratio: float, rng: Stream) -> list[str]:
    """int(ratio * N) sites, at least one, uniformly without replacement; in the order of `names`."""
    count = max(1, int(ratio * len(names) + 1e-9))
    chosen = torch.randperm(len(names), generator=rng.generator())[:count].sort().values
    return [names[i] for i in chosen.tolist()]


def _enrol_all(
    method: Method, federation: Federation, net: Net, root: Stream, memory: Memory
) -> tuple[ServerState, RoundRecord]:
    seconds: Counter[str] = Counter()
    flops: Counter[str] = Counter()
    hellos = []
    names = list(federation.by_name)
    for i in track("enrol", len(names)):
        enrolment = memory.enrolment(names[i]) or _enrol(method, federation, names[i], net, root, memory)
        hellos.append(enrolment.hello)
        seconds.update(enrolment.seconds)
        flops.update(enrolment.flops)
    with metered() as meter, phase("server"):
        state = method.start(net.init(root.at("init")), hellos, net, root.at("start"))
    seconds.update(meter.seconds)
    flops.update(meter.flops)
    flags = ("virtual",) if any(memory.site(name).virtual for name in names) else ()
    up = sum(nbytes(hello) for hello in hellos)
    return state, RoundRecord(round=-1, bytes_up=up, seconds=dict(seconds), flops=dict(flops), flags=flags)


def _enrol(method: Method, federation: Federation, name: str, net: Net, root: Stream, memory: Memory) -> Enrolment:
    with metered() as meter:
        state, hello = method.enrol(federation.by_name[name], net, root.at("enrol", name))
    enrolment = Enrolment(state=state, hello=hello, seconds=dict(meter.seconds), flops=dict(meter.flops))
    memory.enrol(name, enrolment)
    return enrolment


def _round(
    method: Method,
    federation: Federation,
    net: Net,
    plan: Plan,
    root: Stream,
    memory: Memory,
    state: ServerState,
) -> tuple[ServerState, RoundRecord]:
    t = state.round
    chosen = sample(list(federation.by_name), plan.ratio, root.at("sample", t))
    traffic = Traffic()
    moved: set[str] = set()

    def updates() -> Iterator[Update]:
        for name in chosen:
            message, before = method.broadcast(state, name), memory.site(name)
            traffic.sent(message)
            with phase("train"):
                update, after = method.site(
                    message, before, federation.by_name[name], net, root.at("site", name, t)
                )
            traffic.received(update)
            if not same(before, after):
                memory.keep(name, after)
            if after.virtual and after.virtual.round == t:
                moved.add("virtual")
            yield update

    with metered() as meter:
        with phase("server"):
            new = method.server(state, updates(), net, root.at("server", t))
        scores = _scores(method, federation, net, new, memory) if plan.scores(t) else {}
    if new.anchors and new.anchors.round == t:
        moved.add("anchors")
    return new, _record(t, chosen, scores, traffic, meter, moved)


def _scores(
    method: Method, federation: Federation, net: Net, state: ServerState, memory: Memory
) -> dict[str, Score]:
    """The global model, or the site's own, on every site's test images, sampled or not."""
    k = len(federation.classes)
    return {
        site.name: score(net, model_at(method, state, partial(memory.newest, site.name)), site.test, k)
        for site in federation.tested
    }


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
