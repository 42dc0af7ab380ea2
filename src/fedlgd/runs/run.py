"""One run from configuration to result, in memory or in a run folder that can be resumed."""

from collections.abc import Callable, Mapping
from contextlib import closing, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from fedlgd.core.device import Compile, Place, Precision
from fedlgd.core.errors import SettingError, did_you_mean
from fedlgd.core.net import Net
from fedlgd.core.types import Stream
from fedlgd.data.federation import Federation, pooled
from fedlgd.data.suites import load
from fedlgd.engines import registry as engines
from fedlgd.engines.registry import Loop
from fedlgd.engines.storage import RamStorage, Storage
from fedlgd.methods.common import Training, enrol, training_set
from fedlgd.methods.protocol import Method
from fedlgd.nets.registry import named_net
from fedlgd.rundir.records import RoundRecord, in_order
from fedlgd.runs.analysis import Sources, report_files
from fedlgd.runs.config import Config, RunSettings, configure, on_federation
from fedlgd.runs.folder import locked_folder, shared_cache
from fedlgd.runs.place import settle_place
from fedlgd.runs.result import Kept, Result, result_of
from fedlgd.runs.resume import continued, open_directory

Listener = Callable[[RoundRecord], None]
NetObject = nn.Module | Callable[..., nn.Module]


def run(
    data: Federation | str = "builtin-digits",
    method: Method | str = "fedlgd",
    *,
    rounds: int = 100,
    ratio: float = 1.0,
    seed: int = 0,
    evaluate_every: int = 0,
    quorum: float = 1.0,
    clip_update: float = 0.0,
    net: str | Mapping[str, Any] | NetObject = "convnet",
    features: str = "",
    out: str | Path | None = None,
    on_round: Listener | None = None,
    engine: str = "loop",
    workers: int = 0,
    device: str = "cpu",
    precision: Precision = "float32",
    compile: Compile = "off",
    real_samples: int | None = None,
    label: str = "",
    accept_changed_code: bool = False,
) -> Result:
    """Run a method on a federation.

    `net` is a name, {"name": "convnet", "width": 32}, a module (its architecture is used, not its weights), or a
    class or function that makes one. If it returns logits alone, `features` names the layer whose output are the
    features; by default they are the input of the last linear layer. With `out`, the run is stored in that folder;
    call `run` again to resume, or with more rounds to extend it (a cosine schedule that has ended starts again:
    `local.restarts`). With changed code of your own it goes on only if `accept_changed_code`. `quorum` is the
    fraction of the sampled sites that must send a valid update; `clip_update` bounds its norm (0: no limit).
    `on_round` is called with each record. The engine "pool" uses `workers` processes with one thread each (0: one
    per core), with the same bits. `device` "cuda" uses a GPU; `precision` "bf16" has activations in bfloat16; and
    `compile` "on", or "auto" in a long run, uses torch.compile. `real_samples` real images per class and site are
    copied to `out` for its report: by default 4, and none of your own or of private runs. `label` names it.
    """
    how = engines.engine(engine, workers, Place(device=device, precision=precision, compile=compile))
    federation = load(data) if isinstance(data, str) else data
    method = configure(method) if isinstance(method, str) else method
    plan = RunSettings(
        rounds=rounds, ratio=ratio, seed=seed, evaluate_every=evaluate_every, quorum=quorum, clip_update=clip_update
    )
    config = on_federation(Config(method=method, plan=plan, net=named_net(net, features)), federation, real_samples)
    folder, given = Path(out) if out else None, net_object(net)
    return execute(config, federation, folder, on_round, "fedlgd.run(...)", label, how, given, accept_changed_code)


def net_object(net: str | Mapping[str, Any] | NetObject) -> NetObject | None:
    """A network that is not given by its name."""
    return None if isinstance(net, str | Mapping) else net


def execute(
    config: Config,
    federation: Federation,
    out: Path | None = None,
    on_round: Listener | None = None,
    command: str = "",
    title: str = "",
    engine: engines.Engine = Loop(),
    given_net: NetObject | None = None,
    accept_changed_code: bool = False,
) -> Result:
    """Run `config` on `federation`; rounds that are committed in `out` are not run again.

    `command` and `title` are stored in the manifest: the command of the run, and its name in tables.
    """
    config = continued(config, out) if out else config
    method, plan, net = config.method, config.plan, config.net_for(federation, given_net)
    if plan.positive is not None and plan.positive not in federation.classes:
        hint = did_you_mean(plan.positive, federation.classes)
        raise SettingError("no-such-class", name=plan.positive, hint=hint, classes=list(federation.classes))
    with engine.threads(), locked_folder(out) if out else nullcontext():
        engine = replace(engine, place=settle_place(engine.place, config, federation, net, out))
        if out is not None:
            federation = federation.with_cache(shared_cache(engine.place))
        if method.pooled:
            federation = pool_sites(method, federation, net, plan.seed, engine)
        storage: Storage = RamStorage()
        states, before = engine.states(), list[RoundRecord]()
        if out is not None:
            storage = folder = open_directory(
                out, config, federation, net, command, title, engine, accept_changed_code
            )
            states, before = folder.states, folder.records
        records = [in_order(record, federation.names) for record in before]
        seen = Sources(federation, method.adapt(net), storage, states, Stream(plan.seed).at("analysis"))
        shown = report_files(config, seen, out, before) if out and engine.local else nullcontext()
        with shown as note, closing(engine.run(method, federation, net, plan, storage, states)) as rounds:
            for record in rounds:
                if note:
                    note(record)
                records.append(in_order(record, federation.names))
                if on_round:
                    on_round(records[-1])
        kept = Kept(storage, states, list(federation.by_name) if engine.local else [])
        return result_of(config, seen.net, kept, records, federation.preparation, out)


def pool_sites(method: Method, federation: Federation, net: Net, seed: int, engine: engines.Engine) -> Federation:
    """One site with all images, which only a local engine has, or with all virtual sets that other methods have."""
    if not engine.local:
        raise SettingError("pooled-at-sites", method=method.label)
    assert isinstance(method, Training)
    if method.train_on == "real":
        return pooled(federation)
    sites = []
    for site in federation.sites:
        state, _ = engine.place.do(partial(enrol, method, site, net), Stream(seed).at("enrol", site.name))
        sites.append(replace(site, train=training_set(state, site)))
    return replace(pooled(replace(federation, sites=tuple(sites))), test_sites=federation.sites)
