"""What a method is: hyper-parameters in a frozen dataclass, and five functions."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Protocol

from fedlgd.core.net import Net
from fedlgd.core.rng import Stream
from fedlgd.core.types import Broadcast, Hello, Params, ServerState, Site, SiteState, Update


class Method(Protocol):
    """A federated algorithm. Every function is pure: values in, values out.

    `presets` are named sets of settings, by dotted path. A method may also have `adapt(net)`, if it trains
    another network than the given one; and with `personal = True`, `model_at(state, kept)`, if a site is
    scored with a model of its own.
    """

    name: ClassVar[str]
    presets: ClassVar[Mapping[str, Mapping[str, Any]]]

    def enrol(self, site: Site, net: Net, rng: Stream) -> tuple[SiteState, Hello]:
        """Site, once: what it keeps, and the little it discloses."""
        ...

    def start(self, params: Params, hellos: Sequence[Hello], net: Net, rng: Stream) -> ServerState:
        """Server, once: the state before the first round."""
        ...

    def broadcast(self, state: ServerState, site: str) -> Broadcast:
        """Server: what this site needs for round `state.round`."""
        ...

    def site(self, msg: Broadcast, state: SiteState, site: Site, net: Net, rng: Stream) -> tuple[Update, SiteState]:
        """Site: one round of local work."""
        ...

    def server(self, state: ServerState, updates: Iterable[Update], net: Net, rng: Stream) -> ServerState:
        """Server: the next state. `updates` is read once, in order, and may be larger than memory."""
        ...


def adapted(method: Method, net: Net) -> Net:
    """The network the method trains: the given one, unless it asks for more outputs or another head."""
    adapt = getattr(method, "adapt", None)
    return adapt(net) if adapt else net


def is_personal(method: Method) -> bool:
    """Is each site scored with a model of its own?"""
    return bool(getattr(method, "personal", False))


def model_at(method: Method, state: ServerState, kept: Callable[[], SiteState]) -> Params:
    """The model a site is scored with: the global one, or its own."""
    return method.model_at(state, kept()) if is_personal(method) else state.params  # type: ignore[attr-defined]
