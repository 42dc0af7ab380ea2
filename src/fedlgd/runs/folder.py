"""A run folder: the memory of the server, and a separate folder for the state of each simulated site.

Real sites keep their states themselves (`local` is False): there is no `state/sites`, `real` and `analysis.json`.

    config.toml  manifest.json  records.jsonl  virtual/<version>/<site>.png  real/<site>.png  analysis.json
    state/head.json             the committed state: next round, files, length of the records
    state/server-<t>.safetensors   state/enrolled/<site>.safetensors   state/sites/<site>/<version>.safetensors

A commit appends the record and then replaces `head.json` in one atomic step. A site keeps its last two states, and
those within a round (`within-<n>`) of a method with several exchanges, so after a crash every file is either
committed or is computed again with the same bits.

`shared_cache` is the folder of virtual sets that all runs of this machine share.
"""

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Annotated

import msgspec
import torch

from fedlgd import __version__
from fedlgd.core import files
from fedlgd.core.device import Place
from fedlgd.core.errors import RunError
from fedlgd.core.files import safe_name
from fedlgd.core.homes import cache_home
from fedlgd.core.types import Cache, Cached, LabelledSet, Scale, ServerState, SiteState, VirtualSet
from fedlgd.data.prepare import mean_scale
from fedlgd.engines.storage import Enrolment, FolderStates, version_name
from fedlgd.engines.wire import read_message, write_message
from fedlgd.rundir import records
from fedlgd.rundir.records import Written
from fedlgd.rundir.results import write_class_sheet, write_sheet

DIVISOR = 3  # for anchors, whose values are not bounded: most are within 3 standard deviations of an input


def write_picture(root: Path, folder: str, virtual: VirtualSet, scale: Scale, divisor: int = 1) -> None:
    """`root/<version>/<folder>.png`; values outside the valid range are clipped in the image only."""
    file = root / version_name(virtual.round) / f"{folder}.png"
    notes = {"divided by": str(divisor)} if divisor > 1 else {}
    write_class_sheet(root, file, scale.to_pixels(virtual.images / divisor), virtual.labels, notes)


def write_samples(root: Path, folder: str, data: LabelledSet, per_class: int) -> None:
    """Write `root/<folder>.png` once: the first real images of each class of the site; missing ones are blank."""
    file = root / f"{folder}.png"
    if per_class and not file.exists():
        classes = data.y.unique().tolist()
        pixels = torch.full((len(classes), per_class, *data.x.shape[1:]), 255, dtype=torch.uint8)
        for row, k in zip(pixels, classes, strict=True):
            first = data.of_class(k)[:per_class]
            row[: len(first)] = data.pixels(first)
        write_sheet(root, file, pixels.flatten(0, 1), classes)


class DrawnStates(FolderStates):
    """States of the sites. A virtual set that changed is also written as an image."""

    def __init__(self, path: Path, pictures: Path, scales: Mapping[str, Scale]) -> None:
        super().__init__(path)
        self._pictures, self._scales = pictures, scales

    def save(self, site: str, version: int, state: SiteState, before: int) -> None:
        if state.virtual and state.virtual.round == version:
            write_picture(self._pictures, safe_name(site), state.virtual, self._scales[site])
        super().save(site, version, state, before)


HEAD_FORMAT = 2  # of state/head.json


@dataclass(frozen=True, slots=True)
class Head:
    """The content of `state/head.json`."""

    format: int
    round: int
    server: Annotated[str, msgspec.Meta(pattern=r"^server-[0-9]+\.safetensors\Z")]
    sites: dict[str, int]
    records: Written


NO_COMMIT = Head(HEAD_FORMAT, 0, "", {}, Written(0, ""))


