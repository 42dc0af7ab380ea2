"""A run folder: the memory of the server, and a separate folder for the state of each simulated site.

Real sites keep their states themselves (`local` is False): there is no `state/sites`, `real` and `analysis.json`.

    config.toml  manifest.json  records.jsonl  virtual/<version>/<site>.png  real/<site>.png  analysis.json
    state/head.json             the committed state: next round, files, length of the records
    state/server-<t>.safetensors   state/enrolled/<site>.safetensors   state/sites/<site>/<version>.safetensors

A commit appends the record and then replaces `head.json` in one atomic step. A site keeps its last two states, so
after a crash every file is either committed or is computed again with the same bits.
"""

import hashlib
import platform
import tomllib
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import msgspec
import torch
from torch import Tensor

from fedlgd import __version__
from fedlgd.core import files
from fedlgd.core.errors import RunError
from fedlgd.core.files import safe_name
from fedlgd.core.net import Net
from fedlgd.core.settings import flat
from fedlgd.core.text import plural
from fedlgd.core.train import Local
from fedlgd.core.types import LabelledSet, Scale, ServerState, SiteState, VirtualSet, mean_scale
from fedlgd.data.federation import Federation
from fedlgd.engines.loop import Loop
from fedlgd.engines.registry import Engine
from fedlgd.engines.storage import Enrolment, FolderStates, version_name
from fedlgd.engines.wire import read_message, write_message
from fedlgd.methods.parts import name_of
from fedlgd.methods.protocol import Method
from fedlgd.rundir import manifest as info
from fedlgd.rundir.contact_sheet import write_sheet
from fedlgd.rundir.manifest import MANIFEST, Manifest, read_manifest
from fedlgd.rundir.records import (
    RECORDS,
    RoundRecord,
    committed_bytes,
    committed_records,
    decode_records,
    encode_record,
)
from fedlgd.runs.config import Config
from fedlgd.runs.extend import expected_restarts, restarts_of, rounds_before

DIVISOR = 3  # for anchors, whose values are not bounded: most are within 3 standard deviations of an input


def write_picture(root: Path, folder: str, virtual: VirtualSet, scale: Scale, divisor: int = 1) -> None:
    """`root/<version>/<folder>.png`; values outside the valid range are clipped in the image only."""
    file = root / version_name(virtual.round) / f"{folder}.png"
    notes = {"divided by": str(divisor)} if divisor > 1 else {}
    write_sheet(root, file, scale.to_pixels(virtual.images / divisor), virtual.labels.unique().tolist(), notes)


def write_samples(root: Path, folder: str, data: LabelledSet, per_class: int) -> None:
    """Write `root/<folder>.png` once: the first real images of each class of the site; missing ones are blank."""
    file = root / f"{folder}.png"
    if per_class and not file.exists():
        classes = data.y.unique().tolist()
        write_sheet(root, file, torch.cat([_first(data, k, per_class) for k in classes]), classes)


def _first(data: LabelledSet, k: int, count: int) -> Tensor:
    pixels = data.pixels(data.of_class(k)[:count])
    return torch.cat([pixels, pixels.new_full((count - len(pixels), *pixels.shape[1:]), 255)])


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
    """`Storage` on disk of a run with these sites. The constructor checks every file that is needed to resume."""

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
            "format": HEAD_FORMAT,
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
                raise RunError("head-missing", file=str(file))
            return {}
        head = files.read_json(file)
        with files.reading(file):
            if head["format"] != HEAD_FORMAT:
                raise RunError("head-format", path=str(self.path), format=head["format"], known=HEAD_FORMAT)
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


@contextmanager
def locked_folder(path: Path) -> Iterator[None]:
    """Lock a run folder for this process."""
    with files.writing(path):
        files.make_folder(path)
        files.refuse_links(path)
        (path / ".lock").open("ab").close()
    with files.locked(path / ".lock", RunError("folder-busy", path=str(path))):
        yield


def open_directory(
    path: Path,
    config: Config,
    federation: Federation,
    net: Net,
    command: str = "",
    title: str = "",
    engine: Engine = Loop(),
) -> RunDirectory:
    """A run folder for this configuration: a new one, or an existing one to resume."""
    text = config.toml()
    if (path / "state").exists():
        stored = read_manifest(path)
        before = _check_config(path, stored, config)
        check_origin(path, stored, federation)
        if before != text.encode():
            _extend(path, stored, config, before, command)
    else:
        _check_free(path, text)
        with files.writing(path):
            files.write_atomic(path / "config.toml", text.encode())
        new_manifest(config, federation, net, command, title, engine).write(path)
        clear_own_parts(path)
    scales = {name: site.train.scale for name, site in federation.by_name.items()}
    return RunDirectory(path, scales, engine.local)


def _check_free(path: Path, text: str) -> None:
    """Refuse to overwrite anything except a run that has not started."""
    ours = {".lock"}
    if (path / MANIFEST).exists() and files.read_json(path / MANIFEST):
        ours |= {MANIFEST, "config.toml", "virtual", "real"}
    elif (path / "config.toml").exists() and (path / "config.toml").read_bytes() == text.encode():
        ours |= {"config.toml"}
    if any(p.name not in ours and p.suffix != ".part" for p in path.iterdir()):
        raise RunError("folder-not-empty", path=str(path))


