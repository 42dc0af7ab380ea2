"""A stored run, opened for an attack: for an audit, or replayed to a round for an inversion.

Updates are not stored. A run is reproducible, so what a site would send in a round is computed again.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import Any

from fedlgd.core.device import Place
from fedlgd.core.errors import DataError, PrivacyError, RunError, SettingError, did_you_mean
from fedlgd.core.net import Net
from fedlgd.core.rng import Stream
from fedlgd.core.train import Trained
from fedlgd.core.types import Params, ServerState, Site, SiteState
from fedlgd.data.federation import Federation
from fedlgd.engines.loop import Loop
from fedlgd.engines.storage import RamStates, RamStorage
from fedlgd.methods.common import in_round
from fedlgd.methods.objective import AnchorLoss, Term
from fedlgd.methods.parts import all_settings
from fedlgd.methods.protocol import Method
from fedlgd.runs.cache import shared_cache
from fedlgd.runs.config import Config
from fedlgd.runs.folder import RunDirectory
from fedlgd.runs.result import Result, reopen

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
    _check_method(run.config, folder)
    result = run.result
    if result.rounds < result.planned:
        values = {"rounds": result.rounds, "planned": result.planned, "command": run.manifest.command}
        raise RunError("run-unfinished", path=str(folder), **values)
    plan = replace(run.config.plan, evaluate_every=run.config.plan.rounds, analysis=False, real_samples=0)
    return AuditTarget(folder, replace(run.config, plan=plan), run.federation, run.net, result)


def _check_method(config: Config, folder: Path) -> None:
    method, budget = config.method, config.method.budget
    if method.personal or method.pooled:
        what = "a model of its own at each site" if method.personal else "the images of all sites in one place"
        raise SettingError("no-shared-model", label=method.label, what=what)
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
        """The next round from t on in which virtual sets and anchors stay as they are, and one in which they move.

        Moving them is left out if it would be a release.
        """
        groups = all_settings(self.config.method).values()
        movers = [group.move_in for group in groups if hasattr(group, "move_in")]
        moving = [u for u in range(t, t + ROUNDS_AHEAD) if any(moves(u) for moves in movers)]
        yield next(u for u in range(t, t + ROUNDS_AHEAD + 1) if u not in moving)
        if moving and not self.protected:
            yield moving[0]


def open_replay(folder: Path) -> Replay:
    """The run in this folder, with its images; an error says what is missing."""
    run = reopen(folder)
    method, result = run.config.method, run.result
    if method.personal or method.pooled:
        raise RunError("no-global-update", label=method.label)
    net = method.adapt(run.net)
    if not net.per_image:
        raise RunError("batch-norm-inversion", net=net.label)
    directory = RunDirectory(folder, dict(result.preparation.scales))
    return Replay(folder, run.config, run.federation, net, directory)


@dataclass(frozen=True, eq=False)
class SiteTraining:
    """What a site trains on in a round: its state, additional terms of its loss, and anchors."""

    state: SiteState
    terms: Sequence[Term]
    anchors_in_loss: AnchorLoss | None


def training_of(run: Replay, moment: Moment, site: Site, t: int) -> SiteTraining:
    """The training of a site in round t if it began at this moment."""
    seen: list[SiteTraining] = []

    def fit(
        method: Method,
        model: Params,
        state: SiteState,
        site: Site,
        net: Net,
        rng: Stream,
        *,
        terms: Sequence[Term] = (),
        anchors_in_loss: AnchorLoss | None = None,
        velocity: Params | None = None,
    ) -> Trained:
        seen.append(SiteTraining(state, terms, anchors_in_loss))
        return Trained(model, 1, 0.0, velocity or {})

    method = in_round(run.config.method, t, max(t + 1, run.config.plan.rounds))
    message = method.broadcast(replace(moment.server, round=t, held={}), site.name)
    rng = Stream(run.config.plan.seed).at("site", site.name, t)
    method.site(message, moment.sites[site.name], site, run.net, rng, fit)
    if not seen:
        raise RunError("not-plain-sgd", label=method.label)
    return seen[0]
