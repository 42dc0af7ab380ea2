"""The engine `pool`: the sites' half in worker processes, bit-equal to `loop` at one thread.

Between the processes go tasks and answers, which hold messages, a site's own state and scores: never images.
"""

import signal
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait

from fedlgd.core.device import Place
from fedlgd.core.errors import FedlgdError, RunError
from fedlgd.core.meter import listening, tick
from fedlgd.core.net import Net
from fedlgd.data.federation import Federation
from fedlgd.engines.loop import Plan, Rounds, Server
from fedlgd.engines.memory import Memory
from fedlgd.engines.process import Child
from fedlgd.engines.site import Answer, Sites, Task
from fedlgd.engines.wire import decode, encode
from fedlgd.methods.protocol import Method, adapted

AHEAD = 8  # answers that may wait for the one before them, beyond one for each worker
TICK_EVERY = 0.2  # seconds between two words about progress from one worker
KEPT = "finished rounds are kept, and the same command goes on after them"


@dataclass(frozen=True, slots=True)
class Tick:
    """How far a worker's loop is."""

    label: str
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a task has no answer."""

    said: str
    trace: str


class WorkerError(Exception):
    """What a worker saw, as text."""


def pool(
    method: Method,
    federation: Federation,
    net: Net,
    plan: Plan,
    memory: Memory,
    workers: int,
    place: Place = Place(),
) -> Rounds:
    """As `loop`, with the sites' work in `workers` processes. Close the generator to end them."""
    net = adapted(method, net)
    crew = Crew(Sites(method, federation, net, plan.seed, place), workers)
    try:
        yield from Server.of(method, federation, net, plan, memory, crew.work, place).run()
    finally:
        crew.stop()


class Crew:
    """Workers, started when there is work."""

    def __init__(self, do: Callable[[Task], Answer], count: int) -> None:
        self._do, self._count = do, count
        self._workers: list[Worker] = []

    def work(self, tasks: Iterator[Task]) -> Iterator[Answer]:
        """Answers in the order of the tasks, whoever is done first; only `AHEAD` of them are kept waiting."""
        numbered = enumerate(tasks)
        waiting: dict[int, Answer] = {}
        busy: dict[Worker, int] = {}
        given = 0
        try:
            while True:
                self._hand_out(numbered, busy, AHEAD - len(waiting))
                if not (busy or waiting):
                    return
                for worker in _heard(busy, patient=given not in waiting):
                    answer = worker.hear()
                    if answer:
                        waiting[busy.pop(worker)] = answer
                if given in waiting:
                    yield waiting.pop(given)
                    given += 1
        finally:
            if busy:  # nobody asks for these answers any more
                self.stop()

    def stop(self) -> None:
        """End all workers, whatever they are doing."""
        for worker in self._workers:
            worker.child.stop()
        for worker in self._workers:
            worker.child.wait()
        self._workers = []

    def _hand_out(self, numbered: Iterator[tuple[int, Task]], busy: "dict[Worker, int]", room: int) -> None:
        """Give idle workers a task each, at most `room` of them."""
        idle = [worker for worker in self._started() if worker not in busy]
        for worker, (number, task) in zip(idle[: max(room, 0)], numbered, strict=False):
            worker.ask(task)
            busy[worker] = number

    def _started(self) -> "list[Worker]":
        for number in range(len(self._workers), self._count):
            self._workers.append(Worker(self._do, number + 1))
        return self._workers


def _heard(busy: "dict[Worker, int]", patient: bool) -> "list[Worker]":
    """The workers that said something."""
    by_connection = {worker.child.connection: worker for worker in busy}
    return [by_connection[c] for c in wait(list(by_connection), None if patient else 0)]  # type: ignore[index]


class Worker:
    """A child that does one task at a time."""

    def __init__(self, do: Callable[[Task], Answer], number: int) -> None:
        self.child = Child(lambda connection: _serve(do, connection))
        self._number = number
        self._site = ""

    def ask(self, task: Task) -> None:
        self._site = task.site
        try:
            self.child.connection.send_bytes(encode(task))
        except OSError as error:
            raise self._gone() from error

    def hear(self) -> Answer | None:
        """The answer; None if it was a word about progress."""
        try:
            content = self.child.connection.recv_bytes()
        except (EOFError, OSError) as error:
            raise self._gone() from error
        kind, body = content[:1], content[1:]
        if kind == b"T":
            word = decode(Tick, body)
            tick(f"{word.label} ({self._number})", word.done, word.total)
            return None
        if kind == b"F":
            failure = decode(Failure, body)
            raise RunError(f"site {self._site!r}: {failure.said}") from WorkerError(failure.trace)
        return _answer(body)

    def _gone(self) -> RunError:
        code = self.child.wait()
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        return RunError(
            f"the worker at site {self._site!r} {how}; if memory was short, use fewer --workers or --engine loop. "
            f"In a run folder {KEPT}"
        )


def _answer(body: bytes) -> Answer:
    """An answer whose score is made of tuples, which JSON has not."""
    answer = decode(Answer, body)
    score = answer.score
    if score is None:
        return answer
    return replace(answer, score=replace(score, correct=tuple(score.correct), total=tuple(score.total)))


def _serve(do: Callable[[Task], Answer], connection: Connection) -> None:
    """A worker's life: task after task until the other end is closed."""
    with listening(_sometimes(lambda word: connection.send_bytes(b"T" + encode(word)))):
        while True:
            task = decode(Task, connection.recv_bytes())
            try:
                said = b"A" + encode(do(task))
            except Exception as error:
                said = b"F" + encode(Failure(_in_words(error), traceback.format_exc()))
            connection.send_bytes(said)


def _in_words(error: Exception) -> str:
    """A mistake a user can put right speaks for itself; of another the whole story is in the trace."""
    if isinstance(error, FedlgdError):
        return str(error)
    return f"{type(error).__name__}: {error}; engine loop shows where"


def _sometimes(say: Callable[[Tick], None]) -> Callable[[str, int, int], None]:
    """Say how far it is now and then, and always at the end."""
    spoke = 0.0

    def hear(label: str, done: int, total: int) -> None:
        nonlocal spoke
        now = time.monotonic()
        if done == total or now - spoke > TICK_EVERY:
            spoke = now
            say(Tick(label, done, total))

    return hear
