"""The stored runs of the paper are sound, and the pages say what they say."""

import pytest

from fedlgd.paper.items import Found, find_item, items, owner_of, requested_runs, stored, stored_part
from results import RECORDS

PAPER = RECORDS / "paper"
DIGITS = {scale: stored_part(PAPER, find_item("table-digits"), "C10", scale) for scale in ("desk", "full")}
ALL = [found for item in items().values() if item.methods for found in stored(PAPER, item)]


@pytest.fixture(params=DIGITS)
def digits(request) -> Found:
    return DIGITS[request.param]


@pytest.mark.parametrize("found", ALL, ids=lambda found: f"{found.item.name}-{found.label}")
def test_all_runs_of_a_part_share_data_network_and_number_of_rounds(found):
    runs = [run for group in found.groups.values() for run in group.runs]
    assert all(run.finished for run in runs)
    assert len({run.manifest.data.digest for run in runs}) == 1
    assert len({run.manifest.net.label for run in runs if run.manifest.method.name != "vhl"}) == 1
    wanted = requested_runs(owner_of(found.item), found.part, found.scale)
    assert {run.planned for run in runs} == {wanted.settings["rounds"]}


@pytest.mark.parametrize("found", ALL, ids=lambda found: f"{found.item.name}-{found.label}")
def test_the_seeds_of_a_part_were_run_with_the_same_versions_and_threads(found):
    runs = [run for group in found.groups.values() for run in group.runs]
    assert len({(run.manifest.versions["torch"], run.manifest.threads) for run in runs}) == 1


def test_the_main_entries_have_the_same_seeds(digits):
    fedavg, fedlgd = ([run.seed for run in digits.groups[entry].runs] for entry in ("fedavg", "fedlgd"))
    assert fedavg == fedlgd == [0, 1, 2]


def test_fednova_is_fedavg(digits):
    nova, avg = (
        {run.seed: [record.scores for record in run.records] for run in digits.groups[entry].runs}
        for entry in ("fednova", "fedavg")
    )
    assert nova
    assert all(avg[seed] == scores for seed, scores in nova.items())


@pytest.mark.parametrize("entry", ["fedavg", "vhl", "fedavg:distil.start=real:distil.steps=0"])
def test_only_refinement_changes_virtual_sets_after_the_enrolment(digits, entry):
    def changes(name: str) -> bool:
        return any("virtual" in record.flags for run in digits.groups[name].runs for record in run.records[1:])

    assert changes("fedlgd")
    assert not changes(entry)
