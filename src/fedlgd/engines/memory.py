"""Where the two halves of a run keep their state between rounds: the server its own, every site its own."""

import re
import shutil
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from tempfile import mkdtemp
from typing import Protocol

from fedlgd.core.files import clear_parts, private_folder, writing
from fedlgd.core.records import RoundRecord
from fedlgd.core.types import Hello, ServerState, SiteState
from fedlgd.engines.wire import read_message, write_message


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Enrolment:
    """A site that joined: what it disclosed, what joining cost it, and what it made."""

    hello: Hello
    seconds: Mapping[str, float]
    flops: Mapping[str, int]
    flags: tuple[str, ...] = ()


class Memory(Protocol):
    """What the server remembers: in RAM for a quick run, in a directory for one that resumes.

    What a round changes counts only from `commit` on, all of it or nothing. Enrolments count one by one.
    """

    def server(self) -> ServerState | None:
        """The state after the last commit; None before the first."""
        ...

    def version(self, site: str) -> int:
        """The round of the state that this site continues from; -1 is its enrolment."""
        ...

    def enrolment(self, site: str) -> Enrolment | None:
        """What a site joined with; asked for only before the first commit."""
        ...

    def enrol(self, site: str, enrolment: Enrolment) -> None: ...

    def commit(self, state: ServerState, record: RoundRecord, versions: Mapping[str, int]) -> None:
        """The round counts now; `versions` are the states that the sites which took part continue from."""
        ...


class States(Protocol):
    """What sites remember, by the round that made it. Only a site's half of a run reads or writes it."""

    def load(self, site: str, version: int) -> SiteState: ...

    def save(self, site: str, version: int, state: SiteState, before: int) -> None:
        """Keep `state` beside the one it came from, `before`, which counts until the server commits the round."""
        ...


class Ram:
    """The server's state in this process, gone with it."""

    def __init__(self) -> None:
        self._server: ServerState | None = None
        self._versions: dict[str, int] = {}
        self._enrolments: dict[str, Enrolment] = {}

    def server(self) -> ServerState | None:
        return self._server

    def version(self, site: str) -> int:
        return self._versions.get(site, -1)

    def enrolment(self, site: str) -> Enrolment | None:
        return self._enrolments.get(site)

    def enrol(self, site: str, enrolment: Enrolment) -> None:
        self._enrolments[site] = enrolment

    def commit(self, state: ServerState, record: RoundRecord, versions: Mapping[str, int]) -> None:
        self._server, self._enrolments = state, {}
        self._versions |= versions


class RamStates:
    """Sites' states in this process, gone with it."""

    def __init__(self) -> None:
        self._kept: dict[str, dict[int, SiteState]] = {}

    def load(self, site: str, version: int) -> SiteState:
        return self._kept[site][version]

    def save(self, site: str, version: int, state: SiteState, before: int) -> None:
        older = self._kept.get(site, {})
        self._kept[site] = {v: s for v, s in older.items() if v == before} | {version: state}


class FolderStates:
    """A private folder for each site. Without a path it is temporary, for worker processes to share."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or Path(mkdtemp(prefix="fedlgd-"))
        if not path:
            weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)

    def load(self, site: str, version: int) -> SiteState:
        return read_message(self._file(site, version), SiteState)

    def save(self, site: str, version: int, state: SiteState, before: int) -> None:
        new, old = self._file(site, version), self._file(site, before)
        with writing(new):
            private_folder(self.path)
            private_folder(new.parent)
            write_message(new, state, private=True)
            for file in new.parent.glob("*.safetensors"):
                if file not in (new, old):
                    file.unlink(missing_ok=True)
            clear_parts(new.parent)

    def _file(self, site: str, version: int) -> Path:
        return self.path / safe_name(site) / f"{version_name(version)}.safetensors"


def version_name(version: int) -> str:
    """`start` for what enrolment made, else the number of the round."""
    return "start" if version < 0 else f"{version:04d}"


def safe_name(site: str) -> str:
    """A file name for a site, unique and harmless whatever the site is called."""
    if re.fullmatch(r"[a-z0-9_-]{1,40}", site) and not re.search(r"-[0-9a-f]{8}$", site) and site != "anchors":
        return site
    plain = re.sub(r"[^A-Za-z0-9_-]+", "-", site)[:40]
    return f"{plain}-{blake2b(site.encode(), digest_size=4).hexdigest()}"
