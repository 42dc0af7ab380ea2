"""Settings and steps that methods share. Some can be assigned as a function of a method: `server = average`."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, ClassVar, Literal, Self

from torch import Generator

from fedlgd.core.errors import PrivacyError
from fedlgd.core.meter import phase
from fedlgd.core.net import Net
from fedlgd.core.rng import Stream
from fedlgd.core.settings import Settings, setting
from fedlgd.core.train import Local, Trained, sgd
from fedlgd.core.tree import Mean
from fedlgd.core.types import Broadcast, Hello, LabelledSet, Params, ServerState, Site, SiteState, Update
from fedlgd.distill.augment import jittered
from fedlgd.distill.distribution import first_set
from fedlgd.distill.settings import Distil
from fedlgd.methods.objective import AnchorLoss, Batches, Term, batch_loss
from fedlgd.methods.protocol import Cost, Method

PAPER: Mapping[str, Any] = {
    "distil.plan": "exact",
    "distil.steps": 10_000,
    "distil.real_per_class": 256,
    "distil.width": 0,
    "distil.smooth": 0.0,
}
"""The published distillation: hours for one site on a CPU."""

TUNED: Mapping[str, Any] = {
    "local.lr": 0.05,
    "local.momentum": 0.9,
    "local.schedule": "cosine",
    "local.augment": ("rotate", "zoom", "shift", "color"),
    "local.steps": 20,
}
"""Local training, tuned on validation images (docs/results/accuracy.md). Steps on virtual images are cheap."""

QUICK: Mapping[str, Any] = {**TUNED, "distil.steps": 100}
"""Minutes on a laptop: fewer distillation steps, and tuned training."""

STRONG: Mapping[str, Any] = {
    **TUNED,
    "distil.start": "neighbours",
    "distil.tiles": 2,
    "distil.steps": 0,
}
"""The most accurate for its time: training steps instead of distillation steps. `train_on` stays as it is."""


@dataclass(frozen=True, kw_only=True)
class Training(Settings, Method):
    """Settings shared by all methods."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {"train_on": "virtual", **PAPER},
        "quick": {"train_on": "virtual", **QUICK},
        "strong": STRONG,
    }
    stackable: ClassVar[tuple[str, ...]] = ("anchors", "noise", "refine", "regulariser", "momentum")
    """The kinds of parts that the method accepts."""

    train_on: Literal["real", "virtual"] = setting(  # type: ignore[misc]
        "real", "Sites train on real images or on their virtual set."
    )
    local: Local = Local()
    distil: Distil = Distil()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.distil.private.on and self.train_on == "real":
            raise PrivacyError("private-sets-not-used", epsilon=self.distil.private.epsilon, method=self.name)

    @property
    def label(self) -> str:
        return f"{type(self).__name__}{', personalised,' if self.personal else ''} on {self.train_on} data"

    def at(self, t: int, rounds: int) -> Self:
        return replace(self, local=self.local.at(t, rounds))

    def cost(self, t: int, site: Site, classes: int) -> Cost | None:
        """Training on the images of the site, and the first distillation in the enrolment."""
        if self.pooled:
            return None
        images, few = len(site.train), self.distil.shrunk().steps
        if self.train_on == "virtual":
            images = self.distil.pictures * int((site.train.counts(classes) > 0).sum())
        return Cost(images, distil=self.distil.steps / few if t < 0 and few else 0.0)

    def trial(self) -> Self:
        return replace(self, **shrunk_sections(self))

    def batch(self, part: LabelledSet, generator: Generator) -> LabelledSet:
        """A batch as it is trained on, with `local.augment`. Override it for an augmentation of your own."""
        return replace(part, x=jittered(part.x, self.local.augment, generator))


def shrunk_sections(method: Any) -> dict[str, Any]:
    """The sections of a method that have a version with few steps, `shrunk`."""
    sections = {f.name: getattr(method, f.name) for f in fields(method) if f.name != "method"}
    return {name: section.shrunk() for name, section in sections.items() if hasattr(section, "shrunk")}


def in_round(method: Method, t: int, rounds: int) -> Method:
    """The method in round t of `rounds`: itself if its learning rate is constant."""
    local = getattr(method, "local", None)
    return method if local is None or local.schedule == "constant" else method.at(t, rounds)


def restart_schedule(method: Method, after: Sequence[int]) -> Method:
    """The method with a learning rate that starts again after these rounds."""
    if hasattr(method, "method"):
        return replace(method, method=restart_schedule(method.method, after))  # type: ignore[type-var]
    restarts = tuple(after) or None
    return replace(method, local=replace(method.local, restarts=restarts))  # type: ignore[type-var,attr-defined]


def enrol(method: Training, site: Site, net: Net, rng: Stream) -> tuple[SiteState, Hello]:
    """Distil the first virtual set if the method trains on virtual data."""
    if method.train_on == "real":
        state = SiteState()
    elif method.distil.private.on:
        from fedlgd.dp.distil import first_private_set

        state = first_private_set(site, net, method.distil, rng.at("distil"))
    else:
        state = SiteState(virtual=first_set(site, net, method.distil, rng.at("distil")))
    return state, Hello(site=site.name, counts=training_set(state, site).counts(net.classes))


def start(method: object, params: Params, hellos: Sequence[Hello], net: Net, rng: Stream) -> ServerState:
    """Only the model."""
    return ServerState(params=params)


def broadcast(method: object, state: ServerState, site: str) -> Broadcast:
    """Only the model."""
    return Broadcast(round=state.round, params=state.params)


def average(method: object, state: ServerState, updates: Iterable[Update], net: Net, rng: Stream) -> ServerState:
    """The server of FedAvg."""
    return replace(state, params=weighted_mean(updates), round=state.round + 1)


def weighted_mean(updates: Iterable[Update]) -> Params:
    """theta_{t+1} = sum_c p_c theta_c,  p_c = w_c / sum w over the sites that took part."""
    mean = Mean()
    for sent in updates:
        mean.add(sent.params, sent.weight)
    return mean.value()


def training_set(state: SiteState, site: Site) -> LabelledSet:
    return state.virtual.data if state.virtual else site.train


def first_model(net: Net, rng: Stream) -> Params:
    """theta_0, which every site can compute from the seed of the run."""
    return net.init(Stream(rng.seed).at("init"))


def fit(
    method: Training,
    model: Params,
    state: SiteState,
    site: Site,
    net: Net,
    rng: Stream,
    *,
    terms: Sequence[Term] = (),
    anchors_in_loss: AnchorLoss | None = None,
    velocity: Params | None = None,
) -> Trained:
    """Local SGD from `model` on cross-entropy, the terms of the method, and the anchors."""
    data = Batches(training_set(state, site), partial(method.batch, generator=rng.generator("augment")))
    n, objective = batch_loss(net, data, terms, anchors_in_loss)
    with phase("train"):
        return sgd(net, model, n, objective, method.local, rng, velocity)


def update(site: Site, state: SiteState, trained: Trained) -> Update:
    """The trained model, weighted by the number of real images; virtual sets have equal weights."""
    weight = 1.0 if state.virtual else float(len(site.train))
    return Update(site=site.name, params=trained.params, weight=weight, metrics={"loss": trained.loss})
