"""The command line in a folder of the test's own, and a run that takes a second."""

import os
import sys
from pathlib import Path

import pytest

from tests.conftest import FedlgdCommand

TINY = {
    "data.limit": 40,
    "data.test_limit": 20,
    "net.width": 4,
    "net.depth": 2,
    "distil.per_class": 2,
    "distil.steps": 1,
    "refine.steps": 1,
    "anchors.per_class": 2,
    "anchors.steps": 1,
}
"""Settings under which FedLGD on the built-in digits takes a second."""


def tiny_run(out: Path, *more: str, rounds: int = 3) -> list[str]:
    settings = [f"--set={path}={value}" for path, value in TINY.items()]
    return ["run", "builtin-digits", "--rounds", str(rounds), "-o", str(out), *settings, *more]


@pytest.fixture
def fedlgd(digits_home, undrawn, tmp_path, monkeypatch, fedlgd_command: FedlgdCommand) -> FedlgdCommand:
    """`fedlgd("run", ...)`, in a folder of the test's own, with `fedlgd` on the PATH."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    return fedlgd_command
