"""What the undecided claims of the paper wait for."""

import pytest

from fedlgd.paper import plan
from fedlgd.paper import verdicts as known
from fedlgd.paper.items import find_item, requested_runs
from fedlgd.paper.plan import missing_runs, undecided
from fedlgd.paper.verdicts import shipped
from tests.paper.test_verdicts import store

EPOCHS = ("fedlgd:local.epochs=5", "fedavg:local.epochs=5")


@pytest.fixture(autouse=True)
def nothing_undecided_comes_with_the_package(monkeypatch):
    """Claims that the stored runs left undecided have no runs here, so that they wait for all of them."""
    real = shipped()
    decided = {key: each for key, each in real.verdicts.items() if each["word"] != "not decided"}
    monkeypatch.setattr(known, "shipped", lambda: real._replace(verdicts=decided))


def waiting(folder, name: str, part: str = "", seeds: int = 0):
    found = {(each.item.name, each.part): each for each in missing_runs(folder, "desk", seeds, undecided(folder))}
    return found.get((name, part))


def test_only_undecided_claims_wait_and_only_for_the_entries_that_their_rules_compare(tmp_path):
    found = missing_runs(tmp_path, "desk", 0, undecided(tmp_path))
    texts = [text for each in found for text in each.claims]
    assert len(texts) == len(set(texts))
    assert set(texts) <= {each.claim.text for each in undecided(tmp_path)}
    for each in found:
        rules = [claim.at.get("desk", claim.rule) for claim in each.item.claims if claim.text in each.claims]
        compared = {entry for rule in rules for entry in (rule.left, *rule.right)}
        assert {job.entry.spec for job in each.jobs} <= compared


def test_the_most_claims_per_cpu_hour_come_first_and_unknown_costs_last(tmp_path):
    found = missing_runs(tmp_path, "desk", 0, undecided(tmp_path))
    known = [each for each in found if each.seconds is not None]
    assert known
    assert found[: len(known)] == known
    rates = [len(each.claims) / each.seconds for each in known]
    assert rates == sorted(rates, reverse=True)
    for each in known:
        per_run = shipped().seconds[each.item.name]["desk"][each.part]
        assert each.seconds == pytest.approx(per_run * len(each.jobs))


def test_runs_of_unknown_cost_have_the_estimate_of_their_item(tmp_path):
    for each in missing_runs(tmp_path, "desk", 0, undecided(tmp_path)):
        own = each.item.scales["desk"].parts
        estimate = own[each.part].cpu if each.part in own else ""
        assert each.seconds is not None or each.cpu == (estimate or "not measured")


def test_finished_runs_are_not_missing_and_more_seeds_are(tmp_path):
    first = waiting(tmp_path, "figure-epochs")
    fixed = requested_runs(find_item("figure-epochs"), "", "desk").seeds
    assert len(first.jobs) == fixed * len(EPOCHS)
    for entry, swing in zip(EPOCHS, (0.01, 0.02), strict=True):
        store(tmp_path, entry, 0.5 + swing, 0.5 - swing, part="figure-epochs")
    left = waiting(tmp_path, "figure-epochs")
    assert {job.config.plan.seed for job in left.jobs} == set(range(2, fixed))
    more = waiting(tmp_path, "figure-epochs", seeds=fixed + 2)
    assert {job.config.plan.seed for job in more.jobs} == set(range(2, fixed + 2))


def test_a_claim_that_all_its_seeds_left_undecided_waits_for_nothing(tmp_path):
    fixed = requested_runs(find_item("figure-epochs"), "", "desk").seeds
    for entry, swing in zip(EPOCHS, (0.01, 0.02), strict=True):
        store(tmp_path, entry, *(0.5 + swing * (-1) ** seed for seed in range(fixed)), part="figure-epochs")
    assert waiting(tmp_path, "figure-epochs") is None
    assert waiting(tmp_path, "figure-epochs", seeds=fixed + 1) is not None


def test_what_a_claim_needs_is_measured_before_its_own_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(plan, "shipped", lambda: shipped()._replace(seconds={}))
    real, own = (waiting(tmp_path, "table-retina", part, seeds=5) for part in ("real", "pair"))
    assert {job.entry.spec for job in real.jobs} == {"fedavg"}
    assert own is None
    learnt = {"classes": ("no", "yes"), "totals": {"a": (40, 40)}, "auc": 0.9}
    store(tmp_path, "fedavg", *(0.7,) * 5, part="table-retina/real", **learnt)
    assert waiting(tmp_path, "table-retina", "real", seeds=5) is None
    assert {job.entry.spec for job in waiting(tmp_path, "table-retina", "pair", seeds=5).jobs} >= {"fedlgd", "vhl"}
