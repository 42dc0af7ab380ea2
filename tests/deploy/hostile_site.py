"""A registered site that speaks Flower's protocol with its own key and answers as it likes."""

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import torch
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import PullObjectRequest, PushObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from fedlgd.deploy import messages
from fedlgd.deploy.client import SiteSettings, answer_question
from fedlgd.deploy.kit import read_kit
from fedlgd.engines.site import Answer
from fedlgd.engines.wire import from_bytes, to_bytes

Attack = Callable[["HostileSite", Message, RecordDict], None]
"""(site, question, honest content): sends whatever it likes."""


def says(change: Callable[[Answer], Answer]) -> Attack:
    """An answer that is well formed, with something wrong in it."""

    def attack(site: "HostileSite", asked: Message, honest: RecordDict) -> None:
        answers = [from_bytes(Answer, part) for part in messages._contents(honest, "answers")]
        site.send(Message(messages.reply(asked.content, [to_bytes(change(a)) for a in answers]), reply_to=asked))

    return attack


def params(change: Callable[[torch.Tensor], torch.Tensor]) -> Attack:
    def changed(answer: Answer) -> Answer:
        assert answer.update is not None
        made = {name: change(value) for name, value in answer.update.params.items()}
        return replace(answer, update=replace(answer.update, params=made))

    return says(changed)


def garbage(site: "HostileSite", asked: Message, honest: RecordDict) -> None:
    """The announced message is a record without the form of a message."""
    site.send(Message(honest, reply_to=asked), root=ConfigRecord({"x": 1}))


def drip(site: "HostileSite", asked: Message, honest: RecordDict) -> None:
    """The upload of the parts never starts."""
    site.send(Message(honest, reply_to=asked), parts=False)


def large(site: "HostileSite", asked: Message, honest: RecordDict, chunks: int = 16) -> None:
    """Each chunk of 5 MiB is another one: 80 MiB are uploaded."""
    data = b"".join(bytes([i]) * (5 << 20) for i in range(chunks))
    array = Array(dtype="uint8", shape=(len(data),), stype="fedlgd", data=data)
    site.send(Message(RecordDict({**honest, "answers": ArrayRecord({"0": array})}), reply_to=asked))


def flood(site: "HostileSite", asked: Message, honest: RecordDict) -> None:
    """More than the server stores of a site."""
    with suppress(httpx.HTTPStatusError):
        large(site, asked, honest, chunks=60)


def bomb(site: "HostileSite", asked: Message, honest: RecordDict) -> None:
    """All chunks are equal: 5 MiB are uploaded, and the array names them 16 times."""
    array = Array(dtype="uint8", shape=(80 << 20,), stype="fedlgd", data=bytes(80 << 20))
    site.send(Message(RecordDict({**honest, "answers": ArrayRecord({"0": array})}), reply_to=asked))


def replayed(site: "HostileSite", asked: Message, honest: RecordDict) -> None:
    """The honest answer to the first question of the run."""
    site.send(Message(site.first, reply_to=asked))


def another_sender(site: "HostileSite", asked: Message, honest: RecordDict) -> None:
    """A reply as if another node had sent it; the proxy refuses it, and it sends its own."""
    with suppress(httpx.HTTPStatusError):
        site.send(Message(honest, reply_to=asked), sender=12345)
    site.send(Message(honest, reply_to=asked))


class HostileSite:
    """Takes the place of `fedlgd join`; `attacks` are done in the training of the first rounds, one in each."""

    def __init__(self, kit: Path, images: Any, attacks: list[Attack]) -> None:
        self.kit, self.attacks = read_kit(kit, "site"), list(attacks)
        self.settings = SiteSettings(site=self.kit.site, folder=kit, images=images)
        self.first = RecordDict()
        self.errors: list[Exception] = []
        self._over = threading.Event()
        key = load_ssh_private_key((kit / "key").read_bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        self._public = public_key_to_bytes(key.public_key())
        proof = NodeAuthHttpInterceptor(key, key.public_key())
        self.client = FleetHttpClient.from_server_address(
            str(self.kit.server),
            False,
            self.kit.ca.read_bytes(),
            interceptors=[RuntimeVersionHttpInterceptor(component_name="SuperNode"), proof],
        )

    def __enter__(self) -> "HostileSite":
        active = ActivateNodeRequest(public_key=self._public, heartbeat_interval=30)
        self.node = Node(node_id=self.client.ActivateNode(active).node_id)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(60)
        self.client.DeactivateNode(DeactivateNodeRequest(node_id=self.node.node_id))
        self.client.close()

    def _run(self) -> None:
        while not self._over.wait(0.5):
            try:
                self.client.SendNodeHeartbeat(SendNodeHeartbeatRequest(node=self.node, heartbeat_interval=30))
                found = self.client.PullMessages(PullMessagesRequest(node=self.node))
                for head, tree in zip(found.messages_list, found.message_object_trees, strict=True):
                    self._answer(head, tree)
            except Exception as error:
                self.errors.append(error)

    def _answer(self, head: Any, tree: Any) -> None:
        run = head.metadata.run_id
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = run, self.node.node_id, 1
        parts = {part.object_id: self._pull(run, part.object_id) for part in iterate_object_tree(tree)}
        asked = inflate_object_from_contents(head.metadata.message_id, parts)
        assert isinstance(asked, Message)
        asked.metadata.__dict__["_message_id"] = head.metadata.message_id
        honest, tasks = answer_question(asked.content, self.settings), messages.read_question(asked.content)[1]
        if not self.first:
            self.first = honest
        if tasks and tasks[0].what == "train" and self.attacks:
            self.attacks.pop(0)(self, asked, honest)
        else:
            self.send(Message(honest, reply_to=asked))

    def _pull(self, run: int, part: str) -> bytes:
        """A part of a question, as soon as the coordinator has uploaded it."""
        request = PullObjectRequest(node=self.node, run_id=run, object_id=part)
        while not (found := self.client.PullObject(request)).object_available and not self._over.wait(0.1):
            pass
        return bytes(found.object_content)

    def send(self, reply: Message, root: Any = None, parts: bool = True, sender: int = 0) -> None:
        """Announce a reply and upload its parts; `root` stands in the place of the message."""
        top = root or reply
        reply.metadata.__dict__["_message_id"] = top.object_id
        if sender:
            reply.metadata.__dict__["_src_node_id"] = sender
        request = PushMessagesRequest(
            node=self.node,
            messages_list=[message_to_proto(remove_content_from_message(reply))],
            message_object_trees=[get_object_tree(top)],
            clientapp_runtime_list=[0.0],
        )
        whose = {"node": self.node, "run_id": reply.metadata.run_id}
        session = self.client.PushMessages(request).session_id
        for name, part in get_all_nested_objects(top).items() if parts else ():
            content = part.deflate()
            self.client.PushObject(
                PushObjectRequest(**whose, session_id=session, object_id=name, object_content=content)
            )
