"""The stored runs of the paper are sound, and the pages say what they say."""

from pathlib import Path

import pytest

from fedlgd.report.paper.items import find
from fedlgd.report.paper.stored import stored_part

RECORDS = Path(__file__).parent.parent / "docs/results/records/paper"
PART = stored_part(RECORDS, find("table-digits"), "C10", "desk")


def test_all_runs_share_data_network_and_number_of_rounds():
    runs = [run for group in PART.groups.values() for run in group.runs]
    assert all(run.finished for run in runs)
    assert len({run.manifest.data.digest for run in runs}) == 1
    assert len({run.manifest.net.label for run in runs if run.manifest.method != "vhl"}) == 1
    assert {run.planned for run in runs} == {50}


def test_the_main_entries_have_the_same_seeds():
    fedavg, fedlgd = ([run.seed for run in PART.groups[entry].runs] for entry in ("fedavg", "fedlgd"))
    assert fedavg == fedlgd
    assert len(fedavg) > 1


def test_fednova_is_fedavg():
    nova, avg = (
        {run.seed: [record.scores for record in run.records] for run in PART.groups[entry].runs}
        for entry in ("fednova", "fedavg")
    )
    assert nova
    assert all(avg[seed] == scores for seed, scores in nova.items())


@pytest.mark.parametrize("entry", ["fedavg", "vhl", "fedavg:distil.start=real:distil.steps=0"])
def test_only_refinement_changes_virtual_sets_after_the_enrolment(entry):
    def changes(name: str) -> bool:
        return any("virtual" in record.flags for run in PART.groups[name].runs for record in run.records[1:])

    assert changes("fedlgd")
    assert not changes(entry)
