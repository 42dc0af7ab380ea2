"""The policy of a site."""

import math
import re
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedlgd.core.errors import SettingError, message
from fedlgd.deploy.kit import template
from fedlgd.deploy.policy import Asked, Policy, TaskError
from fedlgd.distill.settings import STARTS
from fedlgd.methods import registry
from fedlgd.methods.protocol import WEIGHTS
from fedlgd.nets.registry import NETS
from fedlgd.rundir.manifest import MethodInfo, Rounds
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


def test_the_default_policy_allows_virtual_images_only_and_none_that_shows_a_private_one(tmp_path):
    (tmp_path / "site.toml").write_text(template("site.toml"))
    default = Policy.read(tmp_path / "site.toml")
    assert default.missing == ()
    assert (default.train_on, default.sends) == (("virtual",), ("weights", "loss", "counts"))
    for start in (*STARTS, "/srv/sets.npz"):
        safe = start in ("noise", "statistics")
        with nullcontext() if safe else refuses("setting-not-listed", TaskError, path="distil.start", value=start):
            default.check(with_settings(distil__start=start))
    with refuses("setting-too-high", TaskError, path="redraw.selected.count", value=5):
        default.check(with_settings(redraw__selected__count=5))


def test_a_policy_that_forbade_new_images_when_they_were_a_setting_forbids_the_part(tmp_path):
    old = policy(tmp_path, '[settings]\n"refine.start" = ["keep"]\n')
    old.check(with_settings(refine__steps=5))
    with refuses("setting-too-high", TaskError, path="redraw.selected.count"):
        old.check(with_settings(redraw__selected__count=5))
    policy(tmp_path, '[settings]\n"refine.start" = ["keep", "neighbours"]\n').check(
        with_settings(redraw__selected__count=5)
    )


VIRTUAL = MethodInfo(
    name="mine",
    label="Mine",
    train_on="virtual",
    reads=("enrolment", "selected"),
    sends={"hello/counts": "counts", **WEIGHTS},
    selected={"refine": Rounds(0, 2, 2)},
)
KINDS = {"sends": '["weights", "loss", "counts"]', "train_on": '["virtual"]', "disclose": '["counts", "scores"]'}
ALSO_REAL = 'train_on = ["virtual", "real"]'


@pytest.mark.parametrize(
    ("declared", "code", "values"),
    [
        ({"train_on": "real", "reads": ("every",)}, "train-on-not-listed", {"data": "real", "line": ALSO_REAL}),
        ({"reads": ("every",)}, "reads-in-every-round", {"line": ALSO_REAL}),
        ({"train_on": "nothing", "reads": ("every",)}, "reads-in-every-round", {}),
        (
            {"sends": {"trees/x": "my words"}},
            "kind-not-listed",
            {
                "kind": "my words",
                "path": "trees/x",
                "line": 'sends = ["weights", "loss", "counts", "my words"]',
            },
        ),
        ({"sends": {"params": "not declared"}}, "kind-not-listed", {"kind": "not declared"}),
    ],
)
def test_a_method_is_refused_for_what_it_declares_with_the_line_to_add(tmp_path, declared, code, values):
    strict = policy(tmp_path, **KINDS)
    strict.check_declared(VIRTUAL)
    strict.check_declared(replace(VIRTUAL, train_on="nothing"))
    with refuses(code, TaskError, **values) as refused:
        strict.check_declared(replace(VIRTUAL, **declared))
    key, _, value = refused.value.values["line"].partition(" = ")
    if "not declared" not in value:
        policy(tmp_path, **{**KINDS, key: value}).check_declared(replace(VIRTUAL, **declared))


def test_a_loss_that_is_left_out_needs_no_permission(tmp_path):
    few = {**KINDS, "sends": '["weights", "counts"]'}
    with refuses("kind-not-listed", TaskError, kind="loss", path="metrics/loss"):
        policy(tmp_path, **few).check_declared(VIRTUAL)
    policy(tmp_path, **few | {"disclose": '["counts"]'}).check_declared(VIRTUAL)


def test_a_message_is_compared_by_each_of_its_paths(tmp_path):
    strict = policy(tmp_path, **KINDS)
    strict.check_sent(["params/head.weight", "params/head.bias", "metrics/loss"], VIRTUAL)
    with refuses("path-not-declared", TaskError, path="trees/x/y"):
        strict.check_sent(["params/head.weight", "trees/x/y"], VIRTUAL)
    images = replace(VIRTUAL, sends={**VIRTUAL.sends, "trees/x": "counts", "trees/x/y": "images"})
    strict.check_sent(["trees/x/z"], images)
    with refuses("kind-not-listed", TaskError, kind="images", path="trees/x/y"):
        strict.check_sent(["trees/x/z", "trees/x/y"], images)


@pytest.mark.parametrize(("round", "declared"), [(-1, True), (0, True), (1, False), (2, True), (4, False)])
def test_private_images_are_read_in_declared_rounds_only(tmp_path, round, declared):
    when = f"in round {round + 1}"
    with nullcontext() if declared else refuses("read-not-declared", TaskError, when=when):
        policy(tmp_path, **KINDS).check_read(round, VIRTUAL)


def test_a_policy_of_an_earlier_version_has_safe_values(tmp_path):
    old = policy(tmp_path)
    assert (old.sends, old.train_on) == (("weights", "loss", "counts"), ("virtual",))
    assert old.missing == ("sends", "train_on")
    assert old.notes == [
        message("key-missing", key="sends", line='sends = ["weights", "loss", "counts"]'),
        message("key-missing", key="train_on", line='train_on = ["virtual"]'),
    ]
    assert "statistics" in policy(tmp_path, '[settings]\n"anchors.start" = ["noise", "statistics"]\n').sends
    assert not policy(tmp_path, **KINDS).notes


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
        ({"train_on": '["reel"]'}, "", "policy-unknown", {"word": "reel", "hint": "; did you mean 'real'?"}),
        ({"sends": '"weights"'}, "", "policy-names", {"name": "sends", "value": "weights"}),
        ({}, '[settings]\n"distil.per_class" = {maximum = 5}\n', "policy-unknown", {"word": "maximum"}),
        ({}, '[settings]\n"distil.per_class" = 5\n', "policy-bound", {"value": 5}),
        ({}, '[settings]\n"distil.per_class" = []\n', "policy-bound", {"value": []}),
        ({}, '[settings]\n"distil.per_class" = {max = "5"}\n', "policy-number", {"side": "max", "value": "5"}),
        ({}, '[settings]\n"dp.epsilon" = {max = 5, required = "yes"}\n', "policy-required", {"value": "yes"}),
        ({}, '[settings]\n"distil per_class" = [5]\n', "policy-path", {"path": "distil per_class"}),
        ({}, 'other_code = "yes"\n', "policy-other-code", {"value": "yes"}),
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
