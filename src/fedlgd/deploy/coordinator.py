"""The coordinator's half of a run at real sites: `runs.run.execute` with the engine `flower`.

`fedlgd run --engine flower` calls `coordinate` with a grid of its own. `app` does the same for users of `flwr run`:
the run configuration names the file of a `Request`. The run folder is on the coordinator, as in any other
run. Stop it at any moment: the same request resumes.

The engine gives tasks to the sites through a Flower `Grid`; `client` is the program at a site. The coordinator
knows from the registered keys which node is which site; what an answer says about its sender is not believed. With
all sites answering, the results have the bits of `loop`.

For a site that is not connected, is lost, answers late, or sends something unreadable, the answer is a `fault`: the
server records the reason and goes on if the quorum is met. Before it asks, the engine waits up to `timeout` seconds
until enough sites for the quorum are connected.

A round is one message to each sampled site, and one more to each tested site in the rounds that are evaluated. They
are not joined: the score of a round is part of its commit, and the next round starts after it. docs/deploy.md has
the measured cost of a message.
"""

import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import torch
from flwr.app import Context, Message
from flwr.serverapp import Grid, ServerApp

from fedlgd.core import files
from fedlgd.core.device import Place
from fedlgd.core.errors import RunError, one_line
from fedlgd.core.errors import message as text
from fedlgd.core.meter import tick
from fedlgd.core.net import Net
from fedlgd.core.text import plural
from fedlgd.core.types import LabelledSet, Site
from fedlgd.data.federation import Federation
from fedlgd.data.own.sites import natural
from fedlgd.deploy.connection import DAMAGED, OVERSIZED
from fedlgd.deploy.messages import Description, Order, question, question_digest, read_reply
from fedlgd.engines.loop import Rounds, serve
from fedlgd.engines.settings import RoundSettings
from fedlgd.engines.site import Answer, Task
from fedlgd.engines.storage import RamStates, States, Storage
from fedlgd.engines.validate import Refused, check_enrolled, quorum_size
from fedlgd.engines.wire import nbytes
from fedlgd.methods.protocol import Method
from fedlgd.rundir.manifest import read_manifest
from fedlgd.runs.config import Config, resolve
from fedlgd.runs.extend import continued
from fedlgd.runs.result import Result
from fedlgd.runs.run import Listener, execute

app = ServerApp()

PAUSE_SECONDS = 0.5  # between two looks at the post
MAX_NAME_LETTERS = 100  # of a name that a site sends
MAX_NAMES = 1_000
MAX_CLASSES = 10_000
MAX_SIDE_PIXELS = 4_096
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


@dataclass(frozen=True, kw_only=True)
class Request:
    """A run of real sites. `sites`: the node id of every site, from the registered keys. `timeout`: seconds that a
    round waits for its sites. `config` is the text of the run's `config.toml`, with data name "real-sites"."""

    config: str
    out: str
    sites: dict[str, int]
    timeout: float = 3600.0
    threads: int = 1
    command: str = ""

    def write(self, file: Path) -> None:
        files.write_json(file, msgspec.to_builtins(self))

    @classmethod
    def read(cls, file: Path) -> "Request":
        given = files.read_json(file)
        with files.reading(file):
            return msgspec.convert(given, cls)


@app.main()
def main(grid: Grid, context: Context) -> None:
    coordinate(grid, Request.read(Path(str(context.run_config["request"]))))


def coordinate(
    grid: Grid, request: Request, on_round: Listener | None = None, pause: float = PAUSE_SECONDS
) -> Result:
    """Run or resume the request with the sites that the grid reaches."""
    torch.set_num_threads(request.threads)
    out = Path(request.out).absolute()
    config = continued(resolve(tomllib.loads(request.config)), out)
    post = Post(grid=grid, nodes=request.sites, timeout=request.timeout, pause=pause)
    run = files.digest(str(out).encode(), request.config.encode())
    federation = _known(out, request.sites) or _described(post, config, run, request)
    order = Order(run=run, config=config.toml(), classes=federation.classes, shape=federation.shape)
    return execute(config, federation, out, on_round, request.command, engine=Flower(post=post, order=order))


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
        raise RunError("kit-of-another-run", out=str(out), started=sorted(notes), given=sorted(sites))
    return without_images(notes, data.classes, data.shape)


def _described(post: Post, config: Config, run: str, request: Request) -> Federation:
    """Ask the sites for their classes and the shape of their images."""
    names = list(request.sites)
    told: dict[str, Description] = {}
    refused = dict.fromkeys(names, AWAY)
    here = post.wait_for(names, config.plan.quorum)
    for sent, got in post.ask(Order(run=run, config=request.config), dict.fromkeys(here, ())):
        try:
            if isinstance(got, str):
                raise Refused("site-fault", fault=got)
            (found,) = read_reply(got.content, sent.question, Description, 1, MARGIN_BYTES)
            _check_description(found, sent.site)
        except Refused as refusal:
            refused[sent.site] = str(refusal)
            continue
        told[sent.site] = found
        del refused[sent.site]
    check_enrolled(len(names), refused, config.plan.quorum)
    classes = tuple(natural({name for each in told.values() for name in each.classes}))  # as for folders
    return without_images({name: _note(told.get(name)) for name in names}, classes, _shape(told))


def _check_description(told: Description, site: str) -> None:
    if told.fault:
        raise Refused("site-fault", fault=one_line(told.fault))
    if told.site != site:
        raise Refused("name-of-another", name=told.site[:40])
    if not all(map(is_name, told.classes)) or not 2 <= len(set(told.classes)) == len(told.classes) <= MAX_CLASSES:
        raise Refused("classes-impossible")
    if not all(0 < side <= MAX_SIDE_PIXELS for side in told.shape):
        raise Refused("shape-impossible", shape=told.shape)


def _note(told: Description | None) -> str:
    if told is None or told.images is None:
        return ""
    return f"{told.images[0]} training and {plural(told.images[1], 'test image')}"


def _shape(told: Mapping[str, Description]) -> tuple[int, ...]:
    shapes = {name: each.shape for name, each in sorted(told.items())}
    if len(set(shapes.values())) > 1:
        raise RunError("shapes-of-sites-differ", shapes=shapes)
    return next(iter(shapes.values()))
