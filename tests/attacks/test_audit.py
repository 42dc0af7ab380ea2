"""The plan of an audit: what it refuses before any federation runs, and that an interruption changes no number."""

import math
from dataclasses import replace

import pytest
import torch

from fedlgd.attacks import audit, membership, shadow
from fedlgd.attacks.audit import MIN_POOL_SIZE, AuditPlan, AuditRequest, check_halves, check_pool, plan_audit
from fedlgd.attacks.pool import draw_pool, halved, members_in
from fedlgd.attacks.shadow import Shadow
from fedlgd.attacks.target import AuditTarget, chosen_site
from fedlgd.core.errors import PrivacyError
from fedlgd.core.types import LabelledSet, Stream
from fedlgd.distill.settings import Distil
from fedlgd.methods.fedlap import FedLAP
from fedlgd.runs.config import Config, RunSettings
from tests import tiny
from tests.errors import refuses

RNG = Stream(0).at("audit")
PLAN = RunSettings(rounds=1, evaluate_every=1, analysis=False, real_samples=0)


def pool(train: int = 30, size: int = 1000):
    return draw_pool(tiny.federation(train=train), "ape", size, 0.0, RNG)


def private(**values) -> Config:
    settings = {"epsilon": 60.0, "counts": 0.2, "releases": 3, "blocks": 1, "test_key": "k"} | values
    method = tiny.fedlgd(distil__plan="bank", **{f"distil__private__{k}": v for k, v in settings.items()})
    return Config(method=method, plan=PLAN)


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ({"in_sample": True}, "in-sample-attack"),
        ({"in_sample": True, "attack": "lira"}, "in-sample-attack"),
        ({"attack": "paper", "thorough": True}, "paper-attack-options"),
        ({"attack": "paper", "canaries": "noise"}, "paper-attack-options"),
    ],
)
def test_requests_that_contradict_themselves_are_refused(wrong, code):
    with refuses(code):
        AuditRequest(**wrong)


def test_a_thorough_audit_has_more_federations_and_only_quick_controls_have_fewer():
    quick, thorough = AuditRequest(), AuditRequest(attack="lira", thorough=True)
    assert (quick.federations, quick.federations_of("run"), quick.federations_of("baseline")) == (5, 5, 3)
    assert (thorough.federations, thorough.federations_of("positive")) == (17, 17)


def test_the_smallest_site_is_attacked_by_default_and_an_unknown_one_is_refused():
    data = tiny.federation()
    bee = data.by_name["bee"]
    small = replace(bee, train=LabelledSet(bee.train.x[:6], bee.train.y[:6], bee.train.scale))
    data = replace(data, sites=tuple(small if site.name == "bee" else site for site in data.sites))
    assert chosen_site(data, "") == "bee"
    assert chosen_site(data, "cat") == "cat"
    with refuses("attacked-site-unknown", site="bees", sites=["ape", "bee", "cat"]):
        chosen_site(data, "bees")


def test_by_default_the_smallest_site_that_can_be_audited_is(tmp_path):
    """24 images of each of three classes are enough; bee has two of each."""
    aimed = target(tmp_path)
    bee = aimed.federation.by_name["bee"]
    few = LabelledSet(bee.train.x[:6], bee.train.y[:6], bee.train.scale)
    sites = tuple(replace(site, train=few) if site.name == "bee" else site for site in aimed.federation.sites)
    aimed = replace(aimed, federation=replace(aimed.federation, sites=sites))
    assert plan_audit(aimed, AuditRequest()).site == "ape"
    assert plan_audit(aimed, AuditRequest(attack="paper")).site == "bee"
    with refuses("pool-too-small", site="bee", images=6):
        _ = plan_audit(aimed, AuditRequest(site="bee")).pool


def test_a_pool_below_the_smallest_size_is_refused():
    check_pool(pool(size=MIN_POOL_SIZE))
    with refuses("pool-too-small", site="ape", images=MIN_POOL_SIZE - 1, wanted=MIN_POOL_SIZE):
        check_pool(pool(size=MIN_POOL_SIZE - 1))


