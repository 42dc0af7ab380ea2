"""The coordinator's connection to its SuperLink: who is connected, a Flower grid for one run, and the replies.

`fedlgd run --engine flower` is itself the server half of the Flower app: it claims the task of its run and
sends the messages. So its progress, its exit code and Ctrl-C are those of every other run.

Flower announces a reply before its parts are uploaded. Its own grid then waits for the parts, believes what the
reply says about its sender, and fails if the reply cannot be read: with each of these a site could hold up or stop
a run. Here a reply is read when all its parts are there, up to a number of bytes. Its sender and its question are
those that the server recorded.

A SuperNode that is killed forgets the questions that it had taken. Flower gives up on a site that is away when it
looks; one that was killed and is back by then would be awaited until the time-out.
"""

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, cast

import httpx
import tomli_w
from cryptography.hazmat.primitives.serialization import load_ssh_public_key
from flwr.app import Array, Error, Message, Metadata
from flwr.app.message import make_message
from flwr.cli.build import build_fab_from_files
from flwr.common import serde, serde_utils
from flwr.common.constant import ErrorCode, SubStatus
from flwr.proto import control_pb2, fab_pb2, message_pb2, runtime_pb2
from flwr.supercore import interceptors
from flwr.supercore.constant import NodeStatus, TaskType
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.inflatable import inflatable_object, inflatable_utils
from flwr.supercore.inflatable.inflatable_protobuf_utils import make_pull_object_fn_protobuf
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supercore.protobuf.client import ProtobufCall, ProtobufRequestContext
from flwr.supercore.retry import RetryInvoker, exponential
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid import HttpGrid

from fedlgd.core.errors import RunError
from fedlgd.core.files import locked, private_folder
from fedlgd.deploy.kit import Kit
from fedlgd.deploy.processes import beating
from fedlgd.deploy.proxy import SECRET_HEADER

DAMAGED, OVERSIZED = 1001, 1002  # codes of errors beside those of Flower
MIN_REPLY_ROOM = 64 << 20  # bytes of a reply that are always accepted
MIN_PART_BYTES = 1 << 10  # that a part counts at least, so that their number is bounded too
LOOK_SECONDS = 5.0  # between two looks at who has connected anew
OUTAGE_SECONDS = 45.0  # for which a run waits for a server that is away


class _Operator:
    """Shows the secret of the kit to the proxy of the server."""

    def __init__(self, secret: str) -> None:
        self._secret = secret

    def intercept(self, context: ProtobufRequestContext, call_next: ProtobufCall) -> httpx.Response:
        context.request.headers[SECRET_HEADER] = self._secret
        return call_next(context)


class _InWords:
    """Errors of the connection as errors that a user can act on."""

    def _unary_unary(self, **given: Any) -> Any:
        try:
            return super()._unary_unary(**given)  # type: ignore[misc]
        except httpx.HTTPStatusError as error:
            response = error.response
            if response.status_code in (401, 403) and "/runtime/" in response.url.path:
                raise RunError("run-ended-by-server") from error
            raise RunError("request-refused", status=response.status_code, text=response.text[:200]) from error
        except httpx.TransportError as error:
            raise RunError("server-unreachable", error=error) from error


class _Control(_InWords, ControlHttpClient):
    pass


class _Runtime(_InWords, RuntimeHttpClient):
    pass


class Operator:
    """What the owner of the server's kit can do."""

    def __init__(self, kit: Kit, wait: float = 0.0, on_outage: Callable[[float], None] = lambda _: None) -> None:
        """`wait`: for how many seconds an absent server is awaited. `on_outage` hears of it: for how many seconds
        the server has not answered; 0 when it is back."""
        self.kit, self._on_outage = kit, on_outage
        self._control = self.client(_Control, wait)

    def __enter__(self) -> "Operator":
        return self

    def __exit__(self, *_: object) -> None:
        self._control.close()

    def nodes(self) -> dict[str, Any]:
        """The Flower node of each registered site of this kit, by the site's public key."""
        nodes = self._nodes_by_key()
        return {name: nodes[key] for name, key in _keys(self.kit).items() if key in nodes}

    def connected(self) -> list[str]:
        return [name for name, node in self.nodes().items() if node.status == NodeStatus.ONLINE]

    def register(self) -> None:
        """Register the public keys of the kit and remove all others."""
        keys, nodes = _keys(self.kit), self._nodes_by_key()
        for key in nodes.keys() - set(keys.values()):
            self._control.UnregisterNode(control_pb2.UnregisterNodeRequest(node_id=nodes[key].node_id))
        for name, key in keys.items():
            if key not in nodes:
                self._control.RegisterNode(control_pb2.RegisterNodeRequest(public_key=key, name=name))

    @contextmanager
    def grid(self) -> Iterator["KitGrid"]:
        """A Flower run and its grid. The run ends with the context; Flower forgets it 60 s after a kill."""
        busy = RunError("kit-in-use", folder=str(self.kit.folder))
        with locked(private_folder(self.kit.state) / "run.lock", busy):
            self._control.ListRuns(control_pb2.ListRunsRequest())  # Flower deletes what ended runs left
            grid = self._claim(self._control.StartRun(_start_request()).run_id)
            status = SubStatus.FAILED
            try:
                with beating(grid.send_sign_of_life):
                    yield grid
                status = SubStatus.COMPLETED
            except KeyboardInterrupt:
                status = SubStatus.STOPPED
                raise
            finally:
                grid.finish(status)

    def _claim(self, run_id: int) -> "KitGrid":
        """Claim the task of this run; those of runs that were killed before they claimed theirs expire."""
        with self.client(_Runtime, OUTAGE_SECONDS) as runtime:
            while True:
                request = runtime_pb2.AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP])
                answer = runtime.AcquireTask(request)
                if not answer.HasField("task"):
                    raise RunError("run-lost")
                if answer.task.run_id == run_id:
                    return KitGrid(self, answer.token)

    def client(self, kind: Any, wait: float, token: str = "") -> Any:
        """A client of a Flower interface; `token`: of the run to which its requests belong."""
        proofs: list[Any] = [_Operator((self.kit.folder / "secret").read_text())]
        proofs.append(interceptors.RuntimeVersionHttpInterceptor(component_name="flwr-serverapp"))
        if token:
            proofs.append(interceptors.RuntimeTokenHttpInterceptor(token))
        ca, retry = self.kit.ca.read_bytes(), _patient(wait, self._on_outage) if wait else None
        return kind.from_server_address(str(self.kit.server), False, ca, proofs, retry_invoker=retry)

    def _nodes_by_key(self) -> dict[bytes, Any]:
        found = self._control.ListNodes(control_pb2.ListNodesRequest()).nodes_info
        return {node.public_key: node for node in found if node.status != NodeStatus.UNREGISTERED}


