"""Entries of comparisons with methods of a user's own: names of settings, presets of objects, labels, sweeps."""

from pathlib import Path

import pytest
import torch

import fedlgd
from fedlgd.core.types import ServerState, Update
from fedlgd.methods.parts import name_of
from fedlgd.rundir.read import read_run, run_folders
from fedlgd.runs.config import configure, resolve
from fedlgd.runs.entries import for_run, parse_entry, plan_jobs, read_entries, sweep_entries
from fedlgd.runs.space import check_known, space_of
from tests import tiny
from tests.errors import check_error, refuses
from tests.runs.own import Middle, Momentous, Own, Shrink, ShrinkSettings, Unheard

MOMENTOUS, NAMED_LOCAL = "tests.runs.own:Momentous", "tests.runs.own:NamedLocal"
NET = {"name": "convnet", "width": 4, "depth": 2}


def methods_of(specs, assignments, preset=""):
    entries = read_entries(specs)
    return [job.config.method for job in plan_jobs(entries, 1, None, {"net": NET, **assignments}, preset)]


def compared(methods, **more):
    return fedlgd.compare(tiny.federation(), methods, **{"seeds": 1, "rounds": 1, "net": NET} | more)


# Settings that name a method


def test_a_setting_reaches_a_method_of_ones_own_by_its_name_and_no_other():
    given = {"momentous.beta": 0.5, "momentous.local.lr": 0.2, "local.lr": 0.1, "moon.mu": 5}
    for own in (MOMENTOUS, f"{MOMENTOUS}+proximal", Momentous()):
        mine, moon, plain = methods_of([own, "moon", "fedavg"], given)
        assert (mine.beta, mine.local.lr) == (0.5, 0.2)
        assert (moon.mu, moon.local.lr, plain.local.lr) == (5, 0.1, 0.1)


def test_a_name_that_is_nobodys_is_refused_with_the_nearest_name():
    with refuses("setting-of-unknown-name", path="momentus.beta", hint="; did you mean 'momentous'?"):
        methods_of([MOMENTOUS, "fedavg"], {"momentus.beta": 0.5})
    with refuses("setting-of-unknown-name", hint="; did you mean 'momentous'?"):
        for_run(MOMENTOUS, {"momentus.beta": 0.5})


def test_a_name_that_is_also_a_section_is_the_section():
    own, plain = methods_of([NAMED_LOCAL, "fedavg"], {"local.lr": 0.3})
    assert (own.lr, own.local.lr, plain.local.lr) == (7.0, 0.3, 0.3)


def test_a_single_run_reads_names_too_and_refuses_those_of_others():
    assert for_run("moon+anchors", {"moon.mu": 5, "local.lr": 0.1}) == {"mu": 5, "local.lr": 0.1}
    assert for_run(MOMENTOUS, {"momentous.beta": 0.5}) == {"beta": 0.5}
    assert for_run("fedlgd", {"train_on": "real"}) == {"train_on": "real"}
    with refuses("setting-of-no-method", path="fedprox.mu", methods=["moon"]):
        for_run("moon", {"fedprox.mu": 5})


def test_a_search_space_names_a_method_of_ones_own():
    space = {"momentous.beta": [0.1, 0.2], "local.lr": [0.1, 0.3], "momentous.local.lr": [0.7]}
    check_known(space, [MOMENTOUS, "fedavg"], "convnet")
    assert space_of(space, MOMENTOUS, "convnet", ()) == {"beta": [0.1, 0.2], "local.lr": [0.7]}
    assert space_of(space, "fedavg", "convnet", ()) == {"local.lr": [0.1, 0.3]}
    assert space_of({"local.lr": [0.1]}, NAMED_LOCAL, "convnet", ()) == {"local.lr": [0.1]}
    with refuses("space-unknown", path="momentus.beta", hint="; did you mean 'momentous.beta'?"):
        check_known({"momentus.beta": [0.1]}, [MOMENTOUS], "convnet")


def test_settings_of_python_comparisons_are_by_path():
    found = compared([MOMENTOUS, "fedavg"], settings={"momentous.beta": 0.0, "local.lr": 0.1})
    mine, plain = (results[0] for results in found.values())
    assert mine.accuracy == plain.accuracy
    with refuses("setting-of-unknown-name"):
        compared([MOMENTOUS], settings={"momentus.beta": 0.0})


# Presets of method objects


