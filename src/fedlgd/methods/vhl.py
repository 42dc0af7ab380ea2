"""VHL (Tang et al., ICML 2022): virtual homogeneity learning, on images from an untrained generator."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from fedlgd.core.errors import check
from fedlgd.core.losses import cross_entropy, supervised_contrastive
from fedlgd.core.net import Net
from fedlgd.core.rng import Stream
from fedlgd.core.types import (
    Broadcast,
    Hello,
    LabelledSet,
    Params,
    ServerState,
    Site,
    SiteState,
    Update,
    VirtualSet,
)
from fedlgd.distill.generate import from_class_noise, from_style
from fedlgd.distill.start import labels_for
from fedlgd.methods import common
from fedlgd.methods.anchors import noting, send_anchors
from fedlgd.methods.objective import Batch, Term
from fedlgd.methods.registry import register


@register
@dataclass(frozen=True, kw_only=True)
class VHL(common.Training):
    r"""CE(batch) + alpha CE(V, y + K) + a SupCon(batch + V, V detached) + b SupCon(V), V the shared virtual images.

    labels: "extra" (V has labels K..2K-1 and the head 2K outputs) or "patch" (V keeps 0..K-1).
    per_class: virtual images a class. source: "style", an untrained style generator, or "noise", upsampled class
    noise; made once, from the run's seed, for all sites.
    alpha, align (a), spread (b): weights; all 0 with "patch" is FedAvg. temperature: of both SupCon terms.
    virtual_batch: images of V in each step.
    """

    name: ClassVar[str] = "vhl"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = common.PRESETS

    per_class: int = 10
    source: Literal["style", "noise"] = "style"
    labels: Literal["extra", "patch"] = "extra"
    alpha: float = 1.0
    align: float = 1.0
    spread: float = 0.1
    temperature: float = 0.07
    virtual_batch: int = 128

    def __post_init__(self) -> None:
        for name in ("per_class", "virtual_batch"):
            check(getattr(self, name) >= 1, name, getattr(self, name), "use 1 or more")
        for name in ("alpha", "align", "spread"):
            check(getattr(self, name) >= 0, name, getattr(self, name), "use 0 (off) or a positive weight")
        check(self.temperature > 0, "temperature", self.temperature, "use a positive one such as 0.07")

    def adapt(self, net: Net) -> Net:
        return net.widened(2 * net.classes) if self.labels == "extra" else net

    enrol = common.join

    def start(self, params: Params, hellos: Sequence[Hello], net: Net, rng: Stream) -> ServerState:
        make = from_style if self.source == "style" else from_class_noise
        images = make(net.classes, self.per_class, net.shape, rng.at("virtual"))
        labels = labels_for(range(net.classes), self.per_class)
        virtual = VirtualSet(images=images, labels=labels, origin="server", round=-1)
        return ServerState(params=params, anchors=virtual)

    def broadcast(self, state: ServerState, site: str) -> Broadcast:
        virtual = send_anchors(state, site, needed=True)
        return Broadcast(round=state.round, params=state.params, anchors=virtual)

    def site(self, msg: Broadcast, state: SiteState, site: Site, net: Net, rng: Stream) -> tuple[Update, SiteState]:
        if msg.anchors:
            state = replace(state, anchors=msg.anchors)
        assert state.anchors is not None
        terms = self._terms(state.anchors.data, net, rng)
        trained = common.fit(self, msg.params, state, site, net, rng, terms)
        return common.update(site, state, trained), state

    def server(self, state: ServerState, updates: Iterable[Update], net: Net, rng: Stream) -> ServerState:
        held = dict(state.held)
        after = common.weighted_mean(state, noting(updates, held, -1))
        return replace(after, held=held, round=state.round + 1)

    def _terms(self, virtual: LabelledSet, net: Net, rng: Stream) -> list[Term]:
        if not (self.alpha or self.align or self.spread):
            return []
        generator = rng.generator("virtual")

        def homogeneity(w: Params, batch: Batch) -> Tensor:
            chosen = torch.randperm(len(virtual), generator=generator)[: self.virtual_batch]
            return self._homogeneity(net, w, batch, virtual.take(chosen))

        return [homogeneity]

    def _homogeneity(self, net: Net, w: Params, batch: Batch, virtual: LabelledSet) -> Tensor:
        out = net(w, virtual.x)
        offset = net.classes if self.labels == "extra" else 0
        together = torch.cat([batch.features, out.features.detach()]), torch.cat([batch.y, virtual.y])
        return (
            self.alpha * cross_entropy(out.logits, virtual.y + offset)
            + self.align * supervised_contrastive(*together, self.temperature)
            + self.spread * supervised_contrastive(out.features, virtual.y, self.temperature)
        )
