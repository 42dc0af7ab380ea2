"""FedLGD (Huang et al., TMLR 2025): federated learning on local and global distilled data."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch

from fedlgd.core.errors import SettingError
from fedlgd.core.net import Net
from fedlgd.core.rng import Stream
from fedlgd.core.train import Local, Objective
from fedlgd.core.types import (
    Broadcast,
    Hello,
    LabelledSet,
    Params,
    ServerState,
    Site,
    SiteState,
    Update,
)
from fedlgd.distill.distribution import Distil, distil, refine
from fedlgd.distill.start import class_statistics
from fedlgd.methods import common
from fedlgd.methods.anchors import (
    Anchors,
    Pull,
    Selected,
    anchored,
    joined,
    move_anchors,
    noting,
    send_anchors,
    start_anchors,
)
from fedlgd.methods.registry import register


@dataclass(frozen=True, slots=True, kw_only=True)
class Refine:
    """Iterative DM: in `selected` rounds a site moves its virtual set `steps` steps under the global features."""

    selected: Selected = Selected()
    steps: int = 100

    def __post_init__(self) -> None:
        if self.steps < 0:
            raise SettingError(f"refine.steps is {self.steps}; use 0 (never refine) or more")


@register
@dataclass(frozen=True, kw_only=True)
class FedLGD:
    r"""Selected round (t in tau): a site refines V^c by Eq. 1 under psi_t, then trains on CE(V^c).
    Other rounds:  CE(V^c + V^g) + lambda * L_Con(psi(V^c), psi(V^g)).
    Server:  theta_{t+1} = mean theta_c;  t in tau: V^g moves to match G = (theta_t - theta_{t+1}) / eta.
    """

    name: ClassVar[str] = "fedlgd"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {},
        "official": {
            "distil.statistics": "site",
            "distil.start_scale": 1.0,
            "distil.augment": ("color", "crop", "cutout", "flip", "scale", "rotate"),
            "distil.net": "convnet",
            "refine.selected.first": 5,
            "anchors.start": "statistics",
            "anchors.selected.count": 11,
            "anchors.in_loss": "always",
            "pull.repeat": True,
        },
        "quick": {
            **common.QUICK_DISTIL,
            "refine.steps": 10,
            "anchors.steps": 50,
        },
    }

    local: Local = Local()
    distil: Distil = Distil()
    refine: Refine = Refine()
    anchors: Anchors = Anchors()
    pull: Pull = Pull()

    def enrol(self, site: Site, net: Net, rng: Stream) -> tuple[SiteState, Hello]:
        virtual = distil(site, net, self.distil, rng.at("distil"))
        hello = Hello(site=site.name, counts=virtual.data.counts(net.classes))
        if self.anchors.start == "statistics":
            hello = replace(hello, statistics=self._statistics(site.train, net))
        return SiteState(virtual=virtual), hello

    def start(self, params: Params, hellos: Sequence[Hello], net: Net, rng: Stream) -> ServerState:
        return ServerState(params=params, anchors=start_anchors(self.anchors, hellos, net, rng))

    def broadcast(self, state: ServerState, site: str) -> Broadcast:
        anchors = send_anchors(state, site, self._needs_anchors(state.round))
        return Broadcast(round=state.round, params=state.params, anchors=anchors)

    def site(self, msg: Broadcast, state: SiteState, site: Site, net: Net, rng: Stream) -> tuple[Update, SiteState]:
        virtual, anchors = state.virtual, msg.anchors or state.anchors
        assert virtual is not None
        if msg.round in self.refine.selected and self.refine.steps:
            how = replace(self.distil, steps=self.refine.steps)
            virtual = refine(virtual, site.train, net, msg.params, how, msg.round, rng.at("refine"))
        state = replace(state, virtual=virtual, anchors=anchors)
        n, objective = self._objective(msg.round, net, virtual.data, anchors.data if anchors else None)
        trained = common.fit(net, msg.params, n, objective, self.local, rng)
        return common.update(site, state, trained), state

    def server(self, state: ServerState, updates: Iterable[Update], net: Net, rng: Stream) -> ServerState:
        held = dict(state.held)
        if state.anchors and self._needs_anchors(state.round):
            updates = noting(updates, held, state.anchors.round)
        after = common.average(self, state, updates, net, rng)
        anchors = move_anchors(self.anchors, state, after.params, self.local.lr, net)
        return replace(after, anchors=anchors, held=held)

    def _needs_anchors(self, t: int) -> bool:
        pulls = t not in self.anchors.selected and self.pull.weight > 0
        return pulls or self.anchors.train_in(t)

    def _objective(
        self, t: int, net: Net, virtual: LabelledSet, anchors: LabelledSet | None
    ) -> tuple[int, Objective]:
        """How many images an epoch has, and the loss on a batch of them."""
        if anchors is None or not self._needs_anchors(t):
            return len(virtual), common.cross_entropy_on(net, virtual)
        if t in self.anchors.selected or self.pull.weight == 0:
            both = joined(virtual, anchors)
            return len(both), common.cross_entropy_on(net, both)
        n = len(virtual) + (len(anchors) if self.anchors.train_in(t) else 0)
        return n, anchored(net, virtual, anchors, self.pull)

    def _statistics(self, data: LabelledSet, net: Net) -> torch.Tensor:
        """Per class and channel; a class the site lacks is NaN and drops out of the server's mean."""
        present = data.counts(net.classes).nonzero().flatten().tolist()
        statistics = torch.full((net.classes, 2, net.shape[0]), torch.nan)
        statistics[present] = class_statistics(data, present, self.distil.statistics).float()
        return statistics
