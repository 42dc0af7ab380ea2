"""What docs/comparing.md says of the stored comparisons holds for their records."""

from pathlib import Path

import pytest

from fedlgd.report.groups import Group, group_runs
from fedlgd.report.read import read_runs
from fedlgd.report.summary import difference, headline

RECORDS = Path(__file__).parent.parent / "docs/results/records"
EPOCHS, STEPS = "builtin-digits", "builtin-digits-matched-steps"


def groups(name: str) -> dict[str, Group]:
    folders = sorted({file.parent for file in (RECORDS / name).rglob("manifest.json")})
    runs, unreadable = read_runs(folders)
    assert not unreadable
    return {group.label.removesuffix(" on virtual data"): group for group in group_runs(runs)}


def mean(name: str, method: str) -> float:
    return groups(name)[method].accuracy.mean


@pytest.mark.parametrize("name", [EPOCHS, STEPS])
def test_all_runs_are_complete_and_share_seeds_data_and_network(name):
    everyone = groups(name).values()
    assert all(run.finished for group in everyone for run in group.runs)
    assert {tuple(run.seed for run in group.runs) for group in everyone} == {(0, 1, 2)}
    assert len({run.manifest.data.digest for group in everyone for run in group.runs}) == 1
    assert len({run.manifest.net.label for group in everyone for run in group.runs}) == 1


@pytest.mark.parametrize("name", [EPOCHS, STEPS])
def test_fedlgd_is_the_highest_that_competes_outside_the_noise(name):
    everyone = groups(name)
    rivals = [group for label, group in everyone.items() if group.competes and label != "FedLGD"]
    assert all(difference(everyone["FedLGD"], rival).interval[0] > 0 for rival in rivals)
    assert headline(list(everyone.values())).title.startswith(f"FedLGD ends highest of {len(rivals) + 1} methods")


@pytest.mark.parametrize("name", [EPOCHS, STEPS])
def test_only_fedlgd_changes_virtual_sets_after_the_enrolment(name):
    def changes(group: Group) -> bool:
        return any("virtual" in record.flags for run in group.runs for record in run.records if record.round >= 0)

    assert [label for label, group in groups(name).items() if changes(group)] == ["FedLGD"]


def test_fedavg_gains_when_it_takes_as_many_steps():
    assert 0.05 < mean(STEPS, "FedAvg") - mean(EPOCHS, "FedAvg") < 0.10


def test_anchors_by_themselves_do_not_help_at_equal_steps():
    assert mean(STEPS, "FedAvg + anchors") < mean(STEPS, "FedAvg") < mean(STEPS, "FedLGD")


@pytest.mark.parametrize("name", [EPOCHS, STEPS])
def test_noise_images_do_not_help(name):
    assert mean(name, "FedAvg + noise images") < mean(name, "FedAvg")
    gap = difference(groups(name)["FedAvg + noise images"], groups(name)["FedAvg"])
    assert gap.clear == (name == STEPS)


def test_fednova_is_fedavg():
    nova, avg = (
        [[record.scores for record in run.records] for run in groups(EPOCHS)[m].runs] for m in ("FedNova", "FedAvg")
    )
    assert nova == avg


@pytest.mark.parametrize("method", ["FedProx", "Scaffold", "Moon", "FedProtoAvg", "VHL"])
def test_other_baselines_are_within_the_noise_of_fedavg(method):
    assert not difference(groups(EPOCHS)[method], groups(EPOCHS)["FedAvg"]).clear
