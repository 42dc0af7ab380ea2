"""Refinement of virtual sets: the paper's iterative distribution matching, in selected rounds. FedLGD has it;
`Refined` adds it to other methods."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import ClassVar, Self

from fedlgd.core.errors import SettingError
from fedlgd.core.types import Broadcast, Hello, Params, Site, SiteState
from fedlgd.distill.distribution import refine_set
from fedlgd.distill.settings import Distil, Optimiser, Refinement
from fedlgd.methods.anchors import Selected
from fedlgd.methods.common import STRONG_REFINEMENT, fit
from fedlgd.methods.parts import Part
from fedlgd.methods.protocol import Cost, Fit, Net, Presets, Settings, Stream, Visit, setting
from fedlgd.rundir.manifest import Reading


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

    def settings(self, distil: Distil) -> Refinement:
        """The settings for refining a set created by `distil`."""
        same = {f.name: getattr(distil, f.name) for f in fields(Distil)}
        own = {"pairs": self.pairs, "reuse": self.reuse, "steps": self.steps, "real_per_class": self.real_per_class}
        return Refinement(**same | own | {"smooth": 0.0, "lr": self.lr or distil.lr, "optimiser": self.optimiser})

    def private_releases(self, distil: Distil) -> int:
        """The releases of all selected rounds of a private run."""
        from fedlgd.dp.distil import planned_refinements

        return planned_refinements(self.settings(distil), self.selected.count if self.steps else 0)

    def move(
        self, state: SiteState, site: Site, net: Net, params: Params, distil: Distil, t: int, rng: Stream
    ) -> SiteState:
        """The state of a site after the refinement of round t."""
        virtual, settings = state.virtual, self.settings(distil)
        assert virtual is not None
        if distil.private.on:
            from fedlgd.dp.distil import refine_privately

            planned = self.private_releases(distil)
            return refine_privately(state, site, net, params, settings, distil, planned, t, rng.at("refine"))
        return replace(state, virtual=refine_set(virtual, site.train, net, params, settings, t, rng.at("refine")))

    @property
    def schedule(self) -> dict[str, range]:
        """The rounds in which virtual sets move."""
        return {"refine": self.selected.rounds} if self.steps > 0 else {}

    def with_few_steps(self, distil: Distil) -> "Refine":
        """One draw and its steps, enough to measure the cost of a step."""
        return replace(self, pairs=1, steps=min(1 if distil.plan == "exact" else self.reuse, self.steps))

    def added_to(self, cost: Cost | None, t: int, distil: Distil) -> Cost | None:
        """The cost of round t with refinement."""
        if cost is None:
            return None
        steps = self.steps / max(1, self.with_few_steps(distil).steps)
        kind = (*cost.kind, t in self.selected)
        return cost._replace(kind=kind, distil=steps if self.move_in(t) else cost.distil)

    def move_in(self, t: int) -> bool:
        return t in self.schedule.get("refine", ())


@dataclass(frozen=True, kw_only=True)
class Refined(Part):
    """Adds iterative DM to a method that trains on virtual sets and sends the complete model."""

    kind: ClassVar[str] = "refine"
    presets: ClassVar[Presets] = {
        "paper": {"refine.real_per_class": 256},
        "quick": {"refine.steps": 10},
        "strong": STRONG_REFINEMENT,
    }

    refine: Refine = Refine()

    def __post_init__(self) -> None:
        super().__post_init__()
        if (data := self.method.train_on) != "virtual":
            raise SettingError("refine-without-virtual", method=self.method.name, data=data)

    @property
    def schedule(self) -> Mapping[str, range]:
        return {**self.method.schedule, **self.refine.schedule}

    @property
    def reads(self) -> tuple[Reading, ...]:
        return (*self.method.reads, "selected") if self.refine.schedule else self.method.reads

    def cost(self, t: int, site: Site, classes: int) -> Cost | None:
        return self.refine.added_to(self.method.cost(t, site, classes), t, self.distil)

    def trial(self) -> Self:
        return replace(super().trial(), refine=self.refine.with_few_steps(self.distil))

    def enrol(self, site: Site, net: Net, rng: Stream) -> tuple[SiteState, Hello]:
        """With privacy, the refinements are charged here, so that the run is not refused in a later round."""
        if not self.distil.private.on:
            return self.method.enrol(site, net, rng)
        from fedlgd.dp.distil import open_releases

        planned = self.refine.private_releases(self.distil)
        if planned:
            open_releases(site, net, self.distil, rng.seed, planned, only="counts")
        enrolled = self.method.enrol(site, net, rng)
        if planned:
            open_releases(site, net, self.distil, rng.seed, planned)
        return enrolled

    def site(self, msg: Broadcast, state: SiteState, site: Site, net: Net, rng: Stream, fit: Fit = fit) -> Visit:
        if state.virtual and self.refine.move_in(msg.round):
            state = self.refine.move(state, site, net, msg.params, self.distil, msg.round, rng)
        update, after = self.method.site(msg, state, site, net, rng, fit)
        released = {name: tree for name, tree in state.trees.items() if name == "released"}
        return update, replace(after, trees={**released, **after.trees}) if released else after