def _check_config(path: Path, manifest: Manifest, config: Config) -> bytes:
    """Refuse to resume a run with another configuration. Returns the stored one, which can have fewer rounds."""
    file, text = path / "config.toml", config.toml()
    with files.reading(file):
        stored = file.read_bytes()
        replaced = (each.config_before for each in manifest.extended)
        if files.digest(stored) not in (manifest.config, *replaced):
            raise ValueError("it has changed since the start of the run")
    before = rounds_before(stored, config)
    if before > config.plan.rounds:
        raise RunError("more-rounds-done", path=str(path), before=before, rounds=config.plan.rounds)
    if not before:
        differences = _differences(stored.decode(), text)
        raise RunError("other-configuration", path=str(path), differences=differences, file=str(file))
    if restarts_of(config) != expected_restarts(stored, config):
        raise RunError("other-restarts", path=str(path), before=before, restarts=list(restarts_of(config)))
    return stored


def check_origin(path: Path, manifest: Manifest, federation: Federation) -> None:
    """Refuse to resume a run with other data or another version; warn about another number of threads."""
    for name, version in _versions().items():
        if name != "python" and manifest.versions.get(name) != version:
            made_with = manifest.versions.get(name)
            raise RunError("other-version", path=str(path), name=name, made_with=made_with, version=version)
    if manifest.data.digest != federation.digest:
        raise RunError("images-changed", data=federation.name, path=str(path))
    if manifest.threads != torch.get_num_threads():
        warnings.warn(
            f"{path} was started with {plural(manifest.threads, 'thread')} and is resumed with "
            f"{torch.get_num_threads()}: the last bits of results can differ",
            stacklevel=2,
        )


def _extend(path: Path, manifest: Manifest, config: Config, before: bytes, command: str) -> None:
    """More rounds for a run. A crash between the two files leaves a configuration that the manifest still names."""
    after = config.toml().encode()
    if manifest.config != files.digest(after):
        entry = info.Extension(
            rounds_before=rounds_before(before, config),
            rounds=config.plan.rounds,
            after_round=len(committed_records(path)) - 1,
            command=command,
            config_before=files.digest(before),
        )
        extended = (*manifest.extended, entry)
        replace(manifest, config=files.digest(after), variant=config.variant, extended=extended).write(path)
    with files.writing(path):
        files.write_atomic(path / "config.toml", after)


def _differences(stored: str, wanted: str) -> str:
    """net.width is 8 there and 16 here, mu is not there and 0.1 here"""
    old, new = (dict(flat(tomllib.loads(text))) for text in (stored, wanted))
    paths = [path for path in old | new if path not in old or path not in new or old[path] != new[path]]

    def value(of: dict[str, Any], path: str) -> str:
        return repr(of[path]) if path in of else "not set"

    return ", ".join(f"{path} is {value(old, path)} there and {value(new, path)} here" for path in paths)


def new_manifest(
    config: Config, federation: Federation, net: Net, command: str = "", title: str = "", engine: Engine = Loop()
) -> Manifest:
    """What a run with this configuration knows about itself before it starts."""
    method = config.method
    return Manifest(
        versions=_versions(),
        threads=torch.get_num_threads(),
        command=command,
        config=files.digest(config.toml().encode()),
        label=title or method.label,
        variant=config.variant,
        method=_method_info(method, net),
        promise=promise_of(method),
        competes=not (method.personal or method.pooled),
        data=_data_info(federation, getattr(method, "local", None)),
        net=info.NetInfo(label=net.label, parameters=net.size, flops=net.flops),
        engine=engine_info(engine, federation),
    )


def promise_of(method: Method) -> info.Promise | None:
    """What a method promises about privacy; a run without a promise does not enter `fedlgd.dp`."""
    if method.budget is None:
        return None
    from fedlgd.dp.budget import promise_with

    return promise_with(method)


def engine_info(engine: Engine, federation: Federation) -> info.EngineInfo:
    return info.EngineInfo(
        name=engine.name,
        local=engine.local,
        workers=engine.processes(federation),
        threads=torch.get_num_threads(),
        device=engine.place.device,
        autocast=engine.place.autocast,
    )


def _method_info(method: Method, net: Net) -> info.MethodInfo:
    uploads = method.expects_hello(method.adapt(net)).statistics is not None
    selected = {part: info.Rounds(each.start, each.step, len(each)) for part, each in method.schedule.items()}
    return info.MethodInfo(
        name=name_of(method),
        label=method.label,
        train_on=method.train_on,
        selected=selected,
        hello=("counts", "statistics") if uploads else ("counts",),
        update=method.sends,
    )


def _data_info(federation: Federation, local: object) -> info.DataInfo:
    """`local`: how sites train, if the method has such settings."""
    sites = (
        info.SiteInfo(
            name=site.name,
            folder=safe_name(site.name),
            train=len(site.train),
            test=len(site.test),
            note=site.note,
            real_work=local.images(len(site.train)) if isinstance(local, Local) else None,
        )
        for site in federation.test_sites or federation.sites
    )
    return info.DataInfo(
        name=federation.name,
        digest=federation.digest,
        note=federation.note,
        shape=federation.shape,
        classes=tuple(federation.classes),
        sites=tuple(sites),
        prepare=msgspec.to_builtins(federation.preparation),
    )


def _versions() -> dict[str, str]:
    return {"fedlgd": __version__, "torch": str(torch.__version__), "python": platform.python_version()}