def test_a_preset_gives_an_object_what_it_gives_a_name():
    for name in ("fedavg", "fedlgd", "fedavg+anchors", MOMENTOUS, "fedavg+tests.runs.own:Shrink"):
        (by_name,) = methods_of([name], {}, "quick")
        (by_object,) = methods_of([configure(name)], {}, "quick")
        assert by_object == by_name


def test_settings_that_differ_from_the_defaults_of_the_class_are_the_users():
    given = Shrink(method=fedlgd.FedAvg(local=fedlgd.Local(lr=0.3)), shrink=ShrinkSettings(by=0.9))
    (method,) = methods_of([given], {}, "quick")
    assert (method.local.lr, method.shrink.by, method.local.momentum, method.train_on) == (0.3, 0.9, 0.9, "virtual")
    assert methods_of([given], {"local.lr": 0.2}, "quick")[0].local.lr == 0.2


def test_an_object_without_the_preset_is_refused_by_name():
    with refuses("preset-of-object", method="Own", preset="quick", available=["bold"]):
        methods_of(["fedavg", Own()], {}, "quick")
    assert methods_of([Own(boldness=5.0)], {}, "bold")[0].local.epochs == 3


def test_a_comparison_says_what_a_preset_gave_to_objects():
    small = {"distil.steps": 1, "distil.per_class": 1, "distil.tiles": 1, "distil.real_per_class": 4}
    found = compared(["fedavg", Momentous(beta=0.5)], preset="strong", settings=small)
    (note,) = found.notes
    assert note.startswith("Preset strong for Momentous on real data: local.lr=0.05, local.momentum=0.9")
    assert note in repr(found)


# Labels


def test_labels_name_entries_in_text_and_in_python():
    entries = [parse_entry("mine=moon:mu=5"), *read_entries({"other": "fedavg:local.lr=0.1", "obj": Momentous()})]
    entries += read_entries([("pair", fedlgd.FedProx()), "fedavg"])
    jobs = plan_jobs(entries, 1, Path("out"), {"net": NET})
    assert [job.label for job in jobs] == ["mine", "other", "obj", "pair", "FedAvg on real data"]
    assert [job.folder.parent.name for job in jobs] == ["mine", "other", "obj", "pair", "fedavg"]
    assert (jobs[0].config.method.mu, jobs[1].config.method.local.lr) == (5, 0.1)


def test_a_path_with_an_equals_sign_is_no_label(tmp_path):
    file = tmp_path / "a=b" / "best.toml"
    file.parent.mkdir()
    file.write_text(resolve({"method": "moon"}).toml())
    assert parse_entry(str(file)).label == ""
    assert parse_entry(f"mine={file}").label == "mine"
    swept, _ = sweep_entries([parse_entry(str(file))], {"mu": ["1", "2"]})
    assert [job.config.method.mu for job in plan_jobs(swept, 1, Path("out"), {})] == [1, 2]


def test_a_label_is_that_of_its_runs_and_can_change(tmp_path):
    two = {"slow": fedlgd.FedAvg(local=fedlgd.Local(lr=0.01)), "fast": fedlgd.FedAvg(local=fedlgd.Local(lr=0.1))}
    found = compared(two, out=tmp_path)
    assert list(found) == ["slow", "fast"]
    assert [read_run(folder).label for folder in run_folders(tmp_path)] == ["slow", "fast"]
    folder = tmp_path / "slow" / "seed0"
    fedlgd.run(tiny.federation(), two["slow"], rounds=1, net=NET, out=folder, label="slower")
    assert read_run(folder).label == "slower"


# Sweeps and order


def test_a_sweep_skips_methods_without_the_setting_and_says_so():
    entries = [parse_entry(spec) for spec in ("fedavg", "mine=fedlgd", "fedavg+anchors")]
    found, note = sweep_entries(entries, {"pull.weight": ["0", "10"]})
    assert [entry.spec for entry in found] == [
        *("mine:pull.weight=0", "mine:pull.weight=10"),
        *("fedavg+anchors:pull.weight=0", "fedavg+anchors:pull.weight=10"),
    ]
    assert note == "The sweep of pull.weight skips methods without it: fedavg"
    assert [job.label for job in plan_jobs(found[:2], 1, None, {})] == [
        *("mine (pull.weight=0)", "mine (pull.weight=10)")
    ]
    assert [entry.spec for entry in sweep_entries(entries, {"fedlgd.pull.weight": [1]})[0]] == [
        "mine:pull.weight=1"
    ]


