"""The interface of a method: a frozen dataclass of hyper-parameters with five functions."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import torch

from fedlgd.core.net import Net
from fedlgd.core.rng import Stream
from fedlgd.core.settings import Settings, setting
from fedlgd.core.train import Trained
from fedlgd.core.types import Broadcast, Hello, Params, ServerState, Site, SiteState, Trees, Update
from fedlgd.distill.settings import Budget

__all__ = ["Cost", "Expected", "Fit", "Method", "Net", "Settings", "Stream", "Trained", "Visit", "setting"]

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

    images: in the cross-entropy of a site. by_step: every training step costs the same, whatever its batch. distil,
    server: how often the round repeats the work of the same round of the method's `trial`.
    """

    images: int
    kind: tuple[bool, ...] = ()
    by_step: bool = False
    distil: float = 0.0
    server: float = 1.0


class Method(Protocol):
    """A federated algorithm. All functions are pure. Subclass it to get the defaults."""

    name: ClassVar[str]
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """Presets: settings by dotted path."""
    personal: ClassVar[bool] = False
    """Whether each site is evaluated with its own model, `model_at`."""
    pooled: ClassVar[bool] = False
    """Whether the sites are joined before the first round. Not federated: an upper bound for comparison."""
    train_on: ClassVar[Literal["real", "virtual"]] = "real"
    """What sites train on; many methods have it as a setting."""
    sends: ClassVar[tuple[str, ...]] = ("weights", "loss")
    """What a site sends in every round."""

    def at(self, t: int, rounds: int) -> "Method":
        """The method in round t of `rounds`, with the learning rate of that round; by default always the same."""
        return self

    def enrol(self, site: Site, net: Net, rng: Stream) -> tuple[SiteState, Hello]:
        """Site, once: its initial state, and the `Hello` it sends."""
        ...

    def start(self, params: Params, hellos: Sequence[Hello], net: Net, rng: Stream) -> ServerState:
        """Server, once: the state before the first round."""
        ...

    def broadcast(self, state: ServerState, site: str) -> Broadcast:
        """Server: the message to this site for round `state.round`."""
        ...

    def site(self, msg: Broadcast, state: SiteState, site: Site, net: Net, rng: Stream, fit: Fit = ...) -> Visit:
        """Site: one round of local work. `fit` trains; parts that are stacked on a method pass their own `fit`."""
        ...

    def server(self, state: ServerState, updates: Iterable[Update], net: Net, rng: Stream) -> ServerState:
        """Server: the next state. Iterate over `updates`, also twice; together they can be larger than memory."""
        ...

    def expects(self, msg: Broadcast, net: Net) -> Expected:
        """Server: what a site sends back for `msg`; by default the params it was sent, trained, and no trees."""
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
        """The rounds in which more happens than training, by what moves: `refine` for virtual sets, `anchors`."""
        return {}

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
