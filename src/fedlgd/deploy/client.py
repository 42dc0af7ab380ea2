"""The program at a site: a Flower `ClientApp`. It works alike in one process for all messages and in one for each.

The SuperNode names the site and its folder (`--node-config "site='a' folder='...'"`). In the folder are

    site.toml      the policy of the site: what it does and what it discloses
    join.json      `SiteSettings`: where its images are, and how to read them
    state/RUN/     its states in a run, for this user only; they never leave
    journal.log    everything that left, and every refusal

The policy is asked before the configuration of a run is interpreted. The coordinator learns why the policy refuses
a task or why it does not fit the images; other errors are in the journal of the site only.
"""

import logging
import time
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec
import torch
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedlgd.core import files
from fedlgd.core.device import Place
from fedlgd.core.errors import RunError, in_words
from fedlgd.core.settings import flat
from fedlgd.core.types import LabelledSet, Site
from fedlgd.data.federation import Federation
from fedlgd.data.own.suite import Folders
from fedlgd.deploy.messages import Description, Order, read_question, reply
from fedlgd.deploy.policy import Asked, Journal, Policy, TaskError
from fedlgd.engines.site import Answer, Sites, Task
from fedlgd.engines.storage import FolderStates
from fedlgd.engines.wire import nbytes, to_bytes
from fedlgd.runs.config import resolve

log = logging.getLogger(__name__)

app = ClientApp()

HIDDEN_REASON = "it could not do the task; its journal says why"


@app.train()
def answer(message: Message, context: Context) -> Message:
    """Answer a message of the coordinator."""
    folder, site = (str(context.node_config[key]) for key in ("folder", "site"))
    return Message(answer_question(message.content, SiteSettings.read(Path(folder), site)), reply_to=message)


@dataclass(frozen=True, kw_only=True)
class SiteSettings:
    """How a site takes part. `images` are the settings of its images, with their path: a folder with class folders
    (or train and test folders with them), or a prepared .npz file."""

    site: str
    folder: Path
    images: Folders = field(default_factory=Folders)
    threads: int = 1
    device: str = "cpu"

    def write(self) -> None:
        """Store `join.json`; `fedlgd join` does this."""
        kept = {"images": msgspec.to_builtins(self.images), "threads": self.threads, "device": self.device}
        files.write_json(self.folder / "join.json", kept)

    @classmethod
    def read(cls, folder: Path, site: str) -> "SiteSettings":
        file = folder / "join.json"
        kept = files.read_json(file)
        with files.reading(file):
            return cls(site=site, folder=folder, **{**kept, "images": msgspec.convert(kept["images"], Folders)})

    def open(self) -> Site:
        """The images of this site. Classes that only other sites have are legal."""
        (site,) = replace(self.images, min_per_class=0).open(self.site, only=self.site).sites
        return site


def answer_question(asked: RecordDict, at: SiteSettings) -> RecordDict:
    """The answer to a question, after the policy and the journal."""
    order, tasks = read_question(asked)
    half = SiteHalf(at, order)
    if not tasks:
        return reply(asked, [half.record("describe", -1, half.describe())])
    with _alone(at.folder):
        return reply(asked, [half.record(task.what, task.round, half.do(task)) for task in tasks])


