"""The program at a site: the policy decides, the journal says what left, and nothing else does."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from fedlgd.core.errors import RunError
from fedlgd.data.own.suite import Folders
from fedlgd.deploy.client import SiteSettings
from fedlgd.deploy.coordinator import Request, coordinate
from fedlgd.report.page import write_report
from fedlgd.rundir.records import decode_record
from tests import tiny
from tests.deploy import grid
from tests.deploy.grid import NODES, LocalGrid


@pytest.fixture(autouse=True)
def _home(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDLGD_DATA", str(tmp_path / "home"))


@pytest.fixture
def folders(tmp_path) -> dict[int, Path]:
    return grid.sites(tmp_path, tiny.federation())[0]


def run(folders: dict[int, Path], out: Path, method=None, **plan):
    config = grid.config(method or tiny.fedlgd(), **{"rounds": 2, "evaluate_every": 1, **plan})
    request = Request(config=config.toml(), out=str(out), sites=dict(NODES), timeout=0.0)
    return coordinate(LocalGrid(folders), request, pause=0.0)


def policy(folders: dict[int, Path], site: str, old: str, new: str) -> None:
    file = folders[NODES[site]] / "site.toml"
    file.write_text(file.read_text().replace(old, new))


def journal(folders: dict[int, Path], site: str) -> list[str]:
    return (folders[NODES[site]] / "journal.log").read_text().splitlines()


def test_the_journal_counts_every_byte_of_every_answer(folders, tmp_path):
    run(folders, tmp_path / "run")
    lines = journal(folders, "bee")
    assert [re.search(r"answer to (\w+)", line)[1] for line in lines] == [
        *("describe", "enrol", "train", "score", "train", "score")
    ]
    model = 4 * tiny.param_count()
    assert f"model ({model:,} bytes)" in lines[2]
    assert "class counts (24 bytes)" in lines[1]


def test_states_are_private_and_only_those_of_two_rounds_are_kept(folders, tmp_path):
    run(folders, tmp_path / "run", rounds=4)
    state = folders[NODES["bee"]] / "state"
    assert state.stat().st_mode & 0o777 == 0o700
    assert len(list(state.glob("*/bee/*.safetensors"))) == 2
    assert not list((tmp_path / "run").glob("state/sites/*"))


def test_a_task_outside_the_policy_is_refused_with_the_reason_and_written_down(folders, tmp_path):
    policy(folders, "bee", 'methods = ["*"]', 'methods = ["fedavg"]')
    with pytest.raises(RunError, match=r"'bee' \(its policy: method 'fedlgd' is not allowed"):
        run(folders, tmp_path / "run")
    assert any("refused: describe: its policy: method 'fedlgd'" in line for line in journal(folders, "bee"))


def test_a_policy_that_changes_during_a_run_is_obeyed(folders, tmp_path):
    run(folders, tmp_path / "run", rounds=2, quorum=0.6)
    policy(folders, "bee", "rounds = 1000", "rounds = 1")
    records = run(folders, tmp_path / "more", rounds=2, quorum=0.6).records
    assert all("this site allows 1 or less" in record.refused["bee"] for record in records)


def test_what_is_not_disclosed_is_not_sent(folders, tmp_path):
    for site in tiny.NAMES:
        policy(folders, site, 'disclose = ["counts", "scores", "seconds"]', 'disclose = ["counts"]')
    result = run(folders, tmp_path / "run")
    for record in result.records[1:]:
        assert set(record.seconds) <= {"server"}
        assert not record.scores
        assert all(not metrics for metrics in record.metrics.values())
        assert set(record.unscored.values()) == {"its policy: it does not disclose scores"}
    assert result.accuracy == {}
    assert not any("score (" in line or "costs (" in line for line in journal(folders, "bee"))
    write_report([tmp_path / "run"], tmp_path / "report.html")


def test_without_counts_a_site_cannot_enrol(folders, tmp_path):
    policy(folders, "bee", '"counts", ', "")
    with pytest.raises(RunError, match="does not disclose counts"):
        run(folders, tmp_path / "run")


def test_the_report_shows_who_was_present(folders, tmp_path):
    policy(folders, "bee", 'disclose = ["counts", "scores", "seconds"]', 'disclose = ["counts"]')
    policy(folders, "cat", "rounds = 1000", "rounds = 1")
    run(folders, tmp_path / "run", quorum=0.6)
    page = write_report([tmp_path / "run"], tmp_path / "report.html").read_text()
    assert "<h2>Presence</h2>" in page
    assert "0 of 2" in page
    assert "rounds enrolment to 2: its policy: the run has 2 rounds; this site allows 1 or less" in page
    assert "no score from bee, cat in round 2" in page


def test_images_of_another_shape_are_named_before_the_run(folders, tmp_path):
    other = tmp_path / "other.npz"
    x, y = np.zeros((6, 5, 5, 3), np.uint8), np.array([0, 1, 2] * 2, np.uint8)
    np.savez(other, train_x=x, train_y=y, test_x=x, test_y=y)
    SiteSettings(site="bee", folder=folders[NODES["bee"]], images=Folders(path=str(other))).write()
    with pytest.raises(RunError, match=r"differ in shape: .*'bee': \(3, 5, 5\)"):
        run(folders, tmp_path / "run")


def test_a_class_that_comes_late_is_refused_with_the_reason(folders, tmp_path):
    kept = np.load(tmp_path / "all" / "bee.npz")
    other = tmp_path / "other.npz"
    np.savez(other, **{k: v + 1 if k.endswith("y") else v for k, v in kept.items()})
    config = grid.config(tiny.fedavg(), rounds=2, quorum=0.6)
    request = Request(config=config.toml(), out=str(tmp_path / "run"), sites=dict(NODES), timeout=0.0)
    at = LocalGrid(folders, gone={"bee"})

    def come(record):
        SiteSettings(site="bee", folder=folders[NODES["bee"]], images=Folders(path=str(other))).write()
        at.gone = set()

    records = coordinate(at, request, come, pause=0.0).records
    assert "its classes ['3'] are not among those of the run" in records[-1].refused["bee"]


def test_other_errors_stay_at_the_site(folders, tmp_path):
    (tmp_path / "all" / "bee.npz").unlink()
    with pytest.raises(RunError, match=r"'bee' \(it could not do the task; its journal says why\)") as caught:
        run(folders, tmp_path / "run")
    assert str(tmp_path / "all") not in str(caught.value)
    assert any("no folder or file" in line for line in journal(folders, "bee"))


def test_records_of_earlier_versions_have_nobody_who_joined(tmp_path):
    old = decode_record(json.dumps({"round": 0, "scores": {}}).encode())
    assert (old.unscored, old.joined) == ({}, ())
