"""What docs/comparing.md says of the stored comparisons holds for their records."""

from pathlib import Path

import pytest

from fedlgd.report.groups import Group, group_runs
from fedlgd.report.read import read_runs

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
def test_fedlgd_is_the_highest_that_competes(name):
    rivals = {label: g.accuracy.mean for label, g in groups(name).items() if g.competes}
    assert max(rivals, key=rivals.get) == "FedLGD"


def test_fedavg_gains_when_it_takes_as_many_steps():
    assert 0.05 < mean(STEPS, "FedAvg") - mean(EPOCHS, "FedAvg") < 0.10


def test_anchors_by_themselves_do_not_help_at_equal_steps():
    assert mean(STEPS, "FedAvg + anchors") < mean(STEPS, "FedAvg")


@pytest.mark.parametrize("name", [EPOCHS, STEPS])
def test_noise_images_do_not_help(name):
    assert mean(name, "FedAvg + noise images") < mean(name, "FedAvg")


def test_fednova_is_fedavg():
    nova, avg = (
        [[record.scores for record in run.records] for run in groups(EPOCHS)[m].runs] for m in ("FedNova", "FedAvg")
    )
    assert nova == avg


@pytest.mark.parametrize("method", ["FedProx", "Scaffold", "Moon", "FedProtoAvg", "VHL"])
def test_other_baselines_are_within_the_spread_of_fedavg(method):
    avg, other = (groups(EPOCHS)[m].accuracy for m in ("FedAvg", method))
    assert abs(avg.mean - other.mean) <= avg.std + other.std
