"""The manifest of a run: written at the start, checked before the run is resumed."""

import platform
import warnings
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch

from fedlgd import __version__
from fedlgd.core import files
from fedlgd.core.errors import RunError
from fedlgd.core.files import safe_name
from fedlgd.core.net import Net
from fedlgd.data.federation import Federation
from fedlgd.engines.loop import Loop
from fedlgd.engines.registry import Engine, facts
from fedlgd.methods.parts import name_of
from fedlgd.runs.config import Config
from fedlgd.runs.store import FORMAT, RunDirectory, check_format


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
            _check_same(path, files.read_json(manifest), text, federation)
    else:
        _check_free(path, text)
        with files.writing(path):
            files.write_atomic(path / "config.toml", text.encode())
        began = {**_manifest(config, federation, net, command, title), "engine": facts(engine, federation)}
        files.write_json(manifest, began)
        files.clear_parts(path)
    return RunDirectory(path, federation)


def _check_free(path: Path, text: str) -> None:
    """Refuse to overwrite anything except a run that has not started."""
    ours = {".lock"}
    if (path / "manifest.json").exists() and files.read_json(path / "manifest.json"):
        ours |= {"manifest.json", "config.toml", "virtual", "real"}
    elif (path / "config.toml").exists() and (path / "config.toml").read_bytes() == text.encode():
        ours |= {"config.toml"}
    if any(p.name not in ours and p.suffix != ".part" for p in path.iterdir()):
        raise RunError(f"{str(path)!r} contains other files and no run; choose an empty folder with --out")


def _check_same(path: Path, manifest: dict[str, Any], text: str, federation: Federation) -> None:
    """Refuse to resume a run with another configuration, other data or another version."""
    check_format(path, manifest)
    file = path / "config.toml"
    with files.reading(file):
        stored = file.read_bytes()
        if files.digest(stored) != manifest["config"]:
            raise ValueError("it has changed since the start of the run")
    if stored != text.encode():
        raise RunError(
            f"{str(path)!r} has a run with another configuration ({_first_difference(stored.decode(), text)}); "
            "use its configuration, or another folder with --out"
        )
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
            f"{path} was started with {manifest['threads']} threads and is resumed with {torch.get_num_threads()}: "
            "the last bits of results can differ",
            stacklevel=2,
        )


def _first_difference(stored: str, wanted: str) -> str:
    pairs = zip_longest(stored.splitlines(), wanted.splitlines(), fillvalue="nothing")
    return next(f"stored: {old}, now: {new}" for old, new in pairs if old != new)


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
        },
        "net": {"label": net.label, "parameters": net.size, "flops": net.flops},
    }
