"""Records are read back as they were written, and only those that count."""

import json
import math
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fedlgd.core.errors import RunError
from fedlgd.core.files import digest, write_json
from fedlgd.core.score import Score
from fedlgd.rundir.records import RECORDS, RoundRecord, committed_records, decode_record, encode_record
from tests.core.damage import flips, noticed

FULL = RoundRecord(
    round=3,
    sampled=("ape", "Ünï/../x"),
    scores={"ape": Score(0.5, 1.25, (1, 2), (2, 4), 0.75), "bee": Score(0.1, 2.0, (1,), (10,))},
    metrics={"ape": {"loss": 0.1}},
    bytes_up=2**40,
    bytes_down=7,
    seconds={"train": 1e-9},
    flops={"train": 12345678901234},
    flags=("anchors", "virtual"),
    refused={"Ünï/../x": "weight is nan"},
)


def records(count: int) -> list[RoundRecord]:
    return [RoundRecord(round=t, bytes_up=t + 1) for t in range(-1, count - 1)]


def folder_of(path: Path, written: list[RoundRecord], committed: int | None = None) -> Path:
    """A run folder with these records, the first so many of them committed."""
    lines = [encode_record(record) for record in written]
    (path / "state").mkdir(parents=True)
    (path / RECORDS).write_bytes(b"".join(lines))
    content = b"".join(lines[:committed])
    write_json(path / "state" / "head.json", {"records": {"bytes": len(content), "digest": digest(content)}})
    return path


# One record


@pytest.mark.parametrize("record", [FULL, RoundRecord(round=-1)])
def test_a_record_comes_back_as_it_was(record):
    line = encode_record(record)
    assert decode_record(line) == record
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert json.loads(line)["round"] == record.round  # for whoever reads it without this code


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_not_a_number_is_read_back_as_nan(loss):
    line = encode_record(RoundRecord(round=0, scores={"ape": Score(0.1, loss, (1,), (2,))}))
    assert json.loads(line)["scores"]["ape"]["loss"] is None
    again = decode_record(line).scores["ape"]
    assert math.isnan(again.loss)
    assert again.accuracy == 0.1


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_metric_that_is_not_a_number_is_read_back_as_nan(value):
    record = decode_record(encode_record(RoundRecord(round=0, metrics={"ape": {"loss": 0.5, "gap": value}})))
    assert record.metrics["ape"]["loss"] == 0.5
    assert math.isnan(record.metrics["ape"]["gap"])


def test_a_record_from_before_sites_could_be_refused_is_read():
    old = json.loads(encode_record(RoundRecord(round=0)))
    del old["refused"]
    assert decode_record(json.dumps(old).encode()).refused == {}


def test_accuracy_is_the_unweighted_mean_over_sites():
    assert FULL.accuracy == pytest.approx((0.5 + 0.1) / 2)
    assert math.isnan(RoundRecord(round=0).accuracy)


def test_balanced_accuracy_is_the_mean_over_the_classes_that_have_images():
    assert Score(0.0, 0.0, (1, 9, 0), (2, 10, 0)).balanced == pytest.approx((1 / 2 + 9 / 10) / 2)


# Those of a run


def test_a_line_counts_once_the_head_says_so(tmp_path):
    written = records(4)
    for committed in range(5):
        folder = folder_of(tmp_path / str(committed), written, committed)
        assert committed_records(folder) == written[:committed]


@pytest.mark.parametrize("tail", [b'{"round": 2, "half a rec', b"\0\xff", b"\n", encode_record(FULL)])
def test_a_tail_that_was_never_committed_is_not_seen(tmp_path, tail):
    folder = folder_of(tmp_path / "out", records(3))
    with (folder / RECORDS).open("ab") as file:
        file.write(tail)
    assert committed_records(folder) == records(3)


def test_before_the_first_commit_there_is_none(tmp_path):
    assert committed_records(tmp_path / "nowhere") == []
    folder = folder_of(tmp_path / "out", records(2))
    (folder / "state" / "head.json").unlink()
    assert committed_records(folder) == []


def test_a_folder_copied_without_its_state_shows_all(tmp_path):
    folder = folder_of(tmp_path / "out", records(3))
    shutil.rmtree(folder / "state")
    assert committed_records(folder) == records(3)
    (folder / RECORDS).unlink()
    assert committed_records(folder) == []


def test_records_that_are_not_those_committed_are_refused_by_name(tmp_path):
    folder = folder_of(tmp_path / "out", records(3))
    file = folder / RECORDS
    content = file.read_bytes()
    damaged: list[Any] = [turned for _, turned in flips(content, 40)]
    for wrong in (*damaged, b"", content[:-1], content[1:]):
        file.write_bytes(wrong)
        assert noticed(lambda _: committed_records(folder), file)
        assert file.read_bytes() == wrong
    file.unlink()
    assert noticed(lambda _: committed_records(folder), file)


def test_a_damaged_head_is_refused_by_name(tmp_path):
    folder = folder_of(tmp_path / "out", records(3))
    head = folder / "state" / "head.json"
    head.write_bytes(head.read_bytes()[:-5])
    assert noticed(lambda _: committed_records(folder), head)


@pytest.mark.parametrize("line", [b"half a rec", b"[]\n", b"{}\n", b'{"round": "x", "scores": {}}\n'])
def test_a_copied_folder_with_a_line_that_is_no_record_is_refused_by_name(tmp_path, line):
    (tmp_path / RECORDS).write_bytes(encode_record(FULL) + line)
    with pytest.raises(RunError, match=r"records.jsonl' is damaged"):
        committed_records(tmp_path)


def test_records_are_read_without_torch(tmp_path):
    """The commands that only read start in a fraction of the time."""
    folder = folder_of(tmp_path / "out", records(3))
    program = (
        "import sys; from pathlib import Path; from fedlgd.core import errors, settings\n"
        "from fedlgd.rundir.records import committed_records\n"
        "print(len(committed_records(Path(sys.argv[1]))), 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(folder)], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["3", "False"]
