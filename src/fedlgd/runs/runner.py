"""One run from configuration to result, in memory or in a directory that resumes."""

import platform
import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fedlgd import __version__
from fedlgd.core.errors import RunError
from fedlgd.core.net import Net
from fedlgd.core.rng import Stream
from fedlgd.core.types import Params, RoundRecord, VirtualSet
from fedlgd.data.federation import Federation, pooled
from fedlgd.data.home import data_home
from fedlgd.data.registry import load
from fedlgd.distill.distribution import distil
from fedlgd.distill.shelf import shelving
from fedlgd.engines.loop import Plan, loop
from fedlgd.engines.memory import Memory, Ram
from fedlgd.methods.anchors import Pull
from fedlgd.methods.common import Training
from fedlgd.methods.fedlgd import FedLGD
from fedlgd.methods.protocol import Method, adapted, is_personal, model_at
from fedlgd.methods.registry import find
from fedlgd.nets.registry import build_net
from fedlgd.runs import files
from fedlgd.runs.config import Config, DataChoice, configure, method_name
from fedlgd.runs.shelf import FolderShelf
from fedlgd.runs.store import FORMAT, RunDirectory, check_format, locked, safe_name

Listener = Callable[[RoundRecord], None]


@dataclass(frozen=True, eq=False)
class Result:
    """What a run leaves: records of every round, the model, the anchors, and each site's virtual set.

    `personal` holds each site's own weights where a method makes some (FedBN, FedProto, local training).
    """

    records: list[RoundRecord]
    net: Net
    params: Params
    anchors: VirtualSet | None
    virtual: Mapping[str, VirtualSet]
    personal: Mapping[str, Params]

    @property
    def accuracy(self) -> dict[str, float]:
        """Accuracy on each site's test images after the last round."""
        return {name: score.accuracy for name, score in self.records[-1].scores.items()}

    @cached_property
    def model(self) -> nn.Module:
        """The trained network as an ordinary module in eval mode: images -> (features, logits)."""
        return self.net.module(self.params)


def run(
    data: Federation | str = "builtin-digits",
    method: Method | str = "fedlgd",
    *,
    rounds: int = 100,
    ratio: float = 1.0,
    seed: int = 0,
    evaluate_every: int = 1,
    net: str | Mapping[str, Any] = "convnet",
    out: str | Path | None = None,
    on_round: Listener | None = None,
) -> Result:
    """Run a method over a federation.

    `net` is a name, or {"name": "convnet", "width": 32}. With `out`, the run lives in that directory: called
    again with the same arguments it goes on where it stopped. `on_round` hears every record.
    """
    federation = load(data) if isinstance(data, str) else data
    config = Config(
        method=configure(find(method)) if isinstance(method, str) else method,
        plan=Plan(rounds=rounds, ratio=ratio, seed=seed, evaluate_every=evaluate_every),
        data=DataChoice(name=federation.name),
        net={"name": net} if isinstance(net, str) else {"name": "convnet", **net},
    )
    return execute(config, federation, Path(out) if out else None, on_round, "fedlgd.run(...)")


def execute(
    config: Config,
    federation: Federation,
    out: Path | None = None,
    on_round: Listener | None = None,
    command: str = "",
    title: str = "",
) -> Result:
    """Run `config` over `federation`; what is committed in `out` is not run again.

    `command` and `title` go into the manifest: how the run was asked for, and what a table calls it.
    """
    net = build_net(config.net["name"], federation.shape, len(federation.classes), config.net_settings)
    with ExitStack() as stack:
        memory: Memory = Ram()
        records: list[RoundRecord] = []
        if out is not None:
            stack.enter_context(_shelf())
            stack.enter_context(locked(out))
        if getattr(config.method, "pooled", False):
            federation = _pooled(config, federation, net)
        if out is not None:
            memory = directory = open_directory(out, config, federation, net, command, title)
            records = directory.records()
        for record in loop(config.method, federation, net, config.plan, memory):
            records.append(record)
            if on_round:
                on_round(record)
        return _result(records, config.method, net, federation, memory)


def _pooled(config: Config, federation: Federation, net: Net) -> Federation:
    """All sites' images at one site; or all their virtual sets, the very ones that other methods train on."""
    method, root = config.method, Stream(config.plan.seed)
    assert isinstance(method, Training)
    if method.train_on == "virtual":
        sets = {s.name: distil(s, net, method.distil, root.at("enrol", s.name, "distil")) for s in federation.sites}
        sites = tuple(replace(site, train=sets[site.name].data) for site in federation.sites)
        federation = replace(federation, sites=sites)
    return pooled(federation)


def default_folder(config: Config) -> Path:
    """runs/<data>/<method>/seed<n>-<digest of the configuration>."""
    method = safe_name(label(config.method).lower().replace(" ", "-"))
    return Path("runs", safe_name(config.data.name), method, f"seed{config.plan.seed}-{config.digest}")