@pytest.mark.parametrize(("start", "tiles"), [("statistics", 1), ("statistics", 2), ("real", 1), ("real", 2)])
def test_a_half_needs_the_images_of_each_class_that_a_virtual_set_asks_for(start, tiles):
    data, count, drawn = tiny.federation(train=30), 4, pool()
    masks = [members_in(drawn, i, RNG) for i in range(count)]
    fewest = min(int(drawn.data.y[mask].bincount(minlength=tiny.CLASSES).min()) for mask in masks)
    parts = tiles**2 if start == "real" else 1  # a start from images fills every tile with one
    enough, few = fewest // parts, fewest // parts + 1

    def checked(per_class: int, short: str = "refuse") -> None:
        how = {"start": start, "tiles": tiles, "short": short, "per_class": per_class}
        method = tiny.fedlgd(**{f"distil__{name}": value for name, value in how.items()})
        check_halves(Config(method=method, plan=PLAN), drawn, data, tiny.net(), count, RNG)

    checked(enough)
    checked(few, "fewer")
    with refuses("half-too-small", site="ape", per_class=few):
        checked(few)


def test_real_data_needs_no_images_of_a_class():
    method = tiny.fedavg(train_on="real", distil__per_class=1000)
    check_halves(Config(method=method, plan=PLAN), pool(), tiny.federation(train=30), tiny.net(), 3, RNG)


def test_a_half_that_a_promise_refuses_is_told_with_the_refusal(monkeypatch):
    config, drawn, data = private(), pool(60), tiny.federation(train=60)
    check_halves(config, drawn, data, tiny.net(), 2, RNG)

    def refuse(self, site, net, rng):
        raise PrivacyError("too few images for this epsilon")

    monkeypatch.setattr(type(config.method), "enrol", refuse)
    with refuses("half-refused", PrivacyError, site="ape"):
        check_halves(config, drawn, data, tiny.net(), 2, RNG)


def test_halves_are_drawn_by_content_and_not_by_the_order_of_the_images():
    data = tiny.federation(train=30)
    site = data.by_name["ape"]
    first = draw_pool(data, "ape", 70, 0.1, RNG, "mislabelled")
    kept = [halved(data, first, members_in(first, i, RNG)).by_name["ape"].train for i in range(3)]
    for seed in range(3):
        order = torch.randperm(len(site.train), generator=torch.Generator().manual_seed(seed))
        train = LabelledSet(site.train.x[order], site.train.y[order], site.train.scale)
        moved = replace(data, sites=(replace(site, train=train), *data.sites[1:]))
        second = draw_pool(moved, "ape", 70, 0.1, RNG, "mislabelled")
        assert torch.equal(first.flipped, second.flipped)
        assert torch.equal(first.data.y, second.data.y)
        for i, before in enumerate(kept):
            after = halved(moved, second, members_in(second, i, RNG)).by_name["ape"].train
            assert torch.equal(before.x, after.x)
            assert torch.equal(before.y, after.y)


def test_membership_is_a_fair_coin_and_independent_between_federations():
    drawn = pool(200)
    masks = torch.stack([members_in(drawn, i, RNG) for i in range(40)]).double()
    assert masks.mean().item() == pytest.approx(0.5, abs=0.02)
    assert (masks.mean(1) - 0.5).abs().max() < 5 * 0.5 / len(drawn) ** 0.5
    correlations = torch.corrcoef(masks) - torch.eye(40)
    assert correlations.abs().max() < 5 / len(drawn) ** 0.5


class FakeResult:
    """What an audit reads of the stored result of a run."""

    records: tuple = ()


def target(folder) -> AuditTarget:
    data, config = tiny.federation(train=24, test=8), Config(method=tiny.fedavg(train_on="real"), plan=PLAN)
    return AuditTarget(folder, config, data, tiny.net(), FakeResult())  # type: ignore[arg-type]


