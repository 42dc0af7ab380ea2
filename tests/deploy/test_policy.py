"""The policy of a site."""

import math
import re
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedlgd.core.errors import SettingError
from fedlgd.deploy.kit import template
from fedlgd.deploy.policy import Asked, Policy, TaskError
from fedlgd.methods import registry
from fedlgd.nets.registry import NETS
from tests.errors import refuses

TASK = Asked(what="train", method="fedlgd", settings={}, net="convnet", rounds=10, round=3)


def policy(tmp_path: Path, more: str = "", **changed: str) -> Policy:
    lines = {
        "methods": '["fedlgd", "fedlgd+*"]',
        "nets": '["convnet"]',
        "rounds": "10",
        "disclose": '["counts"]',
        **changed,
    }
    text = "".join(f"{name} = {value}\n" for name, value in lines.items())
    (tmp_path / "site.toml").write_text(text + more)
    return Policy.read(tmp_path / "site.toml")


def with_settings(**settings: object) -> Asked:
    return replace(TASK, settings={name.replace("__", "."): value for name, value in settings.items()})


def test_the_default_policy_allows_methods_and_nets_that_exist(tmp_path):
    (tmp_path / "site.toml").write_text(template("site.toml"))
    default = Policy.read(tmp_path / "site.toml")
    assert {name for name in default.methods if "*" not in name} <= set(registry.names())
    assert set(default.nets) == set(NETS)
    default.check(TASK)
    with refuses("setting-not-listed", TaskError, path="anchors.start", value="statistics"):
        default.check(with_settings(anchors__start="statistics"))
    with refuses("setting-too-high", TaskError, path="distil.per_class", value=101):
        default.check(with_settings(distil__per_class=101))


def test_every_setting_that_the_default_policy_names_exists_also_in_its_comments(tmp_path):
    text = re.sub(r'^# ("[a-z_.]+" = )', r"\1", template("site.toml"), flags=re.MULTILINE)
    (tmp_path / "site.toml").write_text(text)
    named = Policy.read(tmp_path / "site.toml").settings
    documented = Path("docs/settings.md").read_text()
    assert len(named) >= 4
    assert all(f"`{path}`" in documented for path in named)
    allowed = with_settings(distil__private__epsilon=4.0, dp__epsilon=4.0)
    whole = Policy.read(tmp_path / "site.toml")
    whole.check(allowed)
    with refuses("setting-too-low", TaskError, path="distil.private.epsilon", value=0.0):
        whole.check(with_settings(distil__private__epsilon=0.0, dp__epsilon=4.0))


@pytest.mark.parametrize(
    "asked",
    [
        TASK,
        replace(TASK, round=-1),
        replace(TASK, method="fedlgd+proximal"),
        with_settings(distil__private__test_key=""),
    ],
)
def test_a_task_within_the_policy_is_allowed(tmp_path, asked):
    policy(tmp_path).check(asked)


@pytest.mark.parametrize(
    ("asked", "code", "values"),
    [
        (replace(TASK, method="fedavg"), "method-not-allowed", {"method": "fedavg"}),
        (replace(TASK, net="resnet18"), "net-not-allowed", {"net": "resnet18"}),
        (replace(TASK, rounds=11), "too-many-rounds", {"rounds": 11, "allowed": 10}),
        (replace(TASK, round=10), "round-outside-run", {"round": 10}),
        (replace(TASK, round=-2), "round-outside-run", {"round": -2}),
        (replace(TASK, method="fedlgd+evil:Part"), "method-not-allowed", {}),
        (with_settings(pull__loss="os:system"), "setting-runs-code", {"path": "pull.loss"}),
        (with_settings(distil__private__test_key="x"), "noise-is-public", {"value": "x"}),
        (with_settings(dp__test_key="x"), "noise-is-public", {"path": "dp.test_key"}),
        (replace(TASK, what="score"), "not-disclosed", {"needed": "scores"}),
    ],
)
def test_a_task_outside_the_policy_is_refused(tmp_path, asked, code, values):
    with refuses(code, TaskError, **values):
        policy(tmp_path).check(asked)


