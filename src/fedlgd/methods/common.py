"""Steps that methods share by calling them; some are a whole part of a method: `broadcast = common.broadcast`.

A method that averages models may hold anchors: `anchors.per_class` above 0 switches them on.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from fedlgd.core.device import to_cpu
from fedlgd.core.errors import check
from fedlgd.core.meter import phase
from fedlgd.core.net import Net
from fedlgd.core.rng import Stream
from fedlgd.core.train import Local, Objective, Trained, sgd
from fedlgd.core.tree import Mean
from fedlgd.core.types import Broadcast, Hello, LabelledSet, Params, ServerState, Site, SiteState, Update
from fedlgd.distill.distribution import Distil, distil
from fedlgd.distill.start import class_statistics
from fedlgd.methods import anchors as parts
from fedlgd.methods.anchors import Anchors, Pull
from fedlgd.methods.objective import Joined, Term, plain

TrainOn = Literal["real", "virtual"]

PAPER: Mapping[str, Any] = {
    "distil.plan": "exact",
    "distil.steps": 10_000,
    "distil.real_per_class": 256,
    "distil.width": 0,
    "distil.smooth": 0.0,
}
"""Virtual sets as they were published: hours for one site on a CPU."""

QUICK: Mapping[str, Any] = {"distil.steps": 100, "local.lr": 0.05}
"""Minutes on a laptop: the same mathematics with fewer steps of distillation and longer strides of training."""

PAPER_ANCHORS: Mapping[str, Any] = {"anchors.plan": "exact", "anchors.steps": 500}
QUICK_ANCHORS: Mapping[str, Any] = {"anchors.steps": 10}

PRESETS: Mapping[str, Mapping[str, Any]] = {
    "paper": {"train_on": "virtual", **PAPER},
    "quick": {"train_on": "virtual", **QUICK},
}
AVERAGING_PRESETS = {
    "paper": {**PRESETS["paper"], **PAPER_ANCHORS},
    "quick": {**PRESETS["quick"], **QUICK_ANCHORS},
}


@dataclass(frozen=True, kw_only=True)
class Training:
    """Settings of every method. train_on: "real" images, or the site's "virtual" set."""

    train_on: TrainOn = "real"
    local: Local = Local()
    distil: Distil = Distil()


@dataclass(frozen=True, kw_only=True)
class Averaging(Training):
    """Settings of every method that averages models."""

    anchors: Anchors = Anchors(per_class=0)
    pull: Pull = Pull()


def join(method: Training, site: Site, net: Net, rng: Stream) -> tuple[SiteState, Hello]:
    """A site joins with its real images, or distils its first virtual set."""
    check(method.train_on in get_args(TrainOn), "train_on", method.train_on, "use 'real' or 'virtual'")
    state = SiteState()
    if method.train_on == "virtual":
        state = SiteState(virtual=distil(site, net, method.distil, rng.at("distil")))
    return state, Hello(site=site.name, counts=training_set(state, site).counts(net.classes))


def enrol(method: Averaging, site: Site, net: Net, rng: Stream) -> tuple[SiteState, Hello]:
    """A site joins; it discloses pixel statistics only if the anchors are to start from them."""
    state, hello = join(method, site, net, rng)
    if method.anchors.per_class and method.anchors.start == "statistics":
        hello = replace(hello, statistics=_statistics(site.train, method.distil, net))
    return state, hello


def _statistics(data: LabelledSet, how: Distil, net: Net) -> Tensor:
    """Per class and channel; a class the site lacks is NaN and drops out of the server's mean."""
    present = data.counts(net.classes).nonzero().flatten().tolist()
    statistics = torch.full((net.classes, 2, net.shape[0]), torch.nan)
    statistics[present] = to_cpu(class_statistics(data, present, how.statistics).float())
    return statistics


def training_set(state: SiteState, site: Site) -> LabelledSet:
    return state.virtual.data if state.virtual else site.train


def first_model(net: Net, rng: Stream) -> Params:
    """theta_0, which every site can make for itself from the run's seed."""
    return net.init(Stream(rng.seed).at("init"))


