"""The manifest of a run: written at the start, checked before the run is resumed."""

import platform
import tomllib
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

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
from fedlgd.data.federation import Federation
from fedlgd.engines.loop import Loop
from fedlgd.engines.registry import Engine
from fedlgd.methods.common import restarted
from fedlgd.methods.parts import name_of
from fedlgd.rundir.records import committed_records
from fedlgd.runs.config import Config
from fedlgd.runs.folder import FORMAT, RunDirectory, check_format, clear_own_parts


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
    method = restarted(config.method, restarts) if _has_cosine(config) else config.method
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
