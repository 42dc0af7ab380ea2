"""What the gate counts: the bytes that sites have uploaded, and the refusals that it has reported."""

import time
from collections import Counter
from collections.abc import Callable

from fedlgd.core.text import plural

LEAST = 64 << 10  # bytes that a stored request counts at least, so that their number is bounded too
QUIET = 60.0  # seconds for which the same refusal is not reported again
MOST_TOLD = 100  # refusals that are reported in that time


class Reports:
    """Reports a refusal once a minute, and at most `MOST_TOLD` of them: strangers choose parts of the texts."""

    def __init__(self, report: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._report, self._clock = report, clock
        self._began, self._told, self._more = -QUIET, set[str](), 0

    def __call__(self, peer: str, why: str, site: str = "") -> None:
        text = f"refused {f'site {site} at ' if site else ''}{peer}: {why}"
        if self._clock() - self._began >= QUIET:
            if self._more:
                self._report(f"{plural(self._more, 'more refusal')} in the last minute")
            self._began, self._told, self._more = self._clock(), set(), 0
        if text in self._told:
            return
        if len(self._told) >= MOST_TOLD:
            self._more += 1
            return
        self._told.add(text)
        self._report(text)


class Uploads:
    """The bytes that each site has uploaded and nobody has taken. Flower stores them in sessions of one reply."""

    def __init__(self, store: int) -> None:
        self._store = store
        self._replies: dict[str, str] = {}
        self._sizes = Counter[tuple[str, str]]()

    def begin(self, session: str, reply: str) -> None:
        self._replies[session] = reply

    def reply(self, session: str) -> str:
        """The reply of a session; empty for one from before a restart of the server."""
        return self._replies.get(session, "")

    def add(self, site: str, reply: str, size: int) -> bool:
        """Count an upload; False if the site has too much stored already."""
        size = max(size, LEAST)
        if sum(stored for (owner, _), stored in self._sizes.items() if owner == site) + size > self._store:
            return False
        self._sizes[site, reply] += size
        return True

    def remove(self, site: str, reply: str, size: int) -> None:
        """Flower did not store an upload."""
        self._sizes[site, reply] -= max(size, LEAST)

    def take(self, reply: str) -> None:
        """The coordinator has read a reply, or does not wait for it any more: Flower deletes it."""
        self._sizes = Counter({key: size for key, size in self._sizes.items() if key[1] != reply})
        self._replies = {session: of for session, of in self._replies.items() if of != reply}

    def clear(self) -> None:
        """A new run begins: what earlier ones left is deleted."""
        self._replies.clear()
        self._sizes.clear()