@pytest.mark.parametrize("attack", ["rmia", "paper"])
def test_an_audit_has_the_controls_that_its_method_needs(attack, tmp_path):
    """A run on virtual data is compared with real data in as many steps; one on real data is not."""

    def arms(method, **request):
        aimed = replace(target(tmp_path), config=Config(method=method, plan=PLAN))
        return list(audit.arms_of(aimed, "ape", AuditRequest(attack=attack, **request)))

    def methods(found):
        return [(arm.kind, arm.config.method.train_on) for arm in found[1:]]

    method = tiny.fedlgd(local__steps=0, local__epochs=3, local__batch=4)
    own = arms(method)
    controls = [("baseline", "real"), ("baseline", "virtual"), ("positive", "virtual")]
    assert own[0].config.method == method
    assert methods(own) == controls
    images = method.distil.per_class * method.distil.tiles**2 * tiny.CLASSES
    assert own[1].config.method.local.steps == 3 * math.ceil(images / 4)
    assert own[3].config.method.distil.start == "real"
    assert [arm.only_set for arm in own] == [False, False, False, attack != "paper"]
    assert methods(arms(tiny.fedavg(train_on="virtual"))) == [controls[0], controls[2]]
    assert methods(arms(tiny.fedavg(train_on="real"))) == controls[1:]


def test_controls_of_a_method_that_matches_gradients_match_means_in_as_many_steps_as_a_round_has(tmp_path):
    """A rate of gradients would destroy the images of a control, and an unused number of steps would take hours."""
    method = FedLAP(outer=3, batches=2, boost=4, distil=Distil(per_class=2, start="noise", lr=100.0))
    aimed = replace(target(tmp_path), config=Config(method=method, plan=PLAN))
    found = [each.config.method.distil for each in list(audit.arms_of(aimed, "ape", AuditRequest()))[2:]]
    assert found == [Distil(per_class=2, steps=24), Distil(per_class=2, steps=24, start="real")]


@pytest.fixture
def one_arm(monkeypatch):
    """Audits without controls and with few draws of the bootstrap, so that they take a second."""
    monkeypatch.setattr(membership.bootstrap, "__defaults__", ((), 20))
    monkeypatch.setattr(audit, "arms_of", lambda target, *_: [audit.Arm("x", "run", target.config)])


def test_an_audit_that_was_interrupted_ends_with_the_numbers_of_one_that_was_not(tmp_path, one_arm, monkeypatch):
    whole = AuditPlan(target(tmp_path / "whole"), AuditRequest(), "ape").run(1)
    assert {each.kind for each in whole.findings} == {"run", "blind"}
    work, done = Shadow.work, []

    def stop_in_the_third(shadow, on_round):
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(shadow.file)
        work(shadow, on_round)

    monkeypatch.setattr(Shadow, "work", stop_in_the_third)
    with pytest.raises(KeyboardInterrupt):
        AuditPlan(target(tmp_path / "parts"), AuditRequest(), "ape").run(1)
    assert all(file.exists() for file in done)
    written = {file: file.read_bytes() for file in done}
    monkeypatch.setattr(Shadow, "work", work)
    resumed = AuditPlan(target(tmp_path / "parts"), AuditRequest(), "ape").run(1)
    assert len(list(done[0].parent.glob("*.safetensors"))) == 5
    assert written == {file: file.read_bytes() for file in done}
    assert resumed == whole


def test_federations_of_other_settings_are_never_taken_for_finished_ones(tmp_path, one_arm):
    base = target(tmp_path)
    other = replace(base, config=replace(base.config, plan=replace(PLAN, seed=1)))
    data = replace(base, federation=tiny.federation(train=25, test=8))
    requests: list[dict] = [{}, {"canaries": "noise"}, {"all_layers": True}, {"attack": "lira"}]
    plans = [AuditPlan(base, AuditRequest(**each), "ape") for each in requests]
    plans += [AuditPlan(each, AuditRequest(), "ape") for each in (other, data)]
    plans.append(AuditPlan(base, AuditRequest(), "bee"))
    files = [shadow.file for plan in plans for shadow in plan.shadows["x"]]
    assert len(set(files)) == len(files)


def test_a_site_that_is_too_small_is_refused_before_a_federation_runs_or_a_file_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(shadow, "run_shadows", lambda *_: pytest.fail("a federation was run"))
    small = replace(target(tmp_path), federation=tiny.federation(train=10, test=10))
    with refuses("pool-too-small", site="ape", images=30):
        AuditPlan(small, AuditRequest(), "ape").run(1)
    virtual = replace(
        target(tmp_path), config=Config(method=tiny.fedavg(distil__per_class=30, distil__short="refuse"), plan=PLAN)
    )
    with refuses("half-too-small", site="ape", per_class=30):
        AuditPlan(virtual, AuditRequest(), "ape").run(1)
    assert not list(tmp_path.iterdir())
