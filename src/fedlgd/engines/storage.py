"""Storage: of the server and of each site between rounds, and of the updates of one round."""

import shutil
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile, mkdtemp
from typing import Protocol

from fedlgd.core.device import to_device
from fedlgd.core.files import clear_parts, private_folder, safe_name, writing
from fedlgd.core.meter import Spent
from fedlgd.core.types import Hello, ServerState, SiteState, Update
from fedlgd.engines.wire import from_bytes, nbytes, read_message, to_bytes, write_message
from fedlgd.rundir.records import RoundRecord

MAX_BYTES_IN_RAM = 16 << 20  # updates of a round that are larger together are stored in a file


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Enrolment(Spent):
    """The enrolment of a site: its `Hello`, its cost, and flags."""

    hello: Hello
    flags: tuple[str, ...] = ()


class Storage(Protocol):
    """Storage of the server: in RAM, or in a run folder that can be resumed.

    `commit` stores all changes of a round atomically. Enrolments are stored one by one.
    """

    def server(self) -> ServerState | None:
        """The state after the last commit; None before the first."""
        ...

    def version(self, site: str) -> int:
        """The round of the state that this site continues from; -1 is its enrolment."""
        ...

    def enrolment(self, site: str) -> Enrolment | None:
        """The enrolment of a site: the last that was valid; None: it has none."""
        ...

    def enrol(self, site: str, enrolment: Enrolment) -> None: ...

    def commit(self, state: ServerState, record: RoundRecord, versions: Mapping[str, int]) -> None:
        """Commit a round; `versions` are the rounds of the states that the sampled sites continue from."""
        ...


class States(Protocol):
    """Storage of site states by round. Only the sites' half of a run reads or writes it."""

    def load(self, site: str, version: int) -> SiteState: ...

    def has(self, site: str, version: int) -> bool: ...

    def save(self, site: str, version: int, state: SiteState, before: int) -> None:
        """Store `state` and keep its predecessor `before`, which is valid until the server commits the round.

        If `before` is itself a state within the round, its predecessors are kept, too.
        """
        ...


class RamStorage:
    """The server's state in memory."""

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
        self._server = state
        self._versions |= versions


class RamStates:
    """Site states in memory."""

    def __init__(self) -> None:
        self._kept: dict[str, dict[int, SiteState]] = {}

    def load(self, site: str, version: int) -> SiteState:
        return self._kept[site][version]

    def has(self, site: str, version: int) -> bool:
        return version in self._kept.get(site, {})

    def save(self, site: str, version: int, state: SiteState, before: int) -> None:
        older, within = self._kept.get(site, {}), before < -1
        self._kept[site] = {v: s for v, s in older.items() if v == before or within} | {version: state}


class FolderStates:
    """A private folder for each site; a temporary folder without `path`. Worker processes share it."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or Path(mkdtemp(prefix="fedlgd-"))
        if not path:
            weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)

    def load(self, site: str, version: int) -> SiteState:
        return read_message(self._file(site, version), SiteState)

    def has(self, site: str, version: int) -> bool:
        return self._file(site, version).exists()

    def save(self, site: str, version: int, state: SiteState, before: int) -> None:
        new, old = self._file(site, version), self._file(site, before)
        with writing(new):
            private_folder(self.path)
            private_folder(new.parent)
            write_message(new, state, private=True)
            for file in new.parent.glob("*.safetensors"):
                if file not in (new, old) and before >= -1:
                    file.unlink(missing_ok=True)
            clear_parts(new.parent)

    def _file(self, site: str, version: int) -> Path:
        return self.path / safe_name(site) / f"{version_name(version)}.safetensors"


def version_after(round: int, exchange: int, exchanges: int) -> int:
    """The version of a site's state after an exchange: the round after its last one, else a number below -1.

    A state within a round is never committed. After a crash the round begins again from the one before it.
    """
    return round if exchange >= exchanges - 1 else -2 - round * exchanges - exchange


def version_name(version: int) -> str:
    """`start` for the enrolment, `within-...` for a state within a round, otherwise the number of the round."""
    return "start" if version == -1 else f"{version:04d}" if version >= 0 else f"within-{-2 - version:04d}"


class Inbox:
    """Updates are added in any order and are read in the order of `names`, any number of times."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._held: dict[str, Update] = {}
        self._filed: dict[str, tuple[int, int]] = {}
        self._file = TemporaryFile()  # noqa: SIM115

    def add(self, update: Update) -> None:
        if len(self._names) * nbytes(update) <= MAX_BYTES_IN_RAM:
            self._held[update.site] = update
            return
        content = to_bytes(update)
        self._filed[update.site] = self._file.seek(0, 2), len(content)
        self._file.write(content)

    def arrived(self) -> list[str]:
        """The sites whose updates are here."""
        return [name for name in self._names if name in self._held or name in self._filed]

    def __iter__(self) -> Iterator[Update]:
        for name in self._names:
            if name in self._held:
                yield to_device(self._held[name])
            elif name in self._filed:
                start, length = self._filed[name]
                self._file.seek(start)
                yield to_device(from_bytes(Update, self._file.read(length)))

    def __enter__(self) -> "Inbox":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
