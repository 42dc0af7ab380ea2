"""One run from configuration to result, in memory or in a run folder that can be resumed."""

from collections.abc import Callable, Mapping
from contextlib import closing, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from fedlgd.core.device import Place
from fedlgd.core.errors import SettingError
from fedlgd.core.files import safe_name
from fedlgd.core.net import Net
from fedlgd.core.rng import Stream
from fedlgd.data.federation import Federation, pooled
from fedlgd.data.suites import load
from fedlgd.engines.loop import Loop
from fedlgd.engines.registry import Engine
from fedlgd.engines.registry import engine as find_engine
from fedlgd.engines.storage import RamStorage, Storage
from fedlgd.methods.common import Training, enrol, training_set
from fedlgd.methods.protocol import Method
from fedlgd.nets.registry import named_net
from fedlgd.rundir.records import RoundRecord, in_order
from fedlgd.runs.analysis import MAX_ANALYSED_SITES, SiteAnalysis, Sources
from fedlgd.runs.cache import shared_cache
from fedlgd.runs.config import Config, RunSettings, configure, on_federation
from fedlgd.runs.extend import continued, rounds_before
from fedlgd.runs.folder import locked_folder, open_directory, write_samples
from fedlgd.runs.result import Kept, Result, result_of

Listener = Callable[[RoundRecord], None]


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
    net: str | Mapping[str, Any] | nn.Module | Callable[..., nn.Module] = "convnet",
    features: str = "",
    out: str | Path | None = None,
    on_round: Listener | None = None,
    engine: str = "loop",
    workers: int = 0,
    device: str = "cpu",
    autocast: bool = False,
    real_samples: int | None = None,
    label: str = "",
) -> Result:
    """Run a method on a federation.

    `net` is a name, {"name": "convnet", "width": 32}, a module (its architecture is used, not its weights), or a
    class or function that makes one. If it returns logits alone, `features` names the layer whose output are the
    features; by default they are the input of the last linear layer. With `out`, the run is stored in that folder;
    call `run` again with the same arguments to resume, or with more rounds to extend it (a cosine schedule that has
    ended starts again: `local.restarts`).
    `quorum` is the fraction of the sampled sites that must send a valid update; `clip_update` bounds the norm of an
    update (0: no limit). `on_round` is called with each record. The engine "pool" uses `workers` processes with one
    thread each (0: one per core) and gives bit-identical results. `device` "cuda" uses a GPU; `autocast` uses
    bfloat16 autocast.
    `real_samples` real images per class and site are copied to `out` for its report: by default 4 of published data
    and none of your own or with differential privacy. `label` is its name in tables, by default that of the method.
    """
    how = find_engine(engine, workers, Place(device=device, autocast=autocast))
    federation = load(data) if isinstance(data, str) else data
    method = configure(method) if isinstance(method, str) else method
    plan = RunSettings(
        rounds=rounds, ratio=ratio, seed=seed, evaluate_every=evaluate_every, quorum=quorum, clip_update=clip_update
    )
    config = Config(method=method, plan=plan, net=named_net(net, features))
    config = on_federation(config, federation, real_samples)
    given = None if isinstance(net, str | Mapping) else net
    return execute(config, federation, Path(out) if out else None, on_round, "fedlgd.run(...)", label, how, given)


def execute(
    config: Config,
    federation: Federation,
    out: Path | None = None,
    on_round: Listener | None = None,
    command: str = "",
    title: str = "",
    engine: Engine = Loop(),
    net_object: nn.Module | Callable[..., nn.Module] | None = None,
) -> Result:
    """Run `config` on `federation`; rounds that are committed in `out` are not run again.

    `command` and `title` are stored in the manifest: the command of the run, and its name in tables.
    """
    if out is not None:
        config = continued(config, out)
    method, plan, net = config.method, config.plan, config.net_for(federation, net_object)
    with engine.threads(), locked_folder(out) if out else nullcontext():
        if out is not None:
            federation = federation.with_cache(shared_cache(engine.place))
        if method.pooled:
            federation = pool_sites(method, federation, net, plan.seed, engine)
        storage: Storage = RamStorage()
        states, records, analysis = engine.states(), list[RoundRecord](), None
        if out is not None:
            storage = folder = open_directory(out, config, federation, net, command, title, engine)
            states, records = folder.states, [in_order(record, federation.names) for record in folder.records]
        if out is not None and engine.local:  # what only the report reads
            for site in federation.tested[:MAX_ANALYSED_SITES]:
                write_samples(out / "real", safe_name(site.name), site.train, plan.real_samples)
            if plan.analysis and not method.personal:
                seen = Sources(federation, method.adapt(net), storage, states, Stream(plan.seed).at("analysis"))
                analysis = SiteAnalysis(seen, out / "analysis.json", records[-1:])
        with closing(engine.run(method, federation, net, plan, storage, states)) as rounds:
            for record in rounds:
                if analysis:
                    analysis.add(record)
                records.append(in_order(record, federation.names))
                if on_round:
                    on_round(records[-1])
        if analysis:
            analysis.finish()
        kept = Kept(storage, states, list(federation.by_name) if engine.local else [])
        return result_of(config, method.adapt(net), kept, records, federation.preparation, out)


def pool_sites(method: Method, federation: Federation, net: Net, seed: int, engine: Engine) -> Federation:
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


def default_folder(config: Config) -> Path:
    """runs/<data>/<method>/seed<n>-<digest of the configuration>, or a run there that only has fewer rounds."""
    method = safe_name(config.method.label.lower().replace(" ", "-"))
    folder = Path("runs", safe_name(config.data.name), method)
    named = folder / f"seed{config.plan.seed}-{config.digest}"
    if named.exists():
        return named
    others = sorted(folder.glob(f"seed{config.plan.seed}-*/config.toml"))
    rounds = {file.parent: rounds_before(file.read_bytes(), config) for file in others}
    shorter = {path: count for path, count in rounds.items() if 0 < count <= config.plan.rounds}
    return max(shorter, key=shorter.__getitem__, default=named)
