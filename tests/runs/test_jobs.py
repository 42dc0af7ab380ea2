"""Several runs at once."""

import multiprocessing
import os
import re
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from fedlgd.core.device import Place
from fedlgd.core.errors import message
from fedlgd.rundir.records import RoundRecord
from fedlgd.runs.entries import Job, parse_entry, plan_jobs
from fedlgd.runs.jobs import check_jobs, run_jobs
from tests import PATIENCE
from tests.errors import refuses

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="jobs are forked")


def children() -> list[Any]:
    return multiprocessing.active_children()


def planned(specs: str, seeds: int, out: Path, **settings: str) -> list[Job]:
    return plan_jobs([parse_entry(spec) for spec in specs.split(",")], seeds, out, settings)


def name(job: Job) -> str:
    return f"{job.entry.spec}{job.config.plan.seed}"


@pytest.mark.parametrize("count", [1, 2])
def test_every_job_ends_with_its_result_or_its_error_and_every_round_is_heard(tmp_path, count):
    jobs, heard = planned("fedavg,fedprox", 2, tmp_path), []

    def do(job, listener):
        listener(RoundRecord(round=-1))
        if not job.config.plan.seed:
            raise OSError("the cable is cut")
        listener(RoundRecord(round=0))
        return 0.5

    ended = {name(e.job): (e.error, e.result) for e in run_jobs(jobs, count, do, lambda *_: heard.append(1))}
    bad, good = ("OSError: the cable is cut", None), ("", 0.5)
    assert ended == {"fedavg0": bad, "fedavg1": good, "fedprox0": bad, "fedprox1": good}
    assert len(heard) == 6
    assert children() == []


def test_an_interruption_is_no_failure_of_a_job(tmp_path):
    def do(job, listener):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(run_jobs(planned("fedavg", 1, tmp_path), 1, do))


def test_no_more_run_at_once_than_asked_for(tmp_path):
    def do(job, listener):
        mine = tmp_path / str(os.getpid())
        mine.touch()
        at_once = len(list(tmp_path.iterdir()))
        time.sleep(0.05)
        mine.unlink()
        return at_once

    at_once = [e.result for e in run_jobs(planned("fedavg,fedprox", 4, Path("out")), 2, do)]
    assert len(at_once) == 8
    assert max(at_once) <= 2


def test_a_job_waits_while_another_of_its_seed_makes_the_virtual_sets(tmp_path):
    def do(job, listener):
        mine = tmp_path / f"enrolling{job.config.plan.seed}"
        alone = not mine.exists()
        mine.touch()
        time.sleep(0.1)
        mine.unlink()
        listener(RoundRecord(round=-1))
        time.sleep(0.1)
        return float(alone)

    jobs = planned("fedavg,fedprox,fednova", 2, Path("out"), train_on="virtual")
    assert [e.result for e in run_jobs(jobs, 3, do)] == [1.0] * 6


def test_runs_go_seed_by_seed_and_only_those_with_the_same_virtual_sets_wait_for_each_other(tmp_path):
    """While one run makes the virtual sets that another waits for, those of the seed on real images go on."""
    jobs = planned("fedlgd,fedprox:train_on=virtual,local-only,fedavg", 2, Path("out"))
    assert [name(job)[-1] for job in jobs] == ["0"] * 4 + ["1"] * 4
    begun = tmp_path / "begun"

    def do(job, listener):
        with begun.open("a") as file:
            file.write(f"{name(job)}\n")
        time.sleep(0.05)
        listener(RoundRecord(round=-1))

    list(run_jobs(jobs, 2, do))
    assert [line[-1] for line in begun.read_text().splitlines()] == ["0"] * 4 + ["1"] * 4


def test_jobs_of_one_seed_run_beside_each_other_once_the_sets_are_made(tmp_path):
    def do(job, listener):
        listener(RoundRecord(round=-1))
        (tmp_path / job.entry.spec).touch()
        until = time.monotonic() + PATIENCE
        while len(list(tmp_path.iterdir())) < 2 and time.monotonic() < until:
            time.sleep(0.01)
        return len(list(tmp_path.iterdir()))

    assert [e.result for e in run_jobs(planned("fedavg,fedprox", 1, Path("out")), 2, do)] == [2, 2]


def test_a_job_that_is_killed_is_an_outcome_and_the_others_go_on(tmp_path):
    def do(job, listener):
        if job.entry.spec == "fedavg":
            os.kill(os.getpid(), signal.SIGKILL)
        return 0.5

    outcomes = {name(e.job): e.error for e in run_jobs(planned("fedavg,fedprox", 1, tmp_path), 2, do)}
    assert outcomes == {
        "fedavg0": message("job-lost", ending="was killed by SIGKILL"),
        "fedprox0": "",
    }


def test_memory_is_advised_only_where_it_ran_out(tmp_path):
    def do(job, listener):
        if job.entry.spec == "fedavg":
            raise MemoryError("cannot allocate 3 GB")
        if job.entry.spec == "fedprox":
            os._exit(3)
        raise KeyError("head.weight")

    ended = {
        e.job.entry.spec: (e.code, e.error) for e in run_jobs(planned("fedavg,fedprox,fednova", 1, tmp_path), 2, do)
    }
    assert ended == {
        "fedavg": ("job-memory", message("job-memory", said="cannot allocate 3 GB")),
        "fedprox": ("job-ended", message("job-ended", ending="ended with exit code 3")),
        "fednova": ("", "KeyError: 'head.weight'"),
    }


def test_left_early_no_job_goes_on(tmp_path):
    def do(job, listener):
        time.sleep(0 if job.entry.spec == "fedavg" else 2 * PATIENCE)
        return 0.5

    outcomes = run_jobs(planned("fedavg,fedprox", 1, tmp_path), 2, do)
    outcomes.close()
    assert children() == []
    outcomes = run_jobs(planned("fedavg,fedprox:mu=1", 2, tmp_path), 4, do)
    assert next(outcomes).job.entry.spec == "fedavg"
    began = time.monotonic()
    outcomes.close()
    assert children() == []
    assert time.monotonic() - began < PATIENCE


def test_jobs_at_once_have_one_thread_each():
    check_jobs(1, 2, Place())
    check_jobs(2, 1, Place())
    with refuses("jobs-with-threads", threads=2, jobs=3):
        check_jobs(3, 2, Place())


def test_who_is_waited_for_is_said(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("fedlgd.engines.process.SILENCE_SECONDS", 0.05)

    def do(job, listener):
        os.kill(os.getpid(), signal.SIGSTOP)

    def let_go() -> None:
        while not caplog.messages:
            time.sleep(0.01)
        os.kill(children()[0].pid, signal.SIGCONT)

    helper = threading.Thread(target=let_go)
    helper.start()
    (outcome,) = run_jobs(planned("fedavg", 1, tmp_path), 2, do)
    helper.join()
    assert not outcome.error
    assert re.fullmatch(r"waiting for FedAvg on real data, seed 0 \(pid \d+\) for \d+ s", caplog.messages[0])
