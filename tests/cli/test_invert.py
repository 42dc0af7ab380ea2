"""`fedlgd invert`, as a user types it."""

import json
import re
import shutil
import stat
from dataclasses import replace

import pytest
import torch

from fedlgd.attacks import inversion
from fedlgd.attacks.gradient_inversion import LBFGS_ITERATIONS, Attack
from fedlgd.attacks.target import open_replay, training_of
from fedlgd.cli import privacy as command
from fedlgd.core.errors import message
from fedlgd.core.types import Params
from fedlgd.report import page
from fedlgd.rundir.read import read_runs
from fedlgd.runs.config import resolve
from fedlgd.runs.run import execute
from tests.cli.conftest import TINY, tiny_run

SENT = ["counts", "loss", "weights"]
DP = [f"--set=distil.private.{each}" for each in ("epsilon=100", "counts=0.4", "releases=2")]


@pytest.fixture(autouse=True)
def few_iterations(monkeypatch):
    monkeypatch.setattr(command, "QUICK_ATTACK", Attack(iterations=2))


@pytest.fixture(scope="module")
def made(digits, tmp_path_factory):
    """A tiny run of two rounds, made once."""
    folder, config = tmp_path_factory.mktemp("made") / "out", resolve({"rounds": 2, "analysis": False}, TINY)
    execute(config, config.data.open(), folder)
    return folder


@pytest.fixture
def run(fedlgd, made, tmp_path):
    """A copy of it in `out`."""
    return shutil.copytree(made, tmp_path / "out")


def attacked(fedlgd, *more):
    done = fedlgd("invert", "out", "--quick", "--targets", "2", *more)
    assert done.code == 0, done.err
    return done


def test_a_run_of_fedlgd_is_attacked_in_all_cases_and_rounds(fedlgd, run):
    done = attacked(fedlgd)
    assert "estimated time" in done.err
    assert f"{run.relative_to(run.parent)}/invert" in done.err
    found = json.loads((run / "invert.json").read_text())
    cells = {(cell["case"], cell["round"], cell["batch"]) for cell in found["cells"].values()}
    assert cells == {(c, t, b) for c in ("real", "virtual", "own", "refined") for t in (0, 2) for b in (1, 4)}
    for cell in found["cells"].values():
        assert cell["images"] == cell["batch"]
        assert 0 <= cell["identified"] <= 1
        assert 1 <= cell["rank"] <= cell["candidates"]
        assert (run / cell["picture"]).exists()
    assert {(each["what"], each["site"]) for each in found["memorisation"]} > {("anchors", "mnist")}
    assert "FedAvg on real" in done.out
    for file in (run / "invert.json", *(run / "invert").iterdir()):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_each_attack_is_announced_with_its_number(fedlgd, run):
    lines = attacked(fedlgd, "--round", "2", "--batch", "4").err.splitlines()
    assert [line for line in lines if line.startswith("  [")] == [
        "  [1/4] FedAvg on real images, round 2, batch 4",
        "  [2/4] FedAvg on virtual images, round 2, batch 4",
        "  [3/4] FedLGD, with known anchors, round 2, batch 4",
        "  [4/4] FedLGD, after refinement, round 2, batch 4",
    ]


@pytest.fixture
def names(monkeypatch):
    """The names of the cells that are attacked."""
    attack, names = inversion.attack_cell, list[str]()

    def noted(run, plan, cell, *rest):
        names.append(cell.name)
        return attack(run, plan, cell, *rest)

    monkeypatch.setattr(inversion, "attack_cell", noted)
    return names


def test_finished_attacks_are_not_repeated(fedlgd, run, names):
    attacked(fedlgd, "--batch", "1", "--round", "2")
    assert len(names) == 4
    names.clear()
    done = attacked(fedlgd, "--batch", "1", "--round", "2")
    assert not names
    assert "0 of 4 attacks" in done.err
    content = json.loads((run / "invert.json").read_text())
    del content["cells"]["real-round2-batch1"], content["digest"]
    inversion.files.write_json(run / "invert.json", content)
    done = attacked(fedlgd, "--batch", "1", "--round", "2")
    assert names == ["real-round2-batch1"]
    assert "1 of 4 attacks" in done.err
    assert "[4/4]" in done.err


