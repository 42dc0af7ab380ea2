"""The program at a site that carries out tasks: a Flower `ClientApp`, and the process that runs it.

Flower sends the code of an app with each run. A site does not run it: the process takes the messages from the
SuperNode beside it and gives them to the app of the `fedlgd` that is installed here. The app works alike in one
process for all messages and in one for each; the examples run it by `flwr run`.

The SuperNode names the site and its folder (`--node-config "site='a' folder='...'"`). In the folder are

    site.toml      the policy of the site: what it does and what it discloses
    join.json      `SiteSettings`: where its images are, and how to read them
    state/RUN/     its states in a run, for this user only; they never leave
    journal.log    everything that left, and every refusal

The policy is asked before the configuration of a run is interpreted, again with what the method declares before
anything is computed, and with every message before it leaves. The coordinator learns why the policy refuses a task
or why it does not fit the images; other errors are in the journal of the site only.
"""

import logging
import math
import sys
import threading
import time
import tomllib
import traceback
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import httpx
import msgspec
import torch
from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode, SubStatus
from flwr.proto import runtime_pb2
from flwr.supercore import interceptors
from flwr.supercore.constant import TaskType
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode.runtime import run_clientapp

from fedlgd.core import files
from fedlgd.core.device import Place
from fedlgd.core.errors import RunError, SettingError, in_words
from fedlgd.core.settings import flat
from fedlgd.core.types import Site
from fedlgd.data.federation import Federation
from fedlgd.data.own.suite import Folders
from fedlgd.deploy.classes import check_agreed
from fedlgd.deploy.journal import Journal
from fedlgd.deploy.messages import Description, Order, read_question, reply
from fedlgd.deploy.policy import Asked, Policy, TaskError
from fedlgd.deploy.processes import beating, end_with_parent
from fedlgd.engines.site import READ, Answer, Sites, Task
from fedlgd.engines.storage import FolderStates
from fedlgd.engines.wire import sizes, to_bytes
from fedlgd.rundir.disclosure import kind_of
from fedlgd.rundir.manifest import MethodInfo
from fedlgd.runs.config import resolve
from fedlgd.runs.place import checked_place
from fedlgd.runs.resume import differing_keys, method_info

log = logging.getLogger(__name__)

app = ClientApp()

HIDDEN_REASON = "it could not do the task; its journal says why"
NO_PROMISE = "epsilon: none, no differential privacy"
POLL_SECONDS = 0.25  # between two looks for a task
ACQUIRE_METHOD = "/flwr.proto.Runtime/AcquireTask"


@app.train()
def answer(message: Message, context: Context) -> Message:
    """Answer a message of the coordinator."""
    folder, site = (str(context.node_config[key]) for key in ("folder", "site"))
    return Message(answer_question(message.content, SiteSettings.read(Path(folder), site)), reply_to=message)


@dataclass(frozen=True, kw_only=True)
class SiteSettings:
    """How a site takes part. `images` are the settings of its images, with their path: a folder with class folders
    (or train and test folders with them), or a prepared .npz file. classes: those that were agreed on, if any."""

    site: str
    folder: Path
    images: Folders = field(default_factory=Folders)
    threads: int = 1
    place: Place = Place()
    classes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.place.compile == "auto":  # a site does not know how long a run is
            raise SettingError("setting-choice", setting="compile", value="auto", choices=["on", "off"])

    def write(self) -> None:
        """Store `join.json`, with warnings of what the machine lacks; `fedlgd join` does this."""
        checked_place(self.place)  # which is stored as it is: a compiler may be there next time
        kept = {"images": msgspec.to_builtins(self.images), "threads": self.threads, **asdict(self.place)}
        files.write_json(self.folder / "join.json", {**kept, "classes": list(self.classes)})

    @classmethod
    def read(cls, folder: Path, site: str) -> "SiteSettings":
        file = folder / "join.json"
        kept = files.read_json(file)
        with files.reading(file):
            images, classes = msgspec.convert(kept["images"], Folders), tuple(kept.get("classes", ()))
            place = Place(**{each.name: kept[each.name] for each in fields(Place) if each.name in kept})
            return cls(
                site=site, folder=folder, images=images, threads=kept["threads"], place=place, classes=classes
            )

    def open(self) -> Site:
        """The images of this site. It may lack classes, and has none that nobody agreed on."""
        (site,) = replace(self.images, min_per_class=0).open(self.site, only=self.site).sites
        check_agreed(site.classes, self.classes)
        return site


def answer_question(asked: RecordDict, at: SiteSettings) -> RecordDict:
    """The answer to a question, after the policy and the journal."""
    order, tasks = read_question(asked)
    half = SiteHalf(at, order)
    if not tasks:
        return reply(asked, [half.record("describe", -1, half.describe())])
    busy = RunError("task-running", folder=str(at.folder))  # two tasks would remove each other's states
    with files.locked(at.folder / ".task", busy, math.inf):
        return reply(asked, [half.record(task.what, task.round, half.do(task)) for task in tasks])


