"""How far apart sites are: the numbers against loops, and what a measurement promises."""

import math
import statistics

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlgd.core.errors import DataError, SettingError
from fedlgd.core.losses import mmd_rbf
from fedlgd.core.meter import listening
from fedlgd.core.types import LabelledSet, Stream
from fedlgd.nets.registry import build_net
from fedlgd.runs import shift as module
from fedlgd.runs.analysis import between, mmd2
from fedlgd.runs.shift import Draws, features, measure, measure_class, over, pixels, random_features, width_of
from tests.oracle import slow
from tests.vectors import close, floats, vector


def rows(n, seed=0, away=0.0, dimensions=4):
    return torch.randn(n, dimensions, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + away


def labelled(n, seed=0, away=0.0, classes=2):
    x = torch.randn(n, 3, 8, 8, generator=torch.Generator().manual_seed(seed)) + away
    return LabelledSet(x, torch.arange(n) % classes)


def test_the_vector_of_the_specification():
    v = vector("mmd_rbf")
    close(mmd2(floats(v["source"]), floats(v["target"])), v["value"])


sizes = st.tuples(st.integers(2, 6), st.integers(2, 6), st.integers(0, 1000))


@settings(max_examples=25)
@given(sizes)
def test_biased_is_the_loss_and_the_loops(drawn):
    m, n, seed = drawn
    a, b = rows(m, seed), rows(n, seed + 1, 0.5)
    close(mmd2(a, b), mmd_rbf(a, b).item())
    close(mmd2(a, b), slow.mmd_rbf(a.tolist(), b.tolist()))


@settings(max_examples=25)
@given(sizes)
def test_unbiased_is_the_loops(drawn):
    m, n, seed = drawn
    a, b = rows(m, seed), rows(n, seed + 1, 0.5)
    close(mmd2(a, b, unbiased=True), slow.mmd_unbiased(a.tolist(), b.tolist()))
    close(mmd2(a, b, unbiased=True, width=3.0), slow.mmd_unbiased(a.tolist(), b.tolist(), 3.0))


def test_the_width_is_the_mean_squared_distance_of_different_points():
    a, b = rows(3), rows(4, 1, 2.0)
    joint = torch.cat([a, b])
    apart = [(u - v).square().sum() for i, u in enumerate(joint) for j, v in enumerate(joint) if i != j]
    close(width_of(a, b), torch.stack(apart).mean())


def test_single_precision_is_enough_far_from_the_origin():
    a, b = rows(40, 0, 30.0), rows(40, 1, 30.2)
    assert mmd2(a.float(), b.float(), unbiased=True) == pytest.approx(mmd2(a, b, unbiased=True), abs=1e-4)


def test_points_that_all_coincide_are_at_no_distance():
    assert mmd2(torch.ones(3, 2), torch.ones(4, 2)) == pytest.approx(0, abs=1e-6)


def test_unbiased_is_zero_on_average_for_one_source_and_biased_is_not():
    pairs = [(rows(20, 2 * seed), rows(20, 2 * seed + 1)) for seed in range(60)]
    unbiased = [mmd2(a, b, unbiased=True) for a, b in pairs]
    error = statistics.stdev(unbiased) / math.sqrt(len(unbiased))
    assert abs(statistics.fmean(unbiased)) < 3 * error
    assert statistics.fmean(mmd2(a, b) for a, b in pairs) > 10 * error


def test_between_is_every_pair():
    sets = {"a": rows(5), "b": rows(6, 1, 1.0), "c": rows(7, 2, 2.0)}
    matrix = between(sets)
    assert [matrix[i][i] for i in range(3)] == [0.0] * 3
    assert matrix[0][2] == matrix[2][0] == mmd2(sets["a"], sets["c"])
    assert matrix[1][2] == mmd2(sets["b"], sets["c"])
    assert between(sets, unbiased=True)[0][1] == mmd2(sets["a"], sets["b"], unbiased=True)


def test_mean_and_std_are_taken_element_by_element():
    mean, std = over([[[0.0, 1.0], [2.0, 3.0]], [[2.0, 1.0], [2.0, 5.0]]])
    assert mean == ((1.0, 1.0), (2.0, 4.0))
    torch.testing.assert_close(torch.tensor(std), torch.tensor([[math.sqrt(2), 0.0], [0.0, math.sqrt(2)]]))


NEAR = {"a": labelled(60), "b": labelled(60, 1), "c": labelled(60, 2, 1.0)}


def test_a_site_apart_is_farther_than_two_alike_and_the_diagonal_is_about_zero():
    found = measure(NEAR, pixels, Draws(size=20, draws=4), Stream(0))
    by_pair = {(a, b): mean for a, b, mean, _ in found.pairs}
    assert list(by_pair) == [("a", "b"), ("a", "c"), ("b", "c")]
    assert min(by_pair["a", "c"], by_pair["b", "c"]) > 1.0
    assert abs(by_pair["a", "b"]) < 0.05
    assert abs(found.zero) < 0.05
    assert found.average == pytest.approx(statistics.fmean(by_pair.values()))


def test_the_same_seed_gives_the_same_numbers_and_another_seed_others():
    how = Draws(size=10, draws=2)
    assert measure(NEAR, pixels, how, Stream(0)) == measure(NEAR, pixels, how, Stream(0))
    assert measure(NEAR, pixels, how, Stream(0)) != measure(NEAR, pixels, how, Stream(1))


def test_a_site_is_drawn_alike_whoever_else_is_measured():
    how = Draws(size=10, draws=2)
    pair = measure({name: NEAR[name] for name in ("a", "c")}, pixels, how, Stream(0))
    assert pair.mean[0][1] == measure(NEAR, pixels, how, Stream(0)).mean[0][2]


def test_the_two_draws_of_the_diagonal_share_no_image():
    seen = []

    def space(x, draw):
        seen.append(x.flatten(1).sum(1))
        return x.flatten(1)

    found = measure({"a": labelled(20), "b": labelled(40, 1)}, space, Draws(size=50, draws=2), Stream(0))
    assert found.size == 10
    assert all(len(values) == len(values.unique()) == 20 for values in seen)
    assert len(seen) == 2 * 2


def test_biased_lies_above_unbiased():
    biased, unbiased = (
        measure(NEAR, pixels, Draws(size=20, draws=2, unbiased=which), Stream(0)) for which in (False, True)
    )
    assert biased.zero > unbiased.zero + 0.1
    assert not biased.unbiased


def test_a_class_is_measured_among_its_images_alone():
    x = torch.cat([torch.zeros(8, 3, 4, 4), torch.ones(8, 3, 4, 4)]) + 0.01 * torch.randn(16, 3, 4, 4)
    alike = LabelledSet(x, torch.arange(16) // 8)
    turned = LabelledSet(x, 1 - torch.arange(16) // 8)
    how = Draws(size=4, draws=2)
    assert abs(measure({"a": alike, "b": alike}, pixels, how, Stream(0)).average) < 1.0
    assert measure_class({"a": alike, "b": turned}, 0, pixels, how, Stream(0)).average > 3.0


def test_a_class_leaves_out_sites_that_have_too_little_of_it():
    sites = {
        "a": labelled(20),
        "b": labelled(20, 1),
        "none": LabelledSet(torch.zeros(9, 3, 8, 8), torch.ones(9).long()),
    }
    assert measure_class(sites, 0, pixels, Draws(size=3, draws=2), Stream(0)).sites == ("a", "b")
    assert measure_class({"a": sites["a"], "none": sites["none"]}, 0, pixels, Draws(), Stream(0)) is None


def test_features_are_those_of_the_model(monkeypatch):
    monkeypatch.setattr(module, "BATCH_SIZE", 4)
    net = build_net("convnet", (3, 8, 8), 2, {"width": 4, "depth": 2})
    params, x = net.init(Stream(3)), labelled(10).x
    torch.testing.assert_close(features(net, params)(x, 7), net.frozen(params, x).features)


def test_random_features_are_of_another_net_in_each_draw_and_the_same_for_all_sites():
    net = build_net("convnet", (3, 8, 8), 2, {"width": 4, "depth": 2})
    space, x = random_features(net, Stream(0)), labelled(5).x
    assert torch.equal(space(x, 0), space(x, 0))
    assert not torch.equal(space(x, 0), space(x, 1))


def test_every_draw_is_told():
    heard = []
    with listening(lambda *tick: heard.append(tick)):
        measure(NEAR, pixels, Draws(size=4, draws=3), Stream(0), "pixels")
    assert heard == [("pixels", 1, 3), ("pixels", 2, 3), ("pixels", 3, 3)]


def test_too_few_images_are_refused():
    with pytest.raises(DataError, match="site 'b' has 3 images"):
        measure({"a": labelled(20), "b": labelled(3)}, pixels, Draws(), Stream(0))


@pytest.mark.parametrize("name", ["size", "draws"])
def test_draws_that_have_no_spread_are_refused(name):
    with pytest.raises(SettingError, match=r"is 1; use 2 (or more|to 2000)"):
        Draws(**{name: 1})
