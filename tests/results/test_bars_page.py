"""The page on speed says of each target whether it was met, and what could not be measured."""

import json

import pytest

from bench import project
from results.pages import bars

SECONDS = {"released": 12.0, "shipped": 15.0, "eager": 6.0, "bf16": 4.0, "compiled": 5.0, "compiled, bf16": 2.0}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "full.jsonl").write_text((bars.BENCH / "full.jsonl").read_text())
    monkeypatch.setattr(bars, "BENCH", tmp_path)
    return tmp_path


def write(folder, name, value):
    (folder / f"{name}.json").write_text(json.dumps(value))


def phases(names):
    sides = {side: [value, value] for side, value in SECONDS.items()}
    row = {"seconds": sides, "gflop": {"released": 10.0, "eager": 30.0}, "load": 1.0}
    about = {"cpu": "a CPU", "cores": 2, "torch": "2", "width": 8, "peak_gflops": 10.0}
    return about | {"phases": dict.fromkeys(names, row)}


def test_each_phase_has_its_ratio_and_its_verdict(folder):
    write(folder, "compiled", phases(["evaluation", "gm"]))
    lines = bars.bars("compiled").splitlines()
    (evaluation,) = (line for line in lines if line.startswith("| evaluation"))
    assert evaluation.split("|")[2:7] == [" 3 ", " 2.00 missed ", " 3.00 met ", " 2.40 missed ", " 6.00 met "]
    assert evaluation.split("|")[7] == " 4.0 ", "12 s of the released code over 30 GFLOP at a peak of 10 GFLOP/s"
    assert not any("whole DIGITS run" in line for line in lines), "not all phases are measured"


def test_a_whole_run_is_projected_from_all_phases(folder):
    write(folder, "compiled", phases(bars.NAMES))
    found = bars.run_ratios("compiled")
    assert found["eager"] < found["compiled"] < found["bf16"] < found["compiled, bf16"]
    assert found["bf16"] < found[bars.PEAK] < found["compiled, bf16"], "30 GFLOP at 10 GFLOP/s take 3 s"
    fewer = next(
        m["ours"] / m["theirs"]
        for m in reversed(bars.full())
        if m.get("phase") == "dm-initial" and m["kind"] == "match"
    )
    initial = 15.0 * 10_000 * project.DIGITS.sites / (6.0 * 10_000 * fewer * project.DIGITS.sites)
    assert found["eager"] == pytest.approx(initial, rel=0.3), "initial matching is most of it"


def test_the_share_of_the_peak_is_that_of_our_operations(folder):
    write(folder, "compiled", phases(["gm"]))
    row = next(line for line in bars.modes("compiled").splitlines() if line.startswith("| gradient"))
    assert [cell.strip() for cell in row.split("|")[-3:-1]] == ["50%", "60%"]


def test_the_best_other_package_counts_and_one_that_failed_is_said(folder):
    def row(way, sites, ms):
        return {
            "kind": "round",
            "way": way,
            "sites": sites,
            "cpu": [ms * sites / 1000],
            "accuracy": 0.5,
            "start": 1,
            "peak": 9,
        }

    ways = {"plain PyTorch": 2.0, "pfl-research": 3.0, "fedlgd": 2.0, "fedlgd, compiled": 1.0}
    rows = [row(way, sites, ms) for way, ms in ways.items() for sites in (5, 100)]
    rows += [{"kind": "round", "way": "fluke", "sites": 5, "failed": "no such package"}]
    write(folder, "peers", rows)
    assert bars.best_peer() == (
        "pfl-research",
        {"fedlgd": pytest.approx(1.5), "fedlgd, compiled": pytest.approx(3)},
    )
    text = bars.peers("peers")
    assert "| fluke | – | – | – | – |" in text
    assert "fluke: no such package." in text


def test_what_is_not_stored_is_not_claimed(folder):
    assert (
        bars.bars("compiled")
        == bars.modes("compiled")
        == bars.scale("scale")
        == bars.peers("peers")
        == bars.NOT_MEASURED
    )
    assert bars.best_peer() is None
    assert "released" not in bars.lead("compiled")
    assert bars.figures() == {}
