"""fedlgd compare: methods by seeds on equal terms."""

import json
import shutil
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

from fedlgd.cli.compare import budget_text
from fedlgd.core.errors import message
from fedlgd.methods.fedprox import FedProx
from fedlgd.methods.protocol import Method
from fedlgd.report.classes import LARGEST
from fedlgd.runs.compare import Entry, Job
from tests import tiny
from tests.cli.conftest import TINY
from tests.data.pictures import tree
from tests.runs.folder import config, everything

SMALL = [f"--set={k}={v}" for k, v in TINY.items() if not k.startswith(("refine", "anchors"))]
FEDLGD = ["--set=fedlgd.refine.steps=1", "--set=fedlgd.anchors.steps=1", "--set=fedlgd.anchors.per_class=2"]


def compared(fedlgd, methods: str, *more: str, seeds: int = 2):
    return fedlgd(
        "compare", "--methods", methods, "--seeds", str(seeds), "--rounds", "2", "-o", "out", *SMALL, *more
    )


def test_every_method_runs_under_every_seed_and_the_table_has_a_row_each(fedlgd, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")  # in which no cell is folded
    done = compared(fedlgd, "fedavg,scaffold,fedlgd", "--train-on", "virtual", *FEDLGD)
    assert done.code == 0, done.err
    for name in ("FedAvg on virtual data", "Scaffold on virtual data", "FedLGD"):
        assert any(line.startswith(name) for line in done.out.splitlines())
    assert "after the last round" in done.out
    assert "budget: equal epochs" in done.out
    assert "CPU time" in done.out
    assert "waiting for other programs is not part of it" in " ".join(done.out.split())
    assert (tmp_path / "out/report.html").exists()
    for folder in ("fedavg", "scaffold", "fedlgd"):
        assert sorted(p.name for p in (tmp_path / "out" / folder).iterdir()) == ["seed0", "seed1"]


def test_methods_share_virtual_sets_start_and_sampling(fedlgd, tmp_path):
    done = compared(fedlgd, "fedavg,fedprox", "--train-on", "virtual", "--ratio", "0.5", seeds=1)
    assert done.code == 0
    assert done.out.startswith("2 runs: 2 methods x 1 seed on builtin-digits")
    pictures, lines = [], []
    for name in ("fedavg", "fedprox"):
        folder = tmp_path / "out" / name / "seed0"
        pictures.append({p.name: p.read_bytes() for p in (folder / "virtual/start").iterdir()})
        lines.append([json.loads(line)["sampled"] for line in (folder / "records.jsonl").read_text().splitlines()])
    assert pictures[0] == pictures[1]
    assert len(pictures[0]) == 5
    assert lines[0] == lines[1]


def test_matched_steps_are_the_same_for_every_method(fedlgd, tmp_path):
    done = compared(fedlgd, "fedavg,fedlgd", "--train-on", "virtual", "--match-steps", "--json", *FEDLGD, seeds=1)
    result = json.loads(done.out)
    # K = 10 classes, 2 virtual images and 10 anchors each (the default), batches of 32
    assert result["budget"].startswith("budget: 4 SGD steps per round")
    for name in ("fedavg", "fedlgd"):
        assert "steps = 4" in (tmp_path / "out" / name / "seed0/config.toml").read_text()


def test_the_budget_is_told_as_steps_where_every_method_has_as_many(fedlgd):
    done = compared(fedlgd, "fedavg,fedprox", "--set", "local.steps=2", "--json", seeds=1)
    assert json.loads(done.out)["budget"] == "budget: 2 SGD steps per round at each site, for every method"
    mixed = compared(fedlgd, "fedavg:local.steps=1,fedavg:local.steps=2", "--json", "-o", "mixed", seeds=1)
    assert "differ" in json.loads(mixed.out)["budget"]


@dataclass(frozen=True, kw_only=True)
class Own(Method):
    """A user's method without settings of local training."""

    name: ClassVar[str] = "own"
    sends: ClassVar[Mapping[str, str]] = {}


@dataclass(frozen=True, kw_only=True)
class Idle(Own):
    train_on: ClassVar[Any] = "nothing"


@pytest.mark.parametrize(
    ("methods", "said"),
    [
        ((tiny.fedavg(local__steps=2), Idle()), ["2 SGD steps per round at each site, for every other", "in Idle"]),
        ((tiny.fedavg(), tiny.fedavg(local__epochs=9)), ["differ"]),
        ((tiny.fedavg(), Idle()), ["equal epochs for every other method", "the sites train no model in Idle"]),
        ((tiny.fedavg(local__steps=2), Own()), ["2 SGD steps", "for every other", "of Own are not known"]),
        ((Idle(),), ["budget: the sites train no model in Idle"]),
    ],
)
def test_the_budget_is_said_only_of_methods_whose_sites_train(methods, said):
    jobs = [
        Job(Entry("", each, note="" if isinstance(each, Own) else str(at)), config(each), None)
        for at, each in enumerate(methods)
    ]
    text = budget_text(jobs, 0)
    assert [each for each in said if each not in text] == []
    assert "for every method" not in text


def test_a_failing_method_is_named_and_the_others_go_on(fedlgd, monkeypatch):
    def broken(*_):
        raise RuntimeError("the cable is cut")

    monkeypatch.setattr(FedProx, "site", broken)
    done = compared(fedlgd, "fedprox,fedavg", "--json", seeds=1)
    assert done.code == 1
    result = json.loads(done.out)
    assert [row["method"] for row in result["methods"]] == ["FedAvg on real data"]
    (error,) = result["failed"].values()
    assert "RuntimeError: the cable is cut" in error
    assert f"FedProx on real data, seed 0 failed: {error}" in done.err


def test_compared_again_nothing_runs_again(fedlgd, monkeypatch):
    assert compared(fedlgd, "fedavg", seeds=1).code == 0

    def never(*_):
        raise AssertionError("ran again")

    monkeypatch.setattr("fedlgd.methods.fedavg.FedAvg.site", never)
    assert compared(fedlgd, "fedavg", seeds=1).code == 0


def test_a_comparison_with_other_settings_runs_nothing(fedlgd, tmp_path):
    assert compared(fedlgd, "fedavg", seeds=1).code == 0
    before = {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    done = compared(fedlgd, "fedprox,fedavg", "--set=local.lr=0.5", seeds=1)
    assert done.code == 2
    assert "local.lr is 0.01 there and 0.5 here" in " ".join(done.err.split())
    assert {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()} == before


def test_runs_at_once_give_the_same_bits_as_one_after_the_other(fedlgd, tmp_path):
    methods = "fedavg,fedprox,local-only"
    done = compared(fedlgd, methods, "--train-on", "virtual", "--jobs", "3")
    assert done.code == 0, done.err
    lines = [line for line in done.out.splitlines() if line.startswith("[")]
    assert [line.split("]")[0] for line in lines] == [f"[{i}/6" for i in range(1, 7)]
    assert any("FedProx on virtual data, seed 1: mean " in line for line in lines)
    (tmp_path / "out").rename(tmp_path / "at-once")
    shutil.rmtree(tmp_path / "home" / "distilled")
    assert compared(fedlgd, methods, "--train-on", "virtual").code == 0
    for name in methods.split(","):
        for seed in ("seed0", "seed1"):
            assert everything(tmp_path / "at-once" / name / seed) == everything(tmp_path / "out" / name / seed)


def test_of_runs_at_once_one_that_fails_is_named_and_the_others_go_on(fedlgd, monkeypatch):
    def broken(*_):
        raise RuntimeError("the cable is cut")

    monkeypatch.setattr(FedProx, "site", broken)
    done = compared(fedlgd, "fedprox,fedavg", "--jobs", "2", "--json", seeds=1)
    assert done.code == 1
    result = json.loads(done.out)
    assert [row["method"] for row in result["methods"]] == ["FedAvg on real data"]
    assert list(result["failed"].values()) == ["RuntimeError: the cable is cut"]
    assert "FedProx on real data, seed 0 failed: RuntimeError: the cable is cut" in done.err


def test_settings_for_one_method_do_not_reach_the_others(fedlgd, tmp_path):
    done = compared(fedlgd, "fedprox,fednova", "--set=fedprox.mu=0.5", seeds=1)
    assert done.code == 0, done.err
    assert "mu = 0.5" in (tmp_path / "out/fedprox/seed0/config.toml").read_text()
    assert "mu = 0.0" in (tmp_path / "out/fednova/seed0/config.toml").read_text()


def test_personalised_methods_are_said_to_be_and_are_never_best(fedlgd, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")  # in which no cell is folded
    done = compared(fedlgd, "local-only,pooled,fedavg", seeds=1)
    rows = {line.split("  ")[0]: line for line in done.out.split("\n\n")[1].splitlines()}
    assert {name for name, line in rows.items() if "*" in line} <= {
        "FedAvg on real data"
    }  # 20 test images say little
    assert "LocalOnly, personalised, on real data" in rows


@pytest.mark.parametrize(
    ("methods", "said"),
    [
        ("fedagv", "did you mean 'fedavg'"),
        ("fedavg+salt", "no part for methods is called 'salt'"),
        ("fedbn+anchors", "anchors cannot be stacked on fedbn"),
        ("moon:nu=1", "unknown setting 'nu'"),
    ],
)
def test_a_slip_in_a_method_is_said_before_anything_runs(methods, said, fedlgd, tmp_path):
    done = compared(fedlgd, methods)
    assert done.code == 2
    assert said in done.err
    assert not (tmp_path / "out").exists()


@pytest.mark.drawn
def test_a_sweep_runs_every_point_and_its_report_has_the_curve(fedlgd, tmp_path):
    more = ["--set=fedlgd.anchors.steps=1", "--set=fedlgd.anchors.per_class=2", "--set=fedlgd.refine.steps=1"]
    done = compared(fedlgd, "fedlgd", "--sweep", "pull.weight=0,1", *more, seeds=1)
    assert done.code == 0, done.err
    assert "FedLGD (pull.weight=0)" in done.out
    assert "FedLGD (pull.weight=1)" in done.out
    assert "Accuracy by pull.weight" in (tmp_path / "out/report.html").read_text()


@pytest.mark.parametrize(
    ("sweep", "words"),
    [
        (["pull.weight"], "pull.weight=0,1,10"),
        (["pull.weight=1,1"], "different values"),
        (["data.limit=1,2"], "a command each"),
        (["a=1", "b=1", "c=1"], "one or two axes"),
        (["pull.wait=1,2"], "pull.weight"),
    ],
)
def test_a_sweep_that_cannot_be_run_is_refused(fedlgd, sweep, words):
    done = compared(fedlgd, "fedlgd", *(f"--sweep={each}" for each in sweep))
    assert done.code == 2
    assert words in done.err


def test_two_classes_are_also_compared_by_balanced_accuracy_and_auc_within_80_columns(
    fedlgd, tmp_path, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "80")
    random = np.random.default_rng(0)
    for site in ("north", "south"):
        pixels = random.integers(0, 255, (24, 8, 8, 3), dtype=np.uint8)
        labels = (np.arange(24) % 2).astype(np.uint8)
        parts = {"train_x": pixels[:16], "train_y": labels[:16], "test_x": pixels[16:], "test_y": labels[16:]}
        (tmp_path / "sites").mkdir(exist_ok=True)
        np.savez(tmp_path / "sites" / f"{site}.npz", **parts)
    small = ("--rounds", "1", "--set=net.width=4", "--set=net.depth=2")
    own = "tests.runs.own:Own,tests.runs.own:Own:boldness=2"
    done = fedlgd("compare", "sites", "--methods", f"fedavg,{own}", "--seeds", "1", "-o", "out", *small)
    assert done.code == 0, done.err
    assert max(map(len, done.out.splitlines())) <= 80
    (head,) = [line for line in done.out.splitlines() if line.endswith("AUC")]  # its cells may be folded
    assert {"accuracy", "site"} <= set(head.split())
    assert "balanced" in done.out
    assert "* marks the best method" in " ".join(done.out.split())
    alone = fedlgd("run", "sites", "-m", "fedavg", "-o", "one", *small)
    assert "balanced" in alone.out
    ten = fedlgd("compare", "--methods", "fedavg", "--seeds", "1", "-o", "ten", *SMALL, "--rounds", "1")
    assert "balanced" not in ten.out


@pytest.mark.parametrize(
    "command",
    [
        ("run",),
        ("run", "--estimate"),
        ("compare", "--methods", "fedavg", "--seeds", "1"),
        ("tune", "--methods", "fedavg", "--candidates", "2", "--estimate"),
    ],
    ids=["run", "estimate", "compare", "tune"],
)
def test_the_preset_that_is_chosen_for_ones_own_images_is_told_with_the_way_to_another(fedlgd, tmp_path, command):
    tree(tmp_path / "sites", classes={"no": 12, "yes": 12})
    own = (*command, "--data", "sites", "--rounds", "1", "-o", "out")
    small = [f"--set={k}={v}" for k, v in TINY.items() if k.startswith("net")] + ["--set=distil.per_class=1"]
    told = "Preset strong, the default for your own images"
    done = fedlgd(*own, *small)
    assert done.code == 0, done.err
    assert done.err.count(told) == 1
    assert "--preset quick" in done.err
    for more in (("--quiet",), ("--json",), ("--preset", "strong")):
        assert told not in fedlgd(*own, *small, *more).err


def test_data_of_the_package_has_no_preset_to_tell(fedlgd):
    assert "Preset" not in fedlgd("run", "builtin-digits", "--estimate", *SMALL).err


def test_a_model_of_one_class_is_flagged_by_every_command(fedlgd, tmp_path):
    """Two thirds of the test images of each site are of the class that it predicts."""
    tree(tmp_path / "sites", classes={"ill": 32, "well": 16})
    same = ["--set=data.size=8", "--net=tests.nets.own:Stubborn", "--rounds=1", "--preset=quick", "--train-on=real"]
    run = fedlgd("run", "sites", "--method=fedavg", "-o", "one", *same, "--set=positive=ill")
    shown = fedlgd("open", "one")
    table = fedlgd("compare", "sites", "--methods=fedavg,fedprox", "--seeds=1", "-o", "both", *same)
    for done in (run, shown, table):
        assert done.code == 0, done.err
        assert {"66.7‡", LARGEST.split()[-2]} <= set(done.out.split())
        assert "66.7*" not in done.out
    assert "'ill'" in run.out
    opened = json.loads(fedlgd("open", "one", "--json").out)
    again = json.loads(
        fedlgd("compare", "sites", "--methods=fedavg,fedprox", "--seeds=1", "-o", "both", *same, "--json").out
    )
    for found in (opened, *again["methods"]):
        assert found["one_class_model"] == {"a": {"ill": 1}, "b": {"ill": 1}}
        assert found["largest_class"] == pytest.approx({"a": 2 / 3, "b": 2 / 3})
    assert opened["two_classes"]["a"]["sensitivity"]["mean"] == 1.0
    assert [found["best"] for found in again["methods"]] == [False, False]


def test_a_positive_class_that_is_none_is_refused_with_the_nearest(fedlgd, tmp_path):
    tree(tmp_path / "sites", classes={"ill": 6, "well": 6})
    done = fedlgd("run", "sites", "--method=fedavg", "--preset=quick", "--set=data.size=8", "--set=positive=wel")
    assert done.code == 2
    assert message("no-such-class", name="wel", hint="; did you mean 'well'?", classes=["ill", "well"]) in done.err


OWN = (
    "--rounds",
    "1",
    "--seeds",
    "2",
    "--set=net.width=4",
    "--set=net.depth=2",
    "--set=local.batch=4",
    "-o",
    "out",
)


def test_ones_own_images_are_compared_by_what_a_decision_needs(fedlgd, tmp_path, monkeypatch):
    """Two sites of 16 training images: 20 steps of 4 images at each are 40 in one place."""
    monkeypatch.setenv("COLUMNS", "80")
    tree(tmp_path / "sites", classes={"no": 10, "yes": 10})
    done = fedlgd("compare", "sites", *OWN, "--set=distil.per_class=1")
    assert done.code == 0, done.err
    folders = ("local-only", "fedavg-real", "fedavg-virtual", "fedlgd", "pooled")
    steps = [tomllib.loads((tmp_path / f"out/{each}/seed1/config.toml").read_text()) for each in folders]
    assert [each["local"]["steps"] for each in steps] == [20, 20, 20, 20, 40]
    assert [each.get("train_on", "virtual") for each in steps] == ["real", "real", "virtual", "virtual", "real"]
    starts = [line.partition("] ")[2] for line in done.out.splitlines() if line.startswith("[")]
    assert [line[-1] for line in starts] == ["0"] * 5 + ["1"] * 5
    assert done.out.count("After 1 seed: ") == 1
    assert max(map(len, done.out.splitlines())) <= 80
    assert "budget: 20 SGD steps" in done.out
    again = json.loads(fedlgd("compare", "sites", *OWN, "--set=distil.per_class=1", "--json").out)
    decision = again["decision"]
    assert [each["site"] for each in decision["sites"]] == ["a", "b"]
    assert {each["test"] for each in decision["sites"]} == {4}
    assert (decision["alone"], decision["joined"], decision["seeds"]) == ("Each site alone", "FedLGD", 2)
    labels = {"FedAvg on real data", "FedAvg on virtual data", "Pooled on real data"}
    assert set(decision["others"]) == labels
    kinds = [each["kind"] for each in decision["sentences"]]
    assert kinds[-3:] == ["few-seeds", "cost", "not-audited"]
    shown = " ".join(done.out.split())
    assert [each["text"] for each in decision["sentences"] if each["text"] not in shown] == []
    assert decision["title"] in (tmp_path / "out/report.html").read_text().replace("\u00a0", " ")


def test_a_decision_trains_on_both_kinds_of_images_and_other_data_has_two_methods(fedlgd, tmp_path):
    tree(tmp_path / "sites", classes={"no": 10, "yes": 10})
    done = fedlgd("compare", "sites", *OWN, "--train-on", "virtual")
    assert done.code == 2
    assert message("decision-trains-on-both", value="virtual") in " ".join(done.err.split())
    assert not (tmp_path / "out").exists()
    plain = fedlgd("compare", "builtin-digits", "--seeds=1", "--rounds=1", "-o", "two", "--json", *SMALL)
    result = json.loads(plain.out)
    assert [each["method"] for each in result["methods"]] == ["FedAvg on real data", "FedLGD"]
    assert result["decision"] is None
