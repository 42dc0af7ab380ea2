"""Child processes that always end with their parent, and the workers of the engine `pool`.

Children are forked. A fork has the method, the network and the images of its parent, including classes defined in
a script or a notebook, and shares memory until it is written to. A fork takes 0.03 s; a spawned process takes 1.7 s
to import torch, and all its inputs have to be sent. Forking is safe because a child first sets torch to one thread:
an inherited pool of OpenMP threads would block, but is never used. The data loaders of torch do the same. A child
prints to its own stream, because the lock of the parent's stream may belong to a thread that the child lacks.
"""

import json
import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess

import torch

from fedlgd.core import errors
from fedlgd.core.meter import listening, tick
from fedlgd.engines.site import Answer, Task
from fedlgd.engines.wire import from_bytes, to_bytes

log = logging.getLogger(__name__)

STOP_SECONDS = 5.0  # before a child is killed
SILENCE_SECONDS = 60.0  # without a message from any child before a warning names them
TICK_SECONDS = 0.2  # between two progress messages of one worker


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
        raise errors.SettingError("processes-need-linux", platform=sys.platform)


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


# Workers


@dataclass(frozen=True, slots=True)
class Tick:
    """The progress of a loop in a worker."""

    label: str
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class Failure:
    """The error of a task: its class, code and values if it has a code, the message, and the traceback."""

    kind: str
    code: str
    values: str
    said: str
    trace: str

    @classmethod
    def of(cls, error: Exception) -> "Failure":
        said = errors.in_words(error) or f"{type(error).__name__}: {error}; engine loop shows where"
        kind = next((base.__name__ for base in type(error).__mro__ if base.__module__ == errors.__name__), "")
        code, values = (error.code, error.values) if isinstance(error, errors.FedlgdError) else ("", {})
        return cls(kind, code, json.dumps(values, default=str), said, traceback.format_exc())

    def error(self, site: str) -> errors.FedlgdError:
        """The same error in this process. It names the site; values that JSON does not have are text."""
        where = "" if repr(site) in self.said else f"site {site!r}: "
        if not self.code:
            return errors.RunError("worker-failed", where=where, said=self.said)
        error: errors.FedlgdError = getattr(errors, self.kind)(where + self.said)
        error.code, error.values = self.code, json.loads(self.values)
        return error


class WorkerError(Exception):
    """The traceback of a worker as text."""


class Crew:
    """Workers, started when needed."""

    def __init__(self, do: Callable[[Task], Answer], count: int) -> None:
        self._do, self._count = do, count
        self._workers: list[Worker] = []

    def work(self, tasks: Iterator[Task]) -> Iterator[Answer]:
        """Yield answers as they arrive; each worker has one task at a time."""
        busy: dict[Child, Worker] = {}
        try:
            while True:
                while len(busy) < self._count and (task := next(tasks, None)) is not None:
                    worker = self._idle(busy)
                    worker.ask(task)
                    busy[worker.child] = worker
                if not busy:
                    return
                for child in await_messages(busy, ", ".join(sorted(worker.name for worker in busy.values()))):
                    if answer := busy[child].hear():
                        del busy[child]
                        yield answer
        finally:
            if busy:  # these answers are no longer needed
                self.stop()

    def stop(self) -> None:
        """Terminate all workers."""
        stop_all([worker.child for worker in self._workers])
        self._workers = []

    def _idle(self, busy: Collection[Child]) -> "Worker":
        """An idle worker; a new one if all are busy."""
        for worker in self._workers:
            if worker.child not in busy:
                return worker
        self._workers.append(Worker(self._do, len(self._workers) + 1))
        return self._workers[-1]


class Worker:
    """A child process that runs one task at a time."""

    def __init__(self, do: Callable[[Task], Answer], number: int) -> None:
        self.child = Child(lambda connection: _serve(do, connection))
        self._number = number
        self._site = ""

    @property
    def name(self) -> str:
        return f"site {self._site!r} (worker {self._number}, pid {self.child.id})"

    def ask(self, task: Task) -> None:
        self._site = task.site
        try:
            self.child.connection.send_bytes(to_bytes(task))
        except OSError as error:
            raise self._gone() from error

    def hear(self) -> Answer | None:
        """The answer; None for a progress message."""
        try:
            content = self.child.connection.recv_bytes()
        except (EOFError, OSError) as error:
            raise self._gone() from error
        kind, body = content[:1], content[1:]
        if kind == b"T":
            word = from_bytes(Tick, body)
            tick(f"{word.label} ({self._number})", word.done, word.total)
            return None
        if kind == b"F":
            failure = from_bytes(Failure, body)
            raise failure.error(self._site) from WorkerError(failure.trace)
        return from_bytes(Answer, body)

    def _gone(self) -> errors.RunError:
        return errors.RunError("worker-gone", site=self._site, ending=self.child.ending())


def _serve(do: Callable[[Task], Answer], connection: Connection) -> None:
    """The main loop of a worker: run tasks until the connection is closed."""
    with listening(_sometimes(lambda word: connection.send_bytes(b"T" + to_bytes(word)))):
        while True:
            task = from_bytes(Task, connection.recv_bytes())
            try:
                said = b"A" + to_bytes(do(task))
            except Exception as error:
                said = b"F" + to_bytes(Failure.of(error))
            connection.send_bytes(said)


def _sometimes(say: Callable[[Tick], None]) -> Callable[[str, int, int], None]:
    """Report progress at most every `TICK_SECONDS` seconds, and always at the end."""
    spoke = 0.0

    def hear(label: str, done: int, total: int) -> None:
        nonlocal spoke
        now = time.monotonic()
        if done == total or now - spoke > TICK_SECONDS:
            spoke = now
            say(Tick(label, done, total))

    return hear
