"""FedLGD (Huang et al., TMLR 2025): sites train on distilled images and on anchors of the server"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

from fedlgd.core.text import enumeration
from fedlgd.core.types import Broadcast, Hello, Params, ServerState, Site, SiteState
from fedlgd.distill.distribution import first_set
from fedlgd.distill.gradient import match_gradient, pseudo_gradient
from fedlgd.methods import common
from fedlgd.methods.anchors import Anchors, stale_anchors
from fedlgd.methods.common import PAPER, QUICK, STRONG, TUNED, Training, fit, training_set, update, weighted_mean
from fedlgd.methods.protocol import Cost, Fit, Hellos, Net, Presets, Stream, Updates, Visit
from fedlgd.methods.refine import Refine
from fedlgd.methods.registry import register
from fedlgd.methods.regularisers import Pull

PUBLISHED = {**PAPER, "anchors.plan": "exact", "anchors.steps": 500, "refine.real_per_class": 256}
PRIVATE = {
    **TUNED,
    "local.steps": 80,
    "local.batch": 64,
    "distil.private.epsilon": 4.0,
    "distil.start": "mean-image",
    "distil.per_class": 40,
    "distil.lr": 2.0,
    "distil.width": 16,
    "distil.steps": 800,
    "refine.selected.first": 1,
    "refine.selected.every": 1,
    "refine.pairs": 3,
    "refine.steps": 30,
    "anchors.selected.count": 3,
    "anchors.steps": 10,
}
"""Computing more from the released sums is free: more virtual images, and augmented training. Refinement takes sums
under models of ten rounds, because their features separate classes better than those of random networks."""


@register
@dataclass(frozen=True, kw_only=True)
class FedLGD(Training):
    r"""Selected round (t in tau): a site refines V^c by Eq. 1 under psi_t, then trains on CE(V^c).
    Other rounds:  CE(V^c + V^g) + lambda * L_Con(psi(V^c), psi(V^g)).
    Server:  theta_{t+1} = mean theta_c;  t in tau: V^g moves to match G = (theta_t - theta_{t+1}) / eta.
    """

    name: ClassVar[str] = "fedlgd"
    presets: ClassVar[Presets] = {
        "paper": PUBLISHED,
        "official": {
            **PUBLISHED,
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
        "quick": {**QUICK, "anchors.steps": 10, "refine.steps": 10, "pull.weight": 1.0},
        "strong": {**STRONG, **common.STRONG_REFINEMENT, **common.STRONG_ANCHORS},
        "private": PRIVATE,
    }
    stackable: ClassVar[tuple[str, ...]] = ("redraw", "regulariser", "momentum", "robust", "fedopt")

    train_on: ClassVar[Literal["virtual"]] = "virtual"  # type: ignore[misc]
    anchors: Anchors = Anchors()
    pull: Pull = Pull()
    refine: Refine = Refine()

    def __post_init__(self) -> None:
        super().__post_init__()
        self.anchors.check_upload(self.distil)

    @property
    def label(self) -> str:
        """FedLGD, and which of its parts these settings switch off."""
        parts = {
            "matching": self.distil.steps,
            "refinement": self.refine.schedule.get("refine"),
            "anchors": self.anchors.per_class,
        }
        without = [part for part, on in parts.items() if not on]
        return " without ".join(["FedLGD", *filter(None, [enumeration(without)])])

    @property
    def schedule(self) -> Mapping[str, range]:
        return {**self.anchors.schedule, **self.refine.schedule}

    def cost(self, t: int, site: Site, classes: int) -> Cost | None:
        refined = self.refine.added_to(super().cost(t, site, classes), t, self.distil)
        return self.anchors.added_to(refined, t, classes, self.pull)

    def trial(self) -> Self:
        return replace(super().trial(), refine=self.refine.with_few_steps(self.distil))

    def enrol(self, site: Site, net: Net, rng: Stream) -> tuple[SiteState, Hello]:
        """The site distils its first virtual set with random networks."""
        if self.distil.private.on:
            from fedlgd.dp.distil import first_private_set

            releases = self.refine.private_releases(self.distil)
            state = first_private_set(site, net, self.distil, rng.at("distil"), releases)
        else:
            state = SiteState(virtual=first_set(site, net, self.distil, rng.at("distil")))
        statistics = self.anchors.upload(site, self.distil.statistics, net)
        counts = training_set(state, site).counts(net.classes)
        return state, Hello(site=site.name, counts=counts, statistics=statistics)

    def expects_hello(self, net: Net) -> Hello:
        return self.anchors.hello(net)

    def start(self, params: Params, hellos: Hellos, net: Net, rng: Stream) -> ServerState:
        return ServerState(params=params, anchors=self.anchors.first(hellos, net, rng))

    def broadcast(self, state: ServerState, site: str) -> Broadcast:
        """theta_t, and V^g if the site needs it now and has an old version."""
        needed = self.anchors.needed_in(state.round, self.pull)
        return Broadcast(round=state.round, params=state.params, anchors=stale_anchors(state, site, needed))

    def site(self, msg: Broadcast, state: SiteState, site: Site, net: Net, rng: Stream, fit: Fit = fit) -> Visit:
        """Algorithm 1, the site's half."""
        t, anchors = msg.round, msg.anchors or state.anchors
        if self.refine.move_in(t):  # t in tau: update V^c by Eq. 1 under psi_t
            state = self.refine.move(state, site, net, msg.params, self.distil, t, rng)
        # t in tau: CE(V^c); else: CE(V^c + V^g) + lambda L_Con
        anchors_in_loss = self.anchors.in_round(anchors, self.pull, t)
        trained = fit(self, msg.params, state, site, net, rng, anchors_in_loss=anchors_in_loss)
        return update(site, state, trained), replace(state, anchors=anchors)

    def server(self, state: ServerState, updates: Updates, net: Net, rng: Stream) -> ServerState:
        """Algorithm 1, the server's half.

        eta is that of a site with `per_class` virtual images of every class. A site with fewer takes fewer steps in
        an epoch; with momentum that changes the scale of G a little, which Dist does not depend on.
        """
        t, anchors, params = state.round, state.anchors, weighted_mean(updates)
        if anchors and self.anchors.move_in(t):  # t in tau: update V^g under theta_t to match G
            rate = self.local.rate(self.local.count(self.distil.pictures * net.classes))
            target = pseudo_gradient(state.params, params, rate)
            anchors, _ = match_gradient(anchors, net, state.params, target, self.anchors, t)
        return replace(state, params=params, anchors=anchors, round=t + 1)