def test_results_with_other_settings_stay_beside_each_other(fedlgd, run, names):
    attacked(fedlgd, "--batch", "1", "--round", "2")
    first = {file: file.read_bytes() for file in (run / "invert.json", *(run / "invert").iterdir())}
    names.clear()
    done = attacked(fedlgd, "--batch", "1", "--round", "2", "--seed", "1")
    assert len(names) == 4
    assert "out/invert-2.json" in done.out
    assert first == {file: file.read_bytes() for file in first}
    content = json.loads((run / "invert-2.json").read_text())
    assert {cell["picture"].partition("/")[0] for cell in content["cells"].values()} == {"invert-2"}
    attacked(fedlgd, "--batch", "1", "--round", "2")
    assert len(names) == 4  # the first is found again
    text = page.render(read_runs([run])[0])
    assert "site fonts (seed=0)" in text
    assert "site fonts (seed=1)" in text


def test_pictures_of_a_finished_attack_can_be_shown_without_another_attack(fedlgd, run, names, monkeypatch):
    opened = open_replay(run)
    own = replace(opened, federation=replace(opened.federation, public=False))
    monkeypatch.setattr(command, "open_replay", lambda _: own)
    attacked(fedlgd, "--batch", "1", "--round", "2")
    assert "--show" in page.render(read_runs([run])[0])
    names.clear()
    attacked(fedlgd, "--batch", "1", "--round", "2", "--show")
    assert not names
    assert not (run / "invert-2.json").exists()
    assert "--show" not in page.render(read_runs([run])[0])


def test_json_and_an_estimate(fedlgd, run):
    (found,) = json.loads(attacked(fedlgd, "--json", "--batch", "1", "--round", "0").out)
    assert found["settings"]["attack"]["iterations"] == 2
    assert not (run / "invert" / "real-round2-batch1.png").exists()
    assert json.loads(fedlgd("invert", "out", "--estimate", "--json").out)[0]["seconds"] > 0


@pytest.mark.parametrize("loss", ["cosine", "l2"])
def test_the_estimate_counts_iterations_and_not_what_the_first_one_loads(made, monkeypatch, loss):
    """A clock that each iteration moves by 10 ms, and what torch loads in the first step by 100 s."""
    run, clock, calls = open_replay(made), [0.0], list[int]()

    def timed(run, plan, cell, i):
        whole = (
            -(-plan.attack.iterations // LBFGS_ITERATIONS) * LBFGS_ITERATIONS
            if loss == "l2"
            else plan.attack.iterations
        )
        clock[0] += 0.01 * whole + (0 if calls else 100)
        calls.append(i)

    monkeypatch.setattr(inversion, "_reconstructed", timed)
    monkeypatch.setattr(inversion.time, "perf_counter", lambda: clock[0])
    plan = inversion.InversionPlan(attack=Attack(iterations=1000, restarts=2, loss=loss), targets=3, rounds=(2,))
    cells = inversion.cells_of(run, plan, inversion.moments_of(run, plan))
    assert inversion.estimate_seconds(run, plan, cells) == pytest.approx(len(cells) * 3 * 2 * 1000 * 0.01)


@pytest.mark.drawn
def test_published_images_are_shown_in_the_report(fedlgd, run):
    attacked(fedlgd, "--batch", "1")
    runs, _ = read_runs([run])
    text = page.render(runs)
    assert "Gradient inversion" in text
    assert "--show" not in text
    assert text.count("higher = safer") >= 3


def test_images_of_a_user_are_shown_only_if_asked_for(fedlgd, run):
    attacked(fedlgd, "--batch", "1")
    file = run / "invert.json"
    content = json.loads(file.read_text())
    content["settings"]["show"] = False
    del content["digest"]
    inversion.files.write_json(file, content)
    assert "--show" in page.render(read_runs([run])[0])


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--site", "mnits"), "did you mean 'mnist'"),
        (("--round", "7"), "has 2 rounds"),
        (("--batch", "100000"), "use smaller batches"),
        (("--quick", "--thorough"), message("quick-and-thorough")),
        (("--loss", "l1"), "'l1'"),
    ],
)
def test_wrong_options_are_named(fedlgd, run, more, words):
    done = fedlgd("invert", "out", *more)
    assert done.code == 2
    assert words in done.err


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (("--method", "fedbn"), message("no-global-update", label="FedBN, personalised, on real data", sent=SENT)),
        (
            ("--method", "tests.attacks.own:Uploading"),
            message("no-weights-sent", label="Uploading", sent=["counts", "images"]),
        ),
        (("--method", "fedavg", "--set=net.norm=batch"), "net.norm=instance"),
        (("--method", "fedavg+dp-sgd", "--set=dp.test_key=test", "--set=dp.delta=1e-4"), "plain SGD"),
    ],
)
def test_runs_that_cannot_be_attacked_say_why(fedlgd, tmp_path, settings, words):
    kept = [f"--set={path}={value}" for path, value in TINY.items() if path.startswith(("data", "net"))]
    made = fedlgd("run", "builtin-digits", "--rounds", "1", "-o", "out", *kept, *settings)
    assert made.code == 0, made.err
    done = fedlgd("invert", "out", "--quick")
    assert done.code == 2
    assert words in done.err


