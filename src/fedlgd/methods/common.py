"""Settings and steps that methods share, and the loss of one step of local training.

Some steps can be assigned as a function of a method: `server = average`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, Self

import torch
from torch import Generator, Tensor

from fedlgd.core.device import to_cpu, to_device
from fedlgd.core.errors import PrivacyError
from fedlgd.core.losses import class_means, cross_entropy
from fedlgd.core.meter import phase
from fedlgd.core.net import Output
from fedlgd.core.train import Local, Objective, sgd
from fedlgd.core.tree import Mean
from fedlgd.core.types import Broadcast, Hello, LabelledSet, Params, ServerState, Site, SiteState, Update
from fedlgd.distill.augment import jittered
from fedlgd.distill.distribution import first_set
from fedlgd.distill.settings import Distil
from fedlgd.methods.protocol import Cost, Hellos, Method, Net, Presets, Settings, Stream, Trained, Updates, setting

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
    "distil.steps": 100,
}
"""The most accurate, for every method; those that refine or have anchors take the next two as well."""

STRONG_REFINEMENT: Mapping[str, Any] = {
    "refine.steps": 2,
    "refine.selected.every": 1,
    "refine.selected.count": 1_000_000,
}
STRONG_ANCHORS: Mapping[str, Any] = {"anchors.per_class": 2, "anchors.steps": 10, "pull.weight": 0.1}


TRAINED_ON = ("real", "virtual")  # images; a site that trains on nothing sends something else than a model


@dataclass(frozen=True, kw_only=True)
class Training(Settings, Method):
    """Settings shared by all methods."""

    presets: ClassVar[Presets] = {
        "paper": {"train_on": "virtual", **PAPER},
        "quick": {"train_on": "virtual", **QUICK},
        "strong": STRONG,
    }
    stackable: ClassVar[tuple[str, ...]] = ("anchors", "noise", "refine", "redraw", "regulariser", "momentum")
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
        personal = ", personalised" if self.personal else ""
        data = f"{',' if self.personal else ''} on {self.train_on} data" if self.train_on in TRAINED_ON else ""
        return f"{type(self).__name__}{personal}{data}"

    def at(self, t: int, rounds: int) -> Self:
        local = self.local.at(t, rounds)
        return self if local is self.local else replace(self, local=local)

    def cost(self, t: int, site: Site, classes: int) -> Cost | None:
        """Training on the images of the site, and the first distillation in the enrolment."""
        if self.pooled or self.exchanges > 1 or self.train_on not in TRAINED_ON:
            return None
        images, few = len(site.train), self.distil.shrunk().steps
        if self.train_on == "virtual":
            real = site.train.counts(classes).tolist()
            images = sum(map(self.distil.images_of, real)) * self.distil.tiles**2
        return Cost(images, distil=self.distil.steps / few if t < 0 and few else 0.0)

    def trial(self) -> Self:
        return replace(self, **shrunk_sections(self))

    def batch(self, part: LabelledSet, generator: Generator) -> LabelledSet:
        """A batch as it is trained on, with `local.augment`. Override it for an augmentation of your own."""
        return augmented(part, generator, self.local.augment)


def augmented(part: LabelledSet, generator: Generator, augment: Sequence[str]) -> LabelledSet:
    """A batch with each of its images changed at random."""
    return replace(part, x=jittered(part.x, augment, generator))


def shrunk_sections(method: Any) -> dict[str, Any]:
    """The sections of a method that have a version with few steps, `shrunk`."""
    sections = {f.name: getattr(method, f.name) for f in fields(method) if f.name != "method"}
    return {name: section.shrunk() for name, section in sections.items() if hasattr(section, "shrunk")}


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


def start(method: object, params: Params, hellos: Hellos, net: Net, rng: Stream) -> ServerState:
    """Only the model."""
    return ServerState(params=params)


def broadcast(method: object, state: ServerState, site: str) -> Broadcast:
    """Only the model."""
    return Broadcast(round=state.round, params=state.params)


def average(method: object, state: ServerState, updates: Updates, net: Net, rng: Stream) -> ServerState:
    """The server of FedAvg."""
    return replace(state, params=weighted_mean(updates), round=state.round + 1)


def weighted_mean(updates: Updates) -> Params:
    """theta_{t+1} = sum_c p_c theta_c,  p_c = w_c / sum w over the sites that took part."""
    mean = Mean()
    for sent in updates:
        mean.add(sent.params, sent.weight)
    return mean.value()


def training_set(state: SiteState, site: Site) -> LabelledSet:
    """What a site trains on: its virtual set if it has one, else its real images."""
    return state.virtual.data if state.virtual else site.train


def outputs_on(net: Net, params: Params, data: LabelledSet, chunk: int = 256) -> Output:
    """psi(x) and z(x) for every image of a set, in its order, in eval mode."""
    parts = (data.take(slice(i, i + chunk)).x for i in range(0, len(data), chunk))
    return Output(*map(torch.cat, zip(*(net.frozen(params, x) for x in parts), strict=True)))


def means_by_class(values: Tensor, data: LabelledSet, classes: int) -> Tensor:
    """The mean of the rows that belong to images of each class; a row of 0 for a class without images."""
    return class_means(values, to_device(data.y), to_device(torch.arange(classes))).nan_to_num()


def first_model(net: Net, rng: Stream) -> Params:
    """theta_0, which every site can compute from the seed of the run."""
    return net.init(Stream(rng.seed).at("init"))


def update(site: Site, state: SiteState, trained: Trained) -> Update:
    """The trained model, weighted by the number of real images; virtual sets have equal weights."""
    weight = 1.0 if state.virtual else float(len(site.train))
    return Update(site=site.name, params=trained.params, weight=weight, metrics={"loss": trained.loss})


# Local training, and its loss


class Batch(NamedTuple):
    """Images, labels, and features and logits under the model in training."""

    x: Tensor
    y: Tensor
    features: Tensor
    logits: Tensor


Term = Callable[[Params, Batch], Tensor]
"""A term that is added to the cross-entropy of a batch."""


class Embedded(NamedTuple):
    """Features and labels of the local part of a batch (the first `local` rows), followed by all anchors.

    `batch` has the indices of the rows that are in the batch; it can include anchors.
    """

    features: Tensor
    labels: Tensor
    local: int
    batch: Tensor


class BatchSource(Protocol):
    """A source of batches."""

    def __len__(self) -> int: ...

    def take(self, index: Tensor) -> LabelledSet: ...


@dataclass(frozen=True, slots=True)
class Batches:
    """Images of a site as its method trains on them."""

    data: LabelledSet
    prepare: Callable[[LabelledSet], LabelledSet]

    def __len__(self) -> int:
        return len(self.data)

    def take(self, index: Tensor) -> LabelledSet:
        return self.prepare(self.data.take(index))


@dataclass(frozen=True, slots=True)
class Joined:
    """Two sets as one without copying; the images of the first set come first."""

    first: BatchSource
    second: LabelledSet

    def __len__(self) -> int:
        return len(self.first) + len(self.second)

    def take(self, index: Tensor) -> LabelledSet:
        here = index < len(self.first)
        a, b = self.first.take(index[here]), self.second.take(index[~here] - len(self.first))
        order = torch.cat([here.nonzero().flatten(), (~here).nonzero().flatten()]).argsort()
        return LabelledSet(torch.cat([a.x, b.x])[order], torch.cat([a.y, b.y])[order])


Alignment = Callable[[Embedded], Tensor]
"""A loss between the features of a batch and those of the anchors."""


class AnchorLoss(NamedTuple):
    """Anchors in local training: whether they are in the cross-entropy, the regulariser, and how many anchors per
    class it has in a step (0: all)."""

    images: LabelledSet
    in_loss: bool
    pull: Alignment | None
    sample: int = 0


Criterion = Callable[[Net, Params, LabelledSet], tuple[Tensor, Output]]
"""The loss of a batch before terms are added, and the output of the network that it is computed from."""


def batch_loss(
    net: Net,
    data: BatchSource,
    terms: Sequence[Term],
    anchors: AnchorLoss | None,
    criterion: Criterion | None = None,
    generator: Generator | None = None,
) -> tuple[int, Objective]:
    """The number of images that batches are drawn from, anchors last, and the loss of a batch.

    With a pull the loss is that of `pulled`, whatever the criterion: a method with one accepts no anchors. Without
    a generator it has all anchors in every step.
    """
    if anchors is None:
        return len(data), plain(net, data, terms, criterion)
    n = len(data) + (len(anchors.images) if anchors.in_loss else 0)
    if anchors.pull:
        draw = partial(sampled, to_cpu(anchors.images.y), anchors.sample, generator) if generator else None
        return n, pulled(net, data, anchors.images, anchors.pull, terms, draw if anchors.sample else None)
    return n, plain(net, Joined(data, anchors.images), terms, criterion)


def plain(net: Net, data: BatchSource, terms: Sequence[Term] = (), criterion: Criterion | None = None) -> Objective:
    """criterion of a batch of `data`, by default its mean CE, + terms"""

    def loss(w: Params, index: Tensor) -> Tensor:
        part = data.take(index)
        if criterion:
            value, out = criterion(net, w, part)
        else:
            out = net(w, part.x)
            value = cross_entropy(out.logits, part.y)
        return value + _sum(terms, w, Batch(part.x, part.y, *out))

    return loss


def pulled(
    net: Net,
    local: BatchSource,
    anchors: LabelledSet,
    pull: Alignment,
    terms: Sequence[Term] = (),
    draw: Callable[[Tensor], Tensor] | None = None,
) -> Objective:
    """CE(batch) + terms + pull(Z) over batches of V^c + V^g; an index from len(local) on is an anchor.

    Z = (local part of the batch) + all anchors, or those that `draw` gives for the anchors of the batch. The
    features of each image are computed once, with gradient.
    """
    n = len(local)

    def loss(w: Params, index: Tensor) -> Tensor:
        mine, drawn = local.take(index[index < n]), index[index >= n] - n
        m, beside = len(mine), anchors
        if draw:
            chosen = draw(drawn)
            beside, drawn = anchors.take(chosen), torch.searchsorted(chosen, drawn)
        x, y = torch.cat([mine.x, beside.x]), torch.cat([mine.y, beside.y])
        out = net(w, x)
        rows = torch.cat([torch.arange(m), m + drawn])
        batch = Batch(x[rows], y[rows], out.features[rows], out.logits[rows])
        ce = cross_entropy(batch.logits, batch.y)
        return ce + _sum(terms, w, batch) + pull(Embedded(out.features, y, m, rows))

    return loss


def sampled(labels: Tensor, count: int, generator: Generator, drawn: Tensor) -> Tensor:
    """Indices of `count` anchors of each class in ascending order: those that are drawn for the batch, and others
    at random. All that are drawn are in it, also if they are more."""
    chance = torch.rand(len(labels), generator=generator, dtype=torch.float64)
    chance[drawn] += 1
    order = (4.0 * labels - chance).argsort()  # by class, then by chance
    sizes = labels.unique(return_counts=True)[1]
    place = torch.arange(len(labels)) - (sizes.cumsum(0) - sizes).repeat_interleave(sizes)
    chosen: Tensor = torch.cat([order[place < count], drawn]).unique()
    return chosen


def _sum(terms: Sequence[Term], w: Params, batch: Batch) -> Tensor | float:
    return sum((term(w, batch) for term in terms), start=0.0)


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
    criterion: Criterion | None = None,
) -> Trained:
    """Local SGD from `model` on cross-entropy or another criterion, the terms of the method, and the anchors."""
    data = Batches(training_set(state, site), partial(method.batch, generator=rng.generator("augment")))
    n, objective = batch_loss(net, data, terms, anchors_in_loss, criterion, rng.generator("anchors"))
    with phase("train"):
        return sgd(net, model, n, objective, method.local, rng, velocity)


def fit_on(
    net: Net,
    model: Params,
    data: LabelledSet,
    local: Local,
    rng: Stream,
    *,
    terms: Sequence[Term] = (),
    until: Callable[[Params], bool] | None = None,
) -> Trained:
    """SGD from `model` on the cross-entropy of any labelled set, with `local.augment`, also at the server.

    It ends with the first weights for which `until` holds, if there are any. At a site its cost is that of `train`;
    all that a server does has the cost of `server`.
    """
    generator = rng.generator("augment")
    batches = Batches(data, partial(augmented, generator=generator, augment=local.augment))
    with phase("train"):
        return sgd(net, model, len(data), plain(net, batches, terms), local, rng, None, until)
