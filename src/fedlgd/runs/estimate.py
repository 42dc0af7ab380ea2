"""Estimate the time of a run from a few steps at one of its sites.

The steps are those of the method itself, so its additional terms are included. The seconds and FLOPs of each phase
are multiplied by the number of such steps in a round, which its `cost` states. Cached virtual sets cost nothing.
"""

import math
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from typing import Any

import torch

from fedlgd.core.device import Place, compiling
from fedlgd.core.meter import Meter, metered, phase
from fedlgd.core.net import Net
from fedlgd.core.train import score
from fedlgd.core.types import Cache, Params, ServerState, Site, SiteState, Stream
from fedlgd.data.federation import Federation
from fedlgd.distill.distribution import first_set_key
from fedlgd.distill.settings import Distil
from fedlgd.methods.protocol import Cost, Method
from fedlgd.runs.config import Config

TEST_IMAGES = 128  # to evaluate


@dataclass(frozen=True, slots=True)
class Estimate:
    """Wall seconds, FLOPs and CPU seconds by phase, as the records of the run will have them.

    `enrolment`: seconds before round 1.
    """

    seconds: Mapping[str, float]
    flops: Mapping[str, float]
    enrolment: float = 0.0
    cpu: Mapping[str, float] = field(default_factory=dict)

    def total(self, workers: int = 1) -> float:
        """Seconds until the end; the work of the sites is divided among `workers`."""
        server = self.seconds.get("server", 0.0)
        return server + (sum(self.seconds.values()) - server) / workers


def estimate(
    config: Config,
    federation: Federation,
    net: Net,
    committed: int | None = None,
    cache: Cache = Cache(),
    place: Place = Place(),
) -> Estimate | None:
    """Estimate the rounds after the first `committed`; None: the enrolment is included too.

    Returns None if the cost of the method is not known.
    """
    site = sorted(federation.sites, key=lambda site: len(site.train))[len(federation.sites) // 2]
    enrolled = config.method.cost(-1, site, net.classes)
    if enrolled is None:
        return None
    trial = _Trial(config, federation, config.method.adapt(net), place, site)
    total, left = _Sum(), range(committed or 0, config.plan.rounds)
    if committed is None:
        total.add(trial.enrolment, "distil", enrolled.distil * _undistilled(config, federation, net, cache))
    enrolment = total.seconds["distil"]
    for rounds in trial.kinds(left):
        trial.add_rounds(total, rounds)
    trial.add_scores(total, sum(map(config.plan.scores, left)))
    return Estimate(dict(total.seconds), dict(total.flops), enrolment, dict(total.cpu))


def warm_up(net: Net, site: Site, params: Params) -> None:
    """The first pass is slower than the others, above all if it is compiled."""
    data = site.train.take(slice(0, 32))
    weights = {name: value.clone().requires_grad_(name in net.trainable) for name, value in params.items()}
    leaves = [value for value in weights.values() if value.requires_grad]  # not the buffers of batch norm
    with net.training(compiling()):  # the graph of training; without one, a batch of one image will do
        torch.autograd.grad(net(weights, data.x).logits.sum(), leaves, allow_unused=True)


class _Sum(Meter):
    """The sum of measured costs, each multiplied by its number of repetitions."""

    def add(self, meter: Meter, name: str, times: float) -> None:
        self.seconds[name] += meter.seconds[name] * times  # type: ignore[assignment]
        self.cpu[name] += meter.cpu[name] * times  # type: ignore[assignment]
        self.flops[name] += meter.flops[name] * times  # type: ignore[assignment]


class _Trial:
    """Runs a few steps of each phase at the site of median size."""

    def __init__(self, config: Config, federation: Federation, net: Net, place: Place, site: Site) -> None:
        self._method, self._plan, self._federation, self._net = config.method, config.plan, federation, net
        self._place, self._site, self._small = place, site, config.method.trial()
        self._rng = Stream(config.plan.seed).at("estimate")
        self._params = net.init(self._rng)
        place.do(partial(warm_up, net, site), self._params)
        with metered() as self.enrolment:
            enrol = partial(self._small.enrol, site, net)
            self._state, hello = place.do(enrol, self._rng.at("enrol"))
        self._server = self._small.start(self._params, [hello], net, self._rng.at("start"))

    def kinds(self, rounds: range) -> Iterator[list[int]]:
        """Groups of rounds with the same work."""
        kind = {t: self._cost(self._method, t, self._site).kind for t in rounds}
        for _, alike in groupby(sorted(rounds, key=kind.__getitem__), key=kind.__getitem__):
            yield list(alike)

    def add_rounds(self, total: _Sum, rounds: list[int]) -> None:
        """Add the cost of these rounds, measured on the first of them."""
        t, sites = rounds[0], self._federation.sites
        chosen = len(rounds) * self._sampled
        at_site, at_server = self._try(replace(self._server, round=t), self._state)
        cost, tried = (self._cost(method, t, self._site) for method in (self._method, self._small))
        every = statistics.fmean(training_work(self._method, self._cost(self._method, t, site)) for site in sites)
        total.add(at_site, "distil", chosen * cost.distil)
        total.add(at_site, "train", chosen * every / training_work(self._small, tried))
        total.add(at_server, "server", len(rounds) * cost.server)

    @property
    def _sampled(self) -> int:
        return max(1, int(self._plan.ratio * len(self._federation.sites) + 1e-9))

    def _cost(self, method: Method, t: int, site: Site) -> Cost:
        cost = method.cost(t, site, self._net.classes)
        assert cost is not None
        return cost

    def _try(self, state: ServerState, kept: SiteState) -> tuple[Meter, Meter]:
        message = self._small.broadcast(state, self._site.name)
        with metered() as at_site:
            update, after = self._place.do(
                lambda given: self._small.site(*given, self._site, self._net, self._rng), (message, kept)
            )
        if after.trees.keys() != kept.trees.keys():  # the first round of a method with state is not typical
            return self._try(state, after)
        with metered() as at_server, phase("server", whole=True):
            updates = (state, [update] * self._sampled)
            self._place.do(lambda given: self._small.server(*given, self._net, self._rng), updates)
        return at_site, at_server

    def add_scores(self, total: _Sum, times: int) -> None:
        part = max((site.test for site in self._federation.tested), key=len).take(slice(0, TEST_IMAGES))
        with metered() as meter:
            self._place.do(partial(score, self._net, data=part, classes=self._net.classes), self._params)
        images = sum(len(site.test) for site in self._federation.tested)
        total.add(meter, "evaluate", times * images / len(part))


def training_work(method: Any, cost: Cost) -> float:
    """The work of local training in a round: images, or steps if every step costs the same."""
    steps, batch = method.local.count(cost.images), method.local.batch
    epochs, rest = divmod(steps, math.ceil(cost.images / batch))
    return float(steps) if cost.by_step else float(epochs * cost.images + rest * batch)


def first_sets(method: Any) -> Distil | None:
    """The settings of the first virtual sets, which methods with equal settings share; None: it has none."""
    return method.distil if method.train_on == "virtual" else None


def _undistilled(config: Config, federation: Federation, net: Net, cache: Cache) -> int:
    """The number of sites whose first virtual set is not cached."""
    root, sets = Stream(config.plan.seed), first_sets(config.method)
    if sets is None:
        return len(federation.sites)
    keys = [first_set_key(site, net, sets, root.at("enrol", site.name, "distil")) for site in federation.sites]
    return sum(cache.get(key) is None for key in keys)
