"""VHL (Tang et al., ICML 2022): aligns features on images of an untrained generator"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedlgd.core.losses import cross_entropy, supervised_contrastive
from fedlgd.core.types import (
    Broadcast,
    Hello,
    LabelledSet,
    Params,
    ServerState,
    Site,
    SiteState,
    VirtualSet,
)
from fedlgd.distill.init import labels_for
from fedlgd.distill.vhl_images import SCALE, from_class_noise, from_style
from fedlgd.methods import common
from fedlgd.methods.anchors import stale_anchors
from fedlgd.methods.common import fit
from fedlgd.methods.objective import Batch, Term
from fedlgd.methods.protocol import Fit, Net, Stream, Visit, setting
from fedlgd.methods.registry import register


@register
@dataclass(frozen=True, kw_only=True)
class VHL(common.Training):
    r"""CE(batch) + alpha CE(V, y + K) + a SupCon(batch + V, V detached) + b SupCon(V), V the shared virtual images.

    V is made once, from the run's seed, for all sites: pictures, which each site normalises as it does its images,
    v -> (0.5 + 0.5 v - mean_c) / std_c. All weights 0 with labels "patch" is FedAvg.
    """

    name: ClassVar[str] = "vhl"

    stackable: ClassVar[tuple[str, ...]] = ("refine", "regulariser", "momentum", "robust")

    per_class: int = setting(10, "Virtual images per class.", least=1, most=100_000)
    source: Literal["style", "noise"] = setting(
        "style", "Source of the images: an untrained `style` generator, or upsampled class `noise`."
    )
    labels: Literal["extra", "patch"] = setting(
        "extra", "`extra`: labels K..2K-1 and a head of 2K outputs; `patch`: labels 0..K-1."
    )
    alpha: float = setting(1.0, "Weight of the cross-entropy of the virtual images.", least=0)
    align: float = setting(1.0, "Weight a of the term that aligns features with the virtual images.", least=0)
    spread: float = setting(0.1, "Weight b of the term among the virtual images.", least=0)
    temperature: float = setting(0.07, "Temperature of both contrastive terms.", above=0)
    virtual_batch: int = setting(128, "Virtual images in each step.", least=1, most=1_000_000)

    def adapt(self, net: Net) -> Net:
        return net.widened(2 * net.classes) if self.labels == "extra" else net

    enrol = common.enrol

    def start(self, params: Params, hellos: Sequence[Hello], net: Net, rng: Stream) -> ServerState:
        make = from_style if self.source == "style" else from_class_noise
        images = make(net.classes, self.per_class, net.shape, rng.at("virtual"))
        labels = labels_for(range(net.classes), self.per_class)
        virtual = VirtualSet(images=images, labels=labels, origin="server", round=-1, scale=SCALE)
        return ServerState(params=params, anchors=virtual)

    def broadcast(self, state: ServerState, site: str) -> Broadcast:
        virtual = stale_anchors(state, site)
        return Broadcast(round=state.round, params=state.params, anchors=virtual)

    def site(self, msg: Broadcast, state: SiteState, site: Site, net: Net, rng: Stream, fit: Fit = fit) -> Visit:
        if msg.anchors:
            state = replace(state, anchors=msg.anchors)
        assert state.anchors is not None
        terms = self._terms(state.anchors.under(site.train.scale).data, net, rng)
        trained = fit(self, msg.params, state, site, net, rng, terms=terms)
        return common.update(site, state, trained), state

    server = common.average

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
