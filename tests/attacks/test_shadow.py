"""Shadow federations: random halves, the tap, invariance, resume, and what must or must not be found in them."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedlgd.attacks import shadow
from fedlgd.attacks.findings import BLIND_LABEL, blind_findings, findings_of
from fedlgd.attacks.pool import draw_pool, halved, members_in
from fedlgd.attacks.shadow import Observations, Shadow, distil_watched, run_shadows, run_watched
from fedlgd.attacks.watch import Study
from fedlgd.core.types import LabelledSet, Stream
from fedlgd.engines.storage import RamStates
from fedlgd.methods.collabdm import CollabDM
from fedlgd.runs.config import Config, RunSettings
from tests import tiny
from tests.errors import refuses

RNG = Stream(0).at("audit")
PLAN = RunSettings(rounds=3, evaluate_every=3, analysis=False, real_samples=0)
EVERYONE = {"": np.ones(180, dtype=bool)}


@pytest.fixture(scope="module")
def data():
    return tiny.federation(train=60, test=20)


def study_of(federation, flip: float = 0.0) -> Study:
    return Study.of(federation, draw_pool(federation, "ape", 1000, flip, RNG), tiny.net(), RNG)


def ignore(*_) -> None:
    """What to do after a round."""


def config(**settings) -> Config:
    return Config(method=tiny.fedlgd(**settings), plan=PLAN)


def permuted(federation):
    """The same federation with its sites and the images of site ape in another order."""
    order = torch.randperm(180, generator=torch.Generator().manual_seed(1))
    ape = federation.by_name["ape"]
    moved = replace(ape, train=LabelledSet(ape.train.x[order], ape.train.y[order], ape.train.scale))
    rest = [site for site in federation.sites if site.name != "ape"]
    return replace(federation, sites=(*reversed(rest), moved))


def test_a_site_has_only_its_members_and_others_have_everything(data):
    pool = draw_pool(data, "ape", 1000, 0.0, RNG)
    members = members_in(pool, 0, RNG)
    half = halved(data, pool, members)
    assert len(half.by_name["ape"].train) == int(members.sum())
    assert 60 < int(members.sum()) < 120
    assert half.by_name["bee"] is data.by_name["bee"]
    assert not torch.equal(members, members_in(pool, 1, RNG))


def test_a_large_site_keeps_the_images_that_are_not_attacked(data):
    pool = draw_pool(data, "ape", 50, 0.0, RNG)
    train = data.by_name["ape"].train
    assert (len(pool), len(pool.rest)) == (50, 130)
    for members in (torch.ones(50, dtype=torch.bool), members_in(pool, 0, RNG)):
        half = halved(data, pool, members).by_name["ape"].train
        assert len(half) == 130 + int(members.sum())
        kept = {x.numpy().tobytes() for x in half.x}
        assert {x.numpy().tobytes() for x in pool.rest.x} <= kept <= {x.numpy().tobytes() for x in train.x}
        assert not kept & {x.numpy().tobytes() for x in pool.data.x[~members]}


def test_canaries_have_a_wrong_label_and_nothing_else_changes(data):
    plain, flipped = (draw_pool(data, "ape", 1000, flip, RNG) for flip in (0.0, 0.05))
    assert torch.equal(plain.data.x, flipped.data.x)
    assert torch.equal(plain.data.y != flipped.data.y, flipped.flipped)
    assert 2 <= int(flipped.flipped.sum()) <= 20


def test_noise_canaries_are_other_images_with_a_wrong_label(data):
    plain = draw_pool(data, "ape", 1000, 0.0, RNG)
    noise = draw_pool(data, "ape", 1000, 0.1, RNG, "noise")
    changed = (plain.data.x != noise.data.x).flatten(1).any(1)
    assert torch.equal(changed, noise.flipped)
    assert torch.equal(plain.data.y != noise.data.y, noise.flipped)
    assert set(noise.parts) == {"", ", noise"}
    assert torch.equal(data.by_name["ape"].train.x, tiny.federation(train=60, test=20).by_name["ape"].train.x)


def test_the_tap_sees_every_message_and_changes_none(data):
    """Three sites: each enrols once, and trains in each of three rounds. All are scored after the last."""
    seen = []
    for tap in (lambda *_: None, lambda task, answer: seen.append((task.what, task.round, task.site, answer.site))):
        net, states = tiny.net(), RamStates()
        state, accuracy = shadow.run_federation(config(), data, net, states, ignore, tap)
        seen.append((accuracy, *(float(value.sum()) for value in state.params.values())))
    first, *messages, last = seen
    assert first == last
    assert all(asked == answered for *_, asked, answered in messages)
    sites = sorted(data.by_name)
    assert sorted(site for what, _, site, _ in messages if what == "enrol") == sites
    for t in range(3):
        assert sorted(site for what, r, site, _ in messages if (what, r) == ("train", t)) == sites
    assert sorted(site for what, _, site, _ in messages if what == "score") == sites


def test_the_order_of_sites_and_images_does_not_change_an_audit(data):
    results = []
    for federation in (data, permuted(data)):
        study = study_of(federation)
        results.append(run_watched(config(), federation, tiny.net(), study, members_in(study.pool, 0, RNG), ignore))
    first, second = results
    assert first.statistics.keys() == second.statistics.keys()
    for name, values in first.statistics.items():
        assert torch.equal(values, second.statistics[name]), name
    assert first.accuracy == second.accuracy


def test_every_target_of_fedlgd_is_seen_and_fedavg_has_only_model_and_updates(data):
    study = study_of(data)
    members = members_in(study.pool, 0, RNG)
    whole = run_watched(config(), data, tiny.net(), study, members, ignore)
    assert {"model/phi", "model/p", "virtual/trace", "anchors/nearest", "updates/along"} < whole.statistics.keys()
    real = replace(config(), method=tiny.fedavg(train_on="real"))
    seen = run_watched(real, data, tiny.net(), study, members, ignore).statistics
    assert {name.partition("/")[0] for name in seen} == {"model", "updates", "blind"}


def test_noisy_sums_are_a_target_of_a_simulation_of_privacy(data):
    study = study_of(data)
    members = members_in(study.pool, 0, RNG)
    values = {"epsilon": 60.0, "counts": 0.2, "releases": 3, "blocks": 1, "test_key": "k"}
    private = tiny.fedlgd(distil__plan="bank", **{f"distil__private__{k}": v for k, v in values.items()})
    first, again = (
        run_watched(Config(method=private, plan=PLAN), data, tiny.net(), study, members, ignore).statistics
        for _ in range(2)
    )
    assert "releases/filter" in first
    assert torch.equal(first["releases/filter"], again["releases/filter"])
    assert (first["releases/filter"] != 0).all()


def test_a_start_from_real_images_is_detected_and_blind_controls_are_at_chance(data):
    study = study_of(data)
    start = replace(config(), method=tiny.fedavg(distil__start="real", distil__steps=0, distil__per_class=10))
    masks = [members_in(study.pool, i, RNG) for i in range(5)]
    seen = [distil_watched(start, data, tiny.net(), study, members, ignore) for members in masks]
    found = findings_of(seen, "rmia", EVERYONE, RNG, "positive", "real start", 1e-5)
    closest = next(each for each in found if each.statistic == "nearest image")
    assert closest.auc[0] > 0.55
    net = tiny.net()
    blind = blind_findings(study, net, tiny.params(net), seen, RNG)
    assert {each.label for each in blind} == {BLIND_LABEL}
    for each in blind:
        assert each.auc[0] <= 0.5 <= each.auc[2], each.statistic


def test_the_tiles_of_a_virtual_set_are_attacked_one_by_one(data, monkeypatch):
    seen, study = [], study_of(data)
    monkeypatch.setattr(Study, "of_images", lambda _, images, labels: seen.append((len(images), len(labels))) or {})
    start = replace(config(), method=tiny.fedavg(distil__start="real", distil__steps=0, distil__tiles=2))
    distil_watched(start, data, tiny.net(), study, members_in(study.pool, 0, RNG), ignore)
    pictures = 4 * start.method.distil.per_class * len(data.classes)
    assert seen == [(pictures, pictures)]


def test_mislabelled_images_are_scored_apart(data):
    study = study_of(data, flip=0.2)
    seen = []
    for i in range(3):
        phi = torch.randn(180, 5, generator=torch.Generator().manual_seed(i), dtype=torch.float64)
        statistics = {"model/phi": phi, "model/p": phi[:, 0].sigmoid(), "model/population": torch.rand(50)}
        seen.append(Observations(members=members_in(study.pool, i, RNG), statistics=statistics, accuracy=0.5))
    found = findings_of(seen, "lira", study.pool.parts, RNG, "run", "x", 1e-5)
    sizes = {each.statistic: each.n_in + each.n_out for each in found}
    flipped = int(study.pool.flipped.sum())
    assert sizes == {"LiRA": 3 * (180 - flipped), "LiRA, mislabelled": 3 * flipped}


@pytest.mark.parametrize("jobs", [1, 2])
def test_finished_federations_are_not_run_again(tmp_path, jobs):
    def run_of(i: int, allowed: bool):
        def run(on_round):
            assert allowed
            on_round()
            return Observations(
                members=torch.tensor([True]), statistics={"a": torch.tensor([float(i)])}, accuracy=0.5
            )

        return run

    first = [Shadow(tmp_path / f"{i}", run_of(i, True), 1) for i in range(3)]
    run_shadows(first[:2], jobs)
    run_shadows([*(Shadow(each.file, run_of(0, False), 1) for each in first[:2]), first[2]], jobs)
    assert [each.read().statistics["a"].item() for each in first] == [0, 1, 2]


def test_an_error_in_a_parallel_federation_is_told(tmp_path):
    def fail(_):
        raise shadow.RunError("the disk is full")

    again = "fedlgd audit out --jobs 1"
    with refuses("shadow-failed", title="shadow federation 0 of FedDM", command=again) as caught:
        run_shadows([Shadow(tmp_path / "0", fail, 1, "FedDM")], 2, again)
    assert "disk" in caught.value.values["error"]


def test_without_shifts_the_model_is_asked_about_the_image_itself(data):
    study, net = study_of(data), tiny.net()
    params = net.init(RNG.at("model"))
    every, one = study.of_model(net, params), replace(study, shifted=False).of_model(net, params)
    assert (every["phi"].shape[1], one["phi"].shape[1]) == (5, 1)
    assert torch.equal(every["phi"][:, :1], one["phi"])
    assert torch.equal(every["population"], one["population"])
    torch.testing.assert_close(every["p"], one["p"])


def test_feature_means_under_public_networks_show_members_and_those_of_another_site_do_not(data):
    method = tiny.settings(CollabDM(), tiny.SETTINGS | {"distil.steps": 4, "distil.real_per_class": 99})
    study, few = study_of(data), RunSettings(rounds=1, analysis=False, real_samples=0)
    members = members_in(study.pool, 0, RNG)
    seen = run_watched(Config(method=method, plan=few), data, tiny.net(), study, members, ignore)
    area, blind = (
        float((each[members][:, None] > each[~members]).double().mean())
        for each in (seen.statistics["features/trace"], seen.statistics["blind/means"])
    )
    assert area > 0.6
    assert abs(blind - 0.5) < 0.09
    assert not any("means" in path for path in seen.unattacked)


def test_the_statistic_of_feature_means_is_that_of_a_loop_over_images(data):
    study, net = study_of(data), tiny.net()
    params, transforms = tiny.params(net), [lambda x: x + 0.1, lambda x: x, lambda x: -x]
    means = torch.randn(3, net.features, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = study.of_draw((net, params, transforms), means)

    def features(part):
        rows = [net(params, transforms[int(y)](x[None])).features[0] for x, y in zip(part.x, part.y, strict=True)]
        return torch.stack(rows).double().detach()

    others, mine = features(study.population), features(study.attacked.take(slice(0, 9)))
    for i, (f, y) in enumerate(zip(mine, study.attacked.y[:9], strict=True)):
        r = others[study.population.y == y].mean(0)
        assert float(found[i]) == pytest.approx(float((f - r) @ (means[y] - r)), rel=1e-4, abs=1e-6)
