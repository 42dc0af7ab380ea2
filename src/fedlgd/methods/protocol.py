"""What a method is: hyper-parameters in a frozen dataclass, and five functions."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Protocol

from fedlgd.core.net import Net
from fedlgd.core.rng import Stream
from fedlgd.core.types import Broadcast, Hello, Params, ServerState, Site, SiteState, Update


class Method(Protocol):
    """A federated algorithm. Every function is pure: values in, values out.

    `presets` are named sets of settings, by dotted path; the first is the default.
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
