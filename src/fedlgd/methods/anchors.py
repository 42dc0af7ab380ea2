"""Anchors: the global virtual data of the paper. FedLGD has them; `Anchored` adds them to other methods.

The server initialises anchors, sends them to sites with an old version, and updates them by gradient matching in
selected rounds. A site adds them to its cross-entropy and aligns its features with them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedlgd.core.device import to_cpu
from fedlgd.core.errors import PrivacyError
from fedlgd.core.train import TRIAL_STEPS
from fedlgd.core.types import Broadcast, Hello, Params, Scale, ServerState, Site, SiteState, VirtualSet
from fedlgd.distill.files import read_start
from fedlgd.distill.gradient import Matching, match_gradient, pseudo_gradient
from fedlgd.distill.init import class_statistics, from_noise, from_statistics, labels_for
from fedlgd.distill.settings import Distil, Statistics, check_start, is_file_name
from fedlgd.methods.common import STRONG_ANCHORS, AnchorLoss, fit
from fedlgd.methods.parts import Part
from fedlgd.methods.protocol import Cost, Fit, Hellos, Net, Presets, Settings, Stream, Updates, Visit, setting
from fedlgd.methods.regularisers import Pull


@dataclass(frozen=True, kw_only=True)
class Selected(Settings):
    """tau = {first, first + every, ...}, `count` rounds."""

    section: ClassVar[str] = "selected"

    first: int = setting(0, "The first selected round; 0 is the first round of the run.", least=0, most=1_000_000)
    every: int = setting(5, "Number of rounds between selected rounds.", least=1, most=1_000_000)
    count: int = setting(10, "Number of selected rounds; 0: no selected rounds.", least=0, most=1_000_000)

    @property
    def rounds(self) -> range:
        return range(self.first, self.first + self.every * self.count, self.every)

    def __contains__(self, t: int) -> bool:
        return t in self.rounds


@dataclass(frozen=True, kw_only=True)
class Anchors(Matching):
    """How the server initialises anchors and updates them by gradient matching."""

    section: ClassVar[str] = "anchors"

    per_class: int = setting(10, "Anchor images per class; 0: no anchors.", least=0, most=100_000)
    start: str = setting(
        "noise", "Initial anchors: `noise`, from `statistics` that the sites upload, or a file of virtual images."
    )
    selected: Selected = Selected()
    sample: int = setting(
        0, "Anchors per class in a step with the regulariser, drawn for each step; 0: all.", least=0, most=100_000
    )
    in_loss: Literal["unselected", "always", "never"] = setting(
        "unselected", "Rounds in which sites train on anchors: `unselected`, `always` or `never`."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_start("anchors.start", self.start, ("noise", "statistics"))

    @property
    def schedule(self) -> dict[str, range]:
        """The selected rounds, in which sites may train without anchors even if these do not move."""
        return {"anchors": self.selected.rounds} if self.per_class else {}

    def shrunk(self) -> "Anchors":
        """As few steps as can be measured."""
        return replace(self, steps=min(TRIAL_STEPS, self.steps))

    def added_to(self, cost: Cost | None, t: int, classes: int, pull: Pull) -> Cost | None:
        """The cost of round t with anchors; gradient matching is assumed to take all steps."""
        if cost is None or not self.per_class:
            return cost
        last = self.plan == "target"  # which also evaluates the result of the last step
        return cost._replace(
            images=cost.images + (self.per_class * classes if self.train_in(t) else 0),
            kind=(*cost.kind, t in self.selected, self.train_in(t)),
            by_step=self.pull_in(t, pull),
            server=(self.steps + last) / (self.shrunk().steps + last) if self.move_in(t) else 1.0,
        )

    def move_in(self, t: int) -> bool:
        """Whether the server updates the anchors after round t."""
        return self.steps > 0 and t in self.selected

    def train_in(self, t: int) -> bool:
        """Whether anchors are in the cross-entropy in round t."""
        return self.in_loss == "always" or (self.in_loss == "unselected" and t not in self.selected)

    def pull_in(self, t: int, pull: Pull) -> bool:
        """Whether the regulariser is active in round t."""
        return t not in self.selected and pull.weight > 0

    def needed_in(self, t: int, pull: Pull) -> bool:
        """Whether a site needs the anchors in round t."""
        return self.per_class > 0 and (self.pull_in(t, pull) or self.train_in(t))

    @property
    def uploads(self) -> bool:
        """Whether sites upload statistics of their pixels, from which the anchors start."""
        return self.per_class > 0 and self.start == "statistics"

    def check_upload(self, distil: Distil) -> None:
        """Refuse the upload of exact statistics of private pixels beside private virtual sets."""
        if distil.private.on and self.uploads:
            raise PrivacyError("private-upload-of-statistics")

    def upload(self, site: Site, over: Statistics, net: Net) -> Tensor | None:
        """What a site uploads for `anchors.start = "statistics"`: mean and std of each class and channel.

        A class that the site does not have is NaN and is ignored in the server's mean.
        """
        if not self.uploads:
            return None
        present = site.train.counts(net.classes).nonzero().flatten().tolist()
        statistics = torch.full((net.classes, 2, net.shape[0]), torch.nan)
        statistics[present] = to_cpu(class_statistics(site.train, present, over).float())
        return statistics

    def hello(self, net: Net) -> Hello:
        """What a site sends at enrolment: counts, and statistics if anchors start from them."""
        counts = torch.empty(net.classes, dtype=torch.int64)
        statistics = torch.empty(net.classes, 2, net.shape[0]) if self.uploads else None
        return Hello(site="", counts=counts, statistics=statistics)

    def first(self, hellos: Hellos, net: Net, rng: Stream) -> VirtualSet | None:
        """The initial anchors: N(0,1) pixels, the images of a file, or N(mean of the sites' class means, mean of
        their stds). A class that no site has is N(0,1).
        """
        if not self.per_class:
            return None
        generator, labels = rng.generator("anchors"), labels_for(range(net.classes), self.per_class)
        if is_file_name(self.start):
            images = read_start(self.start, "anchors", Scale(), labels, net.shape)
        elif self.start == "noise":
            images = from_noise(net.classes * self.per_class, net.shape, generator)
        else:
            uploads = [hello.statistics for hello in hellos if hello.statistics is not None]
            mean = torch.stack(uploads).nanmean(0)
            mean = torch.where(mean.isnan(), torch.tensor([0.0, 1.0])[:, None], mean)
            images = from_statistics(mean, self.per_class, net.shape[1:], 1.0, generator)
        return VirtualSet(images=images, labels=labels, origin="server", round=-1)

    def in_round(self, anchors: VirtualSet | None, pull: Pull, t: int) -> AnchorLoss | None:
        """The role of the anchors in local training in round t."""
        if anchors is None or not self.needed_in(t, pull):
            return None
        return AnchorLoss(anchors.data, self.train_in(t), pull if self.pull_in(t, pull) else None, self.sample)


def stale_anchors(state: ServerState, site: str, needed: bool = True) -> VirtualSet | None:
    """The anchors if the site needs them now and has no or an older version; otherwise None."""
    stale = state.anchors is not None and state.held.get(site, -2) < state.anchors.round
    return state.anchors if needed and stale else None


@dataclass(frozen=True, kw_only=True)
class Anchored(Part):
    """Adds anchors, updated by gradient matching in selected rounds, to a method that averages models."""

    kind: ClassVar[str] = "anchors"
    presets: ClassVar[Presets] = {
        "paper": {"anchors.plan": "exact", "anchors.steps": 500},
        "quick": {"anchors.steps": 10, "pull.weight": 1.0},
        "strong": STRONG_ANCHORS,
    }

    anchors: Anchors = Anchors()
    pull: Pull = Pull()

    def __post_init__(self) -> None:
        super().__post_init__()
        self.anchors.check_upload(self.distil)

    @property
    def stack(self) -> str:
        """`noise` if the anchors are never updated and have no regulariser: the control for anchors."""
        return "anchors" if self.anchors.steps or self.pull.weight else "noise"

    @property
    def title(self) -> str:
        return {"noise": "noise images"}.get(self.stack, self.stack)

    @property
    def schedule(self) -> Mapping[str, range]:
        return {**self.method.schedule, **self.anchors.schedule}

    def cost(self, t: int, site: Site, classes: int) -> Cost | None:
        return self.anchors.added_to(self.method.cost(t, site, classes), t, classes, self.pull)

    def enrol(self, site: Site, net: Net, rng: Stream) -> tuple[SiteState, Hello]:
        state, hello = self.method.enrol(site, net, rng)
        statistics = self.anchors.upload(site, self.distil.statistics, net)
        return state, replace(hello, statistics=statistics)

    def expects_hello(self, net: Net) -> Hello:
        return self.anchors.hello(net)

    def start(self, params: Params, hellos: Hellos, net: Net, rng: Stream) -> ServerState:
        state = self.method.start(params, hellos, net, rng)
        return replace(state, anchors=self.anchors.first(hellos, net, rng))

    def broadcast(self, state: ServerState, site: str) -> Broadcast:
        needed = self.anchors.needed_in(state.round, self.pull)
        return replace(self.method.broadcast(state, site), anchors=stale_anchors(state, site, needed))

    def site(self, msg: Broadcast, state: SiteState, site: Site, net: Net, rng: Stream, fit: Fit = fit) -> Visit:
        if msg.anchors:
            state = replace(state, anchors=msg.anchors)
        anchors_in_loss = self.anchors.in_round(state.anchors, self.pull, msg.round)
        return self.method.site(msg, state, site, net, rng, partial(fit, anchors_in_loss=anchors_in_loss))

    def server(self, state: ServerState, updates: Updates, net: Net, rng: Stream) -> ServerState:
        t, anchors, after = state.round, state.anchors, self.method.server(state, updates, net, rng)
        if anchors and self.anchors.move_in(t):
            target = pseudo_gradient(state.params, after.params, self.local.rate(self.local.steps))
            anchors, _ = match_gradient(anchors, net, state.params, target, self.anchors, t)
        return replace(after, anchors=anchors)
