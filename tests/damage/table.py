"""A row of the table of damage: who reads, what is wrong, and the code of the refusal. Also runs to be damaged."""

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest

from fedlgd.core.errors import FedlgdError
from fedlgd.data.federation import Federation
from fedlgd.runs.run import execute
from tests import tiny
from tests.runs.folder import FAST_NET, config, method, run_until, snapshot

Attempt = Callable[[Path], Any]
KINDS = {
    "fedlgd": config(method("fedlgd"), net=FAST_NET),  # sites change: state/sites holds files
    "fedavg": config(method("fedavg", train_on="virtual"), net=FAST_NET),  # sites stay as they enrolled
}


@dataclass(frozen=True)
class Row:
    """`attempt` gets an empty folder; it is refused with this code and, among its values, these."""

    reader: str
    damage: str
    attempt: Attempt
    code: str
    values: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.reader}: {self.damage}"


def arrays(classes: int = 3, size: int = 8, each: int = 4) -> list[Any]:
    """Images and labels of one good site."""
    y = np.arange(classes * each) % classes
    x = np.random.default_rng(0).integers(0, 256, size=(len(y), size, size), dtype=np.uint8)
    return [x, y, x.copy(), y.copy()]


@cache
def images() -> Federation:
    """The data of the stored runs."""
    return tiny.federation(tiny.NAMES[:2], train=3, test=1)


@cache
def _half(kind: str) -> TemporaryDirectory[str]:
    """A run that was interrupted after its second round."""
    root = TemporaryDirectory()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDLGD_CACHE", str(Path(root.name, "home")))
        run_until(1, KINDS[kind], images(), Path(root.name, "run"))
    return root


def half(place: Path, kind: str = "fedlgd") -> Path:
    """A copy of such a run, to be damaged."""
    return Path(shutil.copytree(Path(_half(kind).name, "run"), place / kind))


def resumed(damage: Callable[[Path], Any], kind: str = "fedlgd", how: Any = None, data: Any = None) -> Attempt:
    """Damage a copy of a run and resume it; what is refused must stay as it was, byte for byte."""

    def attempt(place: Path) -> None:
        folder = half(place, kind)
        damage(folder)
        before = snapshot(folder)
        try:
            execute(how or KINDS[kind], data or images(), folder)
        except FedlgdError:
            assert snapshot(folder) == before
            raise

    return attempt
