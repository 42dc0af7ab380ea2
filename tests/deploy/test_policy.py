"""The policy of a site."""

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedlgd.core.errors import SettingError
from fedlgd.deploy.kit import template
from fedlgd.deploy.policy import Asked, Policy
from fedlgd.methods import registry
from fedlgd.nets.registry import NETS

TASK = Asked(what="train", method="fedlgd", settings={}, net="convnet", rounds=10, round=3)


def policy(tmp_path: Path, more: str = "", **changed: str) -> Policy:
    lines = {
        "methods": '["fedlgd", "fedlgd+*"]',
        "nets": '["convnet"]',
        "rounds": "10",
        "disclose": "[]",
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
    assert default.refusal(TASK) == ""
    assert "anchors.start" in default.refusal(with_settings(anchors__start="statistics"))
    assert "distil.per_class is 101" in default.refusal(with_settings(distil__per_class=101))


def test_every_setting_that_the_default_policy_names_exists_also_in_its_comments(tmp_path):
    text = re.sub(r'^# ("[a-z_.]+" = )', r"\1", template("site.toml"), flags=re.MULTILINE)
    (tmp_path / "site.toml").write_text(text)
    named = Policy.read(tmp_path / "site.toml").settings
    documented = Path("docs/settings.md").read_text()
    assert len(named) >= 4
    assert all(f"`{path}`" in documented for path in named)
    allowed = with_settings(distil__private__epsilon=4.0, dp__epsilon=4.0)
    whole = Policy.read(tmp_path / "site.toml")
    assert whole.refusal(allowed) == ""
    assert "distil.private.epsilon is 0.0" in whole.refusal(
        with_settings(distil__private__epsilon=0.0, dp__epsilon=4.0)
    )


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (TASK, ""),
        (replace(TASK, round=-1), ""),
        (replace(TASK, method="fedlgd+proximal"), ""),
        (replace(TASK, method="fedavg"), "method 'fedavg' is not allowed"),
        (replace(TASK, net="resnet18"), "net 'resnet18' is not allowed"),
        (replace(TASK, rounds=11), "11 rounds; this site allows 10"),
        (replace(TASK, round=10), "round 10 is not a round"),
        (replace(TASK, round=-2), "round -2 is not a round"),
        (replace(TASK, method="fedlgd+evil:Part"), "is not allowed"),
        (with_settings(pull__loss="os:system"), "would run code"),
        (with_settings(distil__private__test_key=""), ""),
        (with_settings(distil__private__test_key="x"), "everyone could compute the noise"),
        (with_settings(dp__test_key="x"), "everyone could compute the noise"),
    ],
)
def test_a_task_is_compared_with_the_policy(tmp_path, asked, says):
    refusal = policy(tmp_path).refusal(asked)
    assert (says in refusal) if says else refusal == ""


def test_code_runs_only_if_it_is_listed_literally(tmp_path):
    own = replace(TASK, method="my.methods:Mine", net="my.nets:Net", settings={"pull.loss": "my.losses:loss"})
    assert "not allowed" in policy(tmp_path, methods='["*"]', nets='["*"]').refusal(own)
    listed = {"methods": '["my.methods:Mine"]', "nets": '["my.nets:Net"]'}
    assert "would run code" in policy(tmp_path, **listed).refusal(own)
    bound = '[settings]\n"pull.loss" = ["my.losses:loss"]\n'
    assert policy(tmp_path, bound, **listed).refusal(own) == ""


def test_a_required_setting_must_be_there(tmp_path):
    demands = policy(tmp_path, '[settings]\n"dp.epsilon" = {max = 8, required = true}\n')
    assert "no setting dp.epsilon" in demands.refusal(TASK)
    assert demands.refusal(with_settings(dp__epsilon=8.0)) == ""
    assert "8 or less" in demands.refusal(with_settings(dp__epsilon=8.5))


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
    assert (bound.refusal(with_settings(local__lr=value)) == "") == allowed


def test_one_is_not_true(tmp_path):
    listed = policy(tmp_path, '[settings]\n"plan.analysis" = [true]\n')
    assert listed.refusal(with_settings(plan__analysis=True)) == ""
    assert "allowed: True" in listed.refusal(with_settings(plan__analysis=1))


def test_both_spellings_of_a_path_mean_the_same(tmp_path):
    quoted = policy(tmp_path, '[settings]\n"distil.per_class" = {max = 5}\n')
    assert quoted == policy(tmp_path, "[settings.distil]\nper_class = {max = 5}\n")


@pytest.mark.parametrize(
    ("changed", "more", "says"),
    [
        ({}, "method = ['x']\n", "'method' is unknown; did you mean 'methods'?"),
        ({"disclose": '["count"]'}, "", "'count' is unknown; did you mean 'counts'?"),
        ({}, '[settings]\n"distil.per_class" = {maximum = 5}\n', "'maximum' is unknown; did you mean 'max'?"),
        ({}, '[settings]\n"distil.per_class" = 5\n', "give a list"),
        ({}, '[settings]\n"distil.per_class" = []\n', "give a list"),
        ({}, '[settings]\n"distil.per_class" = {max = "5"}\n', "give a number"),
        ({}, '[settings]\n"dp.epsilon" = {max = 5, required = "yes"}\n', "use true or false"),
        ({}, '[settings]\n"distil per_class" = [5]\n', "not the name of a setting"),
        ({"rounds": "-1"}, "", "rounds is -1"),
        ({"rounds": "true"}, "", "rounds is True"),
        ({"methods": '"fedlgd"'}, "", "give a list of names"),
        ({"methods": "["}, "", "not valid TOML"),
    ],
)
def test_mistakes_in_a_policy_are_errors(tmp_path, changed, more, says):
    with pytest.raises(SettingError) as error:
        policy(tmp_path, more, **changed)
    assert says in str(error.value)


def test_a_policy_says_everything(tmp_path):
    (tmp_path / "site.toml").write_text('methods = ["fedlgd"]\n')
    with pytest.raises(SettingError, match="has no nets"):
        Policy.read(tmp_path / "site.toml")
    with pytest.raises(SettingError, match="cannot read"):
        Policy.read(tmp_path / "absent.toml")
