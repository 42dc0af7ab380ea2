"""A run folder: the memory of the server, and a separate folder for the state of each simulated site.

Real sites keep their states themselves (`local` is False): there is no `state/sites`, `real` and `analysis.json`.

    config.toml  manifest.json  records.jsonl  virtual/<version>/<site>.png  real/<site>.png  analysis.json
    state/head.json             the committed state: next round, files, length of the records
    state/server-<t>.safetensors   state/enrolled/<site>.safetensors   state/sites/<site>/<version>.safetensors

A commit appends the record and then replaces `head.json` in one atomic step. A site keeps its last two states, so
after a crash every file is either committed or is computed again with the same bits.
"""

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec

from fedlgd.core import files
from fedlgd.core.errors import RunError
from fedlgd.core.files import safe_name
from fedlgd.core.types import Scale, ServerState, SiteState, mean_scale
from fedlgd.engines.storage import Enrolment, FolderStates
from fedlgd.engines.wire import read_message, write_message
from fedlgd.rundir.records import RECORDS, RoundRecord, committed_bytes, decode_records, encode_record
from fedlgd.runs.contact_sheets import DIVISOR, write_picture

FORMAT = 2


class DrawnStates(FolderStates):
    """States of the sites. A virtual set that changed is also written as an image."""

    def __init__(self, path: Path, pictures: Path, scales: Mapping[str, Scale]) -> None:
        super().__init__(path)
        self._pictures, self._scales = pictures, scales

    def save(self, site: str, version: int, state: SiteState, before: int) -> None:
        if state.virtual and state.virtual.round == version:
            write_picture(self._pictures, safe_name(site), state.virtual, self._scales[site])
        super().save(site, version, state, before)


@dataclass(frozen=True, slots=True)
class Written:
    """The committed part of the records."""

    bytes: Annotated[int, msgspec.Meta(ge=0)]
    digest: str


@dataclass(frozen=True, slots=True)
class Head:
    """The content of `state/head.json`."""

    format: int
    round: int
    server: Annotated[str, msgspec.Meta(pattern=r"^server-[0-9]+\.safetensors\Z")]
    sites: dict[str, int]
    records: Written


class RunDirectory:
    """`Memory` on disk of a run with these sites. The constructor checks every file that is needed to resume."""

    def __init__(self, path: Path, scales: Mapping[str, Scale], local: bool = True) -> None:
        self.path, self._state, self._local = path, path / "state", local
        self._names, self._scales = list(scales), scales
        self.states = DrawnStates(self._state / "sites", path / "virtual", self._scales)
        self._head = self._read_head()
        committed = committed_bytes(path)
        self._written = hashlib.blake2b(committed, digest_size=16)
        self.records = decode_records(path, committed)
        self._check()

    def server(self) -> ServerState | None:
        return read_message(self._state / self._head["server"], ServerState) if self._head else None

    def version(self, site: str) -> int:
        return int(self._head.get("sites", {}).get(site, -1))

    def enrolment(self, site: str) -> Enrolment | None:
        file = self._enrolled(site)
        return read_message(file, Enrolment) if file.exists() else None

    def enrol(self, site: str, enrolment: Enrolment) -> None:
        write_message(self._enrolled(site), enrolment)

    def commit(self, state: ServerState, record: RoundRecord, versions: Mapping[str, int]) -> None:
        server = f"server-{state.round}.safetensors"
        write_message(self._state / server, state)
        if state.anchors and state.anchors.round == record.round:
            scale = state.anchors.scale or mean_scale(list(self._scales.values()))
            divisor = 1 if state.anchors.scale else DIVISOR  # those made as pictures are shown as they are
            write_picture(self.path / "virtual", "anchors", state.anchors, scale, divisor)
        line = encode_record(record)
        length = self._head["records"]["bytes"] if self._head else 0
        with files.writing(self.path / RECORDS):
            files.append(self.path / RECORDS, line, after=length)
        self._written.update(line)
        self._head = {
            "format": FORMAT,
            "round": state.round,
            "server": server,
            "sites": self._head.get("sites", {}) | versions,
            "records": {"bytes": length + len(line), "digest": self._written.hexdigest()},
        }
        files.write_json(self._state / "head.json", self._head)
        self._clear(server)

    def _enrolled(self, name: str) -> Path:
        return self._state / "enrolled" / f"{safe_name(name)}.safetensors"

    def _read_head(self) -> dict[str, Any]:
        file = self._state / "head.json"
        if not file.exists():
            if any(self._state.glob("server-[!0]*")) or any(self._state.glob("sites/*/0*")):
                raise RunError(f"{str(file)!r} is missing; restore it, or start a new run with --out")
            return {}
        head = files.read_json(file)
        with files.reading(file):
            check_format(self.path, head)
            msgspec.convert(head, Head)
        return head

    def _check(self) -> None:
        """Read all files that are needed to resume: enrolments, server state, and the last state of each site."""
        self.server()
        for name in self._names:
            if (self._head and self._local) or self._enrolled(name).exists():
                read_message(self._enrolled(name), Enrolment)
                if self._local:
                    self.states.load(name, self.version(name))

    def _clear(self, server: str) -> None:
        for file in self._state.glob("server-*"):
            if file.name != server:
                file.unlink(missing_ok=True)
        clear_own_parts(self.path)
        pictures = (self.path / "real", *self.path.glob("virtual/*"))
        for folder in (self._state, self._state / "enrolled", *pictures):
            files.clear_parts(folder)


def clear_own_parts(path: Path) -> None:
    """In the run folder itself another process can write a report at the same time: its part is not ours."""
    for of in ("*.toml.*", "*.json.*"):
        files.clear_parts(path, of=of)


def check_format(path: Path, written: dict[str, Any]) -> None:
    if written["format"] != FORMAT:
        raise RunError(
            f"{str(path)!r} has format {written['format']}, this version resumes format {FORMAT}; "
            "use the fedlgd version that wrote it, or start a new run with --out"
        )


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Lock a run folder for this process."""
    busy = f"another process uses {str(path)!r}; wait until it has finished, or choose another folder with --out"
    with files.writing(path):
        files.make_folder(path)
        files.refuse_links(path)
        (path / ".lock").open("ab").close()
    with files.locked(path / ".lock", RunError(busy)):
        yield
