"""Search spaces and the candidates that are drawn from them."""

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedlgd.methods import registry
from fedlgd.runs.config import resolve
from fedlgd.runs.space import Range, check_known, draw_settings, paths, read_space, space_of
from tests.errors import refuses


@given(st.floats(0, 1, exclude_max=True), st.booleans())
def test_a_value_of_a_range_lies_in_it(u, log):
    assert 0.003 <= Range(0.003, 0.3, log).at(u) <= 0.3
    assert Range(1, 4, log).at(u) in (1, 2, 3, 4)


def test_the_middle_of_a_logarithmic_range_is_the_geometric_mean():
    assert Range(0.01, 1.0, log=True).at(0.5) == pytest.approx(0.1)
    assert Range(0.0, 1.0).at(0.5) == 0.5


def test_candidates_come_from_the_seed_and_shared_settings_agree_between_methods():
    space = read_space()
    ours, theirs = (space_of(space, method, "convnet", {}) for method in ("fedlgd", "fedavg"))
    for number in range(1, 6):
        one, other = draw_settings(ours, number, seed=3), draw_settings(theirs, number, seed=3)
        assert {path: one[path] for path in other} == other
        assert one != draw_settings(ours, number, seed=4)
    assert draw_settings(ours, 0, seed=3) == {}


def test_draws_cover_a_list_evenly_and_a_range_on_its_scale():
    space = {"a": ["x", "y", "z"], "b": Range(0.01, 1.0, log=True)}
    drawn = [draw_settings(space, number, seed=0) for number in range(1, 901)]
    assert all(250 < sum(each["a"] == value for each in drawn) < 350 for value in "xyz")
    assert 400 < sum(each["b"] < 0.1 for each in drawn) < 500


@pytest.mark.parametrize("method", registry.names())
def test_the_default_space_has_something_for_every_method_and_only_allowed_values(method):
    space = space_of(read_space(), method, "convnet", {})
    assert "local.lr" in space
    assert set(space) <= set(paths(method, "convnet"))
    for path, values in space.items():
        for value in (values.low, values.high) if isinstance(values, Range) else values:
            resolve({"method": method}, {path: value})


def test_a_setting_can_be_for_one_method_and_given_values_are_not_searched():
    space = read_space({"local": {"lr": [0.1, 0.2], "epochs": [1, 2]}, "fedprox": {"mu": {"low": 0.1, "high": 1}}})
    assert list(space_of(space, "fedprox+anchors", "convnet", {})) == ["local.lr", "local.epochs", "mu"]
    assert list(space_of(space, "fedavg", "convnet", {"local.lr": 0.1})) == ["local.epochs"]
    with refuses("space-exhausted", method="fedavg"):
        space_of(space, "fedavg", "convnet", {"local.lr": 0.1, "local.epochs": 1})


@pytest.mark.parametrize(
    "value",
    [0.1, [], {"low": 1}, {"low": 2, "high": 1}, {"low": 0, "high": 1, "log": True}, {"low": "a", "high": 2}],
)
def test_a_value_that_is_neither_a_list_nor_a_range_is_named(value):
    with refuses("space-value", path="local.lr", value=value):
        read_space({"local": {"lr": value}})


def test_an_empty_space_and_an_unknown_setting_are_errors(tmp_path: Path):
    file = tmp_path / "space.toml"
    file.write_text("[local]\n")
    with refuses("space-empty"):
        read_space(file)
    file.write_text("[local]\nlrr = [0.1]\n")
    with refuses("space-unknown", path="local.lrr", methods=["fedavg"], hint="; did you mean 'local.lr'?"):
        check_known(read_space(file), ["fedavg"], "convnet")
    check_known(read_space({"net": {"width": [8, 16]}, "mu": [1.0]}), ["fedavg", "fedprox"], "convnet")


def test_no_value_is_not_a_number():
    assert all(math.isfinite(draw_settings(read_space(), n, 0)["local.lr"]) for n in range(1, 50))
