"""Groups of fake runs, by a short description of each run."""

from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from fedlgd.report.groups import Group, group_runs
from fedlgd.rundir.read import read_run
from tests.report.fake import write_run

MakeGroups = Callable[..., tuple[Group, ...]]


@pytest.fixture
def make_groups(tmp_path: Path) -> MakeGroups:
    """make_groups({"label": ..., "seed": ...}, ...) writes these runs, reads them back and groups them."""
    numbers = count()

    def make(*runs: dict[str, Any]) -> tuple[Group, ...]:
        return group_runs(read_run(write_run(tmp_path / f"run{next(numbers)}", **run)) for run in runs)

    return make


def run_of(label: str, seed: int = 0, **final: float) -> dict[str, Any]:
    """A run that ends with these accuracies."""
    return {"label": label, "seed": seed, "final": final}