class RunDirectory:
    """`Storage` on disk of a run with these sites. The constructor checks every file that is needed to resume."""

    def __init__(self, path: Path, scales: Mapping[str, Scale], local: bool = True) -> None:
        self.path, self._state, self._local, self._scales = path, path / "state", local, scales
        self.states = DrawnStates(self._state / "sites", path / "virtual", scales)
        self._head = self._read_head()
        committed = records.committed_bytes(path)
        self._written = hashlib.blake2b(committed, digest_size=16)
        self.records = records.decode_records(path, committed)
        self._check()

    def server(self) -> ServerState | None:
        return read_message(self._state / self._head.server, ServerState) if self._head.server else None

    def version(self, site: str) -> int:
        return self._head.sites.get(site, -1)

    def enrolment(self, site: str) -> Enrolment | None:
        file = self._enrolled(site)
        return read_message(file, Enrolment) if file.exists() else None

    def enrol(self, site: str, enrolment: Enrolment) -> None:
        write_message(self._enrolled(site), enrolment)

    def commit(self, state: ServerState, record: records.RoundRecord, versions: Mapping[str, int]) -> None:
        server = f"server-{state.round}.safetensors"
        write_message(self._state / server, state)
        if state.anchors and state.anchors.round == record.round:
            scale = state.anchors.scale or mean_scale(list(self._scales.values()))
            divisor = 1 if state.anchors.scale else DIVISOR  # those made as pictures are shown as they are
            write_picture(self.path / "virtual", "anchors", state.anchors, scale, divisor)
        line, file, before = records.encode_record(record), self.path / records.RECORDS, self._head
        with files.writing(file):
            files.append(file, line, after=before.records.bytes)
        self._written.update(line)
        written = Written(before.records.bytes + len(line), self._written.hexdigest())
        self._head = Head(HEAD_FORMAT, state.round, server, {**before.sites, **versions}, written)
        files.write_json(self._state / "head.json", msgspec.to_builtins(self._head))
        self._clear(server)

    def _enrolled(self, name: str) -> Path:
        return self._state / "enrolled" / f"{safe_name(name)}.safetensors"

    def _read_head(self) -> Head:
        file = self._state / "head.json"
        if not file.exists():
            if any(self._state.glob("server-[!0]*")) or any(self._state.glob("sites/*/0*")):
                raise RunError("head-missing", file=str(file))
            return NO_COMMIT
        head = files.read_json(file)
        with files.reading(file):
            if head["format"] != HEAD_FORMAT:
                raise RunError("head-format", path=str(self.path), format=head["format"], known=HEAD_FORMAT)
            return msgspec.convert(head, Head)

    def _check(self) -> None:
        """Read all files that are needed to resume: enrolments, server state, and the last state of each site."""
        self.server()
        for name in self._scales:
            if (self._head.server and self._local) or self._enrolled(name).exists():
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


@contextmanager
def locked_folder(path: Path) -> Iterator[None]:
    """Lock a run folder for this process."""
    with files.writing(path):
        files.make_folder(path)
        records.refuse_links(path)
        (path / ".lock").open("ab").close()
    with files.locked(path / ".lock", RunError("folder-busy", path=str(path))):
        yield


CORE = ("compile", "device", "losses", "net", "types")  # modules of core that the pixels depend on


class FolderCache(Cache):
    """A damaged item is treated as missing. An item that cannot be written is not cached."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def get(self, key: str) -> Cached | None:
        try:
            return read_message(self._file(key), Cached)
        except RunError:
            return None

    def put(self, key: str, item: Cached) -> None:
        with suppress(RunError):
            write_message(self._file(key), item, private=True)

    def _file(self, key: str) -> Path:
        return self._path / f"{key}.safetensors"


def shared_cache(place: Place = Place()) -> Cache:
    """Distilled sets are shared by all runs of this machine that would make the same ones.

    A folder belongs to one state of the source code, version of torch, and number of threads or kind of device.
    """
    by = f"threads{torch.get_num_threads()}" if place.in_memory else torch.device(place.device).type
    by += ("-bfloat16" if place.precision == "bf16" else "") + ("-compiled" if place.compile == "on" else "")
    made_by = f"fedlgd{source_digest()}-torch{torch.__version__}-{by}"
    try:
        folder = files.private_folder(files.private_folder(cache_home() / "distilled") / made_by)
        folders = list(folder.parent.iterdir())
    except OSError:
        return Cache()
    for each in folders:
        with suppress(OSError):  # gone meanwhile, or another user's
            files.clear_parts(each, files.OLD)
    return FolderCache(folder)


@cache
def source_digest() -> str:
    """A hash of the source files that compute virtual sets; the version where there are none to read."""
    root = resources.files("fedlgd")
    sources: list[bytes] = []
    with suppress(OSError):
        for folder in ("core", "distill", "dp", "nets"):
            for file in sorted((root / folder).iterdir(), key=lambda f: f.name):
                if file.name.endswith(".py") and (folder != "core" or file.name[:-3] in CORE):
                    sources += [f"{folder}/{file.name}".encode(), file.read_bytes()]
        return files.digest(*sources)[:12] if sources else __version__
    return __version__
