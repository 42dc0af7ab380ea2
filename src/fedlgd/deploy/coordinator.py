"""The coordinator's half of a run at real sites: `runs.run.execute` with the engine `flower`.

`fedlgd run --engine flower` calls `coordinate` with a grid of its own; an app for `flwr run` is in the examples.
The run folder is on the coordinator, as in any other run. Stop it at any moment: the same command resumes.

The engine gives tasks to the sites through a Flower `Grid`; `client` is the program at a site. The coordinator
knows from the registered keys which node is which site; what an answer says about its sender is not believed. With
all sites answering, the results have the bits of `loop`.

For a site that is not connected, is lost, answers late, or sends something unreadable, the answer is a `fault`: the
server records the reason and goes on if the quorum is met. Before it asks, the engine waits up to `timeout` seconds
until enough sites for the quorum are connected.

A round is one message to each sampled site in every exchange (most methods have one), and one more to each tested
site in the rounds that are evaluated. They are not joined: the score of a round is part of its commit, and the next
round starts after it. docs/deploy.md has the measured cost of a message.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from flwr.app import Message
from flwr.serverapp import Grid

from fedlgd.core import errors, files, meter
from fedlgd.core.text import plural
from fedlgd.core.types import LabelledSet, Site
from fedlgd.data.federation import Federation
from fedlgd.deploy.classes import Confirm, agree, check_agreed
from fedlgd.deploy.connection import DAMAGED, OUTAGE_SECONDS, OVERSIZED
from fedlgd.deploy.kit import is_name
from fedlgd.deploy.messages import Description, Order, question, question_digest, read_reply
from fedlgd.deploy.policy import TaskError
from fedlgd.engines.registry import Engine
from fedlgd.engines.server import Work, known_hello
from fedlgd.engines.site import Answer, Sites, Task
from fedlgd.engines.storage import Storage
from fedlgd.engines.validate import MAX_NAMED, Refused, check_enrolled, quorum_size
from fedlgd.engines.wire import nbytes
from fedlgd.rundir.manifest import read_manifest
from fedlgd.runs.config import Config
from fedlgd.runs.result import Result
from fedlgd.runs.resume import continued, sources_of
from fedlgd.runs.run import Listener, execute

PAUSE_SECONDS = 0.5  # between two looks at the post
GRACE_SECONDS = 5.0  # after which the terminal says that a site is awaited
MAX_NAMES = 1_000
MAX_CLASSES = 10_000
MAX_SIDE_PIXELS = 4_096
AWAY = "it is not connected"
MARGIN_BYTES = 1 << 20  # of an answer beside its tensors: names, scores, costs

Limit = Callable[[Task], int]
"""The bytes that the tensors in the answer to a task can have."""


@dataclass(frozen=True, slots=True)
class Sent:
    """A message on its way: to which site and node, with the digest of its question, and its tasks."""

    site: str
    node: int
    question: str
    tasks: Sequence[Task]

    @property
    def kind(self) -> tuple[str, str]:
        """To whom, and what it asks."""
        return self.site, self.tasks[0].what if self.tasks else ""


@dataclass(frozen=True, kw_only=True, eq=False)
class Post:
    """Questions to sites and their answers. `nodes`: the node id of every site, by its registered key.

    slowest: the seconds of the slowest answer so far, by site and task. Later than that, the terminal says who is
    awaited and what happens next.
    """

    grid: Grid
    nodes: Mapping[str, int]
    timeout: float = 3600.0
    pause: float = PAUSE_SECONDS
    slowest: dict[tuple[str, str], float] = field(default_factory=dict)

    def wait_for(self, names: Sequence[str], quorum: float) -> list[str]:
        """The sites among `names` that are connected, as soon as they are enough, or after the time-out."""
        least, began = quorum_size(len(names), quorum), time.monotonic()
        while True:
            here = set(self.grid.get_node_ids())
            found = [name for name in names if self.nodes.get(name) in here]
            waited = time.monotonic() - began
            if len(found) >= least or waited >= self.timeout:
                meter.waiting("")
                return found
            meter.tick("waiting for sites", len(found), len(names))
            if waited >= GRACE_SECONDS:
                sites = _first_names([name for name in names if name not in found])
                state = {"here": len(found), "asked": len(names), "least": least, "timeout": self.timeout}
                meter.waiting(errors.message("waiting-for-sites", seconds=waited, sites=sites, **state))
            time.sleep(self.pause)

    def ask(
        self, order: Order, tasks: Mapping[str, Sequence[Task]], limit: Limit = lambda _: 0, least: int = 0
    ) -> Iterator[tuple[Sent, list[Any] | str]]:
        """Send every site its tasks; yield the answers of each, or why there are none.

        A question is of no use after the time-out, so it expires then. least: how many answers the run needs.
        """
        sent: dict[str, Sent] = {}
        for site, own in tasks.items():
            content, node = question(order, own), self.nodes[site]
            message = Message(content, node, "train", ttl=self.timeout + self.pause)
            asked = Sent(site, node, question_digest(content), own)
            if key := next(iter(self.grid.push_messages([message])), None):
                sent[key] = asked
            else:
                yield asked, errors.message("message-not-sent")
        began, count = time.monotonic(), len(sent)
        while sent:
            meter.tick("answers of sites", count - len(sent), count)
            for message in self.grid.pull_messages(list(sent)):
                if found := sent.pop(message.metadata.reply_to_message_id, None):
                    self.slowest[found.kind] = max(self.slowest.get(found.kind, 0.0), time.monotonic() - began)
                    yield found, read_answers(message, found, limit)
            waited = time.monotonic() - began
            if sent and waited >= self.timeout:
                break
            if sent:
                self._tell_late([*sent.values()], waited, count, least)
                time.sleep(self.pause)
        meter.waiting("")
        for found in sent.values():
            yield found, errors.message("answer-too-late", seconds=self.timeout)

    def _tell_late(self, sent: Sequence[Sent], waited: float, count: int, least: int) -> None:
        """Say which sites have not answered though they have before in this time, and what follows."""
        late = [each.site for each in sent if waited >= self.slowest.get(each.kind, 0.0) + GRACE_SECONDS]
        answered = count - len(sent)
        if late:
            follows = errors.message("late-left-out" if answered >= least else "late-stops", timeout=self.timeout)
            state = {"answered": answered, "asked": count, "follows": follows}
            meter.waiting(errors.message("waiting-for-answers", seconds=waited, sites=_first_names(late), **state))


def _first_names(names: Sequence[str]) -> str:
    more = len(names) - MAX_NAMED
    return ", ".join(names[:MAX_NAMED]) + (f" and {more} more" if more > 0 else "")


def tell_outage(seconds: float) -> None:
    """Say that the server has not answered for some seconds, and what follows."""
    meter.waiting(errors.message("waiting-for-server", seconds=seconds, outage=OUTAGE_SECONDS) if seconds else "")


LOST_REASONS = {
    3: "its answer was lost",
    4: "its answer was lost",
    5: "the connection to it was lost",
    DAMAGED: "its answer is not a message",
    OVERSIZED: "its answer has more bytes than any answer can have",
}
"""Flower's codes of errors that the network causes, and two of ours."""


