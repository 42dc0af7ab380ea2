"""A run directory as the memory of a federation.

    config.toml  manifest.json  records.jsonl  virtual/<version>/<site>.png  real/<site>.png  analysis.json
    state/head.json             what is committed: the next round, the files, the length of the records
    state/server-<t>.safetensors   state/sites/<site>-<t>.safetensors   state/enrolled/<site>.safetensors

A commit writes new files, appends the record, and then replaces `head.json`: the one atomic step. Whatever a
crash leaves beside it is ignored and cleared away at the next commit.
"""

import fcntl
import hashlib
import json
import math
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from fedlgd.core.errors import RunError
from fedlgd.core.records import RoundRecord
from fedlgd.core.types import ServerState, SiteState, VirtualSet
from fedlgd.data.federation import Federation
from fedlgd.engines.memory import Enrolment
from fedlgd.runs import files
from fedlgd.runs.pictures import mean_scale, write_picture

FORMAT = 1
ANCHORS = "anchors"


class RunDirectory:
    """Implements `Memory` on disk. Opening it checks every file that a resume would read."""

    def __init__(self, path: Path, federation: Federation) -> None:
        self.path = path
        self._folders = {name: safe_name(name) for name in federation.by_name}
        self._scales = {name: site.train.scale for name, site in federation.by_name.items()}
        self._staged: dict[str, str] = {}
        self._head = self._read_head()
        self._written = hashlib.blake2b(self._check_records(), digest_size=16)
        for file in self._referenced():
            files.verify(file)

    def server(self) -> ServerState | None:
        if not self._head:
            return None
        return files.read_message(self._state / self._head["server"], ServerState)

    def site(self, name: str) -> SiteState:
        file = self._head.get("sites", {}).get(name)
        if file:
            return files.read_message(self._state / file, SiteState)
        enrolment = self.enrolment(name)
        if enrolment is None:
            raise RunError(f"site {name!r} never enrolled in {str(self.path)!r}; start anew with --out")
        return enrolment.state

    def newest(self, name: str) -> SiteState:
        file = self._staged.get(name)
        return files.read_message(self._state / file, SiteState) if file else self.site(name)

    def enrolment(self, name: str) -> Enrolment | None:
        file = self._enrolled(name)
        return files.read_message(file, Enrolment) if file.exists() else None

    def enrol(self, name: str, enrolment: Enrolment) -> None:
        self._draw(name, enrolment.state.virtual)
        files.write_message(self._enrolled(name), enrolment)

    def keep(self, name: str, state: SiteState) -> None:
        t = self._head["round"]
        file = f"sites/{self._folders[name]}-{t}.safetensors"
        files.write_message(self._state / file, state)
        self._staged[name] = file
        if state.virtual and state.virtual.round == t:
            self._draw(name, state.virtual)

    def commit(self, state: ServerState, record: RoundRecord) -> None:
        server = f"server-{state.round}.safetensors"
        files.write_message(self._state / server, state)
        if state.anchors and state.anchors.round == record.round:
            self._draw_anchors(state.anchors)
        line = msgspec.json.encode(record) + b"\n"
        length = self._head["records"]["bytes"] if self._head else 0
        files.append(self._records, line, after=length)
        self._written.update(line)
        self._head = {
            "format": FORMAT,
            "round": state.round,
            "server": server,
            "sites": self._head.get("sites", {}) | self._staged,
            "records": {"bytes": length + len(line), "digest": self._written.hexdigest()},
        }
        files.write_json(self._state / "head.json", self._head)
        self._staged = {}
        self._clear_old_states()

    def records(self) -> list[RoundRecord]:
        """The committed records."""
        return [read_record(line) for line in self._check_records().splitlines()]

    @property
    def done(self) -> int:
        """Rounds committed so far."""
        return int(self._head.get("round", 0))

    @property
    def _state(self) -> Path:
        return self.path / "state"

    @property
    def _records(self) -> Path:
        return self.path / "records.jsonl"

    def _enrolled(self, name: str) -> Path:
        return self._state / "enrolled" / f"{self._folders[name]}.safetensors"

    def _read_head(self) -> dict[str, Any]:
        file = self._state / "head.json"
        if not file.exists():
            if any(self._state.glob("server-[!0]*")) or any(self._state.glob("sites/*")):
                raise RunError(f"{str(file)!r} is missing; restore it, or start anew with --out")
            return {}
        head = files.read_json(file)
        check_format(self.path, head)
        return head

    def _check_records(self) -> bytes:
        """The committed part of the records; a tail from a round that never finished is left out."""
        if not self._head:
            return b""
        with files.reading(self._records):
            content = self._records.read_bytes()[: self._head["records"]["bytes"]]
            if hashlib.blake2b(content, digest_size=16).hexdigest() != self._head["records"]["digest"]:
                raise ValueError("the records are not those that were committed")
        return content

    def _referenced(self) -> list[Path]:
        """The state files that a resume would read, and every enrolment there is."""
        found = [*self._state.glob("enrolled/[!.]*")]
        if self._head:
            sites = self._head["sites"]
            found += [self._state / name for name in (self._head["server"], *sites.values())]
            found += [self._enrolled(name) for name in self._folders if name not in sites]
        return found

    def _clear_old_states(self) -> None:
        current = set(self._referenced())
        for file in (*self._state.glob("server-*"), *self._state.glob("sites/*")):
            if file not in current:
                file.unlink(missing_ok=True)
        pictures = (self.path / "real", *self.path.glob("virtual/*"))
        for folder in (self.path, self._state, self._state / "enrolled", *pictures):
            files.clear_parts(folder)

    def _draw(self, name: str, virtual: VirtualSet | None) -> None:
        if virtual:
            write_picture(self.path / "virtual", self._folders[name], virtual, self._scales[name])

    def _draw_anchors(self, anchors: VirtualSet) -> None:
        write_picture(self.path / "virtual", ANCHORS, anchors, mean_scale(list(self._scales.values())))


def check_format(path: Path, written: dict[str, Any]) -> None:
    if written["format"] != FORMAT:
        raise RunError(
            f"{str(path)!r} has format {written['format']}, this version reads {FORMAT}; "
            "use the fedlgd version that wrote it, or start anew with --out"
        )


def safe_name(site: str) -> str:
    """A file name for a site, unique and harmless whatever the site is called."""
    if re.fullmatch(r"[a-z0-9_-]{1,40}", site) and not re.search(r"-[0-9a-f]{8}$", site) and site != ANCHORS:
        return site
    plain = re.sub(r"[^A-Za-z0-9_-]+", "-", site)[:40]
    return f"{plain}-{hashlib.blake2b(site.encode(), digest_size=4).hexdigest()}"


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """One process at a time works in a run directory; the lock ends with the process."""
    with files.saving(str(path)):
        path.mkdir(parents=True, exist_ok=True)
        handle = os.open(path / ".lock", os.O_RDWR | os.O_CREAT)
    try:
        _take(handle, path)
        yield
    finally:
        os.close(handle)


def _take(handle: int, path: Path) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise RunError(
            f"another process is working in {str(path)!r}; wait for it, or choose another folder with --out"
        ) from error


def read_record(line: bytes) -> RoundRecord:
    """JSON has no NaN and no infinity: such a loss was written as null, and is read as NaN."""
    raw = json.loads(line)
    for score in raw["scores"].values():
        score["loss"] = math.nan if score["loss"] is None else score["loss"]
    return msgspec.convert(raw, RoundRecord)
