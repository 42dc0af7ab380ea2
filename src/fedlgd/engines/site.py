"""The sites' half of a run: work with the images and the state of a site. All engines use it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from fedlgd.core.device import Place
from fedlgd.core.errors import DivergedError
from fedlgd.core.meter import metered, phase
from fedlgd.core.net import Net
from fedlgd.core.rng import Stream
from fedlgd.core.score import Score
from fedlgd.core.train import score
from fedlgd.core.types import Broadcast, Hello, SiteState, Update
from fedlgd.data.federation import Federation
from fedlgd.engines.settings import RoundSettings
from fedlgd.engines.storage import States
from fedlgd.engines.wire import same
from fedlgd.methods.common import in_round
from fedlgd.methods.protocol import Method


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Task:
    """A task for a site: enrol, train for one round, or evaluate the model in `message` on its test images.

    `after` names the round whose state the site continues from; -1 is its enrolment.
    """

    what: Literal["enrol", "train", "score"]
    site: str
    round: int = -1
    after: int = -1
    message: Broadcast | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Answer:
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
    seconds: Mapping[str, float] = field(default_factory=dict)
    cpu: Mapping[str, float] = field(default_factory=dict)
    flops: Mapping[str, int] = field(default_factory=dict)


class Sites:
    """Runs tasks with the images and states of the sites: task -> answer."""

    def __init__(
        self, method: Method, federation: Federation, net: Net, plan: RoundSettings, states: States, place: Place
    ) -> None:
        self._method, self._net, self._root, self._rounds = method, net, Stream(plan.seed), plan.rounds
        self._states, self._place = states, place
        self._sites = federation.by_name
        self._tested, self._classes = {site.name: site for site in federation.tested}, len(federation.classes)
        self._noisy_scores: dict[str, Any] = {}
        if method.budget and method.budget.scores:
            from fedlgd.dp.release import NoisyScores

            planned = sum(map(plan.scores, range(plan.rounds)))
            self._noisy_scores = {
                name: NoisyScores(site, self._classes, plan.seed, planned, method.budget)
                for name, site in self._tested.items()
            }

    def __call__(self, task: Task) -> Answer:
        do = {"enrol": self._enrol, "train": self._train, "score": self._score}[task.what]
        with metered() as meter:
            parts = do(task)
        return Answer(site=task.site, **meter.spent(), **parts)

    def _enrol(self, task: Task) -> dict[str, Any]:
        if task.site in self._noisy_scores:
            self._noisy_scores[task.site].reserve()
        enrol = partial(self._method.enrol, self._sites[task.site], self._net)
        state, hello = self._place.do(enrol, self._root.at("enrol", task.site))
        self._states.save(task.site, -1, state, before=-1)
        return {"hello": hello, "flags": ("virtual",) if state.virtual else ()}

    def _train(self, task: Task) -> dict[str, Any]:
        if not self._states.has(task.site, task.after):
            return self._enrol(task)
        before = self._states.load(task.site, task.after)
        try:
            update, state = self._place.do(partial(self._fit, task), (task.message, before))
        except DivergedError as error:
            return {"fault": str(error), "version": task.after}
        if state is None:
            return {"update": update, "version": task.after}
        self._states.save(task.site, task.round, state, before=task.after)
        moved = state.virtual is not None and state.virtual.round == task.round
        return {"update": update, "version": task.round, "flags": ("virtual",) if moved else ()}

    def _fit(self, task: Task, given: tuple[Broadcast, SiteState]) -> tuple[Update, SiteState | None]:
        """The update, and the new state, or None if it has not changed."""
        rng = self._root.at("site", task.site, task.round)
        method = in_round(self._method, task.round, self._rounds)
        with phase("train"):
            update, after = method.site(*given, self._sites[task.site], self._net, rng)
        return update, None if same(given[1], after) else after

    def _score(self, task: Task) -> dict[str, Any]:
        """Evaluate the model in the message, or the site's own model for personalised methods."""
        assert task.message is not None
        params = task.message.params
        if self._method.personal:
            if not self._states.has(task.site, task.after):
                return {"fault": "it has no model of its own", "version": task.after}
            params = self._method.model_at(params, self._states.load(task.site, task.after))
        exact = partial(score, self._net, data=self._tested[task.site].test, classes=self._classes)
        noisy = self._noisy_scores.get(task.site)
        work = partial(noisy, self._net) if noisy else exact
        return {"score": self._place.do(work, params), "version": task.after}
