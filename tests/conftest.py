"""What tests of every package share."""

import hashlib
import inspect
import os
import re
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import hypothesis
import numpy as np
import pytest
import torch

from fedlgd.cli import main
from fedlgd.data import builtin
from fedlgd.data.federation import Federation

hypothesis.settings.register_profile(
    "patient", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("patient")
torch.set_num_threads(1)  # nets this small run several times slower on two, and bits depend on the number
if (
    signal.getsignal(signal.SIGINT) is signal.SIG_IGN
):  # a shell's background job is deaf to Ctrl-C, its children too
    signal.signal(signal.SIGINT, signal.default_int_handler)


NOUNS = "attack|class|error|federation|file|image|method|point|round|run|seed|site|step|thread|value|warning"
WRONG = re.compile(rf"(?<![\d.,=/-])1 (?:[a-z]+ )?(?:{NOUNS})e?s\b(?! of)")
"""A noun in the plural after the number one, which no command may print: `1 seeds`."""


class Done(NamedTuple):
    """How a command ended and what it printed."""

    code: int
    out: str
    err: str


FedlgdCommand = Callable[..., Done]


@pytest.fixture(scope="session", autouse=True)
def shared_cache_home() -> Iterator[Path]:
    """A cache kept between sessions and shared by workers until the code of the built-in images changes.

    Tests write neither to the cache nor to the state of their user.
    """
    key = hashlib.blake2b(inspect.getsource(builtin).encode(), digest_size=6).hexdigest()
    cache = Path(tempfile.gettempdir(), f"fedlgd-tests-{os.getuid()}-{key}")
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as state:
        patch.setenv("FEDLGD_CACHE", str(cache))
        patch.setenv("FEDLGD_STATE", state)
        yield cache


@pytest.fixture(autouse=True)
def own_state_home(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Each test has ledgers of its own; nothing is taken over from the cache of its user."""
    own = Path(os.environ["FEDLGD_STATE"], hashlib.blake2b(request.node.nodeid.encode(), digest_size=8).hexdigest())
    monkeypatch.setenv("FEDLGD_STATE", str(own))
    monkeypatch.setattr("fedlgd.core.homes.user_cache_dir", lambda _: str(own / "earlier"))


@pytest.fixture(scope="session")
def digits(shared_cache_home: Path) -> Federation:
    """The built-in federation."""
    return builtin.BuiltinDigits().open()


@pytest.fixture
def digits_home(
    digits: Federation, shared_cache_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """A home of the test's own for data and cache that has the built-in images; subprocesses find it too."""
    home = tmp_path / "home"
    home.mkdir()
    for images in shared_cache_home.glob(f"{builtin.NAME}-*"):
        (home / images.name).symlink_to(images)
    monkeypatch.setenv("FEDLGD_DATA", str(home))
    monkeypatch.setenv("FEDLGD_CACHE", str(home))
    return home


class CroppedTSNE:
    """In place of a t-SNE: the first two of the features."""

    def __init__(self, **_: object): ...

    def fit_transform(self, features: np.ndarray) -> np.ndarray:
        return features[:, :2]


@pytest.fixture
def undrawn(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures and maps of features are composed but not drawn, which takes most of the time of a small run.

    A test with the mark `drawn` draws them."""
    if not request.node.get_closest_marker("drawn"):
        monkeypatch.setattr("fedlgd.report.figures.svg", lambda *_: "<svg></svg>")
        monkeypatch.setattr("sklearn.manifold.TSNE", CroppedTSNE)


@pytest.fixture
def fedlgd_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> FedlgdCommand:
    """`fedlgd_command("run", ...)`, inside the test's own process, where torch is loaded already."""
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