def label(method: Method) -> str:
    """What a table calls this method."""
    name = type(method).__name__ + _stacked(method) + (", personalised," if is_personal(method) else "")
    settings = {f.name: getattr(method, f.name) for f in fields(method)}  # type: ignore[arg-type]
    return f"{name} on {settings['train_on']} data" if "train_on" in settings else name


def _stacked(method: Method) -> str:
    """What a method that works without anchors holds of them."""
    anchors = getattr(method, "anchors", None)
    if isinstance(method, FedLGD) or anchors is None or not anchors.per_class:
        return ""
    noise = anchors.steps == 0 and getattr(method, "pull", Pull()).weight == 0
    return " + noise images" if noise else " + anchors"


def open_directory(
    path: Path, config: Config, federation: Federation, net: Net, command: str = "", title: str = ""
) -> RunDirectory:
    """A run directory for exactly this configuration: new, or to go on in."""
    manifest, text = path / "manifest.json", config.toml()
    if (path / "state").exists():
        _check_same(path, files.read_json(manifest), text, federation)
    else:
        _check_free(path, text)
        files.write_atomic(path / "config.toml", text.encode())
        files.write_json(manifest, _manifest(config, federation, net, command, title))
        files.clear_parts(path)
    return RunDirectory(path, federation)


def _check_free(path: Path, text: str) -> None:
    """Refuse to write over anything but a run that did nothing yet."""
    ours = {".lock"}
    if (path / "manifest.json").exists() and files.read_json(path / "manifest.json"):
        ours |= {"manifest.json", "config.toml", "virtual"}
    elif (path / "config.toml").exists() and (path / "config.toml").read_bytes() == text.encode():
        ours |= {"config.toml"}
    if any(p.name not in ours and p.suffix != ".part" for p in path.iterdir()):
        raise RunError(f"{str(path)!r} holds other files and no run; choose an empty folder with --out")


def _check_same(path: Path, manifest: dict[str, Any], text: str, federation: Federation) -> None:
    """Refuse to go on in a directory that was made from something else."""
    check_format(path, manifest)
    file = path / "config.toml"
    with files.reading(file):
        stored = file.read_bytes()
        if files.digest(stored) != manifest["config"]:
            raise ValueError("it is not what the run began with")
    if stored != text.encode():
        raise RunError(
            f"{str(path)!r} holds a run with another configuration ({_first_difference(stored.decode(), text)}); "
            "use its configuration, or another folder with --out"
        )
    for name, version in _versions().items():
        if name != "python" and manifest["versions"][name] != version:
            raise RunError(
                f"{str(path)!r} was made with {name} {manifest['versions'][name]}, this is {version}: the result "
                "would be neither's; go on with that version, or start anew with --out"
            )
    if manifest["data"]["digest"] != federation.digest:
        raise RunError(
            f"the images of {federation.name!r} are not those {str(path)!r} began with; restore them, "
            "or start anew with --out"
        )
    if manifest["threads"] != torch.get_num_threads():
        warnings.warn(
            f"{path} began with {manifest['threads']} threads and goes on with {torch.get_num_threads()}: "
            "sums may differ in the last bits",
            stacklevel=2,
        )


def _first_difference(stored: str, wanted: str) -> str:
    pairs = zip_longest(stored.splitlines(), wanted.splitlines(), fillvalue="nothing")
    return next(f"there: {old}, now: {new}" for old, new in pairs if old != new)


def _versions() -> dict[str, str]:
    return {"fedlgd": __version__, "torch": torch.__version__, "python": platform.python_version()}


def _manifest(config: Config, federation: Federation, net: Net, command: str, title: str) -> dict[str, Any]:
    sites = [
        {"name": s.name, "folder": safe_name(s.name), "train": len(s.train), "test": len(s.test), "note": s.note}
        for s in federation.judges or federation.sites
    ]
    return {
        "format": FORMAT,
        "versions": _versions(),
        "threads": torch.get_num_threads(),
        "command": command,
        "config": files.digest(config.toml().encode()),
        "label": title or label(config.method),
        "variant": config.variant,
        "method": method_name(config.method),
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


def _shelf() -> AbstractContextManager[None]:
    """Distilled sets are shared by all runs of this machine that would make the same ones."""
    made_by = f"fedlgd{__version__}-torch{torch.__version__}-threads{torch.get_num_threads()}"
    try:
        folder = data_home() / "distilled" / made_by
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return nullcontext()
    return shelving(FolderShelf(folder))


def _result(records: list[RoundRecord], method: Method, net: Net, federation: Federation, memory: Memory) -> Result:
    state = memory.server()
    assert state is not None
    sites = {name: memory.site(name).virtual for name in federation.by_name}
    virtual = {name: v for name, v in sites.items() if v is not None}
    names = federation.by_name if is_personal(method) else ()
    personal = {name: model_at(method, state, partial(memory.site, name)) for name in names}
    return Result(records, adapted(method, net), state.params, state.anchors, virtual, personal)
