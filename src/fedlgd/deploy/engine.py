"""The engine `flower`: the sites' half runs at real sites, reached through a Flower `Grid`.

`coordinator` runs it, also inside a Flower `ServerApp`, and `client` is the program at a site. The
coordinator knows from the registered keys which node is which site; what an answer says about its sender is not
believed. With all sites answering, the results have the bits of `loop`.

For a site that is not connected, is lost, answers late, or sends something unreadable, the answer is a `fault`: the
server records the reason and goes on if the quorum is met. Before it asks, the engine waits up to `timeout` seconds
until enough sites for the quorum are connected.

A round is one message to each sampled site, and one more to each tested site in the rounds that are evaluated. They
are not joined: the score of a round is part of its commit, and the next round starts after it. docs/deploy.md has
the measured cost of a message.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from flwr.app import Message
from flwr.serverapp import Grid

from fedlgd.core.device import Place
from fedlgd.core.errors import message as text
from fedlgd.core.errors import one_line
from fedlgd.core.meter import tick
from fedlgd.core.net import Net
from fedlgd.core.text import plural
from fedlgd.data.federation import Federation
from fedlgd.deploy.connection import DAMAGED, OVERSIZED
from fedlgd.deploy.messages import Order, question, question_digest, read_reply
from fedlgd.engines.loop import Rounds, serve
from fedlgd.engines.settings import RoundSettings
from fedlgd.engines.site import Answer, Task
from fedlgd.engines.storage import RamStates, States, Storage
from fedlgd.engines.validate import Refused, quorum_size
from fedlgd.engines.wire import nbytes
from fedlgd.methods.protocol import Method

PAUSE_SECONDS = 0.5  # between two looks at the post
MAX_NAME_LETTERS = 100  # of a name that a site sends
MAX_NAMES = 1_000
AWAY = "it is not connected"
MARGIN_BYTES = 1 << 20  # of an answer beside its tensors: names, scores, costs


@dataclass(frozen=True, slots=True)
class Sent:
    """A message on its way: to which site and node, with the digest of its question, and its tasks."""

    site: str
    node: int
    question: str
    tasks: Sequence[Task]


@dataclass(frozen=True, kw_only=True, eq=False)
class Post:
    """Questions to sites and their answers. `nodes`: the node id of every site, by its registered key."""

    grid: Grid
    nodes: Mapping[str, int]
    timeout: float = 3600.0
    pause: float = PAUSE_SECONDS

    def wait_for(self, names: Sequence[str], quorum: float) -> list[str]:
        """The sites among `names` that are connected, as soon as they are enough, or after the time-out."""
        least, until = quorum_size(len(names), quorum), time.monotonic() + self.timeout
        while True:
            here = set(self.grid.get_node_ids())
            found = [name for name in names if self.nodes.get(name) in here]
            if len(found) >= least or time.monotonic() >= until:
                return found
            tick("waiting for sites", len(found), len(names))
            time.sleep(self.pause)

    def ask(self, order: Order, tasks: Mapping[str, Sequence[Task]]) -> Iterator[tuple[Sent, Message | str]]:
        """Send every site its tasks; yield each reply, or why there is none."""
        sent: dict[str, Sent] = {}
        for site, own in tasks.items():
            key, on_its_way = self._send(order, site, own)
            if key:
                sent[key] = on_its_way
            else:
                yield on_its_way, text("message-not-sent")
        until, count = time.monotonic() + self.timeout, len(sent)
        while sent:
            tick("answers of sites", count - len(sent), count)
            for message in self.grid.pull_messages(list(sent)):
                found = sent.pop(message.metadata.reply_to_message_id, None)
                if found:
                    yield found, _fault(message, found) or message
            if sent and time.monotonic() >= until:
                break
            if sent:
                time.sleep(self.pause)
        for found in sent.values():
            yield found, text("answer-too-late", seconds=self.timeout)

    def _send(self, order: Order, site: str, tasks: Sequence[Task]) -> tuple[str | None, Sent]:
        """The id of the message, if it was sent. It is of no use after the time-out, so it expires then."""
        content, node = question(order, tasks), self.nodes[site]
        message = Message(content, node, "train", ttl=self.timeout + self.pause)
        key = next(iter(self.grid.push_messages([message])), None)
        return key, Sent(site, node, question_digest(content), tasks)


def _fault(message: Message, sent: Sent) -> str:
    """Why a reply is not read; empty if it is."""
    if message.has_error():
        return LOST_REASONS.get(message.error.code, "its program failed; its log says why")
    if message.metadata.src_node_id != sent.node:
        return text("another-node", node=message.metadata.src_node_id)
    return ""


LOST_REASONS = {
    3: "its answer was lost",
    4: "its answer was lost",
    5: "the connection to it was lost",
    DAMAGED: "its answer is not a message",
    OVERSIZED: "its answer has more bytes than any answer can have",
}
"""Flower's codes of errors that the network causes, and two of ours."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Flower:
    """Runs each task at its site."""

    name: ClassVar[str] = "flower"
    local: ClassVar[bool] = False
    post: Post
    order: Order
    place: Place = Place()

    def run(
        self,
        method: Method,
        federation: Federation,
        net: Net,
        plan: RoundSettings,
        memory: Storage,
        states: States,
    ) -> Rounds:
        """Like `loop`, with the sites' work elsewhere."""
        net = method.adapt(net)

        def limit(task: Task) -> int:
            update = nbytes(method.expects(task.message, net)) if task.message else 0
            return MARGIN_BYTES + 2 * (update + nbytes(method.expects_hello(net)))

        def work(tasks: Iterator[Task]) -> Iterator[Answer]:
            return self._work(list(tasks), plan.quorum, limit)

        return serve(method, federation, net, plan, memory, work, self.place)

    def _work(self, tasks: Sequence[Task], quorum: float, limit: Callable[[Task], int]) -> Iterator[Answer]:
        by_site: dict[str, list[Task]] = {}
        for task in tasks:
            by_site.setdefault(task.site, []).append(task)
        here = self.post.wait_for(list(by_site), quorum) if by_site else []
        for name in by_site.keys() - set(here):
            yield from _failed(by_site[name], AWAY)
        for sent, got in self.post.ask(self.order, {name: by_site[name] for name in here}):
            yield from _answers(sent, got, sum(map(limit, sent.tasks)))

    def states(self) -> States:
        """Empty: every site keeps its own."""
        return RamStates()

    def threads(self) -> AbstractContextManager[None]:
        return nullcontext()

    def processes(self, federation: Federation) -> int:
        return len(federation.sites)

    def describe(self, federation: Federation) -> str:
        return f"engine flower: {plural(len(federation.sites), 'real site')}; time-out {self.post.timeout:g} s"


