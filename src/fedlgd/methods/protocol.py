"""The interface of a method: a frozen dataclass of hyper-parameters with five functions; the rest has defaults."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Protocol

import torch

from fedlgd.core.net import Net
from fedlgd.core.settings import Settings, setting
from fedlgd.core.train import Trained
from fedlgd.core.types import Broadcast, Hello, Params, ServerState, Site, SiteState, Stream, Trees, Update
from fedlgd.distill.settings import Budget
from fedlgd.rundir.manifest import Reading, TrainOn

__all__ = ["Cost", "Expected", "Fit", "Method", "Net", "Settings", "Stream", "Trained", "Visit", "setting"]

Hellos = Sequence[Hello]
"""What the sites sent at enrolment, sorted by their names."""

Updates = Iterable[Update]
"""What the sites sent in a round, sorted by their names; read from disk while it is iterated."""

WEIGHTS = {"params": "weights", "metrics/loss": "loss"}
"""What the site of a method that averages models sends."""

Presets = Mapping[str, Mapping[str, Any]]
"""Settings by dotted path, by the name of a preset."""

Fit = Callable[..., Trained]
"""Local training: `common.fit`, or a version of it to which a part has added terms or anchors."""

Visit = tuple[Update, SiteState]
"""The result of a round at a site: the update it sends, and the state it keeps."""


@dataclass(frozen=True, slots=True, eq=False)
class Expected:
    """What a valid update looks like: the names, shapes and dtypes of its tensors, not their values.

    `least` is the smallest value allowed in a tensor, by its path: {"trees/prototypes/counts": 0}.
    """

    params: Params
    trees: Trees = field(default_factory=dict)
    least: Mapping[str, float] = field(default_factory=dict)


class Cost(NamedTuple):
    """The work of one round, for an estimate of its time. Rounds of the same `kind` have equal work.

    images: the number that enter the cross-entropy of a site. by_step: every training step costs the same, whatever
    its batch. distil, server: the work of the round as a multiple of the same round of `trial()`.
    """

    images: int
    kind: tuple[bool, ...] = ()
    by_step: bool = False
    distil: float = 0.0
    server: float = 1.0


class Method(Protocol):
    """A federated algorithm. State goes into its functions and comes out; the method keeps none. Subclass it to get
    the defaults."""

    name: ClassVar[str]
    presets: ClassVar[Presets] = {}
    personal: ClassVar[bool] = False
    """Whether each site is evaluated with its own model, `model_at`."""
    pooled: ClassVar[bool] = False
    """Whether the sites are joined before the first round. Not federated: an upper bound for comparison."""
    exchanges: ClassVar[int] = 1
    """How often server and sites exchange messages in a round. After each, `server` is called; `msg.exchange` and
    `state.exchange` count them from 0. A site that is refused in one is not asked in the next of that round."""
    train_on: ClassVar[TrainOn] = "real"
    """What sites train on; many methods have it as a setting. `nothing`: they do not train a model."""
    sends: ClassVar[Mapping[str, str]] = WEIGHTS
    """The kind of everything that a site sends, in words, by its path in the message: `params`, `metrics/NAME`,
    `trees/NAME`, and `hello/trees/NAME` for the `Hello`. The report marks what is not declared as not covered."""

    def at(self, t: int, rounds: int) -> "Method":
        """The method in round t of `rounds`, with the learning rate of that round; itself if that is constant."""
        return self

    def enrol(self, site: Site, net: Net, rng: Stream) -> tuple[SiteState, Hello]:
        """Site, once: its initial state, and the `Hello` it sends."""
        ...

    def start(self, params: Params, hellos: Hellos, net: Net, rng: Stream) -> ServerState:
        """Server, once: the state before the first round."""
        ...

    def broadcast(self, state: ServerState, site: str) -> Broadcast:
        """Server: the message to this site for round `state.round`."""
        ...

    def site(self, msg: Broadcast, state: SiteState, site: Site, net: Net, rng: Stream, fit: Fit = ...) -> Visit:
        """Site: its work in a round, or in one exchange of it. `fit` trains; parts pass their own `fit`."""
        ...

    def server(self, state: ServerState, updates: Updates, net: Net, rng: Stream) -> ServerState:
        """Server: the next state. Iterate over `updates`, several times if needed, but do not collect them: all
        together can be larger than memory."""
        ...

    def expects(self, msg: Broadcast, net: Net, hello: Hello) -> Expected:
        """Server: what a site sends back for `msg`; by default tensors like `msg.params`, and no trees.

        `hello` is what this site sent at its enrolment. If the server has no valid one, all its counts are 0.
        """
        return Expected(msg.params)

    def expects_hello(self, net: Net) -> Hello:
        """Server: what a site sends at enrolment, with values that do not matter; by default class counts alone."""
        return Hello(site="", counts=torch.empty(net.classes, dtype=torch.int64))

    def adapt(self, net: Net) -> Net:
        """The network to train. By default it is the given one; a method can add outputs or change the head."""
        return net

    def model_at(self, params: Params, kept: SiteState) -> Params:
        """Site: the model for its evaluation; the global model unless the method is `personal`."""
        return params

    @property
    def budget(self) -> Budget | None:
        """The differential privacy that the method promises; None: no promise."""
        distil = getattr(self, "distil", None)
        return distil.private if distil is not None and distil.private.on else None

    @property
    def schedule(self) -> Mapping[str, range]:
        """The rounds with more than training, by what moves: `refine` and `redraw` for virtual sets, `anchors`."""
        return {}

    @property
    def reads(self) -> tuple[Reading, ...]:
        """When a site reads its private training images: at its `enrolment`, in `selected` or in `every` round.

        By default a method on virtual sets reads private images only when it distils. Override it if yours differs.
        """
        if self.train_on == "real":
            return ("every",)
        return ("enrolment", "selected") if "refine" in self.schedule else ("enrolment",)

    def cost(self, t: int, site: Site, classes: int) -> Cost | None:
        """The work of round t at a site (-1: enrolment), if it can be told from the settings; None: no estimate."""
        return None

    def trial(self) -> "Method":
        """The method with so few steps that a round takes seconds, to measure what a step costs."""
        return self

    @property
    def label(self) -> str:
        """The name of this method in tables."""
        return type(self).__name__ + (", personalised" if self.personal else "")
