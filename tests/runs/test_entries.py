"""Plans of comparisons."""

from pathlib import Path

import pytest

from fedlgd.core.errors import SettingError
from fedlgd.methods import registry
from fedlgd.runs.comparing.entries import matched_steps, parse_entry, plan
from tests.vectors import vector


def planned(spec: str, seeds: int = 1, steps: int = 0, **assignments):
    return plan([parse_entry(spec)], seeds, Path("out"), assignments, steps=steps)


def test_an_entry_is_a_method_stacks_and_settings_of_its_own():
    (job,) = planned("moon+anchors:mu=5:head=true")
    method = job.config.method
    assert (method.mu, method.head, method.anchors.per_class) == (5.0, True, 10)
    assert job.label == "Moon + anchors on real data (mu=5, head=true)"


def test_the_noise_control_has_images_that_never_learn_and_never_pull():
    method = planned("fedavg+noise")[0].config.method
    assert (method.anchors.per_class, method.anchors.steps, method.pull.weight) == (10, 0, 0.0)
    assert method.anchors.in_loss == "always"
    assert method.label == "FedAvg + noise images on real data"


def test_settings_and_labels_of_what_is_stacked():
    (job,) = planned("fedavg+anchors+refine:refine.steps=3:anchors.per_class=4", train_on="virtual")
    method = job.config.method
    assert (method.refine.steps, method.method.anchors.per_class, method.train_on) == (3, 4, "virtual")
    assert job.label == "FedAvg + anchors + refine on virtual data (refine.steps=3, anchors.per_class=4)"
    assert planned("fedavg+proximal", steps=7)[0].config.method.local.steps == 7


def test_a_setting_for_one_method_reaches_it_under_whatever_is_stacked():
    assignments = {"fedprox.mu": 0.5, "local.lr": 0.1}
    stacked, other = plan(
        list(map(parse_entry, ("fedprox+anchors", "fedavg+anchors"))), 1, Path("out"), assignments
    )
    assert (stacked.config.method.mu, stacked.config.method.local.lr) == (0.5, 0.1)
    assert other.config.method.local.lr == 0.1


def test_a_setting_of_local_training_reaches_every_method():
    for spec in ("fedavg", "fedlgd", "local-only", "scaffold+anchors"):
        (job,) = plan([parse_entry(spec)], 1, Path("out"), {"local.lr": 0.1})
        assert job.config.method.local.lr == 0.1
        with pytest.raises(SettingError, match=r"unknown setting 'local.lrr'; did you mean 'local.lr'"):
            plan([parse_entry(spec)], 1, Path("out"), {"local.lrr": 0.1})


@pytest.mark.parametrize("path", ["fedprox.mu", "train_on"])
def test_a_setting_that_reaches_none_of_the_methods_is_an_error(path):
    with pytest.raises(SettingError, match=rf"setting '{path}' applies to none of the compared methods \(fedlgd\)"):
        plan([parse_entry("fedlgd")], 1, Path("out"), {path: 0.1})


def test_a_setting_that_one_method_lacks_says_how_to_set_it_for_another_alone():
    entries = [parse_entry("fedavg"), parse_entry("fedlgd")]
    with pytest.raises(SettingError, match=r"method fedavg: unknown setting 'refine.steps'.*NAME.path=value"):
        plan(entries, 1, Path("out"), {"refine.steps": 3})
    plain, refined = plan(entries, 1, Path("out"), {"fedlgd.refine.steps": 3})
    assert refined.config.method.refine.steps == 3
    assert plain.config.method == parse_entry_method("fedavg")


def parse_entry_method(spec: str):
    return plan([parse_entry(spec)], 1, Path("out"), {})[0].config.method


def test_a_class_of_ones_own_may_have_settings_and_a_stack():
    (job,) = planned("tests.runs.own:Own+proximal:boldness=3:proximal.mu=2")
    assert (job.config.method.boldness, job.config.method.term.mu) == (3.0, 2.0)
    assert job.label == "Own + proximal (boldness=3, proximal.mu=2)"


def test_methods_of_the_examples_are_found_from_their_folder(monkeypatch):
    monkeypatch.chdir(Path(__file__).parents[2] / "examples")
    (own,) = planned("03_own_method:Cautious")
    (both,) = planned("fedlgd+03_own_method:Sparse:sparse.weight=0.01")
    assert type(own.config.method).__name__ == "Cautious"
    assert "sparse" in both.label


def test_a_name_that_another_method_has_is_refused():
    class Another:
        name = "fedavg"

    with pytest.raises(SettingError, match=r"method 'fedavg' is already defined in fedlgd\.methods\.fedavg:FedAvg"):
        registry.register(Another)


@pytest.mark.parametrize("spec", ["fedavgg", "fedavg+ancors", "nothing.here:Own", "fedavg+", "+anchors", ""])
def test_an_entry_that_names_nothing_is_refused_at_once(spec):
    with pytest.raises(SettingError):
        parse_entry(spec)


def test_seeds_are_runs_of_their_own_in_folders_of_their_own():
    jobs = planned("fedavg", seeds=3)
    assert [job.config.plan.seed for job in jobs] == [0, 1, 2]
    assert len({job.folder for job in jobs}) == 3
    assert len({job.config.variant for job in jobs}) == 1


def test_variants_of_one_method_do_not_share_a_folder():
    specs = ("vhl", "vhl:labels=patch", "vhl:labels=patch:alpha=0", "fedavg+noise", "fedavg+anchors", "fedavg")
    assert len({parse_entry(spec).folder for spec in specs}) == len(specs)


def test_train_on_holds_for_methods_that_have_the_choice():
    both = plan([parse_entry("fedavg"), parse_entry("fedlgd")], 1, Path("out"), {"train_on": "real"})
    assert [job.config.method.train_on for job in both] == ["real", "virtual"]
    assert planned("fedavg", train_on="virtual")[0].config.method.train_on == "virtual"


def test_a_budget_of_steps_is_everybodys():
    for spec in ("fedavg", "fedlgd", "vhl", "fedbn"):
        assert planned(spec, steps=7)[0].config.method.local.steps == 7


@pytest.mark.parametrize(("key", "per_class", "classes"), [("ipc50", 50, 10), ("ipc10", 10, 10), ("retina", 10, 2)])
def test_matched_steps_are_what_fedlgd_takes(key, per_class, classes):
    wanted = vector("schedule")["batches_per_epoch"][f"{key}_plus_global"]
    assert matched_steps(per_class, 10, classes, batch=32, epochs=1) == wanted
    assert matched_steps(per_class, 10, classes, batch=32, epochs=2) == 2 * wanted


@pytest.mark.parametrize("specs", ["fedavg,fedavg", "fedavg, fedavg", "moon:mu=5,moon:mu=5"])
def test_an_entry_given_twice_is_refused(specs):
    with pytest.raises(SettingError, match=r"--methods has .* twice; name it once"):
        plan([parse_entry(spec) for spec in specs.split(",")], 1, Path("out"), {})