def read_answers(message: Message, sent: Sent, limit: Limit) -> list[Any] | str:
    """The answers in a reply, or why it is refused. A site without a task describes itself."""
    if message.has_error():
        return LOST_REASONS.get(message.error.code, "its program failed; its log says why")
    if message.metadata.src_node_id != sent.node:
        return errors.message("another-node", node=message.metadata.src_node_id)
    kind, count = (Answer, len(sent.tasks)) if sent.tasks else (Description, 1)
    most = count * MARGIN_BYTES + sum(map(limit, sent.tasks))
    try:
        return read_reply(message.content, sent.question, kind, count, most)
    except Refused as error:
        return str(error)


@dataclass(frozen=True, kw_only=True, eq=False)
class Flower(Engine):
    """Runs each task at its site."""

    name: ClassVar[str] = "flower"
    local: ClassVar[bool] = False
    post: Post
    order: Order

    def work(self, sites: Sites, memory: Storage) -> AbstractContextManager[Work]:
        method, net = sites.method, sites.net

        def limit(task: Task) -> int:
            hello = known_hello(memory, task.site, net)
            update = nbytes(method.expects(task.message, net, hello)) if task.message else 0
            return 2 * (update + nbytes(method.expects_hello(net)))

        def work(tasks: Iterator[Task]) -> Iterator[Answer]:
            by_site: dict[str, list[Task]] = {}
            for task in tasks:
                by_site.setdefault(task.site, []).append(task)
            here = self.post.wait_for(list(by_site), sites.plan.quorum) if by_site else []
            scored = any(task.what == "score" for own in by_site.values() for task in own)
            least = 0 if scored else quorum_size(len(by_site), sites.plan.quorum)
            for name in by_site.keys() - set(here):
                yield from _failed(by_site[name], AWAY)
            for sent, found in self.post.ask(self.order, {name: by_site[name] for name in here}, limit, least):
                yield from checked_answers(sent, found)

        return nullcontext(work)

    def processes(self, federation: Federation) -> int:
        return len(federation.sites)

    def describe(self, federation: Federation) -> str:
        return f"engine flower: {plural(len(federation.sites), 'real site')}; time-out {self.post.timeout:g} s"


def checked_answers(sent: Sent, found: list[Answer] | str) -> Iterator[Answer]:
    """The answers of a site, or one with a fault for each task. Their names can stand in tables and terminals."""
    if isinstance(found, str):
        yield from _failed(sent.tasks, found)
        return
    for task, answer in zip(sent.tasks, found, strict=True):
        metrics = answer.update.metrics if answer.update else {}
        names = [*answer.flags, *metrics, *answer.seconds, *answer.cpu, *answer.flops]
        if answer.site != sent.site:
            yield from _failed([task], errors.message("name-of-another", name=answer.site[:40]))
        elif len(names) > MAX_NAMES or not all(map(is_name, names)):
            yield from _failed([task], errors.message("names-unprintable"))
        else:
            yield replace(answer, fault=errors.one_line(answer.fault))


