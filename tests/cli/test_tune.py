"""fedlgd tune: from the command to a configuration that run and compare accept."""

import json

import pytest

from fedlgd.core.errors import message
from tests.cli.conftest import TINY

SMALL = [f"--set={k}={v}" for k, v in TINY.items() if not k.startswith(("refine", "anchors", "distil"))]
SPACE = "[local]\nlr = {low = 0.01, high = 0.2, log = true}\naugment = [[], ['rotate']]\n"


@pytest.fixture
def tune(fedlgd, tmp_path):
    (tmp_path / "space.toml").write_text(SPACE)

    def call(*more: str, methods: str = "fedavg,fedprox"):
        given = ["--methods", methods, "--rounds", "3", "--space", "space.toml", "-o", "out", *SMALL]
        return fedlgd("tune", "builtin-digits", *given, *more)

    return call


def test_the_best_settings_of_a_search_can_be_compared_and_the_report_says_what_was_tuned(
    tune, fedlgd, tmp_path, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "80")
    done = tune("--candidates", "3", "--rungs", "2", methods="fedavg")
    assert done.code == 0, done.err
    assert max(map(len, done.out.splitlines()[:-2])) <= 80
    for words in (
        "a small difference",
        "CPU time of the search",
        "local.augment",
    ):
        assert words in done.out
    assert "3 candidates with 1 round, the best 1 with 3" in done.err
    assert "Estimated time: about" in done.err
    assert "FedAvg on real data (candidate 0), 1 round: " in done.err
    assert " left\n" in done.err
    file = "out/best-fedavg.toml"
    assert f"compare --methods {file} --seeds 3" in done.out
    compared = fedlgd(
        "compare", "--methods", f"{file},fedavg", "--seeds", "1", "--rounds", "1", *SMALL, "-o", "both"
    )
    assert compared.code == 0, compared.err
    assert "FedAvg on real data (tuned)" in compared.out
    page = (tmp_path / "both/report.html").read_text()
    assert "FedAvg on real data (tuned) was tuned on held-out training images (3 candidates" in page
    assert "Not tuned, unlike the others: FedAvg on real data." in page
    ran = fedlgd("run", "--config", "out/best-fedavg.toml", "--rounds", "1", "-o", "one", "--json")
    assert ran.code == 0, ran.err
    assert "[tuned]" in (tmp_path / "one/config.toml").read_text()


def test_the_same_command_continues_and_prints_the_same(tune, monkeypatch):
    first = tune("--candidates", "2", "--json", methods="fedavg")
    monkeypatch.setattr("fedlgd.cli.compare.run_tracked", lambda *_: 1 / 0)
    again = tune("--candidates", "2", "--json", methods="fedavg")
    assert (first.code, again.code) == (0, 0), first.err + again.err
    assert json.loads(first.out) == json.loads(again.out)
    found = json.loads(first.out)
    assert found["best"]["fedavg"]["file"] == "out/best-fedavg.toml"
    assert (found["candidates"], found["rounds"]) == (2, [1, 3])


def test_an_estimate_starts_nothing(tune, tmp_path):
    done = tune("--estimate", "--json", methods="fedavg")
    plan = json.loads(done.out)
    assert [(each["candidates"], each["rounds"]) for each in plan["rungs"]] == [(27, 1), (3, 3)]
    assert plan["seconds"] > 0
    assert plan["spaces"]["fedavg"]["local.lr"] == {"low": 0.01, "high": 0.2, "log": True}
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--set", "local.lr=0.1", "--set", "local.augment=[]"], message("space-exhausted", method="fedavg")),
        (["--space", "none.toml"], "cannot read config 'none.toml'"),
        (["--validation", "1.5"], "validation is 1.5"),
        (["--methods", "fedavgg"], "no method is called 'fedavgg'"),
    ],
)
def test_what_a_user_can_fix_is_said_without_a_traceback(tune, more, said):
    done = tune(*more)
    assert done.code == 2
    assert said in done.err
    assert "Traceback" not in done.err
