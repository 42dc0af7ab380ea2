"""Child processes that always end with their parent.

Children are forked. A fork has the method, the network and the images of its parent, including classes defined in
a script or a notebook, and shares memory until it is written to. A fork takes 0.03 s; a spawned process takes 1.7 s
to import torch, and all its inputs have to be sent. Forking is safe because a child first sets torch to one thread:
an inherited pool of OpenMP threads would block, but is never used. The data loaders of torch do the same. A child
prints to its own stream, because the lock of the parent's stream may belong to a thread that the child lacks.
"""

import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess

import torch

from fedlgd.core.errors import SettingError

log = logging.getLogger(__name__)

STOP_SECONDS = 5.0  # before a child is killed
SILENCE_SECONDS = 60.0  # without a message from any child before a warning names them


class Child:
    """A child process with a connection to this process."""

    def __init__(self, target: Callable[[Connection], None]) -> None:
        context = multiprocessing.get_context("fork")
        self.connection, end = context.Pipe()
        with _undisturbed():
            self._process: ForkProcess = context.Process(target=_live, args=(target, end), daemon=True)
            self._process.start()
        end.close()

    @property
    def id(self) -> int:
        return self._process.pid or 0

    def stop(self) -> None:
        """Terminate the process; call `wait` afterwards."""
        self._process.terminate()

    def wait(self) -> int:
        """Wait for the end and return the exit code; negative if a signal killed the process."""
        self._process.join(STOP_SECONDS)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self.connection.close()
        return self._process.exitcode or 0

    def ending(self) -> str:
        """Wait for the end of a child that was lost; how it ended."""
        code = self.wait()
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def await_messages(children: Collection[Child], names: str) -> list[Child]:
    """Wait until some children have sent a message; returns these. A warning calls all of them `names`."""
    since = time.monotonic()
    while not (ready := wait([child.connection for child in children], SILENCE_SECONDS)):
        log.warning("waiting for %s for %.0f s", names, time.monotonic() - since)
    return [child for child in children if child.connection in ready]


def stop_all(children: Collection[Child]) -> None:
    """Terminate all children at the same time."""
    for child in children:
        child.stop()
    for child in children:
        child.wait()


def check_fork() -> None:
    """Raise an error on platforms where forking is not safe."""
    if sys.platform != "linux":
        raise SettingError("processes-need-linux", platform=sys.platform)


def usable_cores() -> int:
    """The number of cores that this process can use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def one_thread() -> Iterator[None]:
    """Use one torch thread, as in child processes: the last bits of results depend on the number."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Block Ctrl-C until the child ignores it, and suppress the warning about forking with threads (see above)."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "This process", DeprecationWarning)
            yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _live(target: Callable[[Connection], None], connection: Connection) -> None:
    """The main function of a child. It ends after its work, on SIGTERM, or with its parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # by an exception, so that temporary files are removed
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    torch.set_num_threads(1)
    sys.stdout = sys.stderr = os.fdopen(2, "w", 1, closefd=False)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    code = 1
    try:
        target(connection)
        code = 0
    except (SystemExit, EOFError, ConnectionError):
        code = 0
    finally:
        os._exit(code)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
