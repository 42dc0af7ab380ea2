"""The program at a site: the policy decides, the journal says what left, and nothing else does."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from fedlgd.core.device import Place
from fedlgd.core.errors import RunError, message
from fedlgd.data.own.suite import Folders
from fedlgd.deploy.client import HIDDEN_REASON, SiteSettings
from fedlgd.deploy.coordinator import coordinate
from fedlgd.engines.validate import listed
from fedlgd.report.page import write_report
from fedlgd.rundir.records import decode_record
from tests import tiny
from tests.deploy import grid
from tests.deploy.grid import NODES, LocalGrid
from tests.errors import refuses


@pytest.fixture(autouse=True)
def _home(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDLGD_CACHE", str(tmp_path / "home"))


@pytest.fixture
def folders(tmp_path) -> dict[int, Path]:
    return grid.sites(tmp_path, tiny.federation())[0]


def run(folders: dict[int, Path], out: Path, method=None, **plan):
    config = grid.config(method or tiny.fedlgd(), **{"rounds": 2, "evaluate_every": 1, **plan})
    return coordinate(LocalGrid(folders), config, out, NODES, timeout=0.0, pause=0.0)


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
    assert f"weights ({model:,} bytes), loss (8 bytes), " in lines[2]
    assert ": counts (24 bytes), " in lines[1]


def test_states_are_private_and_only_those_of_two_rounds_are_kept(folders, tmp_path):
    run(folders, tmp_path / "run", rounds=4)
    state = folders[NODES["bee"]] / "state"
    assert state.stat().st_mode & 0o777 == 0o700
    assert len(list(state.glob("*/bee/*.safetensors"))) == 2
    assert not list((tmp_path / "run").glob("state/sites/*"))


def test_a_task_outside_the_policy_is_refused_with_the_reason_and_written_down(folders, tmp_path):
    policy(folders, "bee", 'methods = ["*"]', 'methods = ["fedavg"]')
    why = message("method-not-allowed", method="fedlgd", allowed=["fedavg"])
    with refuses("too-few-enrolled", RunError, sites=listed({"bee": why})):
        run(folders, tmp_path / "run")
    assert any(
        re.search(f"refused: describe of run .*: {re.escape(why)}", line) for line in journal(folders, "bee")
    )


def test_a_policy_that_changes_during_a_run_is_obeyed(folders, tmp_path):
    run(folders, tmp_path / "run", rounds=2, quorum=0.6)
    policy(folders, "bee", "rounds = 1000", "rounds = 1")
    records = run(folders, tmp_path / "more", rounds=2, quorum=0.6).records
    assert {record.refused["bee"] for record in records} == {message("too-many-rounds", rounds=2, allowed=1)}


def test_what_is_not_disclosed_is_not_sent(folders, tmp_path):
    for site in tiny.NAMES:
        policy(folders, site, 'disclose = ["counts", "scores", "seconds"]', 'disclose = ["counts"]')
    result = run(folders, tmp_path / "run")
    for record in result.records[1:]:
        assert set(record.seconds) <= {"server"}
        assert not record.scores
        assert all(not metrics for metrics in record.metrics.values())
        assert set(record.unscored.values()) == {message("not-disclosed", needed="scores")}
    assert result.accuracy == {}
    assert not any("score (" in line or "costs (" in line for line in journal(folders, "bee"))
    write_report([tmp_path / "run"], tmp_path / "report.html")


def test_without_counts_a_site_cannot_enrol(folders, tmp_path):
    policy(folders, "bee", 'disclose = ["counts", ', "disclose = [")
    with refuses("too-few-enrolled", RunError, sites=listed({"bee": message("not-disclosed", needed="counts")})):
        run(folders, tmp_path / "run")


def test_the_report_shows_who_was_present(folders, tmp_path):
    policy(folders, "bee", 'disclose = ["counts", "scores", "seconds"]', 'disclose = ["counts"]')
    policy(folders, "cat", "rounds = 1000", "rounds = 1")
    run(folders, tmp_path / "run", quorum=0.6)
    page = write_report([tmp_path / "run"], tmp_path / "report.html").read_text()
    assert "<h2>Presence</h2>" in page
    assert "0 of 2" in page
    assert f"rounds enrolment to 2: {message('too-many-rounds', rounds=2, allowed=1)}" in page
    assert "bee, cat in round 2" in page


def test_images_of_another_shape_are_named_before_the_run(folders, tmp_path):
    other = tmp_path / "other.npz"
    x, y = np.zeros((6, 5, 5, 3), np.uint8), np.array([0, 1, 2] * 2, np.uint8)
    np.savez(other, train_x=x, train_y=y, test_x=x, test_y=y)
    SiteSettings(site="bee", folder=folders[NODES["bee"]], images=Folders(path=str(other))).write()
    with refuses("shapes-of-sites-differ", RunError) as refused:
        run(folders, tmp_path / "run")
    assert refused.value.values["shapes"]["bee"] == (3, 5, 5)


def test_a_class_that_comes_late_is_refused_with_the_reason(folders, tmp_path):
    kept = np.load(tmp_path / "all" / "bee.npz")
    other = tmp_path / "other.npz"
    np.savez(other, **{k: v + 1 if k.endswith("y") else v for k, v in kept.items()})
    config = grid.config(tiny.fedavg(), rounds=2, quorum=0.6)
    at = LocalGrid(folders, gone={"bee"})

    def come(record):
        SiteSettings(site="bee", folder=folders[NODES["bee"]], images=Folders(path=str(other))).write()
        at.gone = set()

    records = coordinate(at, config, tmp_path / "run", NODES, timeout=0.0, on_round=come, pause=0.0).records
    why = message("classes-of-another-run", unknown=["3"], classes=["0", "1", "2"])
    assert records[-1].refused["bee"] == why


def test_other_errors_stay_at_the_site(folders, tmp_path):
    (tmp_path / "all" / "bee.npz").unlink()
    with refuses("too-few-enrolled", RunError, sites=listed({"bee": HIDDEN_REASON})) as caught:
        run(folders, tmp_path / "run")
    assert str(tmp_path / "all") not in str(caught.value)
    assert any("all/bee.npz" in line for line in journal(folders, "bee"))


def test_records_of_earlier_versions_have_nobody_who_joined(tmp_path):
    old = decode_record(json.dumps({"round": 0, "scores": {}}).encode())
    assert (old.unscored, old.joined) == ({}, ())


def test_a_site_remembers_where_and_how_it_computes(tmp_path):
    place = Place(compile="on", precision="bf16")
    SiteSettings(site="ape", folder=tmp_path, place=place, threads=2).write()
    found = SiteSettings.read(tmp_path, "ape")
    assert (found.place, found.threads) == (place, 2)
    with refuses("setting-choice", setting="compile", value="auto", choices=["on", "off"]):
        SiteSettings(site="ape", folder=tmp_path, place=Place(compile="auto"))
