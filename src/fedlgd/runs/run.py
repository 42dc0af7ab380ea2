"""One run from configuration to result, in memory or in a run folder that can be resumed."""

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from fedlgd.core.device import Place
from fedlgd.core.errors import SettingError
from fedlgd.core.files import safe_name
from fedlgd.core.meter import listening
from fedlgd.core.net import Net
from fedlgd.core.rng import Stream
from fedlgd.data.federation import Federation, pooled
from fedlgd.data.suites import DataChoice, load
from fedlgd.engines.loop import Loop
from fedlgd.engines.registry import Engine
from fedlgd.engines.registry import engine as find_engine
from fedlgd.engines.storage import RamStorage, States, Storage
from fedlgd.methods.common import Training, enrol, training_set
from fedlgd.methods.protocol import Method
from fedlgd.nets.registry import named_net
from fedlgd.rundir.records import RoundRecord, in_order
from fedlgd.runs.analysis import SITES, Subject, analysed
from fedlgd.runs.cache import shared_cache
from fedlgd.runs.config import Config, RunSettings, configure, samples
from fedlgd.runs.contact_sheets import write_samples
from fedlgd.runs.folder import continued, locked, open_directory, rounds_before
from fedlgd.runs.result import Kept, Result, result_of

Listener = Callable[[RoundRecord], None]

SECONDS = 0.2  # between two updates of the line of progress
WIDTH = 20


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
    progress: bool = False,
    label: str = "",
) -> Result:
    """Run a method on a federation.

    `net` is a name, {"name": "convnet", "width": 32}, a module (its architecture is used, not its weights), or a
    class or function that makes one. If it returns logits alone, `features` names the layer whose output are the
    features; by default they are the input of the last linear layer. With `out`, the run is stored in that folder;
    call `run` again with the same arguments to resume, or with more rounds to extend it (a cosine schedule that has
    ended starts again: `local.restarts`).
    `quorum` is the fraction of the sampled sites that must send a valid update; `clip_update` bounds the norm of an
    update (0: no limit). `on_round` is called with each record; `progress` shows a line on stderr. The engine
    "pool" uses `workers` processes with one thread each (0: one per core) and gives bit-identical results.
    `device` "cuda" uses a GPU; `autocast` uses bfloat16 autocast.
    `real_samples` real images per class and site are copied to `out` for its report: by default 4 of published data
    and none of your own or with differential privacy. `label` is its name in tables, by default that of the method.
    """
    how = find_engine(engine, workers, Place(device=device, autocast=autocast))
    federation = load(data) if isinstance(data, str) else data
    method = configure(method) if isinstance(method, str) else method
    if real_samples is None:
        real_samples = samples(federation.public and method.budget is None)
    plan = RunSettings(
        rounds=rounds,
        ratio=ratio,
        quorum=quorum,
        clip_update=clip_update,
        seed=seed,
        evaluate_every=evaluate_every,
        real_samples=real_samples,
    )
    choice = DataChoice(name=federation.name)
    config = Config(method=method, plan=plan, data=choice, net=named_net(net, features))
    given = None if isinstance(net, str | Mapping) else net
    with showing(progress, rounds, on_round) as listen:
        return execute(config, federation, Path(out) if out else None, listen, "fedlgd.run(...)", label, how, given)


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
    net = config.net_for(federation, net_object)
    with _reserved(engine, out):
        if out is not None:
            federation = federation.with_cache(shared_cache(engine.place))
        federation = _gathered(config, federation, net, engine)
        memory, states, committed = _opened(config, federation, net, engine, out, command, title)
        rng = Stream(config.plan.seed).at("analysis")
        subject = Subject(federation, config.method.adapt(net), memory, states, rng)
        records = [in_order(record, federation.names) for record in committed]
        with closing(engine.run(config.method, federation, net, config.plan, memory, states)) as rounds:
            for new in _illustrated(config, subject, rounds, committed, out if engine.local else None):
                records.append(in_order(new, federation.names))
                if on_round:
                    on_round(records[-1])
            kept = Kept(memory, states, list(federation.by_name) if engine.local else [])
            return result_of(config, subject.net, kept, records, federation.preparation, out)


@contextmanager
def _reserved(engine: Engine, out: Path | None) -> Iterator[None]:
    """The threads of the engine, and the folder of a run in a folder."""
    with engine.threads():
        if out is None:
            yield
            return
        with locked(out):
            yield


def _opened(
    config: Config, federation: Federation, net: Net, engine: Engine, out: Path | None, command: str, title: str
) -> tuple[Storage, States, list[RoundRecord]]:
    """The memory of the server, the states of the sites, and the records of the rounds that are committed."""
    if out is None:
        return RamStorage(), engine.states(), []
    directory = open_directory(out, config, federation, net, command, title, engine)
    return directory, directory.states, directory.records


def _illustrated(
    config: Config, subject: Subject, rounds: Iterator[RoundRecord], committed: list[RoundRecord], out: Path | None
) -> Iterator[RoundRecord]:
    """The same rounds; also writes the files in `out`, if any, that only the report reads."""
    if out is None:
        return rounds
    for site in subject.federation.tested[:SITES]:
        write_samples(out / "real", safe_name(site.name), site.train, config.plan.real_samples)
    if not config.plan.analysis or config.method.personal:
        return rounds
    return analysed(rounds, list(committed), subject, out / "analysis.json")


def _gathered(config: Config, federation: Federation, net: Net, engine: Engine) -> Federation:
    """The federation itself; for a pooled method one site with all images, which only a local engine has, or with
    all virtual sets, the same that other methods train on."""
    method, root = config.method, Stream(config.plan.seed)
    if not method.pooled:
        return federation
    if not engine.local:
        raise SettingError(f"{method.label} joins the images of all sites, which real sites do not send; use loop")
    assert isinstance(method, Training)
    if method.train_on == "real":
        return pooled(federation)
    sites = []
    for site in federation.sites:
        state, _ = engine.place.do(partial(enrol, method, site, net), root.at("enrol", site.name))
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


class Line:
    """A line on stderr, rewritten in place: `[#####     ] round 5/20, mean 61.2 %, distil 40/100, 12 s`."""

    def __init__(self, rounds: int) -> None:
        self._rounds, self._done, self._mean, self._step = rounds, 0, "", ""
        self._began = self._shown = time.monotonic()

    def tick(self, label: str, done: int, total: int) -> None:
        self._step = f", {label} {done}/{total}" if done < total else ""
        if time.monotonic() - self._shown > SECONDS:
            self.show()

    def round(self, record: RoundRecord) -> None:
        self._done, self._step = record.round + 1, ""
        if record.scores:
            self._mean = f", mean {100 * record.accuracy:.1f} %"
        self.show()

    def show(self, end: str = "") -> None:
        """The line is padded, so that nothing of a longer one before it stays."""
        self._shown = time.monotonic()
        bar = ("#" * (WIDTH * self._done // self._rounds)).ljust(WIDTH)
        text = f"[{bar}] round {self._done}/{self._rounds}{self._mean}{self._step}"
        sys.stderr.write(f"\r{text}, {self._shown - self._began:.0f} s".ljust(79) + end)
        sys.stderr.flush()


@contextmanager
def showing(wanted: bool, rounds: int, listen: Listener | None) -> Iterator[Listener | None]:
    """The listener to call with each record, which also updates the line if it is `wanted`."""
    if not wanted:
        yield listen
        return
    line = Line(rounds)

    def both(record: RoundRecord) -> None:
        line.round(record)
        if listen:
            listen(record)

    try:
        with listening(line.tick):
            yield both
    finally:
        line.show("\n")
