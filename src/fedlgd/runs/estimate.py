"""How long a run will take, from a few steps of its own work at one of its sites.

The method itself does the steps, so whatever it adds to them is in the price. A phase's seconds and FLOPs are then
multiplied by how often the configuration asks for such steps. A set that an earlier run left on the shelf is free.
"""

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import Any

import torch

from fedlgd.core.device import Place
from fedlgd.core.evaluate import score
from fedlgd.core.meter import Meter, metered, phase
from fedlgd.core.net import Net
from fedlgd.core.rng import Stream
from fedlgd.core.types import Broadcast, Params, ServerState, Site, SiteState, Update
from fedlgd.data.federation import Federation
from fedlgd.distill.distribution import Distil, distil
from fedlgd.distill.shelf import Kept, Shelf, shelving
from fedlgd.methods.anchors import pulls_in
from fedlgd.methods.common import Averaging, Training
from fedlgd.methods.protocol import adapted
from fedlgd.runs.config import Config

STEPS = 2  # of training and of gradient matching that are tried
IMAGES = 128  # that are scored


@dataclass(frozen=True, slots=True)
class Estimate:
    """Seconds and FLOPs by phase, as the records of the run will have them; `enrolment`: seconds before round 1."""

    seconds: Mapping[str, float]
    flops: Mapping[str, float]
    enrolment: float = 0.0

    def total(self, workers: int = 1) -> float:
        """Seconds until the end; `workers` share what sites do."""
        server = self.seconds.get("server", 0.0)
        return server + (sum(self.seconds.values()) - server) / workers


def estimate(
    config: Config,
    federation: Federation,
    net: Net,
    committed: int | None = None,
    shelf: Shelf | None = None,
    place: Place = Place(),
) -> Estimate | None:
    """Of the rounds after the first `committed`; None: the sites have not enrolled either.

    None where nobody can tell: a method that is not made of the usual parts, or pooled data.
    """
    method = config.method
    if not isinstance(method, Training) or getattr(method, "pooled", False):
        return None
    trial = _Trial(config, method, federation, adapted(config.method, net), place)
    total = _Sum()
    if committed is None:
        total.add(trial.enrolment, _undistilled(config, method, federation, net, shelf), ("distil",))
    enrolment = total.seconds["distil"]
    for rounds in trial.kinds(range(committed or 0, config.plan.rounds)):
        trial.add_rounds(total, rounds)
    scored = sum(config.plan.scores(t) for t in range(committed or 0, config.plan.rounds))
    trial.add_scores(total, scored)
    return Estimate(dict(total.seconds), dict(total.flops), enrolment)


