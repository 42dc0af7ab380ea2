"""The program at a site that carries out tasks.

Flower sends the code of an app with each run. A site does not run it: this program takes the messages from the
SuperNode beside it and gives them to the client app of the `fedlgd` that is installed here, one process for all
tasks.
"""

import sys
import threading
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
from flwr.app import Context, Message
from flwr.app.error import Error
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode, SubStatus
from flwr.proto import runtime_pb2
from flwr.supercore.constant import TaskType
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

from fedlgd.core.plugins import import_object
from fedlgd.deploy.policy import Journal
from fedlgd.deploy.processes import beating, end_with_parent

POLL_SECONDS = 0.25  # between two looks for a task
ACQUIRE_METHOD = "/flwr.proto.Runtime/AcquireTask"


def run_worker(address: str, secret: str, folder: str, app: str = "fedlgd.deploy.client:app") -> None:
    """Carry out tasks of the SuperNode at `address` until it is ended; `folder` is the kit of the site.

    Each task has a thread, because the input of a task never arrives if its run was killed meanwhile. They compute
    one after the other.
    """
    end_with_parent()
    carry_out, turn = import_object(app, "client app"), threading.Lock()
    proof = SuperExecAuthHttpInterceptor(
        master_secret=Path(secret).read_bytes(), protected_methods=frozenset({ACQUIRE_METHOD})
    )
    request = runtime_pb2.AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP])
    with _client(address, proof) as client:
        while True:
            answer = runtime_pb2.AcquireTaskResponse()
            with suppress(httpx.TransportError):  # the SuperNode is starting
                answer = client.AcquireTask(request)
            if answer.HasField("task"):
                given = (carry_out, turn, address, answer.token, answer.task.task_id, folder)
                threading.Thread(target=_do, args=given, daemon=True).start()
            time.sleep(POLL_SECONDS)


def _do(app: ClientApp, turn: threading.Lock, address: str, token: str, task: int, folder: str) -> None:
    """One task. Its result has no receiver if the run was stopped meanwhile."""
    with _client(address, RuntimeTokenHttpInterceptor(token)) as client:
        try:
            with beating(lambda: client.SendTaskHeartbeat(runtime_pb2.SendTaskHeartbeatRequest())):
                message, context, _, _ = pull_task_input(client)
                context.node_config["folder"] = folder
                with turn:
                    TaskIdentity.task_id, TaskIdentity.run_id = task, context.run_id
                    reply, failed = _answer(app, message, context)
            push_message(client, reply, context)
            push_task_output(client, context, SubStatus.FAILED if failed else SubStatus.COMPLETED, failed)
        except Exception as error:
            traceback.print_exception(error)


def _answer(app: ClientApp, message: Message, context: Context) -> tuple[Message, str]:
    """The answer of the app. If it fails, only the type of the error leaves: its text can tell of images."""
    try:
        return app(message=message, context=context), ""
    except Exception as error:
        traceback.print_exception(error)
        failed, journal = type(error).__name__, Path(str(context.node_config["folder"])) / "journal.log"
        Journal(journal).refused("a task", -1, f"{failed}: {error}")
        return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, failed), reply_to=message), failed


def _client(address: str, proof: Any) -> RuntimeHttpClient:
    versions = RuntimeVersionHttpInterceptor(component_name="flwr-clientapp")
    return RuntimeHttpClient.from_server_address(
        server_address=address, insecure=True, root_certificates=None, interceptors=[versions, proof]
    )


if __name__ == "__main__":
    run_worker(*sys.argv[1:])
