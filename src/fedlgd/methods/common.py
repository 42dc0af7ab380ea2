"""Steps that methods share by calling them; several are a whole part of a method: `broadcast = send_params`."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Literal, Protocol

from torch import Tensor

from fedlgd.core.losses import cross_entropy
from fedlgd.core.meter import phase
from fedlgd.core.net import Net
from fedlgd.core.rng import Stream
from fedlgd.core.train import Local, Objective, Trained, sgd
from fedlgd.core.tree import Mean
from fedlgd.core.types import Broadcast, Hello, LabelledSet, Params, ServerState, Site, SiteState, Update
from fedlgd.distill.distribution import Distil, distil

TrainOn = Literal["real", "virtual"]

QUICK_DISTIL = {"distil.steps": 60, "distil.real_per_class": 32}
"""Minutes on a laptop: the same mathematics, fewer steps and fewer real images per step."""


class Trains(Protocol):
    """The settings of a method that trains on real or virtual images."""

    @property
    def train_on(self) -> TrainOn: ...
    @property
    def local(self) -> Local: ...
    @property
    def distil(self) -> Distil: ...


def enrol(method: Trains, site: Site, net: Net, rng: Stream) -> tuple[SiteState, Hello]:
    """A site joins with its real images, or distils its first virtual set."""
    state = SiteState()
    if method.train_on == "virtual":
        state = SiteState(virtual=distil(site, net, method.distil, rng.at("distil")))
    return state, Hello(site=site.name, counts=training_set(state, site).counts(net.classes))


def training_set(state: SiteState, site: Site) -> LabelledSet:
    return state.virtual.data if state.virtual else site.train


def cross_entropy_on(net: Net, data: LabelledSet) -> Objective:
    """Cross-entropy over batches of `data`."""

    def objective(w: Params, index: Tensor) -> Tensor:
        return cross_entropy(net, w, data.take(index))

    return objective


def fit(net: Net, start: Params, n: int, objective: Objective, how: Local, rng: Stream) -> Trained:
    """Local SGD, charged as training."""
    with phase("train"):
        return sgd(net, start, n, objective, how, rng)


def update(site: Site, state: SiteState, trained: Trained) -> Update:
    """The trained model, weighted by the site's number of images; virtual sets count alike."""
    weight = 1.0 if state.virtual else float(len(site.train))
    return Update(site=site.name, params=trained.params, weight=weight, metrics={"loss": trained.loss})


def from_params(method: object, params: Params, hellos: Sequence[Hello], net: Net, rng: Stream) -> ServerState:
    """The server starts with nothing but the model."""
    return ServerState(params=params)


def send_params(method: object, state: ServerState, site: str) -> Broadcast:
    """A site gets nothing but the model."""
    return Broadcast(round=state.round, params=state.params)


def average(method: object, state: ServerState, updates: Iterable[Update], net: Net, rng: Stream) -> ServerState:
    """theta_{t+1} = sum_c p_c theta_c,  p_c = w_c / sum w over the sites that took part."""
    mean = Mean()
    for sent in updates:
        mean.add(sent.params, sent.weight)
    return replace(state, params=mean.value(), round=state.round + 1)
