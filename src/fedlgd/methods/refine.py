"""Refinement of virtual sets: the paper's iterative distribution matching, in selected rounds."""

from dataclasses import dataclass, replace
from typing import ClassVar

from fedlgd.core.types import Params, Site, SiteState
from fedlgd.distill.distribution import Distil
from fedlgd.distill.private import refined, refinements_of
from fedlgd.methods.anchors import Selected
from fedlgd.methods.protocol import Net, Settings, Stream, setting


@dataclass(frozen=True, kw_only=True)
class Refine(Settings):
    """Iterative DM: in selected rounds a site updates its virtual set with the global features.

    All other settings are those of `distil`, except `smooth`: refinement uses plain SGD.
    """

    section: ClassVar[str] = "refine"

    selected: Selected = Selected()
    steps: int = setting(100, "Steps in a selected round; 0: never refine.", least=0, most=10_000_000)
    pairs: int = setting(10, "Draws in the bank (plan `bank`).", least=1, most=100_000)
    reuse: int = setting(10, "Steps of plan `bank` with each draw.", least=1, most=10_000_000)
    real_per_class: int = setting(64, "Real images per class in a draw.", least=1, most=10_000_000)

    def settings(self, distil: Distil) -> Distil:
        """The settings for refining a set created by `distil`."""
        bank = replace(distil, pairs=self.pairs, reuse=self.reuse, smooth=0.0)
        return replace(bank, steps=self.steps, real_per_class=self.real_per_class)

    def releases(self, distil: Distil) -> int:
        """The private releases of all selected rounds."""
        return refinements_of(self.settings(distil), self.selected.count if self.steps else 0)

    def moved(
        self, state: SiteState, site: Site, net: Net, params: Params, distil: Distil, t: int, rng: Stream
    ) -> SiteState:
        """The state of a site after the refinement of round t."""
        how, planned = self.settings(distil), self.releases(distil)
        return refined(state, site, net, params, how, distil, planned, t, rng.at("refine"))

    def move_in(self, t: int) -> bool:
        return self.steps > 0 and t in self.selected
