"""The sites' half of a run: work with the images and the state of a site. All engines use it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import cached_property, partial
from typing import Any, Literal

from fedlgd.core.device import Place
from fedlgd.core.errors import DivergedError, SettingError
from fedlgd.core.guard import sealed, watched
from fedlgd.core.meter import Spent, metered, phase
from fedlgd.core.net import Net
from fedlgd.core.score import Score
from fedlgd.core.train import score
from fedlgd.core.types import Broadcast, Hello, Site, SiteState, Stream, Update, VirtualSet
from fedlgd.data.federation import Federation
from fedlgd.engines.settings import RoundSettings
from fedlgd.engines.storage import States, version_after
from fedlgd.engines.wire import same
from fedlgd.methods.protocol import Method

LOST_STATE = "it has lost its state of this round"
READ = "read"  # flag of an answer for which the method read private training images


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Task:
    """A task for a site: enrol, train for one round, or evaluate the model in `message` on its test images.

    `after` names the round whose state the site continues from; -1 is its enrolment, and lower ones are states
    within a round (`storage.version_after`).
    """

    what: Literal["enrol", "train", "score"]
    site: str
    round: int = -1
    after: int = -1
    message: Broadcast | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Answer(Spent):
    """The result of a task and its cost. The state stays at the site: `version` is the round of the state that the
    site continues from, and `flags` name what changed. `fault`: why a site has nothing to send.

    A site without the state that a training task continues from enrols, again or late, and answers with a `hello`
    instead of an update. The server then asks it again.
    """

    site: str
    hello: Hello | None = None
    update: Update | None = None
    score: Score | None = None
    version: int = -1
    flags: tuple[str, ...] = ()
    fault: str = ""


def moment(round: int, exchange: int) -> tuple[int, ...]:
    """The end of the path of a random stream: the round, and the exchange unless it is the first."""
    return (round, exchange) if exchange else (round,)


@dataclass(frozen=True, eq=False)
class Sites:
    """Runs tasks with the images and states of the sites: task -> answer."""

    method: Method
    federation: Federation
    net: Net
    plan: RoundSettings
    states: States
    place: Place = Place()

    @cached_property
    def _tested(self) -> dict[str, Site]:
        return {site.name: site for site in self.federation.tested}

    @cached_property
    def _noisy_scores(self) -> dict[str, Any]:
        """For each tested site, if scores are part of the privacy budget."""
        budget, classes = self.method.budget, len(self.federation.classes)
        if not budget or not budget.scores:
            return {}
        from fedlgd.dp.release import NoisyScores

        planned, seed = sum(map(self.plan.scores, range(self.plan.rounds))), self.plan.seed
        return {name: NoisyScores(site, classes, seed, planned, budget) for name, site in self._tested.items()}

    def _rng(self, *path: str | int) -> Stream:
        return Stream(self.plan.seed).at(*path)

    def __call__(self, task: Task) -> Answer:
        do = {"enrol": self._enrol, "train": self._train, "score": self._score}[task.what]
        with metered() as meter:
            parts = do(task)
        return Answer(site=task.site, **meter.spent(), **parts)

    def _enrol(self, task: Task) -> dict[str, Any]:
        if task.site in self._noisy_scores:
            self._noisy_scores[task.site].reserve()
        site, reads = self._guard(task.site)
        state, hello = self.place.do(partial(self.method.enrol, site, self.net), self._rng("enrol", task.site))
        self.states.save(task.site, -1, state, before=-1)
        return {"hello": hello, "flags": (*(("virtual",) if state.virtual else ()), *reads)}

    def _guard(self, name: str) -> tuple[Site, set[str]]:
        """The site as the method receives it, and the flag `READ` once its private images were read.

        Under a promise to each image they can be read through releases only.
        """
        site, budget, reads = self.federation.by_name[name], self.method.budget, set[str]()
        if budget and budget.protects == "image":
            return sealed(site, self.method.name), reads
        joined = self.method.pooled and self.method.train_on == "virtual"  # its images are virtual sets of sites
        return site if joined else watched(site, partial(reads.add, READ)), reads

    def _train(self, task: Task) -> dict[str, Any]:
        assert task.message is not None
        exchange, within = task.message.exchange, task.after < -1
        if not self.states.has(task.site, task.after):
            return {"fault": LOST_STATE, "version": task.after} if exchange else self._enrol(task)
        before = self.states.load(task.site, task.after)
        site, reads = self._guard(task.site)
        try:
            update, state = self.place.do(partial(self._fit, task, site), (task.message, before))
        except DivergedError as error:
            return {"fault": str(error), "version": task.after}
        version = version_after(task.round, exchange, self.method.exchanges)
        if state is None and not (within and version == task.round):
            return {"update": update, "version": task.after, "flags": tuple(reads)}
        state = state or before
        self.states.save(task.site, version, state, before=task.after)
        moved = state.virtual is not None and state.virtual.round == task.round
        return {"update": update, "version": version, "flags": (*(("virtual",) if moved else ()), *reads)}

    def _fit(self, task: Task, site: Site, given: tuple[Broadcast, SiteState]) -> tuple[Update, SiteState | None]:
        """The update, and the new state, or None if it has not changed."""
        rng = self._rng("site", task.site, *moment(task.round, given[0].exchange))
        method = self.method.at(task.round, self.plan.rounds)
        with phase("train"), _virtual_set_named(method, given[1]):
            update, after = method.site(*given, site, self.net, rng)
        return update, None if same(given[1], after) else after

    def _score(self, task: Task) -> dict[str, Any]:
        """Evaluate the model in the message, or the site's own model for personalised methods."""
        assert task.message is not None
        params = task.message.params
        if self.method.personal:
            if not self.states.has(task.site, task.after):
                return {"fault": "it has no model of its own", "version": task.after}
            params = self.method.model_at(params, self.states.load(task.site, task.after))
        exact = partial(score, self.net, data=self._tested[task.site].test, classes=len(self.federation.classes))
        noisy = self._noisy_scores.get(task.site)
        work = partial(noisy, self.net) if noisy else exact
        return {"score": self.place.do(work, params), "version": task.after}


@contextmanager
def _virtual_set_named(method: Method, state: SiteState) -> Iterator[None]:
    """A method that reads the virtual set of a site that has none, because it trains on real images, says so."""
    try:
        yield
    except AttributeError as error:
        of_set = error.obj is None and error.name in (*(f.name for f in fields(VirtualSet)), "data")
        if state.virtual is None and method.train_on == "real" and of_set:
            raise SettingError("virtual-set-missing", method=method.name) from error
        raise
