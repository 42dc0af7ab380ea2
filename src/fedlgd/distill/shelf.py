"""Long results kept by what they were made from, so that methods compared on one seed share virtual sets.

Taking a result from the shelf charges the meter what making it cost: a method's price does not depend on
who came first.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from fedlgd.core.meter import charge, metered


class Kept(NamedTuple):
    """A result and its price, by phase."""

    tensor: Tensor
    seconds: dict[str, float]
    flops: dict[str, int]


class Shelf(Protocol):
    """Where results are kept, e.g. a folder."""

    def get(self, key: str) -> Kept | None: ...

    def put(self, key: str, kept: Kept) -> None: ...


_shelf: ContextVar[Shelf | None] = ContextVar("shelf", default=None)


@contextmanager
def shelving(shelf: Shelf) -> Iterator[None]:
    """`recall` inside looks on this shelf."""
    token = _shelf.set(shelf)
    try:
        yield
    finally:
        _shelf.reset(token)


def recall(made_from: Mapping[str, Any], compute: Callable[[], Tensor]) -> Tensor:
    """The result of `compute`, from the shelf if it was made from the same before."""
    shelf = _shelf.get()
    if shelf is None:
        return compute()
    key = hashlib.blake2b(json.dumps(made_from, sort_keys=True).encode(), digest_size=16).hexdigest()
    kept = shelf.get(key)
    if kept is None:
        with metered() as meter:
            tensor = compute()
        kept = Kept(tensor, dict(meter.seconds), dict(meter.flops))
        shelf.put(key, kept)
    charge(kept.seconds, kept.flops)
    return kept.tensor
