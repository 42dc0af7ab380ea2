"""Runs with the same configuration are computed once and copied."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from fedlgd.core.errors import FedlgdError
from fedlgd.rundir.records import RECORDS
from fedlgd.runs.compare import equal_run, run_job
from fedlgd.runs.entries import Job, parse_entry, plan_jobs
from tests import tiny

NET = {"net.name": "convnet", "net.width": 4, "net.depth": 2}


def job_in(library: Path, folder: str, spec: str = "fedavg", seed: int = 0, rounds: int = 2) -> Job:
    jobs = plan_jobs([parse_entry(spec)], seed + 1, library / folder, {"rounds": rounds, **NET})
    return replace(jobs[seed], library=library)


def run(job: Job, federation=None) -> bytes:
    """The bytes of its records, which have the seconds of every round: no two runs are equal in them."""
    run_job(job, federation or tiny.federation(), "test")
    return (job.folder / RECORDS).read_bytes()


def test_a_run_of_the_same_configuration_is_copied_with_its_own_label(tmp_path):
    first = job_in(tmp_path, "one")
    records = run(first)
    second = job_in(tmp_path, "two", "fedavg:local.lr=0.01")  # the default value
    assert run(second) == records
    labels = [json.loads((job.folder / "manifest.json").read_text())["label"] for job in (first, second)]
    assert labels == [first.label, second.label]
    origin = json.loads((second.folder / "manifest.json").read_text())["copy_of"]
    assert (second.folder / origin).resolve() == first.folder.resolve()
    assert [path.name for path in second.folder.parent.iterdir()] == ["seed0"]


@pytest.mark.parametrize("other", [{"spec": "fedavg:local.lr=0.02"}, {"seed": 1}, {"rounds": 3}])
def test_another_configuration_seed_or_length_is_computed(tmp_path, other):
    records = run(job_in(tmp_path, "one"))
    assert run(job_in(tmp_path, "two", **other)) != records


def test_other_images_and_unfinished_or_damaged_runs_are_not_copied(tmp_path):
    first = job_in(tmp_path, "one")
    records = run(first)
    changed = tiny.federation(train=5)
    second = job_in(tmp_path, "two")
    assert equal_run(second, tiny.federation()) == first.folder
    assert equal_run(second, changed) is None
    assert run(second, changed) != records
    (first.folder / RECORDS).write_bytes(records[:-10])
    assert equal_run(job_in(tmp_path, "three"), tiny.federation()) is None


def test_a_run_that_has_begun_is_resumed_and_not_replaced(tmp_path):
    run(job_in(tmp_path, "one"))
    second = job_in(tmp_path, "two")
    own = run(replace(second, library=None))
    assert run(second) == own


def test_nothing_is_left_of_a_copy_that_fails(tmp_path, monkeypatch):
    run(job_in(tmp_path, "one"))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fedlgd.runs.compare.os.sync", full)
    second = job_in(tmp_path, "two")
    with pytest.raises(FedlgdError) as error:
        run_job(second, tiny.federation(), "test")
    assert "No space left" in str(error.value)
    assert list(second.folder.parent.iterdir()) == []
