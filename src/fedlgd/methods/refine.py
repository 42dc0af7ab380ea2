"""Refinement of virtual sets: the paper's iterative distribution matching, in selected rounds."""

from dataclasses import dataclass, replace
from typing import ClassVar

from fedlgd.core.types import Params, Site, SiteState
from fedlgd.distill.descent import Descent, Optimiser
from fedlgd.distill.distribution import Distil
from fedlgd.distill.private import refined, refinements_of
from fedlgd.methods.anchors import Selected
from fedlgd.methods.protocol import Cost, Net, Settings, Stream, setting


@dataclass(frozen=True, kw_only=True)
class Refine(Settings):
    """Iterative DM: in selected rounds a site updates its virtual set with the global features.

    All other settings are those of `distil`, except `smooth`: refinement does not smooth gradients.
    """

    section: ClassVar[str] = "refine"

    selected: Selected = Selected()
    steps: int = setting(100, "Steps in a selected round; 0: never refine.", least=0, most=10_000_000)
    pairs: int = setting(10, "Draws in the bank (plan `bank`).", least=1, most=100_000)
    reuse: int = setting(10, "Steps of plan `bank` with each draw.", least=1, most=10_000_000)
    real_per_class: int = setting(64, "Real images per class in a draw.", least=1, most=10_000_000)
    optimiser: Optimiser = setting("sgd", "Optimiser of the pixels: `sgd`, as published, or `adam`.")
    lr: float = setting(0.0, "Learning rate of the pixels, for `adam` about 0.02; 0: `distil.lr`.", least=0)

    def settings(self, distil: Distil) -> Distil:
        """The settings for refining a set created by `distil`."""
        bank = replace(distil, pairs=self.pairs, reuse=self.reuse, smooth=0.0)
        return replace(bank, steps=self.steps, real_per_class=self.real_per_class, lr=self.lr or distil.lr)

    def releases(self, distil: Distil) -> int:
        """The private releases of all selected rounds."""
        return refinements_of(self.settings(distil), self.selected.count if self.steps else 0)

    def moved(
        self, state: SiteState, site: Site, net: Net, params: Params, distil: Distil, t: int, rng: Stream
    ) -> SiteState:
        """The state of a site after the refinement of round t."""
        how, planned = self.settings(distil), self.releases(distil)
        descent = Descent(how.lr, how.momentum, how.smooth, self.optimiser)
        return refined(state, site, net, params, how, distil, planned, t, rng.at("refine"), descent)

    def move_in(self, t: int) -> bool:
        return self.steps > 0 and t in self.selected

    def shrunk(self, distil: Distil) -> "Refine":
        return replace(self, pairs=1, steps=min(1 if distil.plan == "exact" else self.reuse, self.steps))

    def added_to(self, cost: Cost, distil: Distil, t: int) -> Cost:
        """The cost of a round with refinement."""
        times = self.steps / self.shrunk(distil).steps if self.move_in(t) else 0.0
        return cost._replace(kind=(cost.kind, t in self.selected), distil=cost.distil if t < 0 else times)
