"""What the pages of the paper say of CPU time and of undecided claims."""

import json

import pytest

from fedlgd.paper.items import find_item, stored
from fedlgd.paper.verdicts import verdicts
from fedlgd.report.summary import Difference
from fedlgd.rundir.intervals import half_width
from results.pages import paper
from results.pages.outlook import MAX_SEEDS, cpu_of, measured_cpu, outlook, seeds_needed
from tests.paper.test_verdicts import PART, store


def test_the_outlook_says_how_many_seeds_and_how_much_time_would_decide():
    near = Difference(0.01, 3, (0.01 - 0.02, 0.01 + 0.02))
    enough = seeds_needed(near, 0.0)
    spread = 0.02 / half_width(3)
    assert spread * half_width(enough, 2) < 0.01 <= spread * half_width(enough - 1, 2)  # the second test of two
    assert seeds_needed(near.in_test(2), 0.0) > enough
    assert seeds_needed(near, 0.0099) == MAX_SEEDS + 1


def test_only_claims_that_runs_have_not_decided_have_an_outlook(tmp_path):
    found = {
        (each.item, each.claim.rule and each.claim.rule.part): outlook(tmp_path, each)
        for each in verdicts(tmp_path)
    }
    assert "about 3 seeds," in found["table-digits", "R50"]
    assert not found["figure-communication", None]
    assert not found["table-retina", "four"]


def test_the_cpu_time_of_an_item_counts_virtual_sets_of_several_runs_once(tmp_path):
    store(tmp_path, "fedlgd", 0.8, 0.8, cpu=1.0)
    (one,) = stored(tmp_path, find_item("table-digits"))
    store(tmp_path, "fedavg", 0.7, 0.7, cpu=1.0)
    for file in (tmp_path / "desk" / PART / "fedavg").rglob("records.jsonl"):
        first, *others = file.read_text().splitlines(keepends=True)
        enrolment = json.loads(first)
        enrolment["cpu"]["server"] = 0.25  # unlike the cost of the shared sets, this differs between runs
        file.write_text(json.dumps(enrolment) + "\n" + "".join(others))
    (both,) = stored(tmp_path, find_item("table-digits"))
    shared = sum(run.records[0].cpu["distil"] for run in both.groups["fedavg"].runs)
    assert shared > 0
    assert cpu_of(both) == pytest.approx(2 * cpu_of(one) - shared)
    words = measured_cpu(tmp_path, find_item("table-digits"))
    assert list(words) == ["desk"]
    assert words["desk"].endswith(" (C10), not measured (C50), not measured (R10), not measured (R50)")
    assert measured_cpu(tmp_path, find_item("figure-curves")) == {}  # it has no runs of its own


@pytest.mark.parametrize(("accuracy", "word"), [(0.8, "same"), (0.7, "differ")])
def test_a_repetition_is_compared_with_the_first_run(tmp_path, monkeypatch, accuracy, word):
    store(tmp_path / "first", "fedlgd", 0.8, 0.9)
    store(tmp_path / "again", "fedlgd", accuracy)
    monkeypatch.setattr(paper, "PAPER", tmp_path / "first")
    (again,) = stored(tmp_path / "again", find_item("table-digits"))
    told = paper.repetition(again)
    assert "seed 0" in told
    assert "seed 1" not in told
    assert word in told