class KitGrid(HttpGrid):
    """Flower's grid, which also passes the proxy and survives a short outage.

    Replies are read by `ArrivingReply`, because Flower's grid trusts them.
    """

    def __init__(self, operator: Operator, token: str) -> None:
        super().__init__(str(operator.kit.server), token=token)
        self._client = operator.client(_Runtime, OUTAGE_SECONDS, token)
        self._goodbye = operator.client(_Runtime, 0.0, token)
        self._arriving: list[ArrivingReply] = []
        self._room, self._next_look = 0, 0.0
        self._asked: dict[str, tuple[int, str]] = {}  # the node of each question, and when that had connected
        self._operator = operator
        given = self._client.PullTaskInput(runtime_pb2.PullTaskInputRequest())
        self.set_run(serde.run_from_proto(given.run))
        self.nodes: dict[str, int] = {name: node.node_id for name, node in operator.nodes().items()}
        TaskIdentity.task_id, TaskIdentity.run_id = given.task_id, given.run.run_id
        TaskIdentity.node_id = given.context.node_id

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        sent = list(messages)
        self._room = max(self._room, reply_room(sent))
        keys = list(super().push_messages(sent))
        self._asked |= {key: (each.metadata.dst_node_id, "") for key, each in zip(keys, sent, strict=False)}
        return keys

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """The replies that have arrived. The server names each reply once, when its upload begins."""
        wanted = set(message_ids)
        for late in [reply for reply in self._arriving if reply.question not in wanted]:
            self._arriving.remove(late)
            self._confirm(late)
        if unknown := wanted - {reply.question for reply in self._arriving}:
            found = self._runtime_client.PullMessages(runtime_pb2.PullAppMessagesRequest(message_ids=unknown))
            new = zip(found.messages_list, found.message_object_trees, strict=True)
            self._arriving += [ArrivingReply(head, tree, self._room) for head, tree in new]
        pull = make_pull_object_fn_protobuf(self._runtime_client.PullObject, self.node, self.run.run_id)
        for reply in list(self._arriving):
            if message := reply.receive(pull):
                self._arriving.remove(reply)
                self._confirm(reply)
                wanted.discard(reply.question)
                yield message
        yield from self._forgotten(wanted)

    def _forgotten(self, questions: set[str]) -> Iterator[Message]:
        """An error for each of these questions whose site has connected anew since it was asked."""
        if time.monotonic() < self._next_look:
            return
        with suppress(RunError):  # the server is away
            since = {node.node_id: node.last_activated_at for node in self._operator.nodes().values()}
            self._next_look = time.monotonic() + LOOK_SECONDS
            before = {key: self._asked[key] for key in questions}
            self._asked = {key: (node, since.get(node, "")) for key, (node, _) in before.items()}
            anew = [key for key, (node, then) in before.items() if then and since.get(node, "") != then]
            yield from (lost_site(key, self.run.run_id) for key in anew)

    def _confirm(self, reply: "ArrivingReply") -> None:
        """The server can delete the reply."""
        key, run = reply.metadata.message_id, self.run.run_id
        request = message_pb2.ConfirmMessageReceivedRequest(node=self.node, run_id=run, message_object_id=key)
        self._runtime_client.ConfirmMessageReceived(request)

    def send_sign_of_life(self) -> None:
        self._runtime_client.SendTaskHeartbeat(runtime_pb2.SendTaskHeartbeatRequest())

    def finish(self, status: str) -> None:
        """Tell the server that the run has ended; if it is away, it will notice."""
        with suppress(RunError), self._goodbye as client:
            client.PushTaskOutput(runtime_pb2.PushTaskOutputRequest(sub_status=status))
        self.close()


