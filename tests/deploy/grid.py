"""Real sites in this process: the ServerApp's half and the ClientApp without a network between them."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context, Error, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from fedlgd.data.federation import Federation
from fedlgd.data.own.suite import Folders
from fedlgd.data.suites import from_folders
from fedlgd.deploy import client
from fedlgd.deploy.client import SiteSettings
from fedlgd.rundir.disclosure import DISCLOSES
from fedlgd.runs.config import Config, resolve
from tests import tiny

POLICY = f"""
methods = ["*"]
nets = ["*"]
rounds = 1000
disclose = ["counts", "scores", "seconds"]
train_on = ["virtual", "real"]
sends = {[*DISCLOSES]}
"""
"""Allows every kind that the package describes."""


def nodes(names: Iterable[str]) -> dict[str, int]:
    return {name: 100 + i for i, name in enumerate(names)}


NODES = nodes(tiny.NAMES)

Trick = Callable[[Message, Message], Message | None]
"""(question, answer of an honest site) -> what arrives; None: nothing."""


@dataclass
class LocalGrid(Grid):
    """Calls the ClientApp of each node at once. `tricks` change what arrives, `gone` nodes are not connected."""

    folders: dict[int, Path]
    tricks: dict[str, Trick] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    sent: list[tuple[str, list[Any]]] = field(default_factory=list)
    on_push: Callable[[], None] = lambda: None
    replies: dict[str, Message] = field(default_factory=dict)

    def __post_init__(self) -> None:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
        self.names = {node: folder.name.removeprefix("site-") for node, folder in self.folders.items()}

    def get_node_ids(self) -> Iterable[int]:
        return [node for node, name in self.names.items() if name not in self.gone]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        for message in messages:
            self.on_push()
            key = f"m{len(self.sent)}"
            message.metadata.__dict__["_message_id"] = key
            name = self.names[message.metadata.dst_node_id]
            self.sent.append((name, [task.what for task in client.read_question(message.content)[1]]))
            answer = self._answer(message, name)
            if name in self.tricks:
                answer = self.tricks[name](message, answer)
            if answer is not None:
                self.replies[key] = answer
            yield key

    def _answer(self, message: Message, name: str) -> Message:
        node = message.metadata.dst_node_id
        config: dict[str, Any] = {"site": name, "folder": str(self.folders[node])}
        try:
            return client.app(message, Context(1, node, config, RecordDict(), {}))
        except Exception:
            return Message(Error(2), reply_to=message)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self.replies.pop(key) for key in list(message_ids) if key in self.replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        raise NotImplementedError

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise NotImplementedError

    def set_run(self, run: Run) -> None: ...

    @property
    def run(self) -> Run:
        raise NotImplementedError


def prepared(folder: Path, data: Federation) -> None:
    """Write the images of every site as a prepared file."""
    folder.mkdir(parents=True)
    for name, site in data.by_name.items():
        arrays = {}
        for part, own in (("train", site.train), ("test", site.test)):
            arrays |= {f"{part}_x": own.x.permute(0, 2, 3, 1).numpy(), f"{part}_y": own.y.numpy().astype(np.uint8)}
        np.savez(folder / f"{name}.npz", **arrays)


def sites(root: Path, data: Federation, policy: str = POLICY) -> tuple[dict[int, Path], Federation]:
    """The folder of every site, and the same images as a federation on this machine."""
    prepared(root / "all", data)
    folders = {}
    for name, node in nodes(data.by_name).items():
        folder = folders[node] = root / f"site-{name}"
        folder.mkdir()
        (folder / "site.toml").write_text(policy)
        images = Folders(path=str(root / "all" / f"{name}.npz"))
        SiteSettings(site=name, folder=folder, images=images).write()
    return folders, from_folders(root / "all", min_per_class=0)


def config(method: Any, **plan: Any) -> Config:
    """The configuration of a tiny run at real sites."""
    settings = {"net": {"name": "convnet", "depth": 2, "width": tiny.WIDTH}, "data": "real-sites", **plan}
    return Config(method=method, **{name: getattr(resolve(settings), name) for name in ("plan", "data", "net")})
