"""Tiny runs in folders, and what is in such a folder, read without the code that wrote it."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from safetensors.numpy import load

from fedlgd.core.files import safe_name
from fedlgd.core.types import Params
from fedlgd.data.federation import Federation
from fedlgd.data.suites import DataChoice
from fedlgd.engines.storage import version_after, version_name
from fedlgd.methods import registry
from fedlgd.rundir.records import RoundRecord
from fedlgd.runs.config import Config, RunSettings
from fedlgd.runs.run import Listener, Result, execute
from tests import tiny

ROUNDS = 3
NET = {"name": "convnet", "depth": 2, "width": tiny.WIDTH}
FAST_NET = {"name": "tests.nets.own:Linear"}


def method(name: str, **settings: Any) -> Any:
    """A method by its whole name with all that makes it slow turned down, and nothing turned on that is off."""
    recipe = registry.recipe(name)
    plain = recipe.settings()
    on = {path for path, value in _leaves(asdict(plain)) if value != 0}
    slow = {k: v for k, v in (tiny.SETTINGS | tiny.FEDLGD).items() if k in on}
    return tiny.settings(recipe.make(plain), slow | settings)


def _leaves(raw: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in raw.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def config(of: Any, rounds: int = ROUNDS, net: Mapping[str, Any] = NET, **plan: Any) -> Config:
    """Without what only a report reads, unless asked for."""
    plan = {"analysis": False, "real_samples": 0} | plan
    return Config(method=of, plan=RunSettings(rounds=rounds, **plan), data=DataChoice(name="tiny"), net=net)


@dataclass
class Stopped(Exception):  # noqa: N818
    """Raised to interrupt a run after this record."""

    record: RoundRecord


def stop_after(round: int) -> Listener:
    def listener(record: RoundRecord) -> None:
        if record.round == round:
            raise Stopped(record)

    return listener


def run_until(round: int, how: Config, data: Federation, out: Path) -> None:
    """Run and be interrupted after this round."""
    try:
        execute(how, data, out, stop_after(round))
    except Stopped:
        return
    raise AssertionError(f"the run went on after round {round}")


def message(file: Path) -> dict[str, Any]:
    """Tensors as kind, shape and bytes, plain values as they are; how long it took is left out."""
    content = file.read_bytes()
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])["__metadata__"]
    tensors = {name: (str(a.dtype), a.shape, a.tobytes()) for name, a in load(content).items()}
    return {"tensors": tensors, "plain": _timeless(json.loads(header["plain"]))}


def records(folder: Path) -> list[dict[str, Any]]:
    return [_timeless(json.loads(line)) for line in (folder / "records.jsonl").read_text().splitlines()]


def _timeless(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key not in ("wall", "seconds", "cpu")}


def head(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "state" / "head.json").read_text())


def everything(folder: Path) -> dict[str, Any]:
    """All a run leaves, except how long things took and what a crash may leave until the next commit."""
    committed = head(folder)
    state = folder / "state"
    return {
        "round": committed["round"],
        "sites": committed["sites"],
        "server": message(state / committed["server"]),
        "states": {str(file.relative_to(state)): message(file) for file in _continued(folder)},
        "enrolled": {file.name: message(file) for file in sorted(state.glob("enrolled/[!.]*"))},
        "records": records(folder),
        "pictures": {str(file.relative_to(folder)): file.read_bytes() for file in folder.glob("virtual/*/[!.]*")},
        "config": (folder / "config.toml").read_text(),
    }


def _continued(folder: Path) -> list[Path]:
    """The state that each site continues from: the one that the head names, or that of its enrolment."""
    versions = {safe_name(site): version for site, version in head(folder)["sites"].items()}
    return [
        site / f"{version_name(versions.get(site.name, -1))}.safetensors"
        for site in sorted((folder / "state" / "sites").iterdir())
    ]


def leftovers(folder: Path, exchanges: int = 1) -> list[str]:
    """Files that no resume would read and no reader would look at, but for the one state that every site keeps
    from before, and those within the last round it took part in."""
    state = folder / "state"
    servers = {p.name for p in state.glob("server-*")} - {head(folder)["server"]}
    extra: list[str] = []
    for current in _continued(folder):
        others = sorted({*current.parent.iterdir()} - {current, *_within(current, exchanges)})
        extra += [str(p) for p in others if p != others[-1] or _after(p, current)]
    return sorted({*servers, *extra, *(str(p) for p in folder.rglob("*.part"))})


def _within(current: Path, exchanges: int) -> list[Path]:
    """The states within the round that this state was made in."""
    if current.stem == "start":
        return []
    versions = [version_after(int(current.stem), exchange, exchanges) for exchange in range(exchanges - 1)]
    return [current.with_stem(version_name(version)) for version in versions]


def _after(file: Path, current: Path) -> bool:
    """Was this state made in a later round, or within another one?"""
    if file.stem == "start":
        return False
    return current.stem == "start" or not file.stem.isdecimal() or int(file.stem) > int(current.stem)


def snapshot(folder: Path) -> dict[str, bytes]:
    """Every file but the lock, byte by byte."""
    return {
        str(p.relative_to(folder)): p.read_bytes()
        for p in sorted(folder.rglob("*"))
        if p.is_file() and p.name != ".lock"
    }


def _bytes(params: Params) -> dict[str, bytes]:
    return {name: t.numpy().tobytes() for name, t in params.items()}


def as_plain(result: Result) -> dict[str, Any]:
    """A result in a form that can be compared bit by bit."""
    sets = {"anchors": result.anchors, **result.virtual}
    return {
        "records": tiny.without_seconds(result.records),
        "params": _bytes(result.params),
        "personal": {site: _bytes(params) for site, params in result.personal.items()},
        "sets": {
            k: (v.images.numpy().tobytes(), v.labels.tolist(), v.origin, v.round) for k, v in sets.items() if v
        },
    }
