"""Every registered method in every guise, and a witness that watches each call of a run."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from fedlgd.core.guard import unsealed
from fedlgd.core.net import Net
from fedlgd.core.types import Broadcast, Hello, ServerState, SiteState, Update
from fedlgd.data.federation import Federation
from fedlgd.engines.registry import Loop
from fedlgd.engines.wire import pack, unpack
from fedlgd.methods import registry
from fedlgd.rundir.records import RoundRecord
from fedlgd.runs import run
from fedlgd.runs.config import RunSettings
from tests import tiny

PLAN = RunSettings(rounds=3, ratio=0.67, seed=5, evaluate_every=3)
"""Two of three sites a round."""

ANCHORS = {
    "anchors.per_class": 2,
    "anchors.steps": 2,
    "anchors.selected.every": 2,
    "anchors.selected.count": 2,
    "pull.weight": 1.0,
}
"""Anchors that move in rounds 0 and 2 and are trained on in round 1."""

REFINE = {"refine.steps": 2, "refine.selected.every": 2, "refine.selected.count": 2}
SYNTHESIS = {
    "synthesis.ahead": 1,
    "synthesis.snapshots": 2,
    "synthesis.per_class": 2,
    "synthesis.steps": 2,
    "synthesis.unroll": 2,
    "finetune.epochs": 2,
}
FEW = SYNTHESIS | {"per_class": 2, "virtual_batch": 4}
LAP = {"real_batch": 6, "outer": 2, "batches": 2, "boost": 2, "inner": 0, "search": 0}
"""FedLAP whose sites take no step of SGD, so that all that are counted are those of the server."""

SIMULATED = {"epsilon": 60.0, "counts": 0.2, "test_key": "public"}
"""Much noise is not needed to see where it enters; the key makes it the same in every run."""


def private(section: str, **more: Any) -> dict[str, Any]:
    return {f"{section}.{name}": value for name, value in {**SIMULATED, **more}.items()}


VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "collabdm-private": ("collabdm", {"distil.plan": "bank", **private("distil.private")}),
    "fedlap-private": ("fedlap", {**private("dp", rounds=RunSettings().rounds), "real_batch": 99}),
    "fedavg-redraw": ("fedavg+redraw", {"train_on": "virtual"}),
    "feddm-new": ("feddm", {"images": "new", "logits": False, "radius": 0.0}),
    "fedlgd-official": (
        "fedlgd",
        {"anchors.start": "statistics", "anchors.in_loss": "always", "pull.repeat": True},
    ),
    "fedlgd-redraw": ("fedlgd+redraw", {}),
    "fedmix-virtual-pairs": (
        "fedmix",
        {"train_on": "virtual", "allow_copies": True, "means": 2, "per_mean": 2, "own": True},
    ),
    "fednova-prox": ("fednova", {"mu": 0.1}),
    "fednova-momentum": ("fednova", {"local.momentum": 0.5}),
    "fedproto-avg-uniform": ("fedproto-avg", {"weigh": "uniform", "train_on": "real"}),
    "moon-head": ("moon", {"head": True}),
    "moon-head-anchored": ("moon+anchors", {"head": True, "train_on": "virtual"}),
    "scaffold-server-lr": ("scaffold", {"server_lr": 0.5}),
    "scaffold-statistics": (
        "scaffold+anchors",
        {**ANCHORS, "anchors.start": "statistics", "anchors.in_loss": "always"},
    ),
    "vhl-extra-noise": ("vhl", {"source": "noise"}),
    "vhl-patch-style": ("vhl", {"labels": "patch"}),
    "vhl-patch-noise": ("vhl", {"labels": "patch", "source": "noise"}),
}


def quick(name: str, **settings: Any) -> Any:
    """A registered method with all that makes it slow turned down; a double underscore is a dot."""
    own = {f.name for f in fields(registry.recipe(name).settings)}
    few = tiny.SETTINGS | {"local.epochs": 1, "distil.steps": 1} | REFINE | FEW | LAP | ANCHORS
    known = {path: value for path, value in few.items() if path.partition(".")[0] in own}
    return tiny.settings(
        tiny.stacked(name), known | {path.replace("__", "."): value for path, value in settings.items()}
    )


def _guises() -> Iterator[tuple[str, Any]]:
    for name in registry.names():
        cls = registry.find_method(name)
        choice = "train_on" in {f.name for f in fields(cls)}
        for train_on in ("real", "virtual") if choice else ():
            yield f"{name}-{train_on}", quick(name, train_on=train_on)
        if not choice:
            yield name, quick(name)
        elif "anchors" in cls.stackable:
            yield f"{name}-anchored", quick(f"{name}+anchors", train_on="virtual")
    for guise, (name, settings) in VARIANTS.items():
        yield guise, quick(name, **settings)


CASES: dict[str, Any] = dict(_guises())


SIZES = {"ape": 12, "bee": 7, "cat": 11}
_PARTS = {"ape": list(range(12)), "bee": [0, 1, 2, 4, 5, 8, 9], "cat": list(range(1, 12))}


def uneven(names: Sequence[str] = tiny.NAMES) -> Federation:
    """Sites of unequal `SIZES`, with unequal classes at two of them."""
    data = tiny.federation(names=names, train=4, test=2)
    sites = [
        replace(s, train=replace(s.train, x=s.train.x[_PARTS[s.name]], y=s.train.y[_PARTS[s.name]]))
        for s in data.sites
    ]
    return replace(data, sites=tuple(sites))


def prepared(method: Any, data: Federation, net: Net, seed: int = PLAN.seed) -> Federation:
    """The sites as the runner hands them to the engine: joined into one for a method that pools them."""
    return run.pool_sites(method, data, net, seed, Loop()) if method.pooled else data


def play(method: Any, data: Federation, plan: RunSettings = PLAN, memory: tiny.Kept | None = None) -> tiny.Run:
    net = tiny.net(classes=len(data.classes))
    return tiny.Run(method, prepared(method, data, net, plan.seed), plan, memory, using=net)


# Bits


def bits(value: Any) -> Any:
    """A nest of values in a form that is equal only to the same bits under the same names."""
    if isinstance(value, Tensor):
        return (str(value.dtype), tuple(value.shape), value.requires_grad, value.detach().numpy().tobytes())
    if isinstance(value, Net):
        module = value._module
        return bits(dict(module.state_dict())), module.training
    if is_dataclass(value):
        return {f.name: bits(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {key: bits(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [bits(part) for part in value]
    return value


def finite(value: Any) -> bool:
    return all(t.isfinite().all() for t in pack(value)[0].values())


# What a run writes down


class Diary(tiny.Kept):
    """Memory that writes down all states at every commit, as bytes and JSON."""

    def __init__(self, states: Any = None) -> None:
        super().__init__(states)
        self.pages: list[tuple[Any, dict[str, Any]]] = []
        self.names: list[str] = []

    def enrol(self, site: str, enrolment: Any) -> None:
        super().enrol(site, enrolment)
        self.names.append(site)

    def commit(self, state: ServerState, record: RoundRecord, versions: Mapping[str, int]) -> None:
        super().commit(state, record, versions)
        sites = {name: _written(self.site(name)) for name in sorted(self.names)}
        self.pages.append((_written(self._server), sites))

    @classmethod
    def opened(cls, page: tuple[Any, dict[str, Any]]) -> "Diary":
        """A new memory with nothing in it but what a page says."""
        memory = cls()
        memory._server = _read(ServerState, page[0])
        memory.names = list(page[1])
        for name, written in page[1].items():
            memory.states.save(name, -1, _read(SiteState, written), before=-1)
        return memory


def _written(message: Any) -> tuple[dict[str, Tensor], str]:
    tensors, plain = pack(message)
    return {path: t.clone() for path, t in tensors.items()}, json.dumps(plain)


def _read(kind: type, written: tuple[dict[str, Tensor], str]) -> Any:
    tensors, plain = written
    return unpack(kind, {path: t.clone() for path, t in tensors.items()}, json.loads(plain))


# The witness


class Once:
    """Can be iterated over once; notes what was read."""

    def __init__(self, items: Sequence[Update]) -> None:
        self.items, self.read, self.opened = items, [], 0

    def __iter__(self) -> Iterator[Update]:
        self.opened += 1
        for item in self.items if self.opened == 1 else ():
            self.read.append(item.site)
            yield item


class Watched:
    """A method whose every call is made twice under another global generator, its inputs compared with before."""

    def __init__(self, method: Any, times: int = 2) -> None:
        self.method, self.times = method, times
        self.changed: list[str] = []
        self.unequal: list[str] = []
        self.misread: list[str] = []
        self.hellos: list[Hello] = []
        self.sent: list[tuple[str, Broadcast]] = []
        self.received: list[Update] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.method, name)

    def at(self, t, rounds):
        now = self.method.at(t, rounds)
        return self if now is self.method else now

    def enrol(self, site, net, rng):
        state, hello = self._twice("enrol", (unsealed(site), net), lambda: self.method.enrol(site, net, rng))
        self.hellos.append(hello)
        return state, hello

    def start(self, params, hellos, net, rng):
        return self._twice("start", (params, hellos, net), lambda: self.method.start(params, hellos, net, rng))

    def broadcast(self, state, site):
        message = self._twice("broadcast", (state,), lambda: self.method.broadcast(state, site))
        self.sent.append((site, message))
        return message

    def site(self, msg, state, site, net, rng):
        update, after = self._twice(
            "site", (msg, state, unsealed(site), net), lambda: self.method.site(msg, state, site, net, rng)
        )
        self.received.append(update)
        return update, after

    def server(self, state, updates, net, rng):
        arrived = list(updates)

        def call() -> ServerState:
            stream = Once(arrived)
            after = self.method.server(state, stream, net, rng)
            if stream.opened != 1 or stream.read != [u.site for u in arrived]:
                self.misread.append(f"round {state.round}: opened {stream.opened} times, read {stream.read}")
            return after

        return self._twice("server", (state, arrived, net), call)

    def _twice(self, part: str, inputs: tuple[Any, ...], call: Callable[[], Any]) -> Any:
        before, results = bits(inputs), []
        with torch.random.fork_rng(devices=[]):
            for seed in range(self.times):
                torch.default_generator.manual_seed(seed)
                state = torch.get_rng_state()
                results.append(call())
                if bits(inputs) != before:
                    self.changed.append(part)
                if not torch.equal(state, torch.get_rng_state()):
                    self.changed.append(f"the global generator, in {part}")
        if bits(results[0]) != bits(results[-1]):
            self.unequal.append(part)
        return results[0]

    @property
    def messages(self) -> list[Any]:
        return [*self.hellos, *(message for _, message in self.sent), *self.received]


@dataclass(frozen=True)
class Seen:
    """A watched run under sampling: the witness, the records and states, and the page of every commit."""

    watched: Watched
    run: tiny.Run
    diary: Diary
    data: Federation
    net: Net


def watch(method: Any, data: Federation, plan: RunSettings = PLAN, times: int = 2, net: Net | None = None) -> Seen:
    watched, diary = Watched(method, times), Diary()
    net = net or tiny.net(classes=len(data.classes))
    data = prepared(method, data, net, plan.seed)
    run = tiny.Run(watched, data, plan, diary, using=net)
    return Seen(watched, run, diary, data, method.adapt(net))


@cache
def seen(case: str) -> Seen:
    """One run of a case that many tests look at."""
    return watch(CASES[case], uneven())


# Private images


def leaks(messages: Iterable[Any], data: Federation) -> list[str]:
    """Paths of tensors in messages that hold a training image or the labels of a site, in any usual scaling."""
    found = []
    secrets = [secret for site in data.sites for secret in _secrets(site.train)]
    for message in messages:
        for path, tensor in pack(message)[0].items():
            hay = tensor.detach().float().numpy().tobytes()
            if any(secret in hay for secret in secrets):
                found.append(f"{type(message).__name__}.{path}")
    return found


def _secrets(train: Any) -> Iterator[bytes]:
    x = train.x.float()
    forms = [x, x / 255, train.take(slice(None)).x]
    yield from (image.contiguous().numpy().tobytes() for form in forms for image in form)
    yield train.y.float().numpy().tobytes()
