"""Plans of comparisons."""

from pathlib import Path

import pytest

from fedlgd.runs.suite import matched_steps, parse_entry, plan
from tests.vectors import vector


def planned(spec: str, seeds: int = 1, steps: int = 0, **assignments):
    return plan([parse_entry(spec)], seeds, Path("out"), assignments, steps=steps)


def test_an_entry_is_a_method_stacks_and_settings_of_its_own():
    (job,) = planned("moon+anchors:mu=5:head=true")
    method = job.config.method
    assert (method.base.mu, method.base.head, method.anchors.per_class) == (5.0, True, 10)
    assert job.label == "Moon + anchors on real data (mu=5, head=true)"


def test_the_noise_control_has_images_that_never_learn_and_never_pull():
    method = planned("fedavg+noise")[0].config.method
    assert (method.anchors.per_class, method.anchors.steps, method.pull.weight) == (10, 0, 0.0)
    assert method.anchors.in_loss == "always"
    assert method.label == "FedAvg + noise images on real data"


def test_seeds_are_runs_of_their_own_in_folders_of_their_own():
    jobs = planned("fedavg", seeds=3)
    assert [job.config.plan.seed for job in jobs] == [0, 1, 2]
    assert len({job.folder for job in jobs}) == 3
    assert len({job.config.variant for job in jobs}) == 1


def test_variants_of_one_method_do_not_share_a_folder():
    specs = ("vhl", "vhl:labels=patch", "vhl:labels=patch:alpha=0", "fedavg+noise", "fedavg+anchors", "fedavg")
    assert len({parse_entry(spec).folder for spec in specs}) == len(specs)


def test_train_on_holds_for_methods_that_have_the_choice():
    assert planned("fedavg", train_on="virtual")[0].config.method.train_on == "virtual"
    assert planned("fedlgd", train_on="real")[0].config.method.train_on == "virtual"


def test_a_budget_of_steps_is_everybodys():
    for spec in ("fedavg", "fedlgd", "vhl", "fedbn"):
        assert planned(spec, steps=7)[0].config.method.local.steps == 7


@pytest.mark.parametrize(("key", "per_class", "classes"), [("ipc50", 50, 10), ("ipc10", 10, 10), ("retina", 10, 2)])
def test_matched_steps_are_what_fedlgd_takes(key, per_class, classes):
    wanted = vector("schedule")["batches_per_epoch"][f"{key}_plus_global"]
    assert matched_steps(per_class, 10, classes, batch=32, epochs=1) == wanted
    assert matched_steps(per_class, 10, classes, batch=32, epochs=2) == 2 * wanted
