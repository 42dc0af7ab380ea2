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
from fedlgd.core.errors import SettingError
from fedlgd.rundir.records import RoundRecord
from fedlgd.runs.comparing.entries import Job, Outcome, parse_entry, plan
from fedlgd.runs.comparing.parallel import check_jobs, run_jobs
from tests import PATIENCE

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="jobs are forked")


def children() -> list[Any]:
    return multiprocessing.active_children()


def planned(specs: str, seeds: int, out: Path) -> list[Job]:
    return plan([parse_entry(spec) for spec in specs.split(",")], seeds, out, {})


def name(job: Job) -> str:
    return f"{job.entry.spec}{job.config.plan.seed}"


def test_every_job_has_its_outcome(tmp_path):
    jobs = planned("fedavg,fedprox", 2, tmp_path)

    def do(job, listener):
        return Outcome(job, "" if job.config.plan.seed else "the cable is cut", accuracy=0.5)

    outcomes = {name(o.job): (o.error, o.accuracy) for o in run_jobs(jobs, 2, do)}
    bad, good = ("the cable is cut", 0.5), ("", 0.5)
    assert outcomes == {"fedavg0": bad, "fedavg1": good, "fedprox0": bad, "fedprox1": good}
    assert children() == []


def test_no_more_run_at_once_than_asked_for(tmp_path):
    def do(job, listener):
        mine = tmp_path / str(os.getpid())
        mine.touch()
        at_once = len(list(tmp_path.iterdir()))
        time.sleep(0.05)
        mine.unlink()
        return Outcome(job, accuracy=at_once)

    at_once = [o.accuracy for o in run_jobs(planned("fedavg,fedprox", 4, Path("out")), 2, do)]
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
        return Outcome(job, accuracy=float(alone))

    assert [o.accuracy for o in run_jobs(planned("fedavg,fedprox,fednova", 2, Path("out")), 3, do)] == [1.0] * 6


def test_jobs_of_one_seed_run_beside_each_other_once_the_sets_are_made(tmp_path):
    def do(job, listener):
        listener(RoundRecord(round=-1))
        (tmp_path / job.entry.spec).touch()
        until = time.monotonic() + PATIENCE
        while len(list(tmp_path.iterdir())) < 2 and time.monotonic() < until:
            time.sleep(0.01)
        return Outcome(job, accuracy=len(list(tmp_path.iterdir())))

    assert [o.accuracy for o in run_jobs(planned("fedavg,fedprox", 1, Path("out")), 2, do)] == [2, 2]


def test_a_job_that_is_killed_is_an_outcome_and_the_others_go_on(tmp_path):
    def do(job, listener):
        if job.entry.spec == "fedavg":
            os.kill(os.getpid(), signal.SIGKILL)
        return Outcome(job, accuracy=0.5)

    outcomes = {name(o.job): o.error for o in run_jobs(planned("fedavg,fedprox", 1, tmp_path), 2, do)}
    assert outcomes == {
        "fedavg0": "its process was killed by SIGKILL; if there was too little memory, use fewer --jobs",
        "fedprox0": "",
    }


def test_left_early_no_job_goes_on(tmp_path):
    def do(job, listener):
        time.sleep(0 if job.entry.spec == "fedavg" else 2 * PATIENCE)
        return Outcome(job, accuracy=0.5)

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
    with pytest.raises(SettingError, match="threads is 2, but each of 3 parallel jobs has one"):
        check_jobs(3, 2, Place())


def test_who_is_waited_for_is_said(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("fedlgd.engines.process.SILENCE_SECONDS", 0.05)

    def do(job, listener):
        os.kill(os.getpid(), signal.SIGSTOP)
        return Outcome(job)

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
