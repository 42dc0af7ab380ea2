"""Open a run folder as a `Result`, finished or not, without the images and settings it was made from."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from torch import nn

from fedlgd.core import files
from fedlgd.core.errors import RunError, SettingError, similar_path
from fedlgd.core.net import Net
from fedlgd.data.federation import POOLED
from fedlgd.data.prepare import Preparation
from fedlgd.methods.protocol import Method
from fedlgd.nets.registry import build_net, given_net, named_net
from fedlgd.rundir.records import in_order
from fedlgd.runs.config import Config, resolve
from fedlgd.runs.folder import RunDirectory, check_format
from fedlgd.runs.parse import read_toml
from fedlgd.runs.result import Kept, Result, result_of

LISTED = 8  # runs named in an error


def open_run(
    path: str | Path,
    net: nn.Module | Callable[..., nn.Module] | None = None,
    method: Method | None = None,
) -> Result:
    """The result of a run folder. Nothing in it is changed.

    `net` and `method` are needed only for those that were given to `fedlgd.run` as Python objects and that no
    module can be imported for.
    """
    folder = Path(path).expanduser()
    manifest = manifest_of(folder)
    settings = read_toml(folder / "config.toml")
    preparation = _preparation(folder, manifest)
    config = _config(settings, method)
    built = _net(settings["net"], preparation, manifest["net"]["label"], net)
    scales = (
        {POOLED: preparation.scale()} if config.method.pooled else preparation.scales
    )  # of the sites that trained
    local = bool(manifest["engine"].get("local", True))  # real sites keep their states
    directory = RunDirectory(folder, scales, local)
    if not directory.records:
        raise RunError(
            f"{str(folder)!r} has no finished round: its command was interrupted, or refused with these settings; "
            f"to resume it, or to see what it needs: {manifest['command']}"
        )
    kept = Kept(directory, directory.states, list(scales) if local else [])
    order = [site["name"] for site in manifest["data"]["sites"]]
    records = [in_order(record, order) for record in directory.records]
    return result_of(config, config.method.adapt(built), kept, records, preparation, folder)


def manifest_of(folder: Path) -> dict[str, Any]:
    """The manifest of a run folder that this version can read; anything else is refused."""
    _check_run(folder)
    manifest = files.read_json(folder / "manifest.json")
    check_format(folder, manifest)
    return manifest


def _check_run(folder: Path) -> None:
    if not folder.exists():
        hint = similar_path(folder, folders_only=True) or "; fedlgd run prints the folder of a run"
        raise RunError(f"there is no run folder {str(folder)!r}{hint}")
    if not (folder / "manifest.json").is_file():
        inside = sorted({file.parent for file in folder.rglob("manifest.json")})[:LISTED] if folder.is_dir() else []
        hint = f"; runs in it: {', '.join(map(str, inside))}" if inside else "; a run folder contains manifest.json"
        raise RunError(f"{str(folder)!r} is not a run folder{hint}")
    files.refuse_links(folder)


def _preparation(folder: Path, manifest: dict[str, Any]) -> Preparation:
    with files.reading(folder / "manifest.json"):
        if "prepare" not in manifest["data"]:
            raise RunError(
                f"{str(folder)!r} was made by a version of fedlgd that did not store how images are prepared; "
                f"make the run again: {manifest['command']} --out NEW"
            )
        return msgspec.convert(manifest["data"]["prepare"], Preparation)


def _config(settings: dict[str, Any], method: Method | None) -> Config:
    """The configuration without data and network, which need not be there any more."""
    rest = {name: value for name, value in settings.items() if name not in ("data", "net")}
    if method is not None:
        return Config(method=method, plan=resolve({"rounds": rest["rounds"], "seed": rest["seed"]}).plan)
    try:
        return resolve(rest)
    except SettingError as error:
        raise RunError(f"{error}; in Python, pass the method: fedlgd.open_run(path, method=...)") from error


def _net(settings: dict[str, Any], preparation: Preparation, label: str, given: Any) -> Net:
    shape, classes = preparation.shape, len(preparation.classes)
    if given is not None:
        net = given_net(given, shape, classes, named_net(given, settings.get("features", "")))
    else:
        net = build_net(settings["name"], shape, classes, {k: v for k, v in settings.items() if k != "name"})
    if net.label != label:
        raise RunError(
            f"the network of this run is {label!r}, but this is {net.label!r}: its source has changed; restore it"
        )
    return net


def how_to_go_on(result: Result, command: str) -> str:
    """The commands for more rounds, a report and predictions."""
    folder, finished = result.folder, result.rounds >= result.planned
    more = 2 * result.planned if finished else result.planned
    verb = "More rounds" if finished else "Finish"
    run = f"fedlgd run --config {folder}/config.toml --out {folder}" + (f" --rounds {more}" if finished else "")
    if command.startswith("fedlgd.run"):
        run = f"fedlgd.run(..., rounds={more}, out={str(folder)!r}) with the same other arguments"
    site = " --site SITE" if result.personal else ""
    return f"{verb}: {run}\nPredict: fedlgd predict {folder} IMAGE...{site}"
