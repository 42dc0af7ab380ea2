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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import msgspec
import torch

from fedlgd import __version__
from fedlgd.core import files
from fedlgd.core.errors import RunError
from fedlgd.core.files import safe_name
from fedlgd.core.net import Net
from fedlgd.core.settings import flat
from fedlgd.core.text import plural
from fedlgd.core.train import Local
from fedlgd.core.types import Scale, ServerState, SiteState, mean_scale
from fedlgd.data.federation import Federation
from fedlgd.engines.loop import Loop
from fedlgd.engines.registry import Engine
from fedlgd.engines.storage import Enrolment, FolderStates
from fedlgd.engines.wire import read_message, write_message
from fedlgd.methods.common import restart_schedule
from fedlgd.methods.parts import name_of
from fedlgd.rundir.records import (
    RECORDS,
    RoundRecord,
    committed_bytes,
    committed_records,
    decode_records,
    encode_record,
)
from fedlgd.runs.config import Config
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
    manifest, text = path / "manifest.json", config.toml()
    if (path / "state").exists():
        with files.reading(manifest):
            stored = files.read_json(manifest)
            before = _check_config(path, stored, config)
            check_origin(path, stored, federation)
        if before != text.encode():
            _extend(path, stored, config, before, command)
    else:
        _check_free(path, text)
        with files.writing(path):
            files.write_atomic(path / "config.toml", text.encode())
        began = {**_manifest(config, federation, net, command, title), "engine": engine_facts(engine, federation)}
        files.write_json(manifest, began)
        clear_own_parts(path)
    scales = {name: site.train.scale for name, site in federation.by_name.items()}
    return RunDirectory(path, scales, engine.local)


def _check_free(path: Path, text: str) -> None:
    """Refuse to overwrite anything except a run that has not started."""
    ours = {".lock"}
    if (path / "manifest.json").exists() and files.read_json(path / "manifest.json"):
        ours |= {"manifest.json", "config.toml", "virtual", "real"}
    elif (path / "config.toml").exists() and (path / "config.toml").read_bytes() == text.encode():
        ours |= {"config.toml"}
    if any(p.name not in ours and p.suffix != ".part" for p in path.iterdir()):
        raise RunError(f"{str(path)!r} contains other files and no run; choose an empty folder with --out")


def _check_config(path: Path, manifest: dict[str, Any], config: Config) -> bytes:
    """Refuse to resume a run with another configuration. Returns the stored one, which can have fewer rounds."""
    check_format(path, manifest)
    file, text = path / "config.toml", config.toml()
    with files.reading(file):
        stored = file.read_bytes()
        replaced = (each["config_before"] for each in manifest.get("extended", []))
        if files.digest(stored) not in (manifest["config"], *replaced):
            raise ValueError("it has changed since the start of the run")
    before = rounds_before(stored, config)
    if before > config.plan.rounds:
        raise RunError(
            f"{str(path)!r} has a run of {plural(before, 'round')}, more than {config.plan.rounds}; use its "
            "number, or another folder with --out"
        )
    if not before:
        raise RunError(
            f"{str(path)!r} has a run with another configuration: {_differences(stored.decode(), text)}; "
            f"use the settings in {file}, or another folder with --out"
        )
    if restarts_of(config) != _expected_restarts(stored, config):
        raise RunError(
            f"{str(path)!r} has a run of {plural(before, 'round')}, which did not have the learning rates of "
            f"local.restarts={list(restarts_of(config))}; leave local.restarts out, or start a new run with --out"
        )
    return stored


def check_origin(path: Path, manifest: dict[str, Any], federation: Federation) -> None:
    """Refuse to resume a run with other data or another version; warn about another number of threads."""
    for name, version in _versions().items():
        if name != "python" and manifest["versions"][name] != version:
            raise RunError(
                f"{str(path)!r} was created with {name} {manifest['versions'][name]}, this is {version}; resume "
                "with that version, or start a new run with --out"
            )
    if manifest["data"]["digest"] != federation.digest:
        raise RunError(
            f"the images of {federation.name!r} have changed since {str(path)!r} was started; restore them, "
            "or start a new run with --out"
        )
    if manifest["threads"] != torch.get_num_threads():
        warnings.warn(
            f"{path} was started with {plural(manifest['threads'], 'thread')} and is resumed with "
            f"{torch.get_num_threads()}: the last bits of results can differ",
            stacklevel=2,
        )


def rounds_before(stored: bytes, config: Config) -> int:
    """The rounds of a stored configuration that is the same but for them and for restarts; 0 if it is not."""
    try:
        raw = tomllib.loads(stored.decode())
        same = _with_stages(config, raw["rounds"], _stored_restarts(raw)).toml().encode() == stored
    except (ValueError, LookupError, TypeError, AttributeError):
        return 0
    rounds: int = raw["rounds"]
    return rounds if same else 0


def continued(config: Config, path: Path) -> Config:
    """The configuration with which a run in this folder continues: a cosine that has ended starts again.

    A longer cosine would have other learning rates in the rounds that are done. With `local.restarts` in its
    configuration, the result is that of a run with these settings from the start.
    """
    stored = path / "config.toml"
    expected = _expected_restarts(stored.read_bytes(), config) if stored.is_file() else ()
    chosen = restarts_of(config)
    if not expected or (chosen and chosen != expected[: len(chosen)]):
        return config
    return _with_stages(config, config.plan.rounds, expected)


