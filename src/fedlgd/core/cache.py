"""A cache of expensive results by the hash of their inputs: compared methods with the same seed share virtual sets.

A cached result adds its original cost to the meter, so the cost of a method does not depend on the order of runs.
A site has its cache as `Site.cache`.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from fedlgd.core.files import digest


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


class NoCache:
    """Keeps nothing."""

    def get(self, key: str) -> Cached | None:
        return None

    def put(self, key: str, item: Cached) -> None:
        pass


def result_key(made_from: Mapping[str, Any]) -> str:
    """The key of a result that depends on these inputs alone."""
    return digest(json.dumps(made_from, sort_keys=True).encode())
