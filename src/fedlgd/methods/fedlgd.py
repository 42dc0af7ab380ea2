"""FedLGD (Huang et al., TMLR 2025): federated learning on local and global distilled data."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from fedlgd.core.errors import check
from fedlgd.core.net import Net
from fedlgd.core.rng import Stream
from fedlgd.core.types import Broadcast, Site, SiteState, Update
from fedlgd.distill.distribution import Distil, refine
from fedlgd.methods import common
from fedlgd.methods.anchors import Anchors, Selected
from fedlgd.methods.registry import register

PAPER = {**common.PAPER, **common.PAPER_ANCHORS, "refine.real_per_class": 256}


@dataclass(frozen=True, slots=True, kw_only=True)
class Refine:
    """Iterative DM: in `selected` rounds a site moves its virtual set `steps` steps under the global features.

    pairs, reuse, real_per_class: its bank and draws, as in `distil`; the other settings are those of `distil`,
    but for `smooth`: under trained features it is plain SGD.
    """

    selected: Selected = Selected()
    steps: int = 100
    pairs: int = 10
    reuse: int = 10
    real_per_class: int = 64

    def __post_init__(self) -> None:
        check(self.steps >= 0, "refine.steps", self.steps, "use 0 (never refine) or more")
        for name in ("pairs", "reuse", "real_per_class"):
            check(getattr(self, name) >= 1, f"refine.{name}", getattr(self, name), "use 1 or more")

    def settings(self, distil: Distil) -> Distil:
        """How to refine a set that was made by `distil`."""
        bank = replace(distil, pairs=self.pairs, reuse=self.reuse, smooth=0.0)
        return replace(bank, steps=self.steps, real_per_class=self.real_per_class)


@register
@dataclass(frozen=True, kw_only=True)
class FedLGD(common.Averaging):
    r"""Selected round (t in tau): a site refines V^c by Eq. 1 under psi_t, then trains on CE(V^c).
    Other rounds:  CE(V^c + V^g) + lambda * L_Con(psi(V^c), psi(V^g)).
    Server:  theta_{t+1} = mean theta_c;  t in tau: V^g moves to match G = (theta_t - theta_{t+1}) / eta.
    """

    name: ClassVar[str] = "fedlgd"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": PAPER,
        "official": {
            **PAPER,
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
        "quick": {**common.QUICK, **common.QUICK_ANCHORS, "refine.steps": 10},
    }

    train_on: ClassVar[common.TrainOn] = "virtual"  # type: ignore[misc]
    anchors: Anchors = Anchors()
    refine: Refine = Refine()

    enrol = common.enrol
    start = common.start
    broadcast = common.broadcast

    def site(self, msg: Broadcast, state: SiteState, site: Site, net: Net, rng: Stream) -> tuple[Update, SiteState]:
        if msg.round in self.refine.selected and self.refine.steps and state.virtual:
            how = self.refine.settings(self.distil)
            virtual = refine(state.virtual, site.train, net, msg.params, how, msg.round, rng.at("refine"))
            state = replace(state, virtual=virtual)
        trained, state = common.train(self, msg, state, site, net, rng)
        return common.update(site, state, trained), state

    server = common.average
