"""The engine `pool`: the sites' half runs in worker processes, bit-identical to `loop` with one thread.

Processes exchange tasks and answers, with messages and scores. Images and site states are never sent.
"""

import time
import traceback
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import ClassVar

from fedlgd.core.device import Place
from fedlgd.core.errors import RunError, SettingError, check, in_words
from fedlgd.core.meter import listening, tick
from fedlgd.core.net import Net
from fedlgd.data.federation import Federation
from fedlgd.engines.loop import Rounds, device_note, serve
from fedlgd.engines.process import Child, await_messages, check_fork, one_thread, stop_all, usable_cores
from fedlgd.engines.settings import RoundSettings
from fedlgd.engines.site import Answer, Sites, Task
from fedlgd.engines.storage import FolderStates, States, Storage
from fedlgd.engines.wire import from_bytes, to_bytes
from fedlgd.methods.protocol import Method

TICK_SECONDS = 0.2  # between two progress messages of one worker


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """`workers` processes with one thread each; 0: one per core. States are in files that all workers can read."""

    name: ClassVar[str] = "pool"
    local: ClassVar[bool] = True
    workers: int = 0
    place: Place = Place()

    def __post_init__(self) -> None:
        check(self.workers >= 0, "workers", self.workers, "use 1 or more, or 0 for one per core")
        if not self.place.in_memory:
            raise SettingError("pool-needs-memory", device=self.place.device)
        check_fork()

    def run(
        self,
        method: Method,
        federation: Federation,
        net: Net,
        plan: RoundSettings,
        memory: Storage,
        states: States,
    ) -> Rounds:
        """Like `loop`, with the sites' work in other processes. Close the generator to end them."""
        net = method.adapt(net)
        sites = Sites(method, federation, net, plan, states, self.place)
        crew = Crew(sites, self.processes(federation))
        try:
            yield from serve(method, federation, net, plan, memory, crew.work, self.place)
        finally:
            crew.stop()

    def states(self) -> States:
        return FolderStates()

    def threads(self) -> AbstractContextManager[None]:
        """The server's half also has one thread, to be bit-identical to `loop` with one thread."""
        return one_thread()

    def processes(self, federation: Federation) -> int:
        """At most the number of sites."""
        return min(self.workers or usable_cores(), len(federation.tested))

    def describe(self, federation: Federation) -> str:
        return f"engine pool: worker processes: {self.processes(federation)}, one thread each" + device_note(
            self.place
        )


@dataclass(frozen=True, slots=True)
class Tick:
    """The progress of a loop in a worker."""

    label: str
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class Failure:
    """The error of a task."""

    said: str
    trace: str


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
            where = "" if repr(self._site) in failure.said else f"site {self._site!r}: "
            raise RunError("worker-failed", where=where, said=failure.said) from WorkerError(failure.trace)
        return from_bytes(Answer, body)

    def _gone(self) -> RunError:
        return RunError("worker-gone", site=self._site, ending=self.child.ending())


def _serve(do: Callable[[Task], Answer], connection: Connection) -> None:
    """The main loop of a worker: run tasks until the connection is closed."""
    with listening(_sometimes(lambda word: connection.send_bytes(b"T" + to_bytes(word)))):
        while True:
            task = from_bytes(Task, connection.recv_bytes())
            try:
                said = b"A" + to_bytes(do(task))
            except Exception as error:
                words = in_words(error) or f"{type(error).__name__}: {error}; engine loop shows where"
                said = b"F" + to_bytes(Failure(words, traceback.format_exc()))
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