class SiteHalf:
    """The sites' half of a run at its one site."""

    def __init__(self, at: SiteSettings, order: Order) -> None:
        self._at, self._order = at, order
        self._policy, self._config = Policy.read(at.folder / "site.toml"), tomllib.loads(order.config)
        self._journal = Journal(at.folder / "journal.log", order.run, str(self._config.get("method")))

    def describe(self) -> Description:
        """What the coordinator has to know before a run."""
        for note in self._policy.notes:
            self._journal.noted(note)
        try:
            (site,) = self._allowed("describe", -1).sites.federation.sites
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
            half = self._allowed(task.what, task.round)
            files.private_folder(self._at.folder / "state")
            answer = self._disclosed(half.sites(task))
            self._check_answer(answer, task, half.declared)
        except Exception as error:
            fault = self._refused(task.what, task.round, error)
            return Answer(site=self._at.site, version=task.after, fault=fault)
        return answer

    def record(self, what: str, round: int, answer: Answer | Description) -> bytes:
        """The answer as bytes, written to the journal before it leaves."""
        content, parts, circumstances = to_bytes(answer), Counter(_told(answer)), ""
        if isinstance(answer, Answer) and not answer.fault:
            half = _half(self._at, self._order)
            parts, circumstances = _kinds(answer, half.declared) + parts, half.circumstances(what, answer)
        parts["names and format"] = len(content) - sum(parts.values())
        self._journal.left(what, round, parts, circumstances)
        return content

    def _allowed(self, what: str, round: int) -> "Half":
        """The run as the site carries it out, if its policy allows what is asked and what the method declares."""
        self._policy.check(_asked(what, round, self._config))
        half = _half(self._at, self._order)
        self._policy.check(_asked(what, round, half.settings))  # also what the server leaves to defaults
        self._policy.check_declared(half.declared)
        if self._order.classes:
            self._policy.check_code(differing_keys(half.declared.sources, dict(self._order.sources)))
        return half

    def _disclosed(self, answer: Answer) -> Answer:
        if "seconds" not in self._policy.disclose:
            answer = replace(answer, seconds={}, cpu={}, flops={})
        if answer.update and "scores" not in self._policy.disclose:
            answer = replace(answer, update=replace(answer.update, metrics={}))
        return answer

    def _check_answer(self, answer: Answer, task: Task, declared: MethodInfo) -> None:
        """Refuse to send what the policy does not allow. A site without its state enrols in a round of training."""
        self._policy.check_sent(_sizes(answer), declared)
        if READ in answer.flags:
            self._policy.check_read(-1 if answer.hello else task.round, declared)

    def _refused(self, what: str, round: int, error: Exception) -> str:
        """Write an error to the journal; returns what the coordinator is told."""
        if not in_words(error):
            log.exception("%s failed", what)
        self._journal.refused(what, round, in_words(error) or f"{type(error).__name__}: {error}")
        return str(error) if isinstance(error, TaskError) else HIDDEN_REASON


def _asked(what: str, round: int, config: Mapping[str, Any]) -> Asked:
    settings = dict(flat(config))
    method, net, rounds = settings.pop("method"), settings.pop("net.name"), settings.pop("rounds")
    return Asked(what=what, method=method, settings=settings, net=net, rounds=rounds, round=round)


@dataclass(frozen=True, eq=False)
class Half:
    """The sites' half of a run, all its settings, and what its method declares."""

    sites: Sites
    settings: Mapping[str, Any]
    declared: MethodInfo

    def circumstances(self, what: str, answer: Answer) -> str:
        """What an answer was made from, and under which promise."""
        budget, data = self.sites.method.budget, self.declared.train_on
        facts = (
            [f"trained on {data}" if data == "nothing" else f"trained on {data} images"] if answer.update else []
        )
        if what != "score":
            unread = "only as sums with noise" if budget and budget.protects == "image" else "not read"
            facts.append(f"private images: {'read' if READ in answer.flags else unread}")
        return "; ".join([*facts, budget.statement if budget else NO_PROMISE])


@lru_cache(maxsize=1)
def _half(at: SiteSettings, order: Order) -> Half:
    """It is kept for the next task, if that comes to the same process. An order without classes is a question for
    those of the site."""
    torch.set_num_threads(at.threads)
    config, site = resolve(tomllib.loads(order.config)), at.open()
    if at.classes and (unknown := [name for name in order.classes if name not in at.classes]):
        raise TaskError("run-not-agreed", unknown=unknown, agreed=at.classes)
    federation = Federation("real-sites", (relabelled(site, order) if order.classes else site,))
    net, states = config.net_for(federation), FolderStates(at.folder / "state" / files.safe_name(order.run))
    sites = Sites(config.method, federation, config.method.adapt(net), config.plan, states, at.place)
    return Half(sites, config.plain(), method_info(config.method, net))


