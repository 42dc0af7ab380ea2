"""Run jobs a few at a time, each in a child process with one thread: for comparisons, searches and audits.

A job that fails, or whose process dies, stops no other. Results are bit-identical to those of jobs run in turn.
"""

import json
import time
from collections.abc import Callable, Generator, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, Generic, Protocol, TypeVar

from fedlgd.core.device import Place
from fedlgd.core.errors import SettingError, message, out_of_memory
from fedlgd.core.meter import listening
from fedlgd.engines.process import SILENCE_SECONDS, Child, await_messages, check_fork, stop_all

ALIVE, ROUND = b"", b"round"  # messages of a child before its result

RoundListener = Callable[..., None]


class Schedulable(Protocol):
    """A job. `title` names it while its process is silent.

    Jobs of one `group` may need the same virtual sets: while one of them distils the sets, the others wait; then
    they read the sets from the cache.
    """

    @property
    def title(self) -> str: ...

    @property
    def group(self) -> Hashable: ...


J = TypeVar("J", bound=Schedulable)


@dataclass(frozen=True, slots=True)
class Ended(Generic[J]):
    """A job that has ended: with a result that can be written as JSON, or with an error, and its code if any."""

    job: J
    result: Any = None
    error: str = ""
    code: str = ""


def run_jobs(
    jobs: Sequence[J],
    count: int,
    work: Callable[[J, RoundListener], Any],
    on_round: RoundListener = lambda *_: None,
) -> Generator[Ended[J], None, None]:
    """Do `work` for each job, `count` at a time, and yield the jobs as they end. Close it to stop what still runs.

    A single job at a time runs in this process. `work` gets a listener for the records of its rounds; `on_round` is
    called in this process after each of them.
    """
    if count == 1:
        for job in jobs:
            yield Ended(job, **_attempt(work, job, on_round))
        return
    check_fork()
    waiting = list(jobs)
    running: dict[Child, J] = {}
    enrolling: set[Child] = set()
    try:
        while waiting or running:
            while len(running) < count:
                distilling = {running[child].group for child in enrolling}
                found = next((job for job in waiting if job.group not in distilling), None)
                if found is None:
                    break
                waiting.remove(found)
                enrolling.add(child := Child(partial(_tell, work, found)))
                running[child] = found
            titles = ", ".join(f"{job.title} (pid {child.id})" for child, job in running.items())
            for child in await_messages(running, titles):
                said = _receive(child)
                if said != ALIVE:
                    enrolling.discard(child)
                if said == ROUND:
                    on_round()
                elif said != ALIVE:
                    job = running.pop(child)
                    child.wait()
                    yield Ended(job, **json.loads(said))
    finally:
        stop_all(running)


def _receive(child: Child) -> bytes:
    """The next message of a child; a child that died has ended with an error."""
    try:
        return child.connection.recv_bytes()
    except (EOFError, OSError):
        ending = child.ending()
        code = "job-lost" if "SIGKILL" in ending else "job-ended"  # the system kills what takes too much memory
        return json.dumps({"error": message(code, ending=ending), "code": code}).encode()


def _tell(work: Callable[[J, RoundListener], Any], job: J, connection: Connection) -> None:
    """In the child: report that it is alive, each round, and how the job ended."""
    spoke = 0.0

    def progress(*_: object) -> None:
        nonlocal spoke
        if (now := time.monotonic()) - spoke > SILENCE_SECONDS / 10:
            spoke = now
            connection.send_bytes(ALIVE)

    with listening(progress):
        ended = _attempt(work, job, lambda *_: connection.send_bytes(ROUND))
    connection.send_bytes(json.dumps(ended).encode())


def _attempt(work: Callable[[J, RoundListener], Any], job: J, on_round: RoundListener) -> dict[str, Any]:
    try:
        return {"result": work(job, on_round)}
    except Exception as error:
        if out_of_memory(error):
            said = str(error).partition("\n")[0] or type(error).__name__
            return {"error": message("job-memory", said=said), "code": "job-memory"}
        return {"error": f"{type(error).__name__}: {error}", "code": getattr(error, "code", "")}


def check_jobs(count: int, threads: int, place: Place) -> None:
    """Parallel jobs have one thread each and cannot share a GPU."""
    if count > 1 and not place.in_memory:
        raise SettingError("jobs-on-device", device=place.device, jobs=count)
    if count > 1 and threads != 1:
        raise SettingError("jobs-with-threads", threads=threads, jobs=count)