def _failed(tasks: Sequence[Task], fault: str) -> Iterator[Answer]:
    return (Answer(site=task.site, version=task.after, fault=fault) for task in tasks)


def coordinate(
    grid: Grid,
    config: Config,
    folder: Path,
    sites: Mapping[str, int],
    timeout: float = 3600.0,
    threads: int = 1,
    command: str = "",
    on_round: Listener | None = None,
    pause: float = PAUSE_SECONDS,
    accept_changed_code: bool = False,
    label: str = "",
    federation: Federation | None = None,
) -> Result:
    """Run or resume a configuration with data "real-sites" at the sites that the grid reaches.

    sites: the node id of every site, from the registered keys.
    timeout: seconds that a round waits for its sites. label: the name of the run in tables.
    federation: what `ask_sites` returned, if they were asked already.
    """
    torch.set_num_threads(threads)
    out = folder.absolute()
    federation = federation or ask_sites(grid, config, folder, sites, timeout, pause)
    run, config = _run_id(config, out), continued(config, out)
    code = tuple(sources_of(config.method, config.net_for(federation)).items())
    order = Order(run=run, config=config.toml(), classes=federation.classes, shape=federation.shape, sources=code)
    engine = Flower(post=Post(grid=grid, nodes=sites, timeout=timeout, pause=pause), order=order)
    return execute(config, federation, out, on_round, command, label, engine, None, accept_changed_code)


def _run_id(config: Config, out: Path) -> str:
    return files.digest(str(out).encode(), config.toml().encode())


def ask_sites(
    grid: Grid,
    config: Config,
    folder: Path,
    sites: Mapping[str, int],
    timeout: float = 3600.0,
    pause: float = PAUSE_SECONDS,
    classes: Sequence[str] = (),
    confirm: Confirm = lambda _: False,
) -> Federation:
    """What a coordinator knows of its sites before a run: their classes, and the shape of an image.

    classes: those that were agreed on; a site with another one is refused. confirm: asked if there are none and
    the classes of the sites differ.
    """
    out = folder.absolute()
    if known := _known(out, sites):
        return known
    post = Post(grid=grid, nodes=sites, timeout=timeout, pause=pause)
    return _described(
        post, Order(run=_run_id(config, out), config=config.toml()), config.plan.quorum, classes, confirm
    )


def without_images(sites: Mapping[str, str], classes: tuple[str, ...], shape: tuple[int, ...]) -> Federation:
    """What a coordinator knows of its sites: their names with a note, the classes, and the shape of an image."""
    empty = LabelledSet(torch.empty(0, *shape, dtype=torch.uint8), torch.empty(0, dtype=torch.int64))
    made = (Site(name, empty, empty, classes, note) for name, note in sites.items())
    return Federation("real-sites", tuple(made), "images at real sites, which keep them")


def _known(out: Path, sites: Mapping[str, int]) -> Federation | None:
    """The federation of a run that has started; its sites are not asked again."""
    if not (out / "state").exists():
        return None
    data = read_manifest(out).data
    notes = {site.name: site.note for site in data.sites}
    if notes.keys() != sites.keys():
        raise errors.RunError("kit-of-another-run", out=str(out), started=sorted(notes), given=sorted(sites))
    return without_images(notes, data.classes, data.shape)


def _described(post: Post, order: Order, quorum: float, agreed: Sequence[str], confirm: Confirm) -> Federation:
    """Ask the sites for their classes and the shape of their images."""
    names = list(post.nodes)
    told: dict[str, Description] = {}
    refused, notes = dict.fromkeys(names, AWAY), dict.fromkeys(names, "")
    here = post.wait_for(names, quorum)
    for sent, found in post.ask(order, dict.fromkeys(here, ()), least=quorum_size(len(names), quorum)):
        refused[sent.site] = found if isinstance(found, str) else _description_fault(found[0], sent.site, agreed)
        if refused[sent.site] or isinstance(found, str):
            continue
        told[sent.site] = found[0]
        del refused[sent.site]
        if found[0].images:
            train, test = found[0].images
            notes[sent.site] = f"{train} training and {plural(test, 'test image')}"
    check_enrolled(len(names), refused, quorum)
    shapes = {name: each.shape for name, each in sorted(told.items())}
    if len(set(shapes.values())) > 1:
        raise errors.RunError("shapes-of-sites-differ", shapes=shapes)
    classes = agree({name: told[name].classes for name in names if name in told}, agreed, confirm)
    return without_images(notes, classes, next(iter(shapes.values())))


def _description_fault(told: Description, site: str, agreed: Sequence[str]) -> str:
    """Why a site cannot take part; empty if it can."""
    if told.fault:
        return errors.one_line(told.fault)
    if told.site != site:
        return errors.message("name-of-another", name=told.site[:40])
    if not all(map(is_name, told.classes)) or not 2 <= len(set(told.classes)) == len(told.classes) <= MAX_CLASSES:
        return errors.message("classes-impossible")
    if not all(0 < side <= MAX_SIDE_PIXELS for side in told.shape):
        return errors.message("shape-impossible", shape=told.shape)
    try:
        check_agreed(told.classes, agreed)
    except TaskError as error:
        return str(error)
    return ""
