"""The command line inside the test's own process, where torch is loaded already."""

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from fedlgd.cli import main

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


NOUNS = "attack|class|error|federation|file|image|method|point|round|run|seed|site|step|thread|value|warning"
WRONG = re.compile(rf"(?<![\d.,=/-])1 (?:[a-z]+ )?(?:{NOUNS})e?s\b(?! of)")
"""A noun in the plural after the number one, which no command may print: `1 seeds`."""


class Done(NamedTuple):
    """How a command ended and what it printed."""

    code: int
    out: str
    err: str


Fedlgd = Callable[..., Done]


@pytest.fixture
def fedlgd(digits_home, tmp_path, monkeypatch, capsys) -> Fedlgd:
    """`fedlgd("run", ...)`, in a folder of the test's own, with `fedlgd` on the PATH."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    threads = torch.get_num_threads()

    def call(*arguments: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["fedlgd", *arguments])
        capsys.readouterr()
        try:
            main()
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        finally:
            torch.set_num_threads(threads)
        done = Done(code, *capsys.readouterr())
        assert not (found := WRONG.search(done.out + done.err)), found
        return done

    return call
