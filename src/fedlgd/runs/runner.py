"""One run from configuration to result, in memory or in a run folder that can be resumed."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

from torch import nn

from fedlgd.core.device import Place
from fedlgd.core.errors import FedlgdError
from fedlgd.core.files import safe_name
from fedlgd.core.net import Net
from fedlgd.core.records import RoundRecord
from fedlgd.core.rng import Stream
from fedlgd.core.types import Params, SiteState, VirtualSet
from fedlgd.data.federation import Federation, pooled
from fedlgd.data.registry import DataChoice, load
from fedlgd.distill.cache import caching
from fedlgd.distill.private import distilled
from fedlgd.engines.loop import Loop
from fedlgd.engines.memory import Memory, Ram
from fedlgd.engines.plan import Plan
from fedlgd.engines.registry import Engine
from fedlgd.engines.registry import engine as find_engine
from fedlgd.methods.common import Training, training_set
from fedlgd.methods.protocol import Method
from fedlgd.methods.rounds import is_private
from fedlgd.nets.registry import build_net
from fedlgd.runs.analysis import SITES, Subject, analysed
from fedlgd.runs.cache import shared_cache
from fedlgd.runs.config import Config, configure, samples
from fedlgd.runs.manifest import open_directory
from fedlgd.runs.pictures import write_samples
from fedlgd.runs.store import locked

Listener = Callable[[RoundRecord], None]


T = TypeVar("T")


class Held(Mapping[str, T]):
    """A mapping from site names to values that are read on access, because there can be thousands of sites."""

    def __init__(self, names: Sequence[str], read: Callable[[str], Any]) -> None:
        self._names, self._read = dict.fromkeys(names), read

    def __getitem__(self, name: str) -> T:
        if name not in self._names:
            raise KeyError(name)
        held: T = self._read(name)
        return held

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


@dataclass(frozen=True, eq=False)
class Result:
    """The result of a run: the records of all rounds, the model, the anchors, and the virtual set of each site.

    `personal` has the weights of each site for personalised methods (FedBN, FedProto, local training).
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
        """The trained network as a module in eval mode: images -> (features, logits)."""
        if self.personal:
            raise FedlgdError("this method has no global model; result.personal has the weights of each site")
        return self.net.module(self.params)


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
    net: str | Mapping[str, Any] = "convnet",
    out: str | Path | None = None,
    on_round: Listener | None = None,
    engine: str = "loop",
    workers: int = 0,
    device: str = "cpu",
    autocast: bool = False,
    real_samples: int | None = None,
) -> Result:
    """Run a method on a federation.

    `net` is a name, or {"name": "convnet", "width": 32}. With `out`, the run is stored in that folder; call `run`
    again with the same arguments to resume. `quorum` is the fraction of the sampled sites that must send a valid
    update; `clip_update` bounds the norm of an update (0: no limit). `on_round` is called with each record. The
    engine "pool" uses `workers` processes with one thread each (0: one per core) and gives bit-identical results.
    `device` "cuda" uses a GPU; `autocast` uses bfloat16 autocast.
    `real_samples` real images per class and site are copied to `out` for its report: by default 4 of published data
    and none of your own or with differential privacy.
    """
    how = find_engine(engine, workers, Place(device=device, autocast=autocast))
    federation = load(data) if isinstance(data, str) else data
    method = configure(method) if isinstance(method, str) else method
    if real_samples is None:
        real_samples = samples(federation.public and not is_private(method))
    config = Config(
        method=method,
        plan=Plan(
            rounds=rounds,
            ratio=ratio,
            quorum=quorum,
            clip_update=clip_update,
            seed=seed,
            evaluate_every=evaluate_every,
            real_samples=real_samples,
        ),
        data=DataChoice(name=federation.name),
        net={"name": net} if isinstance(net, str) else {"name": "convnet", **net},
    )
    return execute(config, federation, Path(out) if out else None, on_round, "fedlgd.run(...)", engine=how)


def execute(
    config: Config,
    federation: Federation,
    out: Path | None = None,
    on_round: Listener | None = None,
    command: str = "",
    title: str = "",
    engine: Engine = Loop(),
) -> Result:
    """Run `config` on `federation`; rounds that are committed in `out` are not run again.

    `command` and `title` are stored in the manifest: the command of the run, and its name in tables.
    """
    net = build_net(config.net["name"], federation.shape, len(federation.classes), config.net_settings)
    with ExitStack() as stack:
        stack.enter_context(engine.threads())
        memory: Memory = Ram()
        records: list[RoundRecord] = []
        if out is not None:
            stack.enter_context(caching(shared_cache(engine.place)))
            stack.enter_context(locked(out))
        if config.method.pooled:
            federation = _pooled(config, federation, net, engine.place)
        if out is None:
            states = engine.states()
        else:
            memory = directory = open_directory(out, config, federation, net, command, title, engine)
            states, records = directory.states, directory.records
        working = engine.run(config.method, federation, net, config.plan, memory, states)
        rounds: Iterator[RoundRecord] = stack.enter_context(closing(working))
        rng = Stream(config.plan.seed).at("analysis")
        subject = Subject(federation, config.method.adapt(net), memory, states, rng)
        if out is not None:
            rounds = _illustrated(config, subject, rounds, records, out)
        for record in rounds:
            records.append(record)
            if on_round:
                on_round(record)
        return _result(records, config.method, subject)


def _illustrated(
    config: Config, subject: Subject, rounds: Iterator[RoundRecord], committed: list[RoundRecord], out: Path
) -> Iterator[RoundRecord]:
    """The same rounds; also writes the files in `out` that only the report reads."""
    for site in subject.federation.tested[:SITES]:
        write_samples(out / "real", safe_name(site.name), site.train, config.plan.real_samples)
    if not config.plan.analysis or config.method.personal:
        return rounds
    return analysed(rounds, list(committed), subject, out / "analysis.json")


def _pooled(config: Config, federation: Federation, net: Net, place: Place) -> Federation:
    """All images at one site, or all virtual sets: the same sets that other methods train on."""
    method, root = config.method, Stream(config.plan.seed)
    assert isinstance(method, Training)
    if method.train_on == "virtual":
        sets = [
            place.do(partial(distilled, site, net, method.distil), root.at("enrol", site.name, "distil"))
            for site in federation.sites
        ]
        sites = tuple(
            replace(s, train=training_set(made, s)) for s, made in zip(federation.sites, sets, strict=True)
        )
        return replace(pooled(replace(federation, sites=sites)), test_sites=federation.sites)
    return pooled(federation)


def default_folder(config: Config) -> Path:
    """runs/<data>/<method>/seed<n>-<digest of the configuration>."""
    method = safe_name(config.method.label.lower().replace(" ", "-"))
    return Path("runs", safe_name(config.data.name), method, f"seed{config.plan.seed}-{config.digest}")


def _result(records: list[RoundRecord], method: Method, run: Subject) -> Result:
    state, names = run.memory.server(), list(run.federation.by_name)
    assert state is not None
    params = state.params

    def kept(name: str) -> SiteState:
        return run.states.load(name, run.memory.version(name))

    virtual: Held[VirtualSet] = Held([n for n in names if kept(n).virtual], lambda name: kept(name).virtual)
    personal: Held[Params] = Held(
        names if method.personal else [], lambda name: method.model_at(params, kept(name))
    )
    return Result(records, run.net, params, state.anchors, virtual, personal)