def lost_site(question: str, run_id: int) -> Message:
    """What Flower replies to a question for a site that is away."""
    kept = Metadata(
        run_id=run_id,
        message_id="",
        src_node_id=0,
        dst_node_id=0,
        reply_to_message_id=question,
        group_id="",
        created_at=time.time(),
        ttl=0.0,
        message_type="system",
    )
    return make_message(metadata=kept, error=Error(ErrorCode.NODE_UNAVAILABLE))


def reply_room(messages: Iterable[Message]) -> int:
    """The bytes that a reply to these questions may have before it is read."""
    records = [message.content.array_records.values() for message in messages]
    sizes = [sum(len(array.data) for record in each for array in record.values()) for each in records]
    return max([MIN_REPLY_ROOM, *(4 * size for size in sizes)])


class ArrivingReply:
    """A reply whose parts are being uploaded."""

    def __init__(self, head: message_pb2.Message, tree: message_pb2.ObjectTree, room: int) -> None:
        self.metadata = serde_utils.metadata_from_proto(head.metadata)
        self._missing = [part.object_id for part in inflatable_object.iterate_object_tree(tree)]
        self._parts: dict[str, bytes] = {}
        self._room = room

    @property
    def question(self) -> str:
        return self.metadata.reply_to_message_id

    def receive(self, pull: Callable[[str], bytes]) -> Message | None:
        """The reply, or one with an error; None while parts are missing."""
        try:
            while self._missing:
                part = self._parts[self._missing[-1]] = pull(self._missing[-1])
                self._missing.pop()
                self._room -= max(len(part), MIN_PART_BYTES)
                if self._room < 0:
                    return self._reply(error=Error(OVERSIZED))
            if _repeated(self._parts) > self._room:
                return self._reply(error=Error(OVERSIZED))
            read = cast(
                Message, inflatable_utils.inflate_object_from_contents(self.metadata.message_id, self._parts)
            )
            return self._reply(error=read.error) if read.has_error() else self._reply(content=read.content)
        except inflatable_utils.ObjectUnavailableError:
            return None
        except inflatable_utils.ObjectPullError:
            return self._reply(error=Error(ErrorCode.REPLY_MESSAGE_UNAVAILABLE))
        except RunError:
            raise
        except Exception:  # whatever a site can make of the bytes of a reply
            return self._reply(error=Error(DAMAGED))

    def _reply(self, **given: Any) -> Message:
        return make_message(metadata=self.metadata, **given)


def _repeated(parts: Mapping[str, bytes]) -> int:
    """The bytes that arrays add to those of their parts: an array can name a part many times."""
    added = 0
    for part in parts.values():
        kind, children, _ = inflatable_object.get_object_head_values_from_object_content(part)
        if kind == Array.__qualname__:
            named = json.loads(inflatable_object.get_object_body(part, Array))["arraychunk_ids"]
            added += sum(len(parts[children[i]]) for i in named) - sum(len(parts[child]) for child in children)
    return added


def _keys(kit: Kit) -> dict[str, bytes]:
    """The public keys of the sites in Flower's format."""
    keys = {}
    for name, content in kit.public_keys.items():
        try:
            keys[name] = public_key_to_bytes(load_ssh_public_key(content))  # type: ignore[arg-type]
        except ValueError as error:
            raise RunError("public-key-damaged", site=name, folder=str(kit.folder)) from error
    return keys


def _patient(seconds: float, on_outage: Callable[[float], None]) -> RetryInvoker:
    def hopeless(error: Exception) -> bool:
        return any(word in str(error).lower() for word in ("certificate", "ssl"))

    return RetryInvoker(
        lambda: exponential(base_delay=0.25, max_delay=5),
        httpx.TransportError,
        max_tries=None,
        max_time=seconds,
        should_giveup=hopeless,
        on_backoff=lambda state: on_outage(max(state.elapsed_time, 1.0)),
        on_success=lambda state: on_outage(0.0) if state.tries > 1 else None,
    )


def _start_request() -> control_pb2.StartRunRequest:
    """The description of an app without code: the sites run the `fedlgd` that is installed there."""
    components = {"serverapp": "fedlgd.deploy.coordinator:coordinate", "clientapp": "fedlgd.deploy.client:app"}
    app = {"publisher": "fedlgd", "components": components, "config": {}}
    project = {"name": "fedlgd", "version": "1.0.0", "license": "Apache-2.0", "description": "fedlgd"}
    content = tomli_w.dumps({"project": project, "tool": {"flwr": {"app": app}}}).encode()
    fab, _ = build_fab_from_files({"pyproject.toml": content})
    described = fab_pb2.Fab(hash_str=hashlib.sha256(fab).hexdigest(), content=fab)
    return control_pb2.StartRunRequest(fab=described, federation="")
