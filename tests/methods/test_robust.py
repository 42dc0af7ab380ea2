"""Median and trimmed mean against numpy in float64, their limits, and what they are for."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlgd.core.errors import SettingError
from fedlgd.core.types import Update
from fedlgd.engines.storage import Inbox
from fedlgd.methods import common, registry, robust
from fedlgd.methods.fedavg import FedAvg
from fedlgd.methods.robust import Median, Trim, Trimmed, middle_mean, middle_model
from fedlgd.runs.config import Config, RunSettings, resolve
from tests import tiny
from tests.contract import battery
from tests.errors import refuses

PLAN = RunSettings(rounds=3, ratio=0.67, seed=5, evaluate_every=3)
ROBUST = [name for name in registry.names() if "robust" in registry.find_method(name).stackable]


def sent(models, weights=None) -> list[Update]:
    weights = weights or [1.0] * len(models)
    return [
        Update(site=f"s{i}", params=model, weight=w)
        for i, (model, w) in enumerate(zip(models, weights, strict=True))
    ]


def random_models(n: int, seed: int = 0) -> list[dict[str, torch.Tensor]]:
    draw = torch.Generator().manual_seed(seed)
    return [
        {"w": torch.randn(3, 4, generator=draw), "b": torch.randn(5, generator=draw), "n": torch.tensor(7 + i % 2)}
        for i in range(n)
    ]


def trimmed_by_hand(values: np.ndarray, share: float) -> np.ndarray:
    """Coordinate by coordinate, in float64."""
    n = len(values)
    cut = int(share * n + 1e-9)
    out = np.empty(values[0].size)
    for i, column in enumerate(values.reshape(n, -1).T):
        kept = sorted(float(v) for v in column)[cut : n - cut]
        out[i] = sum(kept) / len(kept)
    return out.reshape(values[0].shape)


# The formulas


@settings(deadline=None, max_examples=40)
@given(n=st.integers(1, 9), seed=st.integers(0, 1000))
def test_the_median_is_numpys(n, seed):
    models = random_models(n, seed)
    found = middle_model(sent(models), 0.5)
    for name in ("w", "b"):
        wanted = np.median(np.stack([m[name].numpy() for m in models]).astype(np.float64), axis=0)
        np.testing.assert_allclose(found[name].numpy(), wanted, rtol=1e-6, atol=0)
        assert found[name].dtype == torch.float32


@settings(deadline=None, max_examples=40)
@given(n=st.integers(1, 9), seed=st.integers(0, 1000), share=st.sampled_from([0.0, 0.1, 0.2, 1 / 3, 0.4, 0.49]))
def test_the_trimmed_mean_is_the_one_counted_by_hand(n, seed, share):
    models = random_models(n, seed)
    found = middle_model(sent(models), share)
    for name in ("w", "b"):
        wanted = trimmed_by_hand(np.stack([m[name].numpy() for m in models]).astype(np.float64), share)
        np.testing.assert_allclose(found[name].numpy(), wanted, rtol=1e-6, atol=1e-7)


def test_values_in_float64_keep_their_precision():
    values = torch.randn(6, 10, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    np.testing.assert_array_equal(middle_mean(values, 2).numpy(), np.median(values.numpy(), axis=0))


def test_an_integer_is_the_lower_median():
    assert middle_mean(torch.tensor([9, 1, 5]), 0).item() == 5
    assert middle_mean(torch.tensor([9, 1, 5, 2**62]), 1).item() == 5


@pytest.mark.parametrize("share", [0.0, 0.3, 0.5])
@pytest.mark.parametrize("n", [1, 2, 3, 4, 7])
def test_identical_updates_come_back_bit_for_bit(n, share):
    model = random_models(1)[0]
    assert tiny.equal(middle_model(sent([model] * n), share), model)


def test_nothing_trimmed_is_the_mean():
    updates = sent(random_models(6))
    found, wanted = middle_model(updates, 0.0), common.weighted_mean(updates)
    for name in ("w", "b"):
        torch.testing.assert_close(found[name], wanted[name])


def test_weights_do_not_count():
    models = random_models(5)
    a, b = (middle_model(sent(models, weights), 0.2) for weights in ([1.0] * 5, [1.0, 1e9, 3.0, 1.0, 1.0]))
    assert tiny.equal(a, b)


# Memory


@pytest.mark.parametrize("room", [0, 200, 10**9])
def test_tensors_are_read_in_groups_and_the_order_of_names_is_kept(room, monkeypatch):
    monkeypatch.setattr(robust, "ROOM", room)
    models = random_models(5)
    found = middle_model(sent(models), 0.5)
    assert list(found) == ["w", "b", "n"]
    for name in ("w", "b"):
        assert torch.equal(found[name], torch.stack([m[name] for m in models]).median(0).values)


def test_updates_that_wait_in_a_file_are_read_too(monkeypatch):
    monkeypatch.setattr("fedlgd.engines.storage.MAX_BYTES_IN_RAM", 100)
    updates = sent(random_models(5))
    with Inbox([u.site for u in updates]) as inbox:
        for update in updates:
            inbox.add(update)
        assert tiny.equal(middle_model(inbox, 0.5), middle_model(updates, 0.5))


# As parts of methods


def test_the_methods_that_take_a_robust_average_are_those_that_average_plainly():
    assert ROBUST == ["fedavg", "fedbn", "fedlgd", "fedmix", "fedmix-naive", "fedprox", "moon", "vhl"]


@pytest.mark.parametrize("part", ["median", "trimmed"])
@pytest.mark.parametrize("name", ROBUST)
def test_a_method_with_a_robust_average_runs_and_resumes_bit_equal(name, part):
    data = tiny.federation(test=1)
    of = tiny.settings(battery.quick(f"{name}+{part}"), {})
    whole = tiny.Run(of, data, PLAN)
    first = tiny.Run(of, data, PLAN, rounds=1)
    rest = tiny.Run(of, data, PLAN, memory=first.memory)
    assert tiny.equal(rest.states[-1].params, whole.states[-1].params)
    assert of.name == f"{name}+{part}"


@pytest.mark.parametrize("name", [name for name in ROBUST if name != "fedbn"])
def test_nothing_trimmed_on_virtual_sets_is_the_method_itself(name):
    data, plan = tiny.federation(test=1), RunSettings(rounds=2, evaluate_every=2)
    more = {} if name == "fedlgd" else {"train_on": "virtual"}
    bare = tiny.Run(battery.quick(name, **more), data, plan)
    part = tiny.Run(battery.quick(f"{name}+trimmed", **more, trimmed__share=0.0), data, plan)
    for key, value in bare.states[-1].params.items():
        torch.testing.assert_close(part.states[-1].params[key], value)


def test_the_server_takes_the_median_of_what_the_sites_sent():
    updates = sent(random_models(5))
    state = tiny.ServerState(params=updates[0].params)
    after = Median(method=FedAvg()).server(state, updates, tiny.net(), tiny.Stream(0))
    assert tiny.equal(after.params, middle_model(updates, 0.5))
    assert after.round == 1


@pytest.mark.parametrize("order", ["anchors+median", "median+anchors"])
def test_anchors_and_a_median_go_together_in_any_order(order):
    data, plan = tiny.federation(test=1), RunSettings(rounds=2, evaluate_every=2)
    runs = [
        tiny.Run(battery.quick(f"fedavg+{stack}", train_on="virtual"), data, plan)
        for stack in ("anchors+median", order)
    ]
    a, b = (run.states[-1] for run in runs)
    assert tiny.equal(a.params, b.params)
    assert torch.equal(a.anchors.images, b.anchors.images)
    assert a.held == b.held == dict.fromkeys(tiny.NAMES, 0)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("scaffold+median", r"median cannot be stacked on scaffold"),
        ("fednova+trimmed", r"trimmed cannot be stacked on fednova"),
        ("fedproto-avg+median", r"median cannot be stacked"),
        ("fedavg+median+trimmed", r"trimmed cannot be stacked on fedavg\+median"),
        ("fedavg+median+median", r"median cannot be stacked on fedavg\+median"),
    ],
)
def test_where_a_robust_average_makes_no_sense_it_is_refused(name, message):
    with pytest.raises(SettingError, match=message):
        resolve({"method": name})


@pytest.mark.parametrize("share", [-0.1, 0.5, float("nan")])
def test_a_senseless_share_is_refused(share):
    with refuses("setting-out-of-bounds", SettingError, setting="trimmed.share"):
        Trim(share=share)


def test_settings_survive_the_way_through_a_file():
    made = resolve({"method": "fedavg+trimmed"}, {"trimmed.share": 0.25}).method
    assert made == Trimmed(method=FedAvg(), trimmed=Trim(share=0.25))
    assert resolve(Config(method=made).plain()).method == made
    assert resolve(Config(method=Median(method=FedAvg())).plain()).method == Median(method=FedAvg())
    assert made.label == "FedAvg + trimmed mean on real data"


# What they are for


@pytest.mark.parametrize("part", ["median", "trimmed"])
def test_one_site_of_five_that_sends_huge_numbers_does_not_move_the_model_out_of_the_others_range(part):
    honest = random_models(4)
    attack = {name: value * 0 + 10**6 for name, value in honest[0].items()}
    of = battery.quick(f"fedavg+{part}")
    updates = sent([*honest, attack], [1.0, 1.0, 1.0, 1.0, 1e6])
    after = of.server(tiny.ServerState(params=honest[0]), updates, tiny.net(), tiny.Stream(0))
    plain = FedAvg().server(tiny.ServerState(params=honest[0]), updates, tiny.net(), tiny.Stream(0))
    for name in ("w", "b"):
        stack = torch.stack([m[name] for m in honest])
        assert bool((after.params[name] <= stack.max(0).values).all())
        assert bool((after.params[name] >= stack.min(0).values).all())
        assert float(plain.params[name].min()) > 1e5


def test_updates_are_not_changed():
    updates = sent(random_models(3))
    before = battery.bits([replace(u) for u in updates])
    middle_model(updates, 0.5)
    assert battery.bits(updates) == before