def relabelled(site: Site, order: Order) -> Site:
    """The site with the classes of the run, in its order."""
    shape = tuple(site.train.x.shape[1:])
    if shape != order.shape:
        raise TaskError("shape-of-another-run", shape=shape, expected=order.shape)
    if unknown := [name for name in site.classes if name not in order.classes]:
        raise TaskError("classes-of-another-run", unknown=unknown, classes=list(order.classes))
    places = torch.tensor([order.classes.index(name) for name in site.classes])
    train, test = (replace(part, y=places[part.y]) for part in (site.train, site.test))
    return replace(site, train=train, test=test, classes=order.classes)


def _told(answer: Answer | Description) -> dict[str, int]:
    """The bytes of what an answer tells besides the messages of the method."""
    told: dict[str, Any]
    if isinstance(answer, Description):
        told = {"names of classes": answer.classes, "number of images": answer.images}
    else:
        costs = [cost for cost in (answer.seconds, answer.cpu, answer.flops) if cost]
        told = {"scores": answer.score, "costs": costs}
    told["reason"] = answer.fault
    return {name: len(msgspec.json.encode(value)) for name, value in told.items() if value}


def _kinds(answer: Answer, declared: MethodInfo) -> Counter[str]:
    """The bytes of the messages of the method, by their kind."""
    found: Counter[str] = Counter()
    for path, size in _sizes(answer).items():
        found[kind_of(path, declared)] += size
    return found


def _sizes(answer: Answer) -> dict[str, int]:
    """The bytes of the messages of the method, by path."""
    messages = (answer.hello, answer.update)
    return {path: size for message in messages if message for path, size in sizes(message).items()}


def run_worker(folder: str, port: str, secret: str) -> None:
    """Carry out tasks of the SuperNode at this port until it is ended; `folder` is the kit of the site.

    Each task has a thread, because the input of a task never arrives if its run was killed meanwhile. They compute
    one after the other.
    """
    end_with_parent()
    turn, protected = threading.Lock(), frozenset({ACQUIRE_METHOD})
    proof = interceptors.SuperExecAuthHttpInterceptor(
        master_secret=Path(secret).read_bytes(), protected_methods=protected
    )
    request = runtime_pb2.AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP])
    with _client(port, proof) as client:
        while True:
            found = runtime_pb2.AcquireTaskResponse()
            with suppress(httpx.TransportError):  # the SuperNode is starting
                found = client.AcquireTask(request)
            if found.HasField("task"):
                given = (turn, port, found.token, found.task.task_id, folder)
                threading.Thread(target=_work, args=given, daemon=True).start()
            time.sleep(POLL_SECONDS)


def _work(turn: threading.Lock, port: str, token: str, task: int, folder: str) -> None:
    """One task. Its result has no receiver if the run was stopped meanwhile."""
    with _client(port, interceptors.RuntimeTokenHttpInterceptor(token)) as client:
        try:
            with beating(lambda: client.SendTaskHeartbeat(runtime_pb2.SendTaskHeartbeatRequest())):
                message, context, _, _ = run_clientapp.pull_task_input(client)
                context.node_config["folder"] = folder
                with turn:
                    TaskIdentity.task_id, TaskIdentity.run_id = task, context.run_id
                    found, failed = _safe_answer(message, context)
            run_clientapp.push_message(client, found, context)
            status = SubStatus.FAILED if failed else SubStatus.COMPLETED
            run_clientapp.push_task_output(client, context, status, failed)
        except Exception as error:
            traceback.print_exception(error)


def _safe_answer(message: Message, context: Context) -> tuple[Message, str]:
    """The answer of the app. If it fails, only the type of the error leaves: its text can tell of images."""
    try:
        return app(message=message, context=context), ""
    except Exception as error:
        traceback.print_exception(error)
        failed, journal = type(error).__name__, Path(str(context.node_config["folder"])) / "journal.log"
        Journal(journal).refused("a task", -1, f"{failed}: {error}")
        return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, failed), reply_to=message), failed


def _client(port: str, proof: Any) -> RuntimeHttpClient:
    versions = interceptors.RuntimeVersionHttpInterceptor(component_name="flwr-clientapp")
    return RuntimeHttpClient.from_server_address(
        server_address=f"127.0.0.1:{port}", insecure=True, root_certificates=None, interceptors=[versions, proof]
    )


if __name__ == "__main__":
    run_worker(*sys.argv[1:])
