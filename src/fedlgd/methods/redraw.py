"""Redrawing, a part for methods on virtual sets: in selected rounds a site averages similar private images anew.

It is not in the paper, and it is no distillation: the images are those of `distil.start = "neighbours"`, new in
each of these rounds. More private images enter the model than through sets that stay: docs/methods/redraw.md.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from fedlgd.core.device import to_device
from fedlgd.core.errors import PrivacyError, SettingError
from fedlgd.core.meter import phase
from fedlgd.core.types import Broadcast, Site, SiteState
from fedlgd.distill.init import as_tiles, from_neighbours
from fedlgd.methods.anchors import Selected
from fedlgd.methods.common import fit
from fedlgd.methods.parts import Part
from fedlgd.methods.protocol import Cost, Fit, Net, Presets, Settings, Stream, Visit
from fedlgd.rundir.manifest import Reading


@dataclass(frozen=True, kw_only=True)
class Redraw(Settings):
    """In selected rounds, by default all, a site makes new virtual images: means of eight similar private ones."""

    section: ClassVar[str] = "redraw"

    selected: Selected = Selected(every=1, count=1_000_000)


@dataclass(frozen=True, kw_only=True)
class Redrawn(Part):
    r"""Selected round:  V^c <- new images of `distil.init.from_neighbours` for the same labels, before all else.

    Then comes the round of the method, which can refine the new images and trains on them.
    """

    kind: ClassVar[str] = "redraw"
    allows: ClassVar[tuple[str, ...]] = ("anchors", "regulariser", "momentum", "robust", "fedopt")
    """Not `refine`, whose steps redrawing would undo: that is `method+refine+redraw`."""
    presets: ClassVar[Presets] = {"strong": {"distil.steps": 0}}  # round 0 replaces the first sets

    redraw: Redraw = Redraw()

    def __post_init__(self) -> None:
        super().__post_init__()
        if (data := self.method.train_on) != "virtual":
            raise SettingError("redraw-without-virtual", method=self.method.name, data=data)
        if self.distil.private.on:
            raise PrivacyError("private-redraw")

    @property
    def schedule(self) -> Mapping[str, range]:
        rounds = self.redraw.selected.rounds
        return {**self.method.schedule, "redraw": rounds} if rounds else self.method.schedule

    @property
    def reads(self) -> tuple[Reading, ...]:
        more: tuple[Reading, ...] = ("selected",) if "redraw" in self.schedule else ()
        return tuple(dict.fromkeys((*self.method.reads, *more)))

    def cost(self, t: int, site: Site, classes: int) -> Cost | None:
        cost = self.method.cost(t, site, classes)
        if cost is None:
            return None
        now = t in self.redraw.selected
        return cost._replace(kind=(*cost.kind, now), distil=max(cost.distil, float(now and t >= 0)))

    def site(self, msg: Broadcast, state: SiteState, site: Site, net: Net, rng: Stream, fit: Fit = fit) -> Visit:
        if state.virtual and msg.round in self.redraw.selected:
            state = redrawn(state, site, msg.round, rng)
        return self.method.site(msg, state, site, net, rng, fit)


def redrawn(state: SiteState, site: Site, t: int, rng: Stream) -> SiteState:
    """The state with new images for the same labels."""
    virtual = state.virtual
    assert virtual is not None
    classes, counts = virtual.labels.unique(return_counts=True)
    with phase("distil"):
        pictures = [number * virtual.tiles**2 for number in counts.tolist()]
        images = from_neighbours(site.train, classes.tolist(), pictures, rng.generator("neighbours"))
    return replace(state, virtual=replace(virtual, images=to_device(as_tiles(images, virtual.tiles)), round=t))