class SiteHalf:
    """The sites' half of a run at its one site."""

    def __init__(self, at: SiteSettings, order: Order) -> None:
        self._at, self._order = at, order
        self._policy, self._journal = Policy.read(at.folder / "site.toml"), Journal(at.folder / "journal.log")
        self._config = tomllib.loads(order.config)

    def describe(self) -> Description:
        """What the coordinator has to know before a run."""
        try:
            self._ask_policy("describe", -1)
            site = self._at.open()
        except Exception as error:
            fault = self._refused("describe", -1, error)
            return Description(site=self._at.site, classes=(), shape=(0, 0, 0), fault=fault)
        c, h, w = site.train.x.shape[1:]
        counts = (len(site.train), len(site.test)) if "counts" in self._policy.disclose else None
        return Description(site=self._at.site, classes=site.classes, shape=(c, h, w), images=counts)

    def do(self, task: Task) -> Answer:
        """The answer to a task, without what the site does not disclose."""
        try:
            if task.site != self._at.site:
                raise TaskError("task-for-another-site", site=task.site, here=self._at.site)
            self._ask_policy(task.what, task.round)
            files.private_folder(self._at.folder / "state")
            return self._disclosed(_sites(self._at, self._order)(task))
        except Exception as error:
            fault = self._refused(task.what, task.round, error)
            return Answer(site=self._at.site, version=task.after, fault=fault)

    def record(self, what: str, round: int, answer: Answer | Description) -> bytes:
        """The answer as bytes, written to the journal before it leaves."""
        content, parts = to_bytes(answer), _parts(answer)
        self._journal.left(what, round, parts | {"names and format": len(content) - sum(parts.values())})
        return content

    def _ask_policy(self, what: str, round: int) -> None:
        settings = dict(flat(self._config))
        method, net, rounds = settings.pop("method"), settings.pop("net.name"), settings.pop("rounds")
        asked = Asked(what=what, method=method, settings=settings, net=net, rounds=rounds, round=round)
        self._policy.check(asked)

    def _refused(self, what: str, round: int, error: Exception) -> str:
        """Write an error to the journal; returns what the coordinator is told."""
        if not in_words(error):
            log.exception("%s failed", what)
        self._journal.refused(what, round, in_words(error) or f"{type(error).__name__}: {error}")
        return str(error) if isinstance(error, TaskError) else HIDDEN_REASON

    def _disclosed(self, answer: Answer) -> Answer:
        if "seconds" not in self._policy.disclose:
            answer = replace(answer, seconds={}, cpu={}, flops={})
        if answer.update and "scores" not in self._policy.disclose:
            answer = replace(answer, update=replace(answer.update, metrics={}))
        return answer


@lru_cache(maxsize=1)
def _sites(at: SiteSettings, order: Order) -> Sites:
    """The sites' half for a run. It is kept for the next task, if that comes to the same process."""
    torch.set_num_threads(at.threads)
    config = resolve(tomllib.loads(order.config))
    federation = Federation("real-sites", (relabelled(at.open(), order),))
    net = config.method.adapt(config.net_for(federation))
    states = FolderStates(at.folder / "state" / files.safe_name(order.run))
    return Sites(config.method, federation, net, config.plan, states, Place(device=at.device))


def relabelled(site: Site, order: Order) -> Site:
    """The site with the classes of the run, in its order."""
    shape = tuple(site.train.x.shape[1:])
    if shape != order.shape:
        raise TaskError("shape-of-another-run", shape=shape, expected=order.shape)
    if unknown := [name for name in site.classes if name not in order.classes]:
        raise TaskError("classes-of-another-run", unknown=unknown, classes=list(order.classes))
    places = torch.tensor([order.classes.index(name) for name in site.classes])

    def renamed(part: LabelledSet) -> LabelledSet:
        return replace(part, y=places[part.y])

    return replace(site, train=renamed(site.train), test=renamed(site.test), classes=order.classes)


def _parts(answer: Answer | Description) -> dict[str, int]:
    """The bytes of an answer by what they tell."""
    if isinstance(answer, Description):
        told = {"names of classes": answer.classes, "number of images": answer.images}
        return _sizes({**told, "reason": answer.fault})
    parts: dict[str, Any] = {}
    if answer.hello:
        parts |= {"class counts": answer.hello.counts, "pixel statistics": answer.hello.statistics}
    if answer.update:
        parts |= {"model": answer.update.params, **answer.update.trees}
    sizes = {name: nbytes(value) for name, value in parts.items() if value is not None}
    costs = [cost for cost in (answer.seconds, answer.cpu, answer.flops) if cost]
    metrics = answer.update and answer.update.metrics
    return sizes | _sizes({"score": answer.score, "metrics": metrics, "costs": costs, "reason": answer.fault})


def _sizes(told: Mapping[str, Any]) -> dict[str, int]:
    return {name: len(msgspec.json.encode(value)) for name, value in told.items() if value}


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Wait until an earlier task at this site has ended: two of them would remove each other's states."""
    busy = RunError("task-running", folder=str(folder))
    while True:
        try:
            with files.locked(folder / ".task", busy):
                yield
                return
        except RunError as error:
            if error is not busy:
                raise
        time.sleep(1.0)
