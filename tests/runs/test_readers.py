"""A report that is made while a run writes to its folder shows what is committed, and disturbs nothing."""

import threading

import pytest

from fedlgd.core.files import write_atomic
from fedlgd.report.page import render, write_report
from fedlgd.rundir.read import read_runs, run_folders
from fedlgd.rundir.records import committed_records
from fedlgd.runs.run import execute
from tests import tiny
from tests.runs.folder import FAST_NET, config, method, run_until


@pytest.fixture(scope="module")
def data():
    return tiny.federation(train=3, test=1)


def steps(rounds):
    """Every round refines virtual sets and moves anchors, so that every commit writes all kinds of files."""
    every = {
        f"{part}.selected.{key}": n
        for part in ("refine", "anchors")
        for key, n in (("count", rounds), ("every", 1))
    }
    return config(method("fedlgd", **every), rounds=rounds, net=FAST_NET)


def test_pages_made_while_a_run_commits_are_consistent(data, tmp_path):
    run, page = tmp_path / "run", tmp_path / "run" / "report.html"
    run_until(0, steps(40), data, run)
    writer = threading.Thread(target=execute, args=(steps(40), data, run))
    writer.start()
    seen = []
    while writer.is_alive():
        (found,), unreadable = read_runs(run_folders(tmp_path))
        assert not unreadable
        assert all(sheet.version == "start" or int(sheet.version) < found.done for sheet in found.sheets)
        write_report([run], page)
        seen.append(found.done)
    writer.join()
    assert seen == sorted(seen)
    assert len(set(seen)) > 2, "the run was too short to be read while it wrote"
    assert len(committed_records(run)) == 41
    assert not list(run.rglob("*.part"))


def test_a_commit_leaves_alone_what_another_process_is_writing_to_the_folder(data, tmp_path):
    def slowly(file):
        execute(steps(3), data, tmp_path / "run")
        file.write(b"the page")

    run_until(0, steps(3), data, tmp_path / "run")
    write_atomic(tmp_path / "run" / "report.html", slowly)
    assert (tmp_path / "run" / "report.html").read_bytes() == b"the page"


def test_images_of_a_round_that_is_not_committed_are_not_shown(data, tmp_path):
    run_until(1, steps(3), data, tmp_path := tmp_path / "run")
    before = render(*read_runs([tmp_path]))
    newest = max(tmp_path.glob("virtual/0*"))
    newest.with_name("0002").mkdir()
    for file in newest.iterdir():
        (newest.with_name("0002") / file.name).write_bytes(file.read_bytes())
    assert render(*read_runs([tmp_path])) == before