def test_a_sweep_of_what_no_method_has_is_an_error():
    found, _ = sweep_entries([parse_entry("fedavg")], {"local.lrr": ["1"]})
    with refuses("setting-of-entry") as caught:
        plan_jobs(found, 1, None, {})
    check_error(caught.value.__cause__, "unknown-setting", path="local.lrr", hint="did you mean 'local.lr'?")


def test_runs_of_a_comparison_are_found_in_the_order_of_its_methods(tmp_path):
    compared(["fedprox", "fedavg"], out=tmp_path, sweep={"local.batch": [2, 10, 4]}, seeds=1)
    labels = [read_run(folder).label for folder in run_folders(tmp_path)]
    assert labels == [
        f"{name} on real data (local.batch={n})" for name in ("FedProx", "FedAvg") for n in (2, 10, 4)
    ]
    compared(["fedavg"], out=tmp_path)
    assert read_run(run_folders(tmp_path)[0]).label == "FedAvg on real data"
    (tmp_path / "comparison.json").write_text("{")
    assert len(run_folders(tmp_path)) == 7


def test_numbers_in_names_of_folders_are_in_ascending_order(tmp_path):
    names = ("mu-0.1", "mu-1", "mu-2", "mu-10", "other")
    for name in reversed(names):
        for seed in (10, 2):
            (tmp_path / name / f"seed{seed}").mkdir(parents=True)
            (tmp_path / name / f"seed{seed}" / "config.toml").touch()
    assert run_folders(tmp_path) == [tmp_path / name / f"seed{seed}" for name in names for seed in (2, 10)]


# Parts of a user's own


def test_a_part_of_ones_own_has_its_section_and_presets():
    name = "fedavg+tests.runs.own:Shrink"
    method = configure(name, shrink__by=0.75)
    assert isinstance(method, Shrink)
    assert (method.shrink.by, configure(name).shrink.by, configure(name, "quick").shrink.by) == (0.75, 0.5, 0.25)
    assert method.label == "FedAvg + shrink on real data"
    assert name_of(method) == name
    assert parse_entry(f"{name}:shrink.by=0.1").settings == {"shrink.by": 0.1}


def test_an_aggregation_of_ones_own_is_a_part(tmp_path):
    name = "fedavg+tests.runs.own:Middle"
    state, net = ServerState(params={"w": torch.zeros(2)}), tiny.net()
    sent = [
        Update(site=site, params={"w": torch.full((2,), value)}, weight=1.0)
        for site, value in (("a", 3.0), ("b", 9.0))
    ]
    after = configure(name).server(state, sent, net, fedlgd.core.types.Stream(0))
    assert torch.equal(after.params["w"], torch.full((2,), 3.0))
    found = compared([name, f"{MOMENTOUS}:beta=0.0"], out=tmp_path)
    assert list(found) == ["FedAvg + middle on real data", "Momentous on real data (beta=0.0)"]
    assert compared([name], out=tmp_path)[next(iter(found))][0].records == found[next(iter(found))][0].records


@pytest.mark.parametrize(
    ("part", "code", "values"),
    [
        ("Unheard", "own-part-not-accepted", {"of_kind": "unheard-of", "method": "fedavg"}),
        ("Kindless", "part-without-kind", {}),
        ("Sectionless", "part-field", {"field": "by"}),
        ("Own", "no-part", {}),
    ],
)
def test_a_part_that_does_not_fit_says_what_is_missing(part, code, values):
    with refuses(code, **values):
        configure(f"fedavg+tests.runs.own:{part}")


def test_a_method_accepts_the_kinds_of_parts_that_it_lists(monkeypatch):
    monkeypatch.setattr(Momentous, "stackable", ("unheard-of",))
    assert Unheard(method=Momentous()).label == "Momentous + unheard on real data"
    with refuses("own-part-not-accepted", of_kind="robust", kinds=("unheard-of",)):
        Middle(method=Momentous())


# Methods that train on virtual data only


def test_a_method_that_needs_virtual_sets_says_so_if_it_is_told_to_train_on_real_images():
    with refuses("every-run-failed") as caught:
        compared(["tests.runs.own:OnVirtual"], settings={"train_on": "real"})
    assert "train_on=virtual" in str(caught.value)
    with refuses("virtual-set-missing", method="on-virtual"):
        fedlgd.run(tiny.federation(), "tests.runs.own:OnVirtual", rounds=1, net=NET)
    with refuses("fixed-setting", path="train_on", method="fedlgd", value="virtual"):
        resolve({}, {"method": "fedlgd", "train_on": "real"})
