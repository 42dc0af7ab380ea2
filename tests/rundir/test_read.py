"""The committed records of a run folder are read; a damaged file is named."""

import json
import math
import shutil
from pathlib import Path

import pytest

from fedlgd.core.errors import RunError, message
from fedlgd.rundir.read import read_run, read_runs
from tests.errors import refuses
from tests.report.fake import FINAL, append_round, commit, write_run

NESTED = "[" * 100_000
SCORED = '{"round": 0, "scores": {"x": {"accuracy": 0.5, "loss": 1, "correct": %s}}}\n'


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


def test_a_round_that_was_appended_but_not_committed_is_not_shown(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a", rounds=4, done=3)
    commit(path)
    append_round(path, 3)
    assert (read_run(path).done, read_run(path).finished) == (3, False)
    commit(path)
    assert (read_run(path).done, read_run(path).finished) == (4, True)


def test_a_line_that_a_crash_cut_off_is_not_shown(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a", rounds=4)
    commit(path, lines=4)
    records = path / "records.jsonl"
    records.write_bytes(records.read_bytes()[:-40])
    assert (read_run(path).done, read_run(path).finished) == (3, False)


def test_a_folder_that_was_copied_without_its_state_shows_all_rounds(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a", rounds=4)
    commit(path, lines=2)
    assert read_run(path).done == 1
    shutil.rmtree(path / "state")
    assert read_run(path).done == 4


def test_before_the_first_commit_there_are_no_records(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a")
    (path / "state").mkdir()
    assert read_run(path).records == ()


def test_fewer_rounds_than_planned_is_unfinished(tmp_path: Path) -> None:
    assert not read_run(write_run(tmp_path / "a", rounds=4, done=3)).finished


def test_a_run_without_records_has_just_begun(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a")
    (path / "records.jsonl").unlink()
    run = read_run(path)
    assert (run.records, run.final, run.finished) == ((), None, False)


@pytest.mark.parametrize("loss", ["null", "NaN", "Infinity"])
def test_a_diverged_loss_is_not_finite(tmp_path: Path, loss: str) -> None:
    path = write_run(tmp_path / "a", rounds=1)
    score = f'{{"mnist": {{"accuracy": 0.1, "loss": {loss}, "correct": [1], "total": [10]}}}}'
    (path / "records.jsonl").write_text(f'{{"round": 0, "scores": {score}}}\n')
    final = read_run(path).final
    assert final is not None
    assert not math.isfinite(final.scores["mnist"].loss)


@pytest.mark.parametrize(
    ("file", "content", "why"),
    [
        ("manifest.json", None, "is missing"),
        ("manifest.json", '{"format": 1, "lab', "is damaged"),
        ("manifest.json", '{"format": 1}', "is damaged"),
        ("manifest.json", '{"format": 2}', "is damaged"),
        ("manifest.json", '{"format": 3}', "is damaged"),
        ("manifest.json", '{"format": 9}', "has format 9"),
        ("manifest.json", "[]", "is damaged"),
        ("manifest.json", "{}", "is damaged"),
        ("manifest.json", NESTED, "is damaged"),
        ("config.toml", None, "is missing"),
        ("config.toml", "rounds = ", "is damaged"),
        ("config.toml", "rounds = 3", "missing required field `seed`"),
        ("config.toml", f"rounds = {NESTED}", "is damaged"),
        ("records.jsonl", '{"round": 0, "scores": {}}\n{"rou\n{"round": 1, "scores": {}}\n', "is damaged"),
        ("records.jsonl", '{"round": 0, "scores": {}}\n{"rou', "is damaged"),
        ("records.jsonl", '{"round": 1, "scores": {}}\n{"round": 1, "scores": {}}\n', "after round 1"),
        ("records.jsonl", "3\n", "is damaged"),
        ("records.jsonl", "[]\n", "is damaged"),
        ("records.jsonl", "null\n", "is damaged"),
        ("records.jsonl", '{"round": 0, "scores": []}\n', "is damaged"),
        ("records.jsonl", '{"round": 0, "scores": {"x": 1}}\n', "is damaged"),
        ("records.jsonl", '{"round": "0", "scores": {}}\n', "is damaged"),
        ("records.jsonl", '{"round": 0, "scores": {}, "seconds": {"train": "x"}}\n', "is damaged"),
        ("records.jsonl", SCORED % '[1], "total": [1, 2]', "scores or seconds of round 0"),
        ("records.jsonl", '{"round": 0, "scores": {}, "seconds": {"train": Infinity}}\n', "seconds of round 0"),
        ("records.jsonl", '{"round": 0, "scores": {}, "cpu": {"train": Infinity}}\n', "seconds of round 0"),
        ("records.jsonl", NESTED + "\n", "is damaged"),
        ("state/head.json", "{}", "is damaged"),
        ("state/head.json", NESTED, "is damaged"),
    ],
)
def test_damage_is_named(tmp_path: Path, file: str, content: str | None, why: str) -> None:
    path = write_run(tmp_path / "a")
    (path / file).parent.mkdir(exist_ok=True)
    (path / file).unlink() if content is None else (path / file).write_text(content)
    with pytest.raises(RunError, match=why) as caught:
        read_run(path)
    assert str(path / file) in str(caught.value)


@pytest.mark.parametrize("lost", ["label", "versions", "data.digest", "data.sites", "net.flops"])
def test_a_manifest_that_lacks_a_key_is_named(tmp_path: Path, lost: str) -> None:
    path = write_run(tmp_path / "a")
    manifest = json.loads((path / "manifest.json").read_text())
    *parents, key = lost.split(".")
    (manifest[parents[0]] if parents else manifest).pop(key)
    (path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(RunError, match=rf"manifest\.json.*{key}"):
        read_run(path)


@pytest.mark.parametrize("shape", [[], [3, 0, 0], [28]])
def test_images_without_a_size_are_damage(tmp_path: Path, shape: list[int]) -> None:
    path = write_run(tmp_path / "a")
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["data"]["shape"] = shape
    (path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(RunError, match=r"manifest\.json"):
        read_run(path)


@pytest.mark.parametrize("number", [1, 2])
def test_the_known_formats_of_a_manifest_are_read(tmp_path: Path, number: int) -> None:
    path = write_run(tmp_path / "a")
    manifest = json.loads((path / "manifest.json").read_text()) | {"format": number}
    (path / "manifest.json").write_text(json.dumps(manifest))
    assert read_run(path).finished


@pytest.mark.parametrize("file", ["analysis.json", "audit.json"])
def test_a_damaged_optional_file_is_named_and_left_out(tmp_path: Path, file: str) -> None:
    path = write_run(tmp_path / "a")
    (path / file).write_text(NESTED)
    run = read_run(path)
    assert (run.analysis, run.audits) == (None, {})
    assert run.damage[0].startswith(f"{file} is damaged (")


def test_unreadable_runs_are_set_aside_with_the_reason(tmp_path: Path) -> None:
    good = write_run(tmp_path / "good")
    runs, unreadable = read_runs([tmp_path / "nowhere", good, good])
    assert [run.path for run in runs] == [good]
    assert unreadable == (message("run-file-missing", file=str(tmp_path / "nowhere/config.toml")),)


def test_nothing_readable_is_an_error_that_says_why(tmp_path: Path) -> None:
    with refuses("no-readable-run", errors=message("run-file-missing", file=str(tmp_path / "nowhere/config.toml"))):
        read_runs([tmp_path / "nowhere"])
    with refuses("no-run-folder-given"):
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
