"""fedlgd.tune: successive halving on held-out training images, which can be continued."""

import math
import tomllib
from collections import Counter
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import hypothesis
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

import fedlgd
from fedlgd.core.errors import message
from fedlgd.core.files import read_json
from fedlgd.methods.fedavg import FedAvg
from fedlgd.runs import tune as module
from fedlgd.runs.config import resolve
from fedlgd.runs.jobs import Ended
from fedlgd.runs.tune import Candidate, Halving, Trial, cpu_seconds
from tests import tiny
from tests.data.test_validation import sealed
from tests.errors import refuses

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


def trial(
    candidate: int, accuracy: float, cpu: float = 0.0, setup: float = 0.0, rounds: int = 1, **settings
) -> Trial:
    named = {name.replace("__", "."): value for name, value in settings.items()}
    return Trial(
        method="fedavg", candidate=candidate, rounds=rounds, settings=named, accuracy=accuracy, cpu=cpu, setup=setup
    )


# The arithmetic of successive halving


def test_the_rungs_of_successive_halving_by_hand():
    assert Halving(rounds=100).levels(27) == [(27, 12), (9, 34), (3, 100)]
    assert Halving(rounds=27).levels(9) == [(9, 3), (3, 9), (1, 27)]
    assert Halving(rounds=8, rungs=2, eta=2).levels(5) == [(5, 4), (2, 8)]
    assert Halving(rounds=27).levels(4) == [(4, 3), (1, 27)]  # one candidate is not run twice
    assert Halving(rounds=2).levels(9) == [(9, 1), (1, 2)]  # two rungs of one round are one


