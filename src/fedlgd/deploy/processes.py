"""Child processes that are quiet, offline, and end with their parent."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from fedlgd.core.files import private_folder

BEAT_SECONDS = 10.0  # between two signs of life; Flower gives a task up after 60
STOP_SECONDS = 10.0  # for the end of a child after SIGTERM
OFFLINE_ENVIRONMENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}


def quiet(state: Path) -> dict[str, str]:
    """The environment in which Flower neither calls home nor installs anything; it writes below `state` only."""
    return {**OFFLINE_ENVIRONMENT, "FLWR_HOME": str(private_folder(state / "flwr"))}


def be_quiet(state: Path) -> None:
    """The same for this process; call it before Flower is imported."""
    os.environ.update(quiet(state))


def start_child(
    arguments: Sequence[str], state: Path, on_line: Callable[[str], None], more: Mapping[str, str] | None = None
) -> subprocess.Popen[str]:
    """Start a Python module of this installation; `on_line` receives what it prints.

    Files that it makes are private. It is in its own session, so that Ctrl-C reaches it through its parent only.
    """
    environment = {**os.environ, **quiet(state), **(more or {}), "PYTHONUNBUFFERED": "1"}
    child = subprocess.Popen(
        [sys.executable, "-m", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=environment,
        umask=0o077,
        start_new_session=True,
    )
    threading.Thread(target=_forward, args=(child, on_line), daemon=True).start()
    return child


def _forward(child: subprocess.Popen[str], on_line: Callable[[str], None]) -> None:
    assert child.stdout is not None
    for line in child.stdout:
        on_line(line.rstrip("\n"))


def stop_child(child: subprocess.Popen[str], patience: float = STOP_SECONDS) -> None:
    """Ask a child and all that it started to end, and end them."""
    for number, seconds in ((signal.SIGTERM, patience), (signal.SIGKILL, patience)):
        with suppress(ProcessLookupError):
            os.killpg(child.pid, number)
        with suppress(subprocess.TimeoutExpired):
            child.wait(seconds)


@contextmanager
def beating(send: Callable[[], object]) -> Iterator[None]:
    """Call `send` every few seconds in another thread, as a sign of life; the next request shows its errors."""
    over = threading.Event()

    def beat() -> None:
        while not over.wait(BEAT_SECONDS):
            with suppress(Exception):
                send()

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def end_with_parent() -> None:
    """Call this in a child: it is interrupted when its parent is gone, also after kill -9."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            threading.Event().wait(0.5)
        os.killpg(0, signal.SIGTERM)
        threading.Event().wait(STOP_SECONDS)
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()
