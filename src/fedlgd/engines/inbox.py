"""The updates of one round before the server's half starts: each is bounded, and they are collected."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from tempfile import TemporaryFile

from fedlgd.core.device import to_device
from fedlgd.core.pack import nbytes
from fedlgd.core.tree import add, cast, double, only, scale, sqnorm, sub
from fedlgd.core.types import Params, Update
from fedlgd.engines.wire import decode, encode

ROOM = 16 << 20  # bytes: if the updates of all sites are larger together, they are stored in a file


def clipped(update: Update, before: Params, bound: float, trainable: frozenset[str]) -> tuple[Update, float]:
    r"""theta_t + min(1, bound / ||d||) d,  d = theta_c - theta_t over all trainable tensors, in float64.

    Also returns ||d||. Buffers (the statistics of norm layers) are neither measured nor scaled. An update within
    the bound is returned as it is.
    """
    names = trainable & before.keys()
    start = double(only(before, names))
    step = sub(double(only(update.params, names)), start)
    norm = float(sqnorm(step)) ** 0.5 if step else 0.0
    if norm <= bound:
        return update, norm
    moved = cast(add(start, scale(step, bound / norm)), before)
    return replace(update, params={**update.params, **moved}), norm


class Inbox:
    """Updates are added in any order and are read in the order of `names`, any number of times."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._held: dict[str, Update] = {}
        self._filed: dict[str, tuple[int, int]] = {}
        self._file = TemporaryFile()  # noqa: SIM115

    def add(self, update: Update) -> None:
        if len(self._names) * nbytes(update) <= ROOM:
            self._held[update.site] = update
            return
        content = encode(update)
        self._filed[update.site] = self._file.seek(0, 2), len(content)
        self._file.write(content)

    def __iter__(self) -> Iterator[Update]:
        for name in self._names:
            if name in self._held:
                yield to_device(self._held[name])
            elif name in self._filed:
                start, length = self._filed[name]
                self._file.seek(start)
                yield to_device(decode(Update, self._file.read(length)))

    def __enter__(self) -> "Inbox":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
