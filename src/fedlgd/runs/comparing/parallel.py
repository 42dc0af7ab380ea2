"""Run several jobs in parallel, each in a process with one thread. Results are bit-identical to sequential runs."""

import json
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from multiprocessing.connection import Connection

from fedlgd.core.device import Place
from fedlgd.core.errors import SettingError
from fedlgd.core.meter import listening
from fedlgd.engines.process import SILENCE_SECONDS, Child, check_fork, heard
from fedlgd.rundir.records import RoundRecord
from fedlgd.runs.comparing.entries import Job, Outcome
from fedlgd.runs.run import Listener

ALIVE = b"null"

Do = Callable[[Job, Listener], Outcome]


def run_jobs(jobs: Sequence[Job], count: int, do: Do) -> Generator[Outcome, None, None]:
    """Run `count` jobs at a time and yield their outcomes. Close the generator to stop the running jobs.

    Jobs with the same seed can need the same virtual sets. While one of them enrols its sites and distils the sets,
    the others wait; then they read the sets from the cache.
    """
    check_fork()
    waiting, running = list(jobs), Running(do)
    try:
        while waiting or running.children:
            while len(running.children) < count and (job := running.next_of(waiting)):
                waiting.remove(job)
                running.start(job)
            yield from running.hear()
    finally:
        running.stop()


class Running:
    """The running jobs, and those of them that are still in the enrolment."""

    def __init__(self, do: Do) -> None:
        self._do = do
        self.children: dict[Child, Job] = {}
        self._enrolling: set[Child] = set()

    def next_of(self, waiting: Sequence[Job]) -> Job | None:
        """The first job whose virtual sets no running job is distilling."""
        seeds = {self.children[child].config.plan.seed for child in self._enrolling}
        return next((job for job in waiting if job.config.plan.seed not in seeds), None)

    def start(self, job: Job) -> None:
        child = Child(lambda connection: _tell(self._do, job, connection))
        self.children[child] = job
        self._enrolling.add(child)

    def hear(self) -> Iterator[Outcome]:
        """Wait for a message from any job; yield the outcomes of finished jobs."""
        for child in heard(self.children, self._names()):
            try:
                said = child.connection.recv_bytes()
                if said == ALIVE:
                    continue
                content = json.loads(said)  # empty at the end of the enrolment
                outcome = Outcome(self.children[child], **content) if content else None
            except (EOFError, OSError):
                error = f"its process {child.ending()}; if there was too little memory, use fewer --jobs"
                outcome = Outcome(self.children[child], error)
            self._enrolling.discard(child)
            if outcome:
                del self.children[child]
                child.wait()
                yield outcome

    def _names(self) -> str:
        """fedavg, seed 0 (pid 4711), fedlgd, seed 1 (pid 4712)"""
        jobs = self.children.items()
        return ", ".join(f"{job.label}, seed {job.config.plan.seed} (pid {child.id})" for child, job in jobs)

    def stop(self) -> None:
        for child in self.children:
            child.stop()
        for child in self.children:
            child.wait()


def _tell(do: Do, job: Job, connection: Connection) -> None:
    """In the child process: report progress, the end of the enrolment, and the outcome."""
    spoke = 0.0

    def progress(*_: object) -> None:
        nonlocal spoke
        if (now := time.monotonic()) - spoke > SILENCE_SECONDS / 10:
            spoke = now
            connection.send_bytes(ALIVE)

    def record(new: RoundRecord) -> None:
        connection.send_bytes(b"{}" if new.round < 0 else ALIVE)

    with listening(progress):
        outcome = do(job, record)
    connection.send_bytes(json.dumps({"error": outcome.error, "accuracy": outcome.accuracy}).encode())


def check_jobs(count: int, threads: int, place: Place) -> None:
    """Parallel jobs have one thread each and cannot share a GPU."""
    if count > 1 and not place.in_memory:
        raise SettingError(f"device is {place.device!r}, which cannot run {count} jobs in parallel; use --jobs 1")
    if count > 1 and threads != 1:
        raise SettingError(f"threads is {threads}, but each of {count} parallel jobs has one; use --jobs 1")
