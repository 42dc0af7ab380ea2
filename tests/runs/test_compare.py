"""Plans of comparisons."""

from pathlib import Path

import pytest

import fedlgd
from fedlgd.core.errors import RunError, SettingError
from fedlgd.core.train import Local
from fedlgd.methods import registry
from fedlgd.nets.builtin import ConvNet
from fedlgd.report.decision import decision_section
from fedlgd.report.groups import group_runs
from fedlgd.rundir.read import read_runs
from fedlgd.runs.compare import matched_steps, pooled_steps
from fedlgd.runs.entries import parse_entry, plan_jobs
from tests import tiny
from tests.errors import check_error, refuses
from tests.runs.folder import as_plain
from tests.vectors import vector


def planned(spec: str, seeds: int = 1, steps: int = 0, **assignments):
    return plan_jobs([parse_entry(spec)], seeds, Path("out"), assignments, steps=steps)


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
    stacked, other = plan_jobs(
        list(map(parse_entry, ("fedprox+anchors", "fedavg+anchors"))), 1, Path("out"), assignments
    )
    assert (stacked.config.method.mu, stacked.config.method.local.lr) == (0.5, 0.1)
    assert other.config.method.local.lr == 0.1


def test_a_setting_of_local_training_reaches_every_method():
    for spec in ("fedavg", "fedlgd", "local-only", "scaffold+anchors"):
        (job,) = plan_jobs([parse_entry(spec)], 1, Path("out"), {"local.lr": 0.1})
        assert job.config.method.local.lr == 0.1
        with refuses("setting-of-entry", method=spec) as caught:
            plan_jobs([parse_entry(spec)], 1, Path("out"), {"local.lrr": 0.1})
        check_error(caught.value.__cause__, "unknown-setting", path="local.lrr", hint="did you mean 'local.lr'?")


@pytest.mark.parametrize("path", ["fedprox.mu", "train_on"])
def test_a_setting_that_reaches_none_of_the_methods_is_an_error(path):
    with refuses("setting-of-no-method", path=path, methods=["fedlgd"]):
        plan_jobs([parse_entry("fedlgd")], 1, Path("out"), {path: 0.1})


def test_a_setting_that_one_method_lacks_says_how_to_set_it_for_another_alone():
    entries = [parse_entry("fedavg"), parse_entry("fedlgd")]
    with refuses("setting-of-entry", method="fedavg") as caught:
        plan_jobs(entries, 1, Path("out"), {"refine.steps": 3})
    check_error(caught.value.__cause__, "unknown-setting", path="refine.steps")
    plain, refined = plan_jobs(entries, 1, Path("out"), {"fedlgd.refine.steps": 3})
    assert refined.config.method.refine.steps == 3
    assert plain.config.method == parse_entry_method("fedavg")


def parse_entry_method(spec: str):
    return plan_jobs([parse_entry(spec)], 1, Path("out"), {})[0].config.method


def test_a_class_of_ones_own_may_have_settings_and_a_stack():
    (job,) = planned("tests.runs.own:Own+proximal:boldness=3:proximal.mu=2")
    assert (job.config.method.boldness, job.config.method.term.mu) == (3.0, 2.0)
    assert job.label == "Own + proximal (boldness=3, proximal.mu=2)"


def test_methods_of_the_examples_are_found_from_their_folder(monkeypatch):
    monkeypatch.chdir(Path(__file__).parents[2] / "examples" / "methods")
    (own,) = planned("server_momentum:ServerMomentum")
    (both,) = planned("fedlgd+sparse:Sparse:sparse.weight=0.01")
    assert type(own.config.method).__name__ == "ServerMomentum"
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
    both = plan_jobs([parse_entry("fedavg"), parse_entry("fedlgd")], 1, Path("out"), {"train_on": "real"})
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
    with refuses("entry-twice"):
        plan_jobs([parse_entry(spec) for spec in specs.split(",")], 1, Path("out"), {})


# fedlgd.compare


NET = {"name": "convnet", "width": 4, "depth": 2}


def compared(methods, **more):
    return fedlgd.compare(tiny.federation(), methods, **{"seeds": 2, "rounds": 1, "net": NET} | more)


def test_python_has_the_entries_and_folders_of_the_command_line(tmp_path):
    found = compared(["fedavg:local.lr=0.1", "fedprox"], out=tmp_path, sweep={"local.batch": [2, 4]})
    specs = [f"{method}:local.batch={n}" for method in ("fedavg:local.lr=0.1", "fedprox") for n in (2, 4)]
    assert {path.parent.name for path in tmp_path.glob("*/seed1")} == {parse_entry(spec).folder for spec in specs}
    assert "FedProx on real data (local.batch=4)" in found
    assert {len(results) for results in found.values()} == {2}


