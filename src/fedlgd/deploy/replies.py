"""Replies of sites on their way to the coordinator.

Flower announces a reply before its parts are uploaded. Its own grid then waits for the parts, believes what the
reply says about its sender, and fails if the reply cannot be read: with each of these a site could hold up or stop
a run. Here a reply is read when all its parts are there, up to a number of bytes. Its sender and its question are
those that the server recorded.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

from flwr.app import Array, Error, Message
from flwr.app.message import make_message
from flwr.common.constant import ErrorCode
from flwr.common.serde_utils import metadata_from_proto
from flwr.proto.message_pb2 import Message as Head
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.inflatable.inflatable_object import (
    get_object_body,
    get_object_head_values_from_object_content,
    iterate_object_tree,
)
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,
    ObjectUnavailableError,
    inflate_object_from_contents,
)

from fedlgd.core.errors import RunError

DAMAGED, OVERSIZED = 1001, 1002  # codes of errors, as in `engines/flower.py`, which imports torch
ROOM = 64 << 20  # bytes of a reply that are always accepted
LEAST = 1 << 10  # bytes that a part counts at least, so that their number is bounded too


def room(messages: Iterable[Message]) -> int:
    """The bytes that a reply to these questions may have before it is read."""
    sizes = [
        sum(len(array.data) for record in message.content.array_records.values() for array in record.values())
        for message in messages
    ]
    return max([ROOM, *(4 * size for size in sizes)])


class Arriving:
    """A reply whose parts are being uploaded."""

    def __init__(self, head: Head, tree: ObjectTree, room: int) -> None:
        self.metadata = metadata_from_proto(head.metadata)
        self._missing = [part.object_id for part in iterate_object_tree(tree)]
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
                self._room -= max(len(part), LEAST)
                if self._room < 0:
                    return self._reply(error=Error(OVERSIZED))
            if _repeated(self._parts) > self._room:
                return self._reply(error=Error(OVERSIZED))
            read = cast(Message, inflate_object_from_contents(self.metadata.message_id, self._parts))
            return self._reply(error=read.error) if read.has_error() else self._reply(content=read.content)
        except ObjectUnavailableError:
            return None
        except ObjectPullError:
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
        kind, children, _ = get_object_head_values_from_object_content(part)
        if kind == Array.__qualname__:
            named = json.loads(get_object_body(part, Array))["arraychunk_ids"]
            added += sum(len(parts[children[i]]) for i in named) - sum(len(parts[child]) for child in children)
    return added
