"""What is done where a site's images are. Every engine calls this, in its own process or in another."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from fedlgd.core.device import Place
from fedlgd.core.evaluate import score
from fedlgd.core.meter import metered, phase
from fedlgd.core.net import Net
from fedlgd.core.pack import same
from fedlgd.core.records import Score
from fedlgd.core.rng import Stream
from fedlgd.core.types import Broadcast, Hello, SiteState, Update
from fedlgd.data.federation import Federation
from fedlgd.methods.protocol import Method


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Task:
    """What a site is asked to do: enrol; train a round; score the model in `message` on its test images."""

    what: Literal["enrol", "train", "score"]
    site: str
    round: int = -1
    message: Broadcast | None = None
    state: SiteState | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Answer:
    """What came of a task, and what it cost. No `state`: the site keeps the one it had."""

    site: str
    hello: Hello | None = None
    state: SiteState | None = None
    update: Update | None = None
    score: Score | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)
    flops: Mapping[str, int] = field(default_factory=dict)


class Sites:
    """The sites' half of a run: the images, and the part of the method that sees them. task -> answer."""

    def __init__(self, method: Method, federation: Federation, net: Net, seed: int, place: Place) -> None:
        self._place = place
        self._method, self._net, self._root = method, net, Stream(seed)
        self._sites = federation.by_name
        self._tested = {site.name: site for site in federation.tested}
        self._classes = len(federation.classes)

    def __call__(self, task: Task) -> Answer:
        do = {"enrol": self._enrol, "train": self._train, "score": self._score}[task.what]
        with metered() as meter:
            parts = self._place.do(do, task)
        return Answer(site=task.site, seconds=dict(meter.seconds), flops=dict(meter.flops), **parts)

    def _enrol(self, task: Task) -> dict[str, Any]:
        rng = self._root.at("enrol", task.site)
        state, hello = self._method.enrol(self._sites[task.site], self._net, rng)
        return {"state": state, "hello": hello}

    def _train(self, task: Task) -> dict[str, Any]:
        assert task.message is not None
        assert task.state is not None
        rng = self._root.at("site", task.site, task.round)
        with phase("train"):
            update, after = self._method.site(task.message, task.state, self._sites[task.site], self._net, rng)
        return {"update": update, "state": None if same(task.state, after) else after}

    def _score(self, task: Task) -> dict[str, Any]:
        assert task.message is not None
        test = self._tested[task.site].test
        return {"score": score(self._net, task.message.params, test, self._classes)}