def test_a_method_of_a_user_is_attacked_by_the_weights_that_it_sends_beside_other_things(fedlgd, tmp_path):
    kept = [f"--set={path}={value}" for path, value in TINY.items() if path.startswith(("data", "net"))]
    own = ("--method", "tests.attacks.own:Denying")
    made = fedlgd("run", "builtin-digits", "--rounds", "1", "-o", "out", *kept, *own)
    assert made.code == 0, made.err
    attacked(fedlgd, "--batch", "1", "--round", "1")
    cells = json.loads((tmp_path / "out" / "invert.json").read_text())["cells"]
    assert [cell["case"] for cell in cells.values()] == ["real"]


def test_a_private_run_is_attacked_where_it_asks_for_no_release(fedlgd, tmp_path):
    assert fedlgd(*tiny_run(tmp_path / "out", *DP, rounds=2)).code == 0
    refused = fedlgd("invert", "out", "--quick", "--round", "0")
    assert refused.code == 2
    assert message("replay-would-release", path="out", round=0, rounds=2) in refused.err
    ledgers = {file: file.read_bytes() for file in tmp_path.rglob("ledger.json")}
    attacked(fedlgd, "--batch", "1")
    found = json.loads((tmp_path / "out" / "invert.json").read_text())
    assert {cell["round"] for cell in found["cells"].values()} == {2}
    assert "(epsilon, delta) = (100, 1e-05)" in found["promise"]
    assert ledgers == {file: file.read_bytes() for file in tmp_path.rglob("ledger.json")}


def test_a_run_whose_images_are_gone_or_others_is_refused(fedlgd, run):
    config = run / "config.toml"
    config.write_text(config.read_text().replace("limit = 40", "limit = 30"))
    done = fedlgd("invert", "out", "--quick")
    assert done.code == 2
    assert "have changed" in done.err


def test_a_round_that_is_computed_again_is_that_of_the_run(fedlgd, run, tmp_path):
    assert fedlgd(*tiny_run(tmp_path / "short", rounds=1)).code == 0
    again, stored = open_replay(run).at(1), open_replay(tmp_path / "short").at(1)
    assert _same(again.server.params, stored.server.params)
    for name, state in stored.sites.items():
        assert torch.equal(again.sites[name].virtual.images, state.virtual.images)


def test_the_training_that_is_attacked_has_the_anchors_of_an_unselected_round(fedlgd, run):
    replay = open_replay(run)
    moment, site = replay.at(2), replay.federation.by_name["mnist"]
    quiet, moving = replay.next_rounds(2)
    assert (quiet, moving) == (2, 5)
    seen = training_of(replay, moment, site, quiet)
    assert seen.anchors_in_loss is not None
    assert torch.equal(seen.anchors_in_loss.images.x, moment.server.anchors.images)
    assert training_of(replay, moment, site, moving).anchors_in_loss is None


def test_where_virtual_sets_move_in_every_round_no_attack_is_run_twice(fedlgd, tmp_path):
    """As with the preset `strong`: as many rows as attacks."""
    assert fedlgd(*tiny_run(tmp_path / "out", "--preset=strong", rounds=2)).code == 0
    done = attacked(fedlgd, "--round", "2", "--batch", "1")
    count = int(re.search(r"of (\d+) attacks? to run", done.err)[1])
    cells = json.loads((tmp_path / "out" / "invert.json").read_text())["cells"]
    assert len(cells) == count == 3
    assert list(open_replay(tmp_path / "out").next_rounds(2)) == [2]


def test_the_worst_memorisation_of_all_sites_is_printed_and_named(capsys, tmp_path):
    def memory(site, share):
        rest = {"what": "virtual set", "round": 1, "expected": 0.8, "p_value": 0.01}
        return {"site": site, "nearer_training": share, **rest}

    content = {"cells": {}, "settings": {"site": "east"}}
    content["memorisation"] = [memory("east", 0.79), memory("north", 0.95), memory("west", 0.81)]
    command._print(inversion.StoredInversion(tmp_path / "invert.json", content))
    said = " ".join(capsys.readouterr().out.split())
    assert "at east: 79 %" in said
    assert "at north: 95 % nearer to a training image (80 % by chance, p = 0.01); the worst of 3 sets" in said
    assert "at west" not in said


def _same(a: Params, b: Params) -> bool:
    return all(torch.equal(value, b[name]) for name, value in a.items())