def test_code_runs_only_if_it_is_listed_literally(tmp_path):
    own = replace(TASK, method="my.methods:Mine", net="my.nets:Net", settings={"pull.loss": "my.losses:loss"})
    with refuses("method-not-allowed", TaskError):
        policy(tmp_path, methods='["*"]', nets='["*"]').check(own)
    listed = {"methods": '["my.methods:Mine"]', "nets": '["my.nets:Net"]'}
    with refuses("setting-runs-code", TaskError):
        policy(tmp_path, **listed).check(own)
    policy(tmp_path, '[settings]\n"pull.loss" = ["my.losses:loss"]\n', **listed).check(own)


def test_a_required_setting_must_be_there(tmp_path):
    demands = policy(tmp_path, '[settings]\n"dp.epsilon" = {max = 8, required = true}\n')
    with refuses("setting-required", TaskError, path="dp.epsilon"):
        demands.check(TASK)
    demands.check(with_settings(dp__epsilon=8.0))
    with refuses("setting-too-high", TaskError, value=8.5, most=8):
        demands.check(with_settings(dp__epsilon=8.5))


@given(
    value=st.integers() | st.floats() | st.booleans() | st.text() | st.none(),
    least=st.integers(-5, 5),
    width=st.integers(0, 5),
)
def test_a_bound_allows_exactly_the_numbers_inside_it(tmp_path_factory, value, least, width):
    most = least + width
    bound = policy(tmp_path_factory.mktemp("p"), f"[settings]\nlocal.lr = {{min = {least}, max = {most}}}\n")
    number = isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)
    allowed = number and least <= value <= most
    with nullcontext() if allowed else pytest.raises(TaskError):
        bound.check(with_settings(local__lr=value))


def test_one_is_not_true(tmp_path):
    listed = policy(tmp_path, '[settings]\n"plan.analysis" = [true]\n')
    listed.check(with_settings(plan__analysis=True))
    with refuses("setting-not-listed", TaskError, value=1, allowed=["True"]):
        listed.check(with_settings(plan__analysis=1))


def test_both_spellings_of_a_path_mean_the_same(tmp_path):
    quoted = policy(tmp_path, '[settings]\n"distil.per_class" = {max = 5}\n')
    assert quoted == policy(tmp_path, "[settings.distil]\nper_class = {max = 5}\n")


@pytest.mark.parametrize(
    ("changed", "more", "code", "values"),
    [
        ({}, "method = ['x']\n", "policy-unknown", {"word": "method", "hint": "; did you mean 'methods'?"}),
        ({"disclose": '["count"]'}, "", "policy-unknown", {"word": "count", "hint": "; did you mean 'counts'?"}),
        ({}, '[settings]\n"distil.per_class" = {maximum = 5}\n', "policy-unknown", {"word": "maximum"}),
        ({}, '[settings]\n"distil.per_class" = 5\n', "policy-bound", {"value": 5}),
        ({}, '[settings]\n"distil.per_class" = []\n', "policy-bound", {"value": []}),
        ({}, '[settings]\n"distil.per_class" = {max = "5"}\n', "policy-number", {"side": "max", "value": "5"}),
        ({}, '[settings]\n"dp.epsilon" = {max = 5, required = "yes"}\n', "policy-required", {"value": "yes"}),
        ({}, '[settings]\n"distil per_class" = [5]\n', "policy-path", {"path": "distil per_class"}),
        ({"rounds": "-1"}, "", "policy-rounds", {"value": -1}),
        ({"rounds": "true"}, "", "policy-rounds", {"value": True}),
        ({"methods": '"fedlgd"'}, "", "policy-names", {"name": "methods", "value": "fedlgd"}),
    ],
)
def test_mistakes_in_a_policy_are_errors(tmp_path, changed, more, code, values):
    with refuses(code, SettingError, **values):
        policy(tmp_path, more, **changed)


def test_a_policy_says_everything(tmp_path):
    with pytest.raises(SettingError, match="TOML"):
        policy(tmp_path, methods="[")
    (tmp_path / "site.toml").write_text('methods = ["fedlgd"]\n')
    with refuses("policy-incomplete", SettingError, name="nets"):
        Policy.read(tmp_path / "site.toml")
    with pytest.raises(SettingError, match="cannot read"):
        Policy.read(tmp_path / "absent.toml")