def test_jobs_at_a_time_give_the_results_of_jobs_in_turn(tmp_path):
    methods = ["fedavg", fedlgd.FedProx(mu=1.0)]
    in_turn, parallel = compared(methods), compared(methods, out=tmp_path, jobs=2)
    assert list(in_turn) == list(parallel)
    for label, results in in_turn.items():
        for one, two in zip(results, parallel[label], strict=True):
            assert as_plain(one) == as_plain(two)
    assert parallel.accuracy == in_turn.accuracy


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_run_that_fails_stops_no_other_and_is_named(tmp_path, monkeypatch, jobs):
    monkeypatch.setattr(fedlgd.FedProx, "server", lambda *_: 1 / 0)
    found = compared(["fedprox", "fedavg"], seeds=1, out=tmp_path, jobs=jobs)
    assert list(found) == ["FedAvg on real data"]
    assert list(found.failed) == ["FedProx on real data, seed 0"]
    assert found.failed["FedProx on real data, seed 0"].startswith("ZeroDivisionError")
    assert "ZeroDivisionError" in repr(found)
    with refuses("every-run-failed", runs=1):
        compared(["fedprox"], seeds=1)
    monkeypatch.undo()
    mended = compared(["fedprox", "fedavg"], seeds=1, out=tmp_path)
    assert not mended.failed
    assert mended["FedAvg on real data"][0].records == found["FedAvg on real data"][0].records


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_folder_with_runs_of_other_settings_is_refused_before_anything_runs(tmp_path, jobs):
    before = compared(["fedavg"], out=tmp_path)
    stored = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with refuses("other-comparison", RunError, refused=2, runs=6) as caught:
        compared(["fedprox", "fedavg"], out=tmp_path, seeds=3, jobs=jobs, settings={"local.lr": 0.5})
    differences = "local.lr is 0.01 there and 0.5 here"
    check_error(caught.value.values["error"], "other-configuration", differences=differences)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == stored
    with refuses("other-comparison") as caught:
        fedlgd.compare(tiny.federation(train=7), ["fedprox", "fedavg"], rounds=1, net=NET, out=tmp_path)
    check_error(caught.value.values["error"], "images-changed")
    again = compared(["fedprox", "fedavg"], out=tmp_path)
    assert list(again) == ["FedProx on real data", "FedAvg on real data"]
    assert again["FedAvg on real data"][0].records == before["FedAvg on real data"][0].records


def test_methods_keep_their_order_where_the_first_seed_of_one_failed(tmp_path, monkeypatch):
    def fails_first(self, state, updates, net, rng, own=fedlgd.FedProx.server):
        if not list(tmp_path.glob("*/seed1")):
            raise ZeroDivisionError
        return own(self, state, updates, net, rng)

    monkeypatch.setattr(fedlgd.FedProx, "server", fails_first)
    found = compared(["fedprox", "fedavg"], out=tmp_path)
    assert list(found.failed) == ["FedProx on real data, seed 0"]
    assert {label: len(results) for label, results in found.items()} == {
        "FedProx on real data": 1,
        "FedAvg on real data": 2,
    }
    assert list(found) == ["FedProx on real data", "FedAvg on real data"]


def test_a_network_object_and_a_listener_reach_every_run():
    heard = []
    found = compared(["fedavg"], net=ConvNet(shape=(3, 8, 8), classes=3, width=4, depth=2), on_round=heard.append)
    assert len(heard) == 2 * 2
    assert {result.net.size for result in found["FedAvg on real data"]} == {tiny.net().size}


def test_in_python_the_result_says_what_each_site_gains_by_joining(tmp_path):
    """Own images without methods: what a decision needs. Runs of sites alone among others are enough, too."""
    small = {"distil.per_class": 1, "distil.steps": 0, "fedlgd.anchors.per_class": 0, "fedlgd.refine.steps": 0}
    found = compared(None, seeds=1, out=tmp_path, settings=small)
    folders = {"local-only", "fedavg-real", "fedavg-virtual", "fedlgd", "pooled"}
    assert {path.parent.name for path in tmp_path.glob("*/seed0")} == folders
    decision = found.decision
    joins = "FedLGD without matching, refinement and anchors"
    assert (decision.alone.label, decision.joined.label) == ("Each site alone", joins)
    assert [gain.site for gain in decision.gains] == list(tiny.NAMES)
    alone, joined = (found.accuracy[label] for label in ("Each site alone", joins))
    gains = {gain.site: gain.mean for gain in decision.gains}
    assert gains == pytest.approx({site: joined[site] - alone[site] for site in joined})
    assert decision.title in repr(found)
    section = decision_section(group_runs(read_runs(sorted(tmp_path.glob("*/seed0")))[0]))["plain"]
    assert section["sites"] == decision.plain()["sites"]
    assert section["cost"]["joined"] == pytest.approx(decision.plain()["cost"]["joined"])
    two = compared(["local-only", "fedavg"], seeds=1)
    assert two.decision.joined.label == "FedAvg on real data"
    assert compared(["fedavg"], seeds=1).decision is None


def test_pooled_training_is_an_upper_bound_with_as_many_steps_per_image():
    """By hand: 7 steps of 4 images at three sites, one of which has 2, are 7 (4 + 4 + 2) / 4 = 17.5 steps."""
    assert pooled_steps(Local(steps=7, batch=4), [20, 10, 2]) == 18
    assert pooled_steps(Local(epochs=2, batch=4), [20, 10, 2]) == 16
    assert pooled_steps(Local(steps=20, batch=32), [100, 300], ratio=0.5) == 20
    assert pooled_steps(Local(steps=20, batch=32), [100]) == 20