@given(st.integers(1, 500), st.integers(1, 6), st.integers(2, 5), st.integers(2, 200))
def test_rungs_of_any_search_drop_candidates_and_gain_rounds_up_to_all(rounds, rungs, eta, candidates):
    levels = Halving(rounds=rounds, rungs=rungs, eta=eta).levels(candidates)
    counts, lengths = zip(*levels, strict=True)
    assert list(counts) == sorted(set(counts), reverse=True)
    assert list(lengths) == sorted(set(lengths))
    assert lengths[-1] == rounds
    for count, length in levels:
        ks = [k for k in range(rungs) if math.ceil(rounds / eta ** (rungs - 1 - k)) == length]
        assert count in {max(1, candidates // eta**k) for k in ks}


def log_with(tmp_path: Path, methods: tuple[str, ...], accuracies: dict[int, float]):
    """A search of four candidates, and a log with a trial of each candidate."""
    data = tiny.federation()
    how = module.plan_search(methods, Halving(rounds=3), 4, tmp_path, SPACE, settings=SETTINGS, federation=data)
    log = module.TrialLog(how, data)
    for method in methods:
        for number, accuracy in accuracies.items():
            log.add(replace(trial(number, accuracy), method=method))
    return how, log


def test_the_best_candidates_of_each_method_go_on_and_the_first_wins_a_tie(tmp_path):
    how, log = log_with(tmp_path, ("fedavg", "fedprox"), {0: 0.5, 1: 0.9, 2: 0.5, 3: 0.2})
    alive = list(how.drawn(4))
    for count, numbers in ((1, [1]), (2, [0, 1]), (3, [0, 1, 2]), (9, [0, 1, 2, 3])):
        kept = Counter((each.entry.spec, each.number) for each in log.best(alive, count, 1))
        assert kept == Counter((spec, number) for spec in ("fedavg", "fedprox") for number in numbers)


def test_candidates_are_ranked_by_their_trials_of_the_same_rounds(tmp_path):
    how, log = log_with(tmp_path, ("fedavg",), {0: 0.9, 1: 0.8})
    log.add(trial(0, 0.3, rounds=3))
    log.add(trial(1, 0.4, rounds=3))
    zero, one = (Candidate(how.entries[0], number, {}) for number in (0, 1))
    assert [each.rounds for each in log.of(zero)] == [1, 3]
    assert log.best([zero, one], 1, rounds=3) == [one]
    assert log.best([zero, one], 1, rounds=1) == [zero]


def test_a_rung_that_is_decided_again_after_longer_trials_is_decided_alike(tmp_path):
    """Candidate 5 is kept by the first rung and diverges in the second; a search interrupted there keeps it."""
    table = {(number, rounds): 0.75 if number == 0 else -1.0 for number in range(6) for rounds in (1, 2, 4)}
    table[5, 1] = 0.0
    with pytest.raises(KeyboardInterrupt):
        decided(tmp_path, Scored(table, stop=9), 6, Halving(rounds=4, eta=2))
    rest = Scored(table)
    decided(tmp_path, rest, 6, Halving(rounds=4, eta=2))
    assert rest.ran == [(0, 4)]


# Decisions, with scores that are known before


class Scored:
    """Runs trials without training: the accuracy of each is that of a table, by candidate and rounds.

    A number below zero is divergence, with this code; without one, the error only speaks of it. After `stop` trials
    it is interrupted.
    """

    def __init__(self, table, code="model-diverged", stop=None):
        self.table, self.code, self.stop, self.ran = table, code, stop, []

    def __call__(self, jobs):
        for job in jobs:
            if len(self.ran) == self.stop:
                raise KeyboardInterrupt
            key = int(job.folder.name), job.config.plan.rounds
            self.ran.append(key)
            value = self.table[key]
            error = f"RunError: {message(self.code, **REASON)}" if self.code else "ValueError: it diverged"
            yield Ended(job, error=error, code=self.code) if value < 0 else Ended(job, value)


REASON = {
    "round": 1,
    "tensor": "w",
    "sites": ["a: training diverged"],
    "valid": 0,
    "asked": 1,
    "quorum": 1,
    "least": 1,
}


def decided(out: Path, run: Scored, candidates: int, halving: Halving):
    data = tiny.federation()
    how = module.plan_search(("fedavg",), halving, candidates, out, SPACE, settings=SETTINGS, federation=data)
    return module.search(how, module.TrialLog(how, data), run)


def test_the_decisions_of_a_search_by_hand(tmp_path):
    """Nine candidates with one round, of which 0.9, 0.8 and the first 0.7 go on; the best of these wins."""
    first = [0.5, 0.7, 0.1, 0.9, 0.7, 0.8, 0.7, 0.2, 0.3]
    table = {(number, 1): score for number, score in enumerate(first)}
    table |= {(1, 3): 0.6, (3, 3): 0.4, (5, 3): 0.5, (1, 9): 0.95}
    run = Scored(table)
    found = decided(tmp_path, run, 9, Halving(rounds=9))
    assert run.ran == [*((number, 1) for number in range(9)), (1, 3), (3, 3), (5, 3), (1, 9)]
    assert (found.best["fedavg"].trial.candidate, found.best["fedavg"].trial.accuracy) == (1, 0.95)
    assert found.scores() == [
        ("fedavg", "1", "70.0", "50.0"),
        ("fedavg", "3", "60.0", "–"),
        ("fedavg", "9", "95.0", "–"),
    ]
    stored = tomllib.loads((tmp_path / "best-fedavg.toml").read_text())
    assert (stored["rounds"], stored["local"]["lr"]) == (9, found.best["fedavg"].trial.settings["local.lr"])


def test_of_equal_candidates_the_given_settings_win(tmp_path):
    run = Scored({(number, rounds): 0.5 for number in range(9) for rounds in (1, 3, 9)})
    found = decided(tmp_path, run, 9, Halving(rounds=9))
    assert [t.candidate for t in found.trials if t.rounds > 1] == [0, 1, 2, 0]
    assert found.best["fedavg"].trial.settings == {"local.lr": 0.01, "local.momentum": 0.0}


@hypothesis.settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_search_keeps_the_best_of_each_rung_and_an_interrupted_one_decides_alike(tmp_path, data):
    candidates, eta = data.draw(st.integers(2, 9)), data.draw(st.integers(2, 3))
    halving = Halving(rounds=eta**2, eta=eta)
    scores = st.sampled_from([-1.0, 0.0, 0.25, 0.5])  # many ties; below zero: diverged
    keys = [(number, rounds) for number in range(candidates) for rounds in (1, eta, eta**2)]
    table = {key: 0.75 if key[0] == 0 else data.draw(scores) for key in keys}
    alive, wanted = list(range(candidates)), []
    for count, rounds in halving.levels(candidates):
        alive = sorted(alive[:count])
        wanted += [(number, rounds) for number in alive]
        alive.sort(key=lambda number, rounds=rounds: -table[number, rounds])
    run = Scored(table)
    with TemporaryDirectory(dir=tmp_path) as folder:
        whole = decided(Path(folder, "whole"), run, candidates, halving)
        assert run.ran == wanted
        assert whole.best["fedavg"].trial.candidate == alive[0]
        stop = data.draw(st.integers(0, len(wanted) - 1))
        cut, rest = Scored(table, stop=stop), Scored(table)
        with pytest.raises(KeyboardInterrupt):
            decided(Path(folder, "cut"), cut, candidates, halving)
        again = decided(Path(folder, "cut"), rest, candidates, halving)
    assert cut.ran + rest.ran == wanted
    assert again.trials == whole.trials


@pytest.mark.parametrize("code", ["model-diverged", "anchors-diverged", "loss-diverged", "too-few-updates"])
def test_divergence_is_known_by_its_code_and_is_worse_than_any_score(tmp_path, code):
    table = {(0, 1): -1.0, (1, 1): -1.0, (2, 1): 0.0, (3, 1): -1.0, (2, 3): 0.1}
    found = decided(tmp_path, Scored(table, code), 4, Halving(rounds=3, rungs=2))
    assert [(trial.candidate, trial.accuracy) for trial in found.trials if trial.error] == [(0, 0), (1, 0), (3, 0)]
    assert found.best["fedavg"].trial.candidate == 2


def test_an_error_that_only_speaks_of_divergence_stops_the_search(tmp_path):
    with refuses("trial-failed"):
        decided(tmp_path, Scored({(0, 1): -1.0}, code=""), 2, Halving(rounds=3))


# The search


def test_the_best_candidate_has_the_highest_accuracy_of_the_last_rung(tmp_path):
    found = tuned(tmp_path, ("fedavg", "fedprox"))
    for spec, best in found.best.items():
        first = [t for t in found.trials if (t.method, t.rounds) == (spec, 1)]
        assert [trial.candidate for trial in first] == [0, 1, 2, 3]
        assert best.trial.rounds == 3
        chosen = next(trial for trial in first if trial.candidate == best.trial.candidate)
        assert chosen.accuracy == max(trial.accuracy for trial in first)
    assert f"fedavg: {100 * found.best['fedavg'].trial.accuracy:.1f} % after" in repr(found)
    assert [row[:2] for row in found.scores()] == [(m, r) for m in ("fedavg", "fedprox") for r in "13"]
    assert "<td>fedprox</td>" in found._repr_html_()


def test_every_method_has_the_same_budget_and_the_same_draws_of_shared_settings(tmp_path):
    methods = ("fedavg", "fedprox", "fedavg:local.epochs=2")
    found = tuned(tmp_path, methods, candidates=9, rounds=4, space={**SPACE, "fedprox": {"mu": [0.1, 1.0]}})
    spent = {spec: Counter(t.rounds for t in found.trials if t.method == spec) for spec in methods}
    assert spent == {spec: Counter({1: 9, 2: 3, 4: 1}) for spec in methods}
    drawn = {
        spec: {t.candidate: t.settings for t in found.trials if (t.method, t.rounds) == (spec, 1)}
        for spec in methods
    }
    for number, settings in drawn["fedavg"].items():
        theirs = drawn["fedprox"][number]
        assert {path: theirs[path] for path in settings} == settings
        assert theirs.keys() - settings.keys() == {"mu"}
        assert drawn["fedavg:local.epochs=2"][number] == settings
    assert drawn["fedavg"][0] == {"local.lr": 0.01, "local.momentum": 0.0}  # as given
    assert len({tuple(settings.values()) for settings in drawn["fedavg"].values()}) == 9


def test_the_best_settings_are_a_configuration_that_says_how_they_were_found(tmp_path):
    found = tuned(tmp_path)
    best = found.best["fedavg"]
    stored = tomllib.loads((tmp_path / "best-fedavg.toml").read_text())
    assert stored["local"]["lr"] == best.trial.settings["local.lr"]
    assert (stored["rounds"], stored["evaluate_every"], stored["real_samples"]) == (3, 0, 0)
    assert stored["tuned"]["settings"] == ["local.lr", "local.momentum"]
    assert stored["tuned"]["candidates"] == 4
    assert stored["tuned"]["accuracy"] == best.trial.accuracy
    stored["data"] = "builtin-digits"
    assert resolve(stored).tuned == best.config.tuned
    assert resolve(stored, {"local.lr": 0.1}).tuned.settings == ("local.momentum",)
    assert resolve(stored, {"local.lr": 0.1, "local.momentum": 0.5}).tuned is None
    result = fedlgd.run(tiny.federation(), found.methods["fedavg"], rounds=1, net=SETTINGS["net"])
    assert set(result.accuracy) == set(tiny.NAMES)


def test_a_search_is_the_same_for_the_same_seed_in_parallel_and_differs_for_another(tmp_path):
    whole, parallel = tuned(tmp_path / "whole"), tuned(tmp_path / "parallel", jobs=2)
    assert without_time(parallel.trials) == without_time(whole.trials)
    files = [(tmp_path / name / "best-fedavg.toml").read_text() for name in ("whole", "parallel")]
    one, two = ([line for line in text.splitlines() if "cpu_seconds" not in line] for text in files)
    assert one == two
    other = tuned(tmp_path / "other", seed=1)
    assert [t.settings for t in other.trials][1:4] != [t.settings for t in whole.trials][1:4]


@pytest.mark.parametrize("at", [1, 3, 5])
def test_an_interrupted_search_ends_as_if_it_had_not_been(tmp_path, monkeypatch, at):
    whole = tuned(tmp_path / "whole")
    real, calls = module.run_job, []

    def dies(job, *more):
        calls.append(job.folder)
        if len(calls) == at:
            raise KeyboardInterrupt
        return real(job, *more)

    monkeypatch.setattr(module, "run_job", dies)
    with pytest.raises(KeyboardInterrupt):
        tuned(tmp_path / "cut")
    log = tmp_path / "cut/tune.json"
    assert len(read_json(log)["trials"] if log.exists() else []) == at - 1
    again = tuned(tmp_path / "cut")
    assert len(calls) == len(set(calls)) + 1  # only the interrupted trial began twice
    assert without_time(again.trials) == without_time(whole.trials)
    assert again.best["fedavg"].trial.candidate == whole.best["fedavg"].trial.candidate
    assert tuned(tmp_path / "cut").trials == again.trials
    assert len(calls) == len(set(calls)) + 1


def test_a_damaged_log_is_named(tmp_path):
    tuned(tmp_path, rounds=1, candidates=2)
    (tmp_path / "tune.json").write_text("{}")
    with pytest.raises(fedlgd.FedlgdError) as error:
        tuned(tmp_path, rounds=1, candidates=2)
    assert "tune.json" in str(error.value)


def test_another_search_in_the_folder_is_refused_with_what_differs(tmp_path):
    tuned(tmp_path, rounds=1, candidates=2)
    with refuses("other-search", differing=["configurations", "data", "seed"]):
        tuned(tmp_path, rounds=1, candidates=2, seed=1)
    with refuses("other-search", differing=["budget"]):
        tuned(tmp_path, rounds=1, candidates=3)
    with refuses("other-search", differing=["spaces"]):
        tuned(tmp_path, rounds=1, candidates=2, space={"local": {"lr": [0.1, 0.2]}})


def test_a_candidate_that_diverges_is_the_worst(tmp_path):
    found = tuned(tmp_path / "a", space={"local": {"lr": [1e30]}}, candidates=2)
    assert [(t.candidate, bool(t.error)) for t in found.trials] == [(0, False), (1, True), (0, False)]
    assert found.trials[1].accuracy == 0
    assert found.best["fedavg"].trial.candidate == 0
    with refuses("all-diverged", method="fedavg"):
        tuned(tmp_path / "b", settings={**SETTINGS, "local.lr": 1e30}, space={"local": {"momentum": [0.9]}})


@pytest.mark.parametrize("jobs", [1, 2])
def test_any_other_failure_stops_the_search_which_goes_on_when_it_is_mended(tmp_path, monkeypatch, jobs):
    with monkeypatch.context() as broken:
        broken.setattr(FedAvg, "server", lambda *_: 1 / 0)
        with refuses("trial-failed") as caught:
            tuned(tmp_path, jobs=jobs)
    assert caught.value.values["error"].startswith("ZeroDivisionError")
    assert len(tuned(tmp_path, jobs=jobs).trials) == 5


# What is searched


def test_a_value_that_is_not_allowed_is_found_before_anything_runs(tmp_path):
    with refuses("setting-of-entry") as caught:
        tuned(tmp_path, space={"local": {"momentum": [0.0, 1.5]}})
    assert "local.momentum" in str(caught.value.__cause__)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("candidates", [-1, 0, 1, 10_001])
def test_a_search_has_two_or_more_candidates(tmp_path, candidates):
    with refuses("setting-value", setting="candidates", value=candidates):
        tuned(tmp_path, candidates=candidates)


def test_settings_and_methods_are_checked_as_for_a_comparison(tmp_path):
    with refuses("setting-of-no-method", path="fedprox.mu"):
        tuned(tmp_path, settings={**SETTINGS, "fedprox.mu": 1.0})
    with refuses("entry-twice", method="fedavg"):
        tuned(tmp_path, ("fedavg", "fedavg"))
    with refuses("private-search", entry="fedavg"):
        tuned(tmp_path, settings={**SETTINGS, "train_on": "virtual", "distil.private.epsilon": 4.0})


def test_epochs_are_not_searched_if_steps_are_given(tmp_path):
    space = {"local": {"lr": [0.1, 0.2], "epochs": [1, 2]}}
    for settings, paths in ((SETTINGS, ["local.lr", "local.epochs"]), ({"local.steps": 5}, ["local.lr"])):
        how = module.plan_search(("fedavg",), Halving(rounds=3), 2, tmp_path, space, settings=settings)
        assert list(how.space_of(how.entries[0])) == paths


def test_a_method_of_ones_own_is_searched(tmp_path):
    found = tuned(tmp_path, ("tests.runs.own:Own",), candidates=2)
    assert tomllib.loads(next(tmp_path.glob("best-*.toml")).read_text())["method"] == "tests.runs.own:Own"
    assert found.candidates == 2


def test_the_setup_is_counted_once_for_the_same_virtual_sets():
    same = [trial(i, 0.5, cpu=1.0, setup=10.0, local__lr=float(i)) for i in range(3)]
    assert cpu_seconds(same) == 13
    assert cpu_seconds([trial(i, 0.5, cpu=1.0, setup=10.0, distil__lr=float(i)) for i in range(3)]) == 33