class _Sum:
    """Metered work, each part as often as it will be done."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self.flops: Counter[str] = Counter()

    def add(self, meter: Meter, times: float, phases: Iterable[str]) -> None:
        for name in phases:
            self.seconds[name] += meter.seconds[name] * times  # type: ignore[assignment]
            self.flops[name] += meter.flops[name] * times  # type: ignore[assignment]


class _Trial:
    """The middle one of the sites, by size, does a few steps of everything."""

    def __init__(self, config: Config, method: Training, federation: Federation, net: Net, place: Place) -> None:
        self._place = place
        self._method, self._plan, self._federation, self._net = method, config.plan, federation, net
        self._small: Any = shrunk(method)
        self._rng = Stream(config.plan.seed).at("estimate")
        self._site = sorted(federation.sites, key=lambda site: len(site.train))[len(federation.sites) // 2]
        self._params = net.init(self._rng)
        place.do(self._warm, self._params)
        self._start()

    def _warm(self, params: Params) -> None:
        """The first pass is not like the others."""
        net, data = self._net, self._site.train.take(slice(0, 32))
        weights = {name: value.clone().requires_grad_(name in net.trainable) for name, value in params.items()}
        torch.autograd.grad(net(weights, data.x).features.sum(), list(weights.values()), allow_unused=True)

    def _start(self) -> None:
        with metered() as self.enrolment:
            enrol = partial(self._small.enrol, self._site, self._net)
            self._state, hello = self._place.do(enrol, self._rng.at("enrol"))
        _scale(self.enrolment, "distil", _ratio(self._method.distil, self._small.distil))
        self._server: ServerState = self._small.start(self._params, [hello], self._net, self._rng.at("start"))

    def kinds(self, rounds: range) -> Iterator[list[int]]:
        """Rounds that ask for the same work."""
        kind = {t: _kind(self._method, t) for t in rounds}
        for _, alike in groupby(sorted(rounds, key=kind.__getitem__), key=kind.__getitem__):
            yield list(alike)

    def add_rounds(self, total: _Sum, rounds: list[int]) -> None:
        """One of them is tried."""
        t, chosen = rounds[0], max(1, int(self._plan.ratio * len(self._federation.sites) + 1e-9))
        state = replace(self._server, round=t)
        at_site, at_server = self._try(state, self._state)
        every = [training_work(self._method, site, t, self._net.classes) for site in self._federation.sites]
        tried = training_work(self._method, self._site, t, self._net.classes, STEPS)
        refine = getattr(self._method, "refine", None)
        if refine is not None and refine.steps:
            how = refine.settings(self._method.distil)
            _scale(at_site, "distil", _ratio(how, self._small.refine.settings(self._small.distil)))
        _scale(at_site, "train", statistics.fmean(every) / tried)
        total.add(at_site, len(rounds) * chosen, ("distil", "train"))
        total.add(at_server, len(rounds) * self._matchings(t), ("server",))

    def _try(self, state: ServerState, kept: SiteState) -> tuple[Meter, Meter]:
        message = self._small.broadcast(state, self._site.name)
        with metered() as at_site:
            update, after = self._place.do(self._at_site, (message, kept))
        if (
            after.trees.keys() != kept.trees.keys()
        ):  # the first round of a method that remembers is not like the others
            return self._try(state, after)
        with metered() as at_server, phase("server"):
            self._place.do(self._at_server, (state, update))
        return at_site, at_server

    def _at_site(self, given: tuple[Broadcast, SiteState]) -> tuple[Update, SiteState]:
        answer: tuple[Update, SiteState] = self._small.site(*given, self._site, self._net, self._rng)
        return answer

    def _at_server(self, given: tuple[ServerState, Update]) -> ServerState:
        after: ServerState = self._small.server(given[0], iter([given[1]]), self._net, self._rng)
        return after

    def _matchings(self, t: int) -> float:
        """Gradient matching, where there is some, is nearly all that a server does; as if no target was met."""
        how = self._method.anchors if isinstance(self._method, Averaging) else None
        if not (how and how.per_class and t in how.selected and how.steps):
            return 1.0
        last = how.plan == "target"  # which also looks where its last step led
        return (how.steps + last) / (min(STEPS, how.steps) + last)

    def add_scores(self, total: _Sum, times: int) -> None:
        part = max((site.test for site in self._federation.tested), key=len).take(slice(0, IMAGES))
        with metered() as meter:
            self._place.do(lambda params: score(self._net, params, part, self._net.classes), self._params)
        images = sum(len(site.test) for site in self._federation.tested)
        total.add(meter, times * images / len(part), ("evaluate",))


def shrunk(method: Training) -> Training:
    """The method with so few steps of everything that it takes seconds, in the proportions of the real one."""
    small = replace(method, local=replace(method.local, steps=STEPS), distil=_one_draw(method.distil))
    if isinstance(small, Averaging):
        small = replace(small, anchors=replace(small.anchors, steps=min(STEPS, small.anchors.steps)))
    refine: Any = getattr(method, "refine", None)
    if refine is not None:
        steps = 1 if method.distil.plan == "exact" else refine.reuse
        small = replace(small, refine=replace(refine, pairs=1, steps=min(steps, refine.steps)))  # type: ignore[call-arg]
    return small


def _one_draw(how: Distil) -> Distil:
    """One draw and the steps that are taken with it."""
    return replace(how, pairs=1, steps=min(how.steps, 1 if how.plan == "exact" else how.reuse))


def _ratio(how: Distil, tried: Distil) -> float:
    return how.steps / tried.steps if tried.steps else 0.0


def _scale(meter: Meter, name: str, times: float) -> None:
    meter.seconds[name] *= times  # type: ignore[assignment]
    meter.flops[name] = round(meter.flops[name] * times)


def _kind(method: Training, t: int) -> tuple[bool, ...]:
    """Rounds of one kind ask for the same work."""
    refine: Any = getattr(method, "refine", None)
    refined = refine is not None and t in refine.selected
    if not isinstance(method, Averaging):
        return (refined,)
    return refined, t in method.anchors.selected, method.anchors.train_in(t)


def training_work(method: Training, site: Site, t: int, classes: int, steps: int = 0) -> float:
    """What a site's training in round t, or `steps` of it, is worth: images; steps where all anchors join each."""
    n = method.distil.per_class * int((site.train.counts(classes) > 0).sum())
    n = n if method.train_on == "virtual" else len(site.train)
    pulled = False
    if isinstance(method, Averaging) and method.anchors.per_class:
        n += method.anchors.per_class * classes if method.anchors.train_in(t) else 0
        pulled = pulls_in(method.anchors, method.pull, t)
    per_epoch = math.ceil(n / method.local.batch)
    steps = steps or method.local.steps or method.local.epochs * per_epoch
    epochs, rest = divmod(steps, per_epoch)
    return steps if pulled else epochs * n + rest * method.local.batch


def _undistilled(config: Config, method: Training, federation: Federation, net: Net, shelf: Shelf | None) -> int:
    """Sites whose first virtual set is still to be made."""
    if method.train_on != "virtual" or shelf is None:
        return len(federation.sites)
    root = Stream(config.plan.seed)
    return sum(
        not _on(shelf, site, net, method.distil, root.at("enrol", site.name, "distil")) for site in federation.sites
    )


def _on(shelf: Shelf, site: Site, net: Net, how: Distil, rng: Stream) -> bool:
    """Is this set there? Asked as `distil` would ask; nothing is made."""
    try:
        with shelving(_Question(shelf)):
            distil(site, net, how, rng)
    except _Answer as answer:
        return answer.found
    return False


class _Answer(Exception):  # noqa: N818
    def __init__(self, found: bool) -> None:
        self.found = found


class _Question:
    """A shelf that only says whether another has something."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf

    def get(self, key: str) -> Kept | None:
        raise _Answer(self._shelf.get(key) is not None)

    def put(self, key: str, kept: Kept) -> None:
        pass
