"""A stored run, opened for an attack: for an audit, or replayed to a round for an inversion.

Updates are not stored. A run is reproducible, so what a site would send in a round is computed again.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from shlex import quote
from typing import Any, NoReturn

from fedlgd.attacks.sent import is_whole
from fedlgd.core.device import Place
from fedlgd.core.errors import DataError, PrivacyError, RunError, SettingError, did_you_mean
from fedlgd.core.guard import sealed
from fedlgd.core.train import Local
from fedlgd.core.types import Params, ServerState, Site, SiteState
from fedlgd.data.federation import Federation
from fedlgd.engines.registry import Loop
from fedlgd.engines.storage import RamStates, RamStorage
from fedlgd.methods.common import AnchorLoss, Criterion, Term
from fedlgd.methods.parts import all_settings
from fedlgd.methods.protocol import Method, Net, Stream, Trained
from fedlgd.rundir.disclosure import UNDECLARED, declared_kind, observed
from fedlgd.rundir.records import RoundRecord
from fedlgd.runs.config import Config
from fedlgd.runs.folder import RunDirectory, shared_cache
from fedlgd.runs.result import Result, StoredRun, reopen

ROUNDS_WITHOUT_EVALUATION = 1_000_000  # a replay evaluates never
ROUNDS_AHEAD = 100  # in which a selected or an unselected one is looked for


def chosen_site(federation: Federation, name: str) -> str:
    """The named site; by default the one with the fewest training images, which is the most exposed."""
    if not name:
        return min(federation.by_name.values(), key=lambda site: len(site.train)).name
    if name not in federation.by_name:
        hint = did_you_mean(name, federation.by_name) or ";"
        raise DataError("attacked-site-unknown", site=name, hint=hint, sites=list(federation.by_name))
    return name


@dataclass(frozen=True, eq=False)
class AuditTarget:
    """A finished run that can be audited: its settings, its images, and what it stored."""

    folder: Path
    config: Config
    federation: Federation
    net: Net
    result: Result
    sends: Mapping[str, str] = field(default_factory=dict)

    @property
    def sent(self) -> dict[str, str]:
        """The kinds of what its sites sent, by path."""
        return sent_kinds(self.sends, self.result.records)

    @property
    def rng(self) -> Stream:
        return Stream(self.config.plan.seed).at("audit")

    @property
    def untrained(self) -> Params:
        """The model before the first round, which has seen no image."""
        return self.net.init(Stream(self.config.plan.seed).at("init"))


def open_target(folder: Path) -> AuditTarget:
    """The run in this folder, if it can be audited. To finish it is no advice if it then cannot."""
    run = reopen(folder)
    _check_promise(run.config, folder)
    result = run.result
    _check_shared(run)
    if result.rounds < result.planned:
        values = {"rounds": result.rounds, "planned": result.planned, "command": run.manifest.command}
        raise RunError("run-unfinished", path=str(folder), **values)
    plan = replace(run.config.plan, evaluate_every=run.config.plan.rounds, analysis=False, real_samples=0)
    sends = run.manifest.method.sends
    return AuditTarget(folder, replace(run.config, plan=plan), run.federation, run.net, result, sends)


def sent_kinds(sends: Mapping[str, str], records: Iterable[RoundRecord]) -> dict[str, str]:
    """The declared kind of everything that was observed in messages; of a run without observations, as declared."""
    return {path: declared_kind(path, sends) for path in observed(records) or sends}


def sent_words(method: Method, sent: Mapping[str, str]) -> list[str]:
    """The kinds of what the sites of a method send, each once."""
    return ([] if method.pooled else [*dict.fromkeys(sent.values())]) or ["nothing"]


def refuse_model(method: Method, sent: Mapping[str, str]) -> NoReturn:
    """Refuse a method without a model that its sites share, with what they send instead."""
    what = "the images of all sites in one place" if method.pooled else "a model of its own at each site"
    raise SettingError("no-shared-model", label=method.label, what=what, sent=sent_words(method, sent))


def _check_shared(run: StoredRun) -> None:
    """Refuse a method of which neither a shared model nor anything that a site keeps or sends can be attacked."""
    method, seen = run.config.method, observed(run.result.records)
    if not (method.personal or method.pooled):
        return
    sent = sent_kinds(run.manifest.method.sends, run.result.records)
    model = len(method.adapt(run.net).init(Stream(0)))
    whole = "params" in seen and seen["params"].tensors == model
    images = any(kind in ("images", UNDECLARED) for kind in sent.values())
    if method.pooled or not (whole or images or method.train_on == "virtual"):
        refuse_model(method, sent)


def guarded_by(method: Method, site: Site) -> Site:
    """The site as an engine gives it to this method: sealed under a promise to each image."""
    budget = method.budget
    return sealed(site, method.name) if budget and budget.protects == "image" else site


def _check_promise(config: Config, folder: Path) -> None:
    budget = config.method.budget
    if budget is not None and not budget.test_key:
        images = " --data PUBLIC" if config.data.name == "folders" else ""
        settings = f"--config {quote(str(folder / 'config.toml'))} --set {budget.section}.test_key=NAME"
        raise PrivacyError("audit-would-release", promise=budget.promise, options=f"{images} {settings}")


@dataclass(frozen=True, eq=False)
class Moment:
    """The beginning of a round: the state of the server, and those of the sites by name."""

    server: ServerState
    sites: dict[str, SiteState]


@dataclass(frozen=True, eq=False)
class Replay:
    """A stored run with the images that it was made from."""

    folder: Path
    config: Config
    federation: Federation
    net: Net
    directory: RunDirectory

    @property
    def rounds(self) -> int:
        """The number of finished rounds, which is also the round of the stored state."""
        server = self.directory.server()
        return server.round if server else 0

    @property
    def protected(self) -> bool:
        """Whether another question to the private images would be a release."""
        budget = self.config.method.budget
        return budget is not None and budget.on and not budget.test_key

    def at(self, t: int) -> Moment:
        """The beginning of round t: stored, or computed again."""
        if not 0 <= t <= self.rounds:
            raise RunError("round-not-there", path=str(self.folder), rounds=self.rounds)
        if t == self.rounds:
            return self._moment(self.directory, self.directory.states)
        if self.protected:
            raise PrivacyError("replay-would-release", path=str(self.folder), round=t, rounds=self.rounds)
        memory, states = RamStorage(), RamStates()
        plan = replace(self.config.plan, evaluate_every=ROUNDS_WITHOUT_EVALUATION)
        federation = self.federation.with_cache(shared_cache(Place()))
        with closing(Loop().run(self.config.method, federation, self.net.base, plan, memory, states)) as rounds:
            next(record for record in rounds if record.round + 1 == t)
        return self._moment(memory, states)

    def _moment(self, memory: Any, states: Any) -> Moment:
        server = memory.server()
        assert server is not None
        return Moment(server, {name: states.load(name, memory.version(name)) for name in self.federation.by_name})

    def next_rounds(self, t: int) -> Iterator[int]:
        """The next round from t on in which virtual sets and anchors stay as they are, and one in which they move,
        if there are such rounds: a method can move them in every round.

        Moving them is left out if it would be a release.
        """
        groups = all_settings(self.config.method).values()
        movers = [group.move_in for group in groups if hasattr(group, "move_in")]
        moving = [u for u in range(t, t + ROUNDS_AHEAD) if any(moves(u) for moves in movers)]
        still = [u for u in range(t, t + ROUNDS_AHEAD) if u not in moving]
        yield from still[:1]
        if moving and not self.protected:
            yield moving[0]


def open_replay(folder: Path) -> Replay:
    """The run in this folder, with its images; an error says what is missing."""
    run = reopen(folder)
    method, result = run.config.method, run.result
    if method.exchanges > 1:
        raise RunError("exchanges-not-followed", label=method.label, exchanges=method.exchanges)
    directory, net = RunDirectory(folder, dict(result.preparation.scales)), method.adapt(run.net)
    sent, server = sent_kinds(run.manifest.method.sends, result.records), directory.server()
    if method.personal or method.pooled:
        raise RunError("no-global-update", label=method.label, sent=sent_words(method, sent))
    whole = server is None or is_whole(server.params, net.init(Stream(0)))
    if sent.get("params") not in ("weights", UNDECLARED) or not whole:
        raise RunError("no-weights-sent", label=method.label, sent=sent_words(method, sent))
    if not local_of(method).plain:
        raise RunError("not-plain-sgd", label=method.label)
    if not net.per_image:
        raise RunError("batch-norm-inversion", net=net.label)
    return Replay(folder, run.config, run.federation, net, directory)


def local_of(method: Method) -> Local:
    """Its settings of local training; those of ours, if a user's method has others or none."""
    local = getattr(method, "local", None)
    return local if isinstance(local, Local) else Local()


@dataclass(frozen=True, eq=False)
class SiteTraining:
    """The training of a site in a round: its state, and what its method and parts add to `methods.common.fit`."""

    state: SiteState
    terms: Sequence[Term] = ()
    anchors_in_loss: AnchorLoss | None = None
    velocity: Params | None = None
    criterion: Criterion | None = None


def training_of(run: Replay, moment: Moment, site: Site, t: int) -> SiteTraining:
    """The training of a site in round t if it began at this moment."""
    seen: list[SiteTraining] = []

    def fit(
        method: Method, model: Params, state: SiteState, site: Site, net: Net, rng: Stream, **added: Any
    ) -> Trained:
        seen.append(SiteTraining(state, **added))
        return Trained(model, 1, 0.0, added.get("velocity") or {})

    method = run.config.method.at(t, max(t + 1, run.config.plan.rounds))
    message = method.broadcast(replace(moment.server, round=t, held={}), site.name)
    rng = Stream(run.config.plan.seed).at("site", site.name, t)
    method.site(message, moment.sites[site.name], guarded_by(method, site), run.net, rng, fit)
    if not seen:
        raise RunError("not-plain-sgd", label=method.label)
    return seen[0]
