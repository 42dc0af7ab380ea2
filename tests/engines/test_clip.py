"""The bound on the norm of an update, against numpy."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedlgd.core.errors import SettingError
from fedlgd.core.types import Update
from fedlgd.engines.settings import RoundSettings
from fedlgd.engines.validate import clip_update
from fedlgd.nets.registry import build_net
from tests import tiny
from tests.engines.hostile import PLAN, honest

TRAINED = frozenset({"w", "b"})


def models() -> tuple[dict[str, torch.Tensor], Update]:
    draw = torch.Generator().manual_seed(0)
    before = {"w": torch.randn(3, 4, generator=draw), "b": torch.randn(5, generator=draw), "mean": torch.zeros(2)}
    after = {name: value + torch.randn(value.shape, generator=draw) for name, value in before.items()}
    return before, Update(site="ape", params={**after, "n": torch.tensor(3)}, weight=1.0)


def distance(a, b, names=TRAINED) -> float:
    return math.sqrt(sum(float(((a[n].double() - b[n].double()) ** 2).sum()) for n in names))


@pytest.mark.parametrize("bound", [1e-6, 0.1, 1.0])
def test_a_larger_update_is_scaled_to_the_bound(bound):
    before, update = models()
    found, norm = clip_update(update, before, bound, TRAINED)
    assert norm == pytest.approx(distance(update.params, before))
    assert distance(found.params, before) == pytest.approx(bound, rel=1e-5, abs=1e-7)
    for name in TRAINED:
        start, end = (x[name].numpy().astype(np.float64) for x in (before, update.params))
        np.testing.assert_allclose(found.params[name].numpy(), start + (end - start) * bound / norm, rtol=1e-6)
        assert found.params[name].dtype == torch.float32


def test_buffers_are_neither_measured_nor_scaled():
    before, update = models()
    far = replace(update, params={**update.params, "mean": torch.full((2,), 1e9)})
    found, norm = clip_update(far, before, 0.1, TRAINED)
    assert norm == pytest.approx(distance(update.params, before))
    assert found.params["mean"] is far.params["mean"]
    assert found.params["n"] is far.params["n"]
    assert list(found.params) == list(far.params)


def test_an_update_within_the_bound_is_itself():
    before, update = models()
    assert clip_update(update, before, 100.0, TRAINED)[0] is update


def test_an_update_without_a_model_is_itself():
    update = Update(site="ape", params={}, weight=1.0)
    assert clip_update(update, {}, 1.0, TRAINED) == (update, 0.0)


def test_the_largest_finite_numbers_can_be_clipped():
    before, update = models()
    huge = replace(update, params={k: torch.full_like(v, 3e38) for k, v in update.params.items() if k != "n"})
    found, norm = clip_update(huge, before, 1.0, TRAINED)
    assert math.isfinite(norm)
    assert distance(found.params, before) == pytest.approx(1.0, rel=1e-5)


@pytest.mark.parametrize("bound", [-1.0, math.nan])
def test_a_senseless_bound_is_refused(bound):
    with pytest.raises(SettingError, match="clip_update"):
        RoundSettings(clip_update=bound)


@pytest.mark.parametrize("case", ["fedavg-real", "scaffold-real", "fedbn-real", "local-only-real", "vhl-real"])
def test_a_bound_that_nobody_reaches_changes_no_bit(case):
    of = honest(case)
    (server, plain), (other, wide) = (
        of.server(list(of.answers.values()), replace(PLAN, clip_update=bound)) for bound in (0.0, 1e9)
    )
    records = [list(s.run()) for s in (server, other)]
    assert tiny.without_seconds(records[0]) == tiny.without_seconds(records[1])
    assert tiny.equal(plain.server().params, wide.server().params)


def test_no_round_moves_the_model_further_than_the_bound_and_the_record_says_who_was_clipped():
    bound = 0.001
    run = tiny.Run(
        tiny.fedavg(train_on="real"), tiny.federation(test=1), RoundSettings(rounds=2, clip_update=bound)
    )
    names = tiny.net().trainable
    for before, after in zip(run.states, run.states[1:], strict=False):
        assert 0 < distance(before.params, after.params, names) <= bound * 1.001
    for record in run.records[1:]:
        assert all(metrics["clipped"] > bound for metrics in record.metrics.values())


def test_norm_statistics_pass_a_bound():
    net = build_net("tests.nets.own:Normed", (3, 8, 8), 3)
    plan = RoundSettings(rounds=1, clip_update=1e-4)
    run = tiny.Run(tiny.fedavg(train_on="real"), tiny.federation(test=1), plan, using=net)
    before, after = run.states
    assert distance(before.params, after.params, net.trainable) <= 1.001e-4
    assert distance(before.params, after.params, {"norm.running_mean"}) > 1e-3
