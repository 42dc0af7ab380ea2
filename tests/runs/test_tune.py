"""fedlgd.tune: successive halving on held-out training images, which can be continued."""

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

import fedlgd
from fedlgd.core.errors import PrivacyError, RunError, SettingError
from fedlgd.core.files import read_json
from fedlgd.methods.fedavg import FedAvg
from fedlgd.runs.config import resolve
from fedlgd.runs.tuning import tune as module
from fedlgd.runs.tuning.findings import Trial, effect_of, spent
from fedlgd.runs.tuning.search import Halving
from tests import tiny
from tests.data.test_validation import sealed

SPACE = {"local": {"lr": {"low": 0.01, "high": 0.2, "log": True}, "momentum": [0.0, 0.9]}}
SETTINGS = {"net": {"name": "convnet", "width": 4, "depth": 2}, "local.batch": 4}


def tuned(out: Path, methods=("fedavg",), **more):
    given = {"space": SPACE, "settings": SETTINGS, "candidates": 4, "rounds": 3} | more
    return fedlgd.tune(sealed(tiny.federation()), methods, out=out, **given)


def without_time(trials):
    return sorted(
        (replace(trial, cpu=0.0, setup=0.0) for trial in trials),
        key=lambda trial: (trial.method, trial.rounds, trial.candidate),
    )


def test_the_rungs_of_successive_halving_by_hand():
    assert Halving(rounds=100).levels(27) == [(27, 12), (9, 34), (3, 100)]
    assert Halving(rounds=27).levels(9) == [(9, 3), (3, 9), (1, 27)]
    assert Halving(rounds=8, rungs=2, eta=2).levels(5) == [(5, 4), (2, 8)]
    assert Halving(rounds=27).levels(4) == [(4, 3), (1, 27)]  # one candidate is not run twice
    assert Halving(rounds=2).levels(9) == [(9, 1), (1, 2)]  # two rungs of one round are one


def test_the_best_candidate_has_the_highest_accuracy_of_the_last_rung(tmp_path):
    found = tuned(tmp_path, ("fedavg", "fedprox"))
    for spec, best in found.best.items():
        first = [t for t in found.trials if (t.method, t.rounds) == (spec, 1)]
        assert [trial.candidate for trial in first] == [0, 1, 2, 3]
        assert best.trial.rounds == 3
        chosen = next(trial for trial in first if trial.candidate == best.trial.candidate)
        assert chosen.accuracy == max(trial.accuracy for trial in first)
    ours, theirs = ([t.settings for t in found.trials if t.method == m] for m in ("fedavg", "fedprox"))
    assert ours[:4] == theirs[:4]
    assert f"fedavg: {100 * found.best['fedavg'].trial.accuracy:.1f} % after 3 rounds" in repr(found)
    assert [row[:2] for row in found.scores()] == [(m, r) for m in ("fedavg", "fedprox") for r in "13"]
    assert "<td>fedprox</td>" in found._repr_html_()


def test_the_best_settings_are_a_configuration_that_says_how_they_were_found(tmp_path):
    found = tuned(tmp_path)
    best = found.best["fedavg"]
    stored = tomllib.loads((tmp_path / "best-fedavg.toml").read_text())
    assert stored["local"]["lr"] == best.trial.settings["local.lr"]
    assert (stored["rounds"], stored["evaluate_every"]) == (3, 0)
    assert stored["tuned"]["settings"] == ["local.lr", "local.momentum"]
    assert stored["tuned"]["candidates"] == 4
    assert stored["tuned"]["accuracy"] == best.trial.accuracy
    stored["data"] = "builtin-digits"
    assert resolve(stored).tuned == best.config.tuned
    assert resolve(stored, {"local.lr": 0.1}).tuned.settings == ("local.momentum",)
    assert resolve(stored, {"local.lr": 0.1, "local.momentum": 0.5}).tuned is None
    result = fedlgd.run(tiny.federation(), found.methods["fedavg"], rounds=1, net=SETTINGS["net"])
    assert set(result.accuracy) == set(tiny.NAMES)


def test_a_search_is_the_same_for_the_same_seed_in_parallel_and_after_an_interruption(tmp_path, monkeypatch):
    whole = tuned(tmp_path / "whole")
    parallel = tuned(tmp_path / "parallel", jobs=2)
    assert without_time(parallel.trials) == without_time(whole.trials)
    real, calls = module.run_job, []

    def dies(job, *more):
        calls.append(job.folder)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(job, *more)

    monkeypatch.setattr(module, "run_job", dies)
    with pytest.raises(KeyboardInterrupt):
        tuned(tmp_path / "cut")
    assert len(read_json(tmp_path / "cut/tune.json")["trials"]) == 2
    again = tuned(tmp_path / "cut")
    assert len(calls) == len(set(calls)) + 1  # only the interrupted trial began twice
    assert without_time(again.trials) == without_time(whole.trials)
    tuned(tmp_path / "cut")
    assert len(calls) == len(set(calls)) + 1


def test_another_search_in_the_folder_is_refused_with_what_differs(tmp_path):
    tuned(tmp_path, rounds=1, candidates=2)
    with pytest.raises(RunError, match=r"another search \(other configurations, data, seed\)"):
        tuned(tmp_path, rounds=1, candidates=2, seed=1)
    with pytest.raises(RunError, match="other budget"):
        tuned(tmp_path, rounds=1, candidates=3)


