"""FedLAP: gradients near the model are matched, the server stays in a ball, and epsilon is that of all rounds."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedlgd.core.errors import PrivacyError
from fedlgd.core.meter import metered
from fedlgd.core.types import Broadcast, LabelledSet, ServerState, Stream, Update
from fedlgd.distill.gradient import batch_gradients, row_distance
from fedlgd.dp.budget import Level, spent_epsilon
from fedlgd.dp.training import noisy_gradients, training_level
from fedlgd.engines.settings import RoundSettings
from fedlgd.methods import common, union
from fedlgd.methods.fedlap import FedLAP, moved_by
from tests import tiny
from tests.errors import refuses

FEW = {"real_batch": 8, "outer": 2, "batches": 2, "boost": 2, "inner": 1, "search": 2, "local.epochs": 2}
PRIVATE = {"dp.epsilon": 60.0, "dp.counts": 0.2, "dp.test_key": "public", "dp.rounds": 2, "real_batch": 99}


def fedlap(**values: Any) -> FedLAP:
    own = {name.replace("__", "."): value for name, value in values.items()}
    return tiny.settings(FedLAP(), tiny.SETTINGS | FEW | own)


def _same(x: Tensor) -> Tensor:
    return x


def _drawn(seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((3, 4), (5,), (2, 3, 2, 2))]


def test_the_distance_of_gradients_is_that_of_loops_over_rows():
    a, b, wanted = _drawn(0), _drawn(1), 0.0
    for one, other in zip(a, b, strict=True):
        rows = zip(one, other, strict=True) if one.ndim > 1 else [(one, other)]
        gaps = [1 - float((s * t).sum() / (s.norm() * t.norm() + 1e-6)) for s, t in rows]
        wanted += sum(gaps) / len(gaps) + 0.1 * float((one - other).square().sum())
    assert float(row_distance(a, b, 0.1)) == pytest.approx(wanted, rel=1e-9)
    assert float(row_distance(a, a, 0.1)) == pytest.approx(0, abs=1e-4)
    assert float(row_distance([7 * each for each in a], b)) == pytest.approx(float(row_distance(a, b)), abs=1e-4)


def test_the_gradient_of_a_whole_batch_is_that_of_the_mean_cross_entropy():
    net = tiny.net()
    params, data = tiny.double(tiny.params(net)), tiny.labelled(net, 3, 1, torch.float64)
    found = batch_gradients(net, data, 1.0, torch.Generator())(params)(_same)
    weights = {name: value.clone().requires_grad_() for name, value in params.items()}
    leaves = [weights[name] for name in weights if name in net.trainable]
    wanted = torch.autograd.grad(tiny.cross_entropy(net, weights, data), leaves, materialize_grads=True)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


def test_without_noise_and_clipping_the_private_gradient_is_the_plain_one():
    net, data = tiny.net(), tiny.labelled(tiny.net(), 4, 2)
    params, level = tiny.params(net), Level(0.0, 1.0, 1, 1)
    noisy = noisy_gradients(net, data, level, 1e9, float(len(data)), np.random.default_rng(0))(params)(_same)
    plain = batch_gradients(net, data, 1.0, torch.Generator())(params)(_same)
    for one, other in zip(noisy, plain, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_images_come_to_have_the_gradient_of_the_real_ones():
    net, site = tiny.net(), tiny.federation().by_name["ape"]
    params = tiny.params(net, 3)
    method = fedlap(inner=0, batches=20, distil__lr=1.0, distil__augment=(), real_batch=99)
    before = union.images_before(union.SiteState(), site, net, method.distil, 0, Stream(1))
    real = batch_gradients(net, site.train, 1.0, torch.Generator())
    images = method.condense(before, net, params, real, Stream(2))

    def gap(x: Tensor) -> float:
        made = batch_gradients(net, LabelledSet(x, before.labels), 1.0, torch.Generator())
        return float(row_distance(made(params)(_same), real(params)(_same)))

    assert gap(images) < 0.7 * gap(before.images)


def _uploads(method: FedLAP, radii: tuple[float, ...]) -> list[Update]:
    net, sent = tiny.net(), []
    for name, radius in zip(tiny.NAMES, radii, strict=True):
        site, message = tiny.federation().by_name[name], Broadcast(round=0, params=tiny.params(net))
        update, _ = method.site(message, union.SiteState(), site, net, Stream(1).at("site", name, 0))
        sent.append(replace(update, trees={**update.trees, "radius": {"value": torch.tensor(radius)}}))
    return sent


def test_the_server_stops_at_the_radius_of_the_vote_and_far_away_it_is_that_of_feddm_bit_for_bit():
    method, net = fedlap(local__epochs=30, search=0, inner=0), tiny.net()
    state = ServerState(params=tiny.params(net))

    def after(method: FedLAP, radii: tuple[float, ...]) -> Any:
        return method.server(state, _uploads(method, radii), net, Stream(5)).params

    assert tiny.equal(after(method, (0.0, 9.0, 9.0)), state.params)
    whole = common.fit_on(net, state.params, union.union_of(_uploads(method, (1.0,) * 3)), method.local, Stream(5))
    assert tiny.equal(after(method, (1e5,) * 3), whole.params)
    moved = [
        moved_by(after(replace(method, vote=v), (0.1, 0.2, 0.4)), state.params, net)
        for v in ("min", "median", "max")
    ]
    assert all(r <= d < r + 0.1 for r, d in zip((0.1, 0.2, 0.4), moved, strict=True))


def test_a_site_tells_the_distance_at_which_its_images_help_most_and_never_more_than_the_setting():
    for bound, search in ((10.0, 3), (1e-3, 3), (0.5, 0)):
        run = tiny.Run(fedlap(radius=bound, search=search), tiny.federation(), RoundSettings(rounds=1))
        assert run.records[1].refused == {}
    sent = _uploads(fedlap(radius=1e-3), (1.0,) * 3)
    assert all(update.trees["virtual"]["images"].isfinite().all() for update in sent)
    message, net = Broadcast(round=0, params=tiny.params(tiny.net())), tiny.net()
    site = tiny.federation().by_name["ape"]
    found = [
        float(
            fedlap(radius=bound).site(message, union.SiteState(), site, net, Stream(1))[0].trees["radius"]["value"]
        )
        for bound in (10.0, 1e-3)
    ]
    assert 1e-3 < found[0] < 10
    assert found[1] == pytest.approx(1e-3)


def test_the_search_for_the_radius_is_work_of_a_site_and_not_its_evaluation():
    net, site = tiny.net(), tiny.federation().by_name["ape"]
    message, spent = Broadcast(round=0, params=tiny.params(net)), []
    for search in (0, 2):
        with metered() as meter:
            fedlap(search=search).site(message, union.SiteState(), site, net, Stream(1))
        spent.append(dict(meter.flops))
    scored = 2 * len(site.train) * net.flops
    assert spent[1].get("evaluate", 0) == 0
    assert spent[1]["train"] - spent[0]["train"] > scored


# With epsilon


def test_one_round_of_the_published_noise_is_not_the_epsilon_of_the_run():
    """q = 256 / 10 000, sigma = 1, delta = 1e-5, 200 releases in a round; 29 rounds were run."""
    one, all_rounds = (spent_epsilon([Level(1.0, 0.0256, rounds, 200)], 1e-5) for rounds in (1, 29))
    assert 2.2 < one < 2.8
    assert 12 < all_rounds < 15.4


def test_the_noise_is_that_of_all_gradients_of_all_rounds_and_boost_is_free():
    counts = torch.tensor([4000.0, 6000.0])
    method = fedlap(dp__epsilon=4.0, dp__rounds=5, dp__counts=0.01, real_batch=256, outer=3, batches=7, boost=50)
    level = training_level(method.dp, method._steps, counts, "ape")
    assert (level.rate, level.releases, level.each) == (0.0256, 5, 21)
    counted = Level(1 / (0.01**0.5 * 1.0), 1.0)  # a lower bound of what counts cost is nothing
    assert (
        spent_epsilon([level], 1e-5)
        <= 4.0
        < spent_epsilon([level._replace(sigma=level.sigma * 0.9), counted], 1e-5)
    )


def test_the_account_does_not_depend_on_how_a_rate_grows_that_the_method_does_not_have(monkeypatch):
    own = {path.replace(".", "__"): value for path, value in PRIVATE.items()}
    method, accounts = fedlap(distil__plan="bank", distil__per_class=12, **own), set()
    for tuned in (10, 100):
        monkeypatch.setattr("fedlgd.distill.settings.TUNED_COUNT", tuned)
        accounts.add(method._account(tiny.federation().sites[0], tiny.net(), 0)[1])
    assert len(accounts) == 1


def test_with_epsilon_a_sealed_site_sends_images_of_all_classes_and_a_radius_that_is_a_setting():
    data = tiny.federation(train=30, missing={"bee": 1})
    method = fedlap(**{path.replace(".", "__"): value for path, value in PRIVATE.items()})
    runs = [tiny.Run(method, data, RoundSettings(rounds=2)) for _ in range(2)]
    assert tiny.equal(runs[0].states[-1].params, runs[1].states[-1].params)
    assert all(record.refused == {} and record.readers == 0 for record in runs[0].records)
    kept = runs[0].memory.site("bee")
    assert kept.virtual.labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert (method.label, method.budget, fedlap().budget) == ("FedLAP-DP", method.dp, None)


def test_more_rounds_than_the_budget_has_are_refused():
    method = fedlap(**{path.replace(".", "__"): value for path, value in PRIVATE.items()})
    with refuses("round-beyond-budget", PrivacyError, rounds=2, round=3):
        tiny.Run(method, tiny.federation(train=30), RoundSettings(rounds=3))


@pytest.mark.parametrize("given", [{"distil__start": "statistics"}, {"images": "new"}])
def test_with_epsilon_images_begin_as_noise(given):
    with refuses("start-without-noise", PrivacyError):
        fedlap(**given, dp__epsilon=4.0)
