"""Where a federation keeps its state between rounds."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from fedlgd.core.records import RoundRecord
from fedlgd.core.types import Hello, ServerState, SiteState


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Enrolment:
    """A site that joined: what it keeps, what it disclosed, and what joining cost it."""

    state: SiteState
    hello: Hello
    seconds: Mapping[str, float]
    flops: Mapping[str, int]


class Memory(Protocol):
    """RAM for a quick run, a directory for one that resumes.

    What a round changes counts only from `commit` on, all of it or nothing. Enrolments count one by one.
    """

    def server(self) -> ServerState | None:
        """The state after the last commit; None before the first."""
        ...

    def site(self, name: str) -> SiteState:
        """A site's state after the last commit."""
        ...

    def newest(self, name: str) -> SiteState:
        """A site's state as staged in this round, or else after the last commit."""
        ...

    def enrolment(self, name: str) -> Enrolment | None:
        """What a site joined with; asked for only before the first commit."""
        ...

    def enrol(self, name: str, enrolment: Enrolment) -> None: ...

    def keep(self, name: str, state: SiteState) -> None:
        """Stage a site's new state for the next commit."""
        ...

    def commit(self, state: ServerState, record: RoundRecord) -> None: ...


class Ram:
    """States in this process, gone with it."""

    def __init__(self) -> None:
        self._server: ServerState | None = None
        self._sites: dict[str, SiteState] = {}
        self._staged: dict[str, SiteState] = {}
        self._enrolments: dict[str, Enrolment] = {}

    def server(self) -> ServerState | None:
        return self._server

    def site(self, name: str) -> SiteState:
        return self._sites[name]

    def newest(self, name: str) -> SiteState:
        return self._staged.get(name) or self._sites[name]

    def enrolment(self, name: str) -> Enrolment | None:
        return self._enrolments.get(name)

    def enrol(self, name: str, enrolment: Enrolment) -> None:
        self._enrolments[name] = enrolment
        self._sites[name] = enrolment.state

    def keep(self, name: str, state: SiteState) -> None:
        self._staged[name] = state

    def commit(self, state: ServerState, record: RoundRecord) -> None:
        self._server = state
        self._sites |= self._staged
        self._staged, self._enrolments = {}, {}