def _expected_restarts(stored: bytes, config: Config) -> tuple[int, ...]:
    """Those of the stored configuration, and one where it ends if `config` has more rounds."""
    before = rounds_before(stored, config)
    if not before or not _has_cosine(config):
        return ()
    more = (before,) if before < config.plan.rounds else ()
    return (*_stored_restarts(tomllib.loads(stored.decode())), *more)


def _with_stages(config: Config, rounds: int, restarts: Sequence[int]) -> Config:
    method = restart_schedule(config.method, restarts) if _has_cosine(config) else config.method
    return replace(config, plan=replace(config.plan, rounds=rounds), method=method)


def _has_cosine(config: Config) -> bool:
    local = getattr(config.method, "local", None)
    return isinstance(local, Local) and local.schedule == "cosine"


def restarts_of(config: Config) -> tuple[int, ...]:
    method: Any = config.method
    return method.local.restarts or () if _has_cosine(config) else ()


def _stored_restarts(raw: Mapping[str, Any]) -> tuple[int, ...]:
    return tuple(raw.get("local", {}).get("restarts", ()))


def _extend(path: Path, manifest: dict[str, Any], config: Config, before: bytes, command: str) -> None:
    """More rounds for a run. A crash between the two files leaves a configuration that the manifest still names."""
    after = config.toml().encode()
    if manifest["config"] != files.digest(after):
        entry = {
            "rounds_before": rounds_before(before, config),
            "rounds": config.plan.rounds,
            "after_round": len(committed_records(path)) - 1,
            "command": command,
            "config_before": files.digest(before),
        }
        extended = [*manifest.get("extended", []), entry]
        digests = {"config": files.digest(after), "variant": config.variant, "extended": extended}
        files.write_json(path / "manifest.json", manifest | digests)
    with files.writing(path):
        files.write_atomic(path / "config.toml", after)


def extension(path: Path, config: Config) -> str:
    """What happens to a run in this folder that has fewer rounds; empty if there is none."""
    file = path / "config.toml"
    before = rounds_before(file.read_bytes(), config) if file.is_file() else 0
    if not before or before >= config.plan.rounds:
        return ""
    text = f"Extending the run in {path} from {before} to {config.plan.rounds} rounds. "
    if _has_cosine(config):
        restarts = list(restarts_of(continued(config, path)))
        text += (
            f"Its cosine schedule ends at round {before}; the learning rate starts again from local.lr and falls "
            f"to 0 at round {config.plan.rounds}. This is recorded as local.restarts={restarts}. The result is not "
            f"that of one cosine over {config.plan.rounds} rounds; for that, start a new run with --out"
        )
    else:
        text += (
            "Its model, virtual sets and anchors will be those of a run with this number of rounds from the start"
        )
    if config.plan.evaluate_every:
        return f"{text}."
    return f"{text}. Evaluated rounds up to round {before} keep their own spacing."


def _differences(stored: str, wanted: str) -> str:
    """net.width is 8 there and 16 here, mu is not there and 0.1 here"""
    old, new = (dict(flat(tomllib.loads(text))) for text in (stored, wanted))
    paths = [path for path in old | new if path not in old or path not in new or old[path] != new[path]]

    def value(of: dict[str, Any], path: str) -> str:
        return repr(of[path]) if path in of else "not set"

    return ", ".join(f"{path} is {value(old, path)} there and {value(new, path)} here" for path in paths)


def engine_facts(chosen: Engine, federation: Federation) -> dict[str, int | str | bool]:
    """The entries about the engine in the manifest."""
    return {
        "name": chosen.name,
        "local": chosen.local,
        "workers": chosen.processes(federation),
        "threads": torch.get_num_threads(),
        "device": chosen.place.device,
        "autocast": chosen.place.autocast,
    }


def _versions() -> dict[str, str]:
    return {"fedlgd": __version__, "torch": torch.__version__, "python": platform.python_version()}


def _manifest(config: Config, federation: Federation, net: Net, command: str, title: str) -> dict[str, Any]:
    sites = [
        {"name": s.name, "folder": safe_name(s.name), "train": len(s.train), "test": len(s.test), "note": s.note}
        for s in federation.test_sites or federation.sites
    ]
    return {
        "format": FORMAT,
        "versions": _versions(),
        "threads": torch.get_num_threads(),
        "command": command,
        "config": files.digest(config.toml().encode()),
        "label": title or config.method.label,
        "variant": config.variant,
        "method": name_of(config.method),
        "competes": not (config.method.personal or config.method.pooled),
        "data": {
            "name": federation.name,
            "digest": federation.digest,
            "note": federation.note,
            "shape": list(federation.shape),
            "classes": list(federation.classes),
            "sites": sites,
            "prepare": msgspec.to_builtins(federation.preparation),
        },
        "net": {"label": net.label, "parameters": net.size, "flops": net.flops},
    }