def test_a_candidate_that_diverges_is_the_worst_and_a_failure_stops_the_search(tmp_path, monkeypatch):
    found = tuned(tmp_path / "a", space={"local": {"lr": [1e30]}}, candidates=2)
    assert [(t.candidate, bool(t.error)) for t in found.trials] == [(0, False), (1, True), (0, False)]
    assert found.best["fedavg"].trial.candidate == 0
    with pytest.raises(RunError, match="every candidate of fedavg diverged"):
        tuned(tmp_path / "b", settings={**SETTINGS, "local.lr": 1e30}, space={"local": {"momentum": [0.9]}})
    monkeypatch.setattr(FedAvg, "server", lambda *_: 1 / 0)
    with pytest.raises(RunError, match=r"candidate 0\) failed: ZeroDivisionError.*re-run the command to continue"):
        tuned(tmp_path / "c")


def test_a_value_that_is_not_allowed_is_found_before_anything_runs(tmp_path):
    with pytest.raises(SettingError, match=r"local.momentum is 1.5"):
        tuned(tmp_path, space={"local": {"momentum": [0.0, 1.5]}})
    assert not list(tmp_path.iterdir())


def test_settings_and_methods_are_checked_as_for_a_comparison(tmp_path):
    with pytest.raises(SettingError, match=r"'fedprox.mu' applies to none"):
        tuned(tmp_path, settings={**SETTINGS, "fedprox.mu": 1.0})
    with pytest.raises(SettingError, match="'fedavg' twice"):
        tuned(tmp_path, ("fedavg", "fedavg"))
    with pytest.raises(PrivacyError, match="every candidate of fedavg would spend its privacy budget again"):
        tuned(tmp_path, settings={**SETTINGS, "train_on": "virtual", "distil.private.epsilon": 4.0})


def test_epochs_are_not_searched_if_steps_are_given(tmp_path):
    space = {"local": {"lr": [0.1, 0.2], "epochs": [1, 2]}}
    for settings, paths in ((SETTINGS, ["local.lr", "local.epochs"]), ({"local.steps": 5}, ["local.lr"])):
        how = module.planned_search(("fedavg",), Halving(rounds=3), tmp_path, space, settings=settings)
        assert list(how.space_of(how.entries[0])) == paths


def test_a_budget_pays_for_the_largest_search_whose_estimate_fits(tmp_path, monkeypatch):
    """By hand: a round takes 1 s, the setup of each method 5 s; 10 + 2 (9 * 3 + 3 * 9 + 27) = 172."""
    monkeypatch.setattr(module.Costs, "_estimate", _one_second_a_round)
    federation = tiny.federation()
    how = module.planned_search(("fedavg", "fedprox"), Halving(rounds=27), tmp_path, SPACE, settings=SETTINGS)
    costs = module.Costs(how, federation, module.Loop())
    assert costs.total(9) == pytest.approx(172)
    assert (costs.affordable(172), costs.affordable(171.9)) == (9, 8)
    assert module.Costs(how, federation, module.Loop(), jobs=2).affordable(86) == 9
    with pytest.raises(SettingError, match=r"a budget of 60 s is too small: .* take about 76 s"):
        costs.affordable(60)


def _one_second_a_round(costs, what, rounds):
    return module.Estimate({"train": 5.0 + rounds}, {}, 5.0), what.entry.spec


def test_the_number_of_candidates_is_decided_once(tmp_path, monkeypatch):
    monkeypatch.setattr(module.Costs, "affordable", lambda *_: 2)
    first = tuned(tmp_path, candidates=0, budget="1min")
    monkeypatch.setattr(module.Costs, "affordable", lambda *_: 1 / 0)
    assert tuned(tmp_path, candidates=0, budget="1min").trials == first.trials


def test_a_method_without_a_known_cost_needs_a_number_of_candidates(tmp_path):
    with pytest.raises(SettingError, match=r"time of tests.runs.own:Own cannot be estimated.*--candidates"):
        tuned(tmp_path, ("tests.runs.own:Own",), candidates=0)
    found = tuned(tmp_path / "own", ("tests.runs.own:Own",), candidates=2)
    assert tomllib.loads(next((tmp_path / "own").glob("best-*.toml")).read_text())["method"] == "tests.runs.own:Own"
    assert found.candidates == 2


def trial(candidate: int, accuracy: float, cpu: float = 0.0, setup: float = 0.0, **settings) -> Trial:
    named = {name.replace("__", "."): value for name, value in settings.items()}
    return Trial(method="m", candidate=candidate, rounds=1, settings=named, accuracy=accuracy, cpu=cpu, setup=setup)


def test_effects_by_hand():
    words = [trial(i, a, s=s) for i, (a, s) in enumerate([(0.5, "x"), (0.7, "y"), (0.9, "y")])]
    found = effect_of("s", words)
    assert (found.best, found.worst, found.trials, found.correlation) == ("y", "x", 3, None)
    assert found.difference == pytest.approx(0.3)
    numbers = [trial(i, i / 10, lr=float(i)) for i in range(6)]
    found = effect_of("lr", numbers)
    assert (found.best, found.worst, found.correlation) == ("> 2.5", "<= 2.5", pytest.approx(1.0))
    assert (found.best_mean, found.worst_mean) == (pytest.approx(0.4), pytest.approx(0.1))
    assert effect_of("lr", [trial(0, 0.1, lr=1.0), trial(1, 0.2, lr=1.0)]) is None
    assert effect_of("lr", numbers[:4]).correlation is None  # too few
    assert effect_of("lr", [replace(each, accuracy=0.1) for each in numbers]).correlation is None


def test_the_setup_is_counted_once_for_the_same_virtual_sets():
    same = [trial(i, 0.5, cpu=1.0, setup=10.0, local__lr=float(i)) for i in range(3)]
    assert spent(same) == 13
    assert spent([trial(i, 0.5, cpu=1.0, setup=10.0, distil__lr=float(i)) for i in range(3)]) == 33