def start(method: Averaging, params: Params, hellos: Sequence[Hello], net: Net, rng: Stream) -> ServerState:
    """The model, and the anchors if there are any."""
    anchors = parts.start_anchors(method.anchors, hellos, net, rng) if method.anchors.per_class else None
    return ServerState(params=params, anchors=anchors)


def start_plain(method: object, params: Params, hellos: Sequence[Hello], net: Net, rng: Stream) -> ServerState:
    """The model alone."""
    return ServerState(params=params)


def broadcast(method: Averaging, state: ServerState, site: str) -> Broadcast:
    """The model, and the anchors if the site needs them and has an old copy."""
    needed = parts.needed_in(method.anchors, method.pull, state.round)
    return Broadcast(round=state.round, params=state.params, anchors=parts.send_anchors(state, site, needed))


def broadcast_plain(method: object, state: ServerState, site: str) -> Broadcast:
    """The model alone."""
    return Broadcast(round=state.round, params=state.params)


def fit(
    method: Training,
    model: Params,
    state: SiteState,
    site: Site,
    net: Net,
    rng: Stream,
    terms: Sequence[Term] = (),
) -> Trained:
    """Local SGD from `model` on cross-entropy and the method's own terms."""
    data = training_set(state, site)
    return _sgd(method, model, len(data), plain(net, data, terms), net, rng)


def train(
    method: Averaging,
    msg: Broadcast,
    state: SiteState,
    site: Site,
    net: Net,
    rng: Stream,
    terms: Sequence[Term] = (),
) -> tuple[Trained, SiteState]:
    """`fit` from the received model; with anchors, on their cross-entropy and pull too."""
    if msg.anchors:
        state = replace(state, anchors=msg.anchors)
    if state.anchors is None or not parts.needed_in(method.anchors, method.pull, msg.round):
        return fit(method, msg.params, state, site, net, rng, terms), state
    data, anchors = training_set(state, site), state.anchors.data
    both = Joined(data, anchors)
    if parts.pulls_in(method.anchors, method.pull, msg.round):
        objective = parts.anchored(net, data, anchors, method.pull, terms)
    else:
        objective = plain(net, both, terms)
    n = len(both) if method.anchors.train_in(msg.round) else len(data)
    return _sgd(method, msg.params, n, objective, net, rng), state


def _sgd(method: Training, model: Params, n: int, objective: Objective, net: Net, rng: Stream) -> Trained:
    with phase("train"):
        return sgd(net, model, n, objective, method.local, rng)


def update(site: Site, state: SiteState, trained: Trained) -> Update:
    """The trained model, weighted by the site's number of images; virtual sets count alike."""
    weight = 1.0 if state.virtual else float(len(site.train))
    return Update(site=site.name, params=trained.params, weight=weight, metrics={"loss": trained.loss})


Combine = Callable[[ServerState, Iterable[Update]], ServerState]


def weighted_mean(state: ServerState, updates: Iterable[Update]) -> ServerState:
    """theta_{t+1} = sum_c p_c theta_c,  p_c = w_c / sum w over the sites that took part."""
    mean = Mean()
    for sent in updates:
        mean.add(sent.params, sent.weight)
    return replace(state, params=mean.value())


def aggregate(
    method: Averaging,
    state: ServerState,
    updates: Iterable[Update],
    net: Net,
    combine: Combine = weighted_mean,
) -> ServerState:
    """The next state by `combine`; anchors, if any, move in selected rounds."""
    held = dict(state.held)
    if state.anchors and parts.needed_in(method.anchors, method.pull, state.round):
        updates = parts.noting(updates, held, state.anchors.round)
    after = combine(state, updates)
    anchors = parts.move_anchors(method.anchors, state, after.params, method.local.lr, net)
    return replace(after, anchors=anchors, held=held, round=state.round + 1)


def average(method: Averaging, state: ServerState, updates: Iterable[Update], net: Net, rng: Stream) -> ServerState:
    """The server of FedAvg."""
    return aggregate(method, state, updates, net)


def average_plain(
    method: object, state: ServerState, updates: Iterable[Update], net: Net, rng: Stream
) -> ServerState:
    """The server of FedAvg for a method that never holds anchors."""
    return replace(weighted_mean(state, updates), round=state.round + 1)
