"""What a method is: hyper-parameters in a frozen dataclass, and five functions. And the words to write one."""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Protocol

import torch

from fedlgd.core.net import Net
from fedlgd.core.rng import Stream
from fedlgd.core.settings import Settings, setting
from fedlgd.core.train import Local, Trained
from fedlgd.core.types import Broadcast, Hello, LabelledSet, Params, ServerState, Site, SiteState, Trees, Update
from fedlgd.distill.distribution import Distil

# fmt: off
__all__ = ["Broadcast", "Cost", "Expected", "Fit", "Hello", "LabelledSet", "Method", "Net", "Params", "ServerState",
           "Settings", "Site", "SiteState", "Stream", "Trained", "Update", "Visit", "setting"]
# fmt: on

Fit = Callable[..., Trained]
"""Local training: `common.fit`, or one that a part made of it by adding terms or anchors."""

Visit = tuple[Update, SiteState]
"""What comes of a round at a site: what it sends, and what it keeps."""


class Cost(NamedTuple):
    """What one round asks of a site and of the server, for an estimate.

    `trial` is the method with so few steps that a round takes seconds; rounds of the same `kind` ask for the same
    work. `distil` and `server` say how often the round does what the trial does once. Training goes over `images`
    by `local`; `by_step`: every step costs the same, whatever its batch. `sets`: how first virtual sets are made,
    which methods that make them alike share.
    """

    trial: "Method"
    kind: Hashable
    local: Local
    images: int
    sets: Distil | None = None
    distil: float = 0.0
    server: float = 1.0
    by_step: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Expected:
    """What a valid update looks like: the names, shapes and dtypes of its tensors, not their values.

    `least` is the smallest value allowed in a tensor, by its path: {"trees/prototypes/counts": 0}.
    """

    params: Params
    trees: Trees = field(default_factory=dict)
    least: Mapping[str, float] = field(default_factory=dict)


class Method(Protocol):
    """A federated algorithm. Every function is pure: values in, values out. Inherit it to get the defaults."""

    name: ClassVar[str]
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """Named groups of settings, by dotted path."""
    personal: ClassVar[bool] = False
    """Is each site scored with a model of its own, `model_at`?"""
    pooled: ClassVar[bool] = False
    """Are the sites joined into one before the first round? Not federated: a ceiling to compare with."""

    def enrol(self, site: Site, net: Net, rng: Stream) -> tuple[SiteState, Hello]:
        """Site, once: what it keeps, and the little it discloses."""
        ...

    def start(self, params: Params, hellos: Sequence[Hello], net: Net, rng: Stream) -> ServerState:
        """Server, once: the state before the first round."""
        ...

    def broadcast(self, state: ServerState, site: str) -> Broadcast:
        """Server: what this site needs for round `state.round`."""
        ...

    def site(self, msg: Broadcast, state: SiteState, site: Site, net: Net, rng: Stream, fit: Fit = ...) -> Visit:
        """Site: one round of local work. `fit` trains; what is stacked on a method passes a `fit` of its own."""
        ...

    def server(self, state: ServerState, updates: Iterable[Update], net: Net, rng: Stream) -> ServerState:
        """Server: the next state. `updates` may be larger than memory: read one after the other, or again."""
        ...

    def expects(self, msg: Broadcast, net: Net) -> Expected:
        """Server: what a site sends back for `msg`; by default the params it was sent, trained, and no trees."""
        return Expected(msg.params)

    def expects_hello(self, net: Net) -> Hello:
        """Server: what a site sends at enrolment, with values that do not matter; by default class counts alone."""
        return Hello(site="", counts=torch.empty(net.classes, dtype=torch.int64))

    def adapt(self, net: Net) -> Net:
        """The network that is trained: the given one, unless a method needs more outputs or another head."""
        return net

    def model_at(self, params: Params, kept: SiteState) -> Params:
        """Site: the model it is scored with; the global one, unless the method is `personal`."""
        return params

    def cost(self, t: int, site: Site, classes: int) -> Cost | None:
        """What round t (-1: enrolment) asks of this site and the server; None: unknown."""
        return None

    @property
    def label(self) -> str:
        """What a table calls this method."""
        return type(self).__name__ + (", personalised" if self.personal else "")
