"""A cache of expensive results by the hash of their inputs: compared methods with the same seed share virtual sets.

A cached result adds its original cost to the meter, so the cost of a method does not depend on the order of runs.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from fedlgd.core.files import digest
from fedlgd.core.meter import charge, metered


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Cached:
    """A result and its cost by phase."""

    tensor: Tensor
    seconds: dict[str, float]
    cpu: dict[str, float]
    flops: dict[str, int]


class Cache(Protocol):
    """Storage for results, e.g. a folder."""

    def get(self, key: str) -> Cached | None: ...

    def put(self, key: str, item: Cached) -> None: ...


_cache: ContextVar[Cache | None] = ContextVar("cache", default=None)


@contextmanager
def caching(cache: Cache | None) -> Iterator[None]:
    """Calls of `recall` inside this context use this cache."""
    token = _cache.set(cache)
    try:
        yield
    finally:
        _cache.reset(token)


def recall(made_from: Mapping[str, Any], compute: Callable[[], Tensor]) -> Tensor:
    """The result of `compute`, or the cached result for the same inputs."""
    cache = _cache.get()
    if cache is None:
        return compute()
    item = cache.get(_key(made_from))
    if item is None:
        with metered() as meter:
            tensor = compute()
        item = Cached(tensor=tensor, **meter.spent())
        cache.put(_key(made_from), item)
    charge(item)
    return item.tensor


def has(made_from: Mapping[str, Any]) -> bool:
    """Whether `recall` would find this result."""
    cache = _cache.get()
    return cache is not None and cache.get(_key(made_from)) is not None


def _key(made_from: Mapping[str, Any]) -> str:
    return digest(json.dumps(made_from, sort_keys=True).encode())
