"""A run directory is read as far as it was written; damage is named, never guessed around."""

import json
import math
from pathlib import Path

import pytest

from fedlgd.report.read import ReportError, read_run, read_runs
from tests.report.fake import FINAL, write_run


def test_a_finished_run_is_read_whole(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "a", label="FedLGD", seed=3, rounds=4))
    assert (run.label, run.seed, run.done, run.planned, run.finished) == ("FedLGD", 3, 4, 4, True)
    assert [record.round for record in run.records] == [-1, 0, 1, 2, 3]
    assert run.final is not None
    assert {site: score.accuracy for site, score in run.final.scores.items()} == FINAL
    assert run.final.accuracy == pytest.approx((0.95 + 0.62 + 0.91) / 3)


def test_rounds_that_were_not_evaluated_are_passed_over(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "a", rounds=5, done=4, evaluate_every=3))
    assert [record.round for record in run.evaluated] == [2]


def test_a_cut_last_line_is_ignored_and_the_run_is_unfinished(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a", rounds=4)
    records = path / "records.jsonl"
    records.write_bytes(records.read_bytes()[:-40])
    run = read_run(path)
    assert run.cut
    assert (run.done, run.finished) == (3, False)


def test_a_cut_line_after_the_last_round_is_unfinished_too(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a", rounds=4)
    with (path / "records.jsonl").open("a") as records:
        records.write('{"round": 4, "sco')
    assert (read_run(path).done, read_run(path).finished) == (4, False)


def test_fewer_rounds_than_planned_is_unfinished(tmp_path: Path) -> None:
    assert not read_run(write_run(tmp_path / "a", rounds=4, done=3)).finished


def test_a_run_without_records_has_just_begun(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a")
    (path / "records.jsonl").unlink()
    run = read_run(path)
    assert (run.records, run.final, run.finished) == ((), None, False)


@pytest.mark.parametrize("loss", ["null", "NaN", "Infinity"])
def test_a_diverged_loss_is_not_a_number(tmp_path: Path, loss: str) -> None:
    path = write_run(tmp_path / "a", rounds=1)
    score = f'{{"mnist": {{"accuracy": 0.1, "loss": {loss}}}}}'
    (path / "records.jsonl").write_text(f'{{"round": 0, "scores": {score}}}\n')
    final = read_run(path).final
    assert final is not None
    assert math.isnan(final.loss)


@pytest.mark.parametrize(
    ("file", "content", "why"),
    [
        ("manifest.json", None, "manifest.json is missing"),
        ("manifest.json", '{"format": 1, "lab', "manifest.json is damaged"),
        ("manifest.json", '{"format": 1}', "missing required field"),
        ("manifest.json", '{"format": 2}', "format 2 is unknown"),
        ("manifest.json", "[]", "format None is unknown"),
        ("config.toml", None, "config.toml is missing"),
        ("config.toml", "rounds = ", "config.toml is damaged"),
        ("config.toml", "rounds = 3", "missing required field `seed`"),
        ("records.jsonl", '{"round": 0}\n{"rou\n{"round": 1}\n', "records.jsonl is damaged"),
        ("records.jsonl", '{"round": 1}\n{"round": 1}\n', "round 1 is written after round 1"),
    ],
)
def test_damage_is_named(tmp_path: Path, file: str, content: str | None, why: str) -> None:
    path = write_run(tmp_path / "a")
    (path / file).unlink() if content is None else (path / file).write_text(content)
    with pytest.raises(ReportError, match=why):
        read_run(path)


def test_unreadable_runs_are_set_aside_with_the_reason(tmp_path: Path) -> None:
    good = write_run(tmp_path / "good")
    runs, unreadable = read_runs([tmp_path / "nowhere", good, good])
    assert [run.path for run in runs] == [good]
    assert [(each.path.name, each.why) for each in unreadable] == [("nowhere", "config.toml is missing")]


def test_nothing_readable_is_an_error_that_says_why(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match=r"no run can be read: .*nowhere: config.toml is missing"):
        read_runs([tmp_path / "nowhere"])
    with pytest.raises(ReportError, match="no run directory was given"):
        read_runs([])


def test_sheets_are_listed_from_the_oldest_and_strangers_are_left_out(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a", rounds=12, per_class=1)
    (path / "virtual" / "notes").mkdir()
    sheets = [sheet for sheet in read_run(path).sheets if sheet.folder == "site0"]
    assert [sheet.version for sheet in sheets] == ["start", "0000", "0005", "0010"]


def test_a_manifest_cannot_reach_outside_its_run(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a", per_class=1)
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["data"]["sites"][0]["folder"] = "../start/site1"
    (path / "manifest.json").write_text(json.dumps(manifest))
    assert "../start/site1" not in {sheet.folder for sheet in read_run(path).sheets}