def _answers(sent: Sent, got: Message | str, limit: int) -> Iterator[Answer]:
    """The answers in a reply, or one with a fault for each task."""
    if isinstance(got, str):
        yield from _failed(sent.tasks, got)
        return
    try:
        found: list[Any] = read_reply(got.content, sent.question, Answer, len(sent.tasks), limit)
    except Refused as error:
        yield from _failed(sent.tasks, str(error))
        return
    for task, answer in zip(sent.tasks, found, strict=True):
        if answer.site != sent.site:
            yield from _failed([task], text("name-of-another", name=answer.site[:40]))
        elif not _plain(answer):
            yield from _failed([task], text("names-unprintable"))
        else:
            yield replace(answer, fault=one_line(answer.fault))


def _plain(answer: Answer) -> bool:
    """Whether the names in an answer can stand in tables and terminals."""
    metrics = answer.update.metrics if answer.update else {}
    names = [*answer.flags, *metrics, *answer.seconds, *answer.cpu, *answer.flops]
    return len(names) <= MAX_NAMES and all(is_name(name) for name in names)


def is_name(text: str) -> bool:
    return 0 < len(text) <= MAX_NAME_LETTERS and text.isprintable()


def _failed(tasks: Sequence[Task], fault: str) -> Iterator[Answer]:
    return (Answer(site=task.site, version=task.after, fault=fault) for task in tasks)
