"""What tests of every package share."""

import hashlib
import inspect
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
import torch

from fedlgd.data import builtin, rendering
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


@pytest.fixture(scope="session")
def digits() -> Iterator[Federation]:
    """The built-in federation, kept between sessions and shared by workers until the code that makes it changes."""
    sources = "".join(inspect.getsource(module) for module in (builtin, rendering))
    key = hashlib.blake2b(sources.encode(), digest_size=6).hexdigest()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDLGD_DATA", str(Path(tempfile.gettempdir(), f"fedlgd-tests-{os.getuid()}-{key}")))
        yield builtin.BuiltinDigits().open()


@pytest.fixture
def digits_home(digits: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data home of the test's own that has the built-in images already; subprocesses find it too."""
    shared = Path(os.environ["FEDLGD_DATA"])
    home = tmp_path / "home"
    home.mkdir()
    for images in shared.glob(f"{builtin.NAME}-*"):
        (home / images.name).symlink_to(images)
    monkeypatch.setenv("FEDLGD_DATA", str(home))
    return home
