"""Trials on validation images."""

import json
from dataclasses import replace

import torch

from fedlgd.data.federation import validation_of
from fedlgd.data.suites import load
from results import search
from tests.cli.conftest import TINY


class Tiny(search.Trial):
    """A trial of one round on the built-in digits."""

    def config(self, seed):
        own = {**TINY, **self.settings, "data": {"name": "builtin-digits", "limit": 60, "test_limit": 20}}
        return search.resolve(
            {"method": self.method}, {**own, "rounds": 1, "seed": seed, "analysis": False}, "quick"
        )


def test_a_stored_trial_is_not_run_again(tmp_path):
    trials, file = [Tiny("one"), Tiny("other", settings={"local.lr": 0.5})], tmp_path / "trials.jsonl"
    first = list(search.search(trials[:1], [0], file))
    rest = list(search.search(trials, [0, 1], file))
    assert [(row["what"], row["seed"]) for row in first + rest] == [
        ("one", 0),
        ("other", 0),
        ("one", 1),
        ("other", 1),
    ]
    assert [json.loads(line) for line in file.read_text().splitlines()] == first + rest
    assert list(search.search(trials, [0, 1], file)) == []


def test_test_images_do_not_change_the_score_of_a_trial(monkeypatch):
    trial, whole = Tiny("one"), load("builtin-digits")
    score = search.measured(trial, 0)

    def blank(federation):
        sites = (replace(s, test=replace(s.test, x=torch.zeros_like(s.test.x))) for s in federation.sites)
        return validation_of(replace(federation, sites=tuple(sites)))

    monkeypatch.setattr(search, "validation_of", blank)
    again = search.measured(trial, 0)
    assert again["sites"] == score["sites"]
    assert len(score["sites"]) == len(whole.sites)
    assert score["acc"] == round(sum(score["sites"].values()) / len(score["sites"]), 2)
