"""Messages to flat tensors and back."""

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedlgd.core.types import Broadcast, Hello, ServerState, SiteState, Update, VirtualSet
from fedlgd.engines.wire import nbytes, pack, same, unpack

odd = st.text(st.characters(blacklist_categories=["Cs"]), min_size=1, max_size=6)
name = st.one_of(
    odd, st.sampled_from(["head.weight", "blocks.0.bias", "a/b", "a/b/c", "a", "b", "c", "params", "/"])
)
plain_name = st.one_of(odd.filter(lambda s: "/" not in s), st.sampled_from(["a", "a.b", "variate", "params"]))
tensor = st.sampled_from([torch.float32, torch.float64, torch.int64, torch.uint8]).flatmap(
    lambda kind: st.lists(st.integers(0, 3), max_size=3).map(lambda shape: torch.ones(shape).to(kind))
)
params = st.dictionaries(name, tensor, max_size=4)
trees = st.dictionaries(plain_name, params, max_size=3)
numbers = st.dictionaries(odd, st.floats(allow_nan=False), max_size=3)
virtual = st.builds(
    VirtualSet,
    images=st.integers(0, 3).map(lambda n: torch.rand(n, 3, 2, 2)),
    labels=st.integers(0, 3).map(lambda n: torch.arange(n)),
    origin=odd,
    round=st.integers(-1, 99),
)
maybe = st.one_of(st.none(), virtual)

MESSAGES = {
    SiteState: st.builds(SiteState, virtual=maybe, anchors=maybe, trees=trees),
    ServerState: st.builds(
        ServerState,
        round=st.integers(0, 99),
        params=params,
        anchors=maybe,
        held=st.dictionaries(odd, st.integers(-2, 99), max_size=3),
        trees=trees,
    ),
    Update: st.builds(Update, site=odd, params=params, weight=st.floats(0, 1e6), metrics=numbers, trees=trees),
    Broadcast: st.builds(Broadcast, round=st.integers(0, 99), params=params, anchors=maybe, trees=trees),
    Hello: st.builds(Hello, site=odd, counts=tensor, statistics=st.one_of(st.none(), tensor)),
}


@pytest.mark.parametrize("kind", MESSAGES, ids=lambda k: k.__name__)
@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_a_message_survives_packing_with_odd_names(kind, data):
    message = data.draw(MESSAGES[kind])
    tensors, plain = pack(message)
    back = unpack(kind, tensors, json.loads(json.dumps(plain)))
    assert type(back) is kind
    assert _alike(message, back)
    assert same(message, back)


def _alike(a: Any, b: Any) -> bool:
    """The very same tensors and equal values everywhere, found without `pack`."""
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        return a is b
    if is_dataclass(a):
        return type(a) is type(b) and all(_alike(getattr(a, f.name), getattr(b, f.name)) for f in fields(a))
    if isinstance(a, Mapping):
        return isinstance(b, Mapping) and list(a) == list(b) and all(_alike(v, b[k]) for k, v in a.items())
    return type(a) is type(b) and a == b


def _pair(key: str) -> SiteState:
    return SiteState(trees={"x": {"y/z": torch.ones(1)}, key: {"z": torch.zeros(1)}})


def test_a_slash_in_a_leaf_name_is_harmless():
    message = _pair("other")
    assert _alike(message, unpack(SiteState, *pack(message)))


def test_slashes_in_names_of_trees_and_leaves_do_not_collide():
    message = _pair("x/y")
    assert _alike(message, unpack(SiteState, *pack(message)))


@pytest.mark.parametrize(("a", "b"), [("a/b", "a~1b"), ("a~b", "a~0b"), ("~1", "/"), ("~01", "~1")])
def test_no_two_names_share_a_path(a, b):
    message = SiteState(trees={"x": {a: torch.ones(1), b: torch.zeros(1)}})
    assert len(pack(message)[0]) == 2
    assert _alike(message, unpack(SiteState, *pack(message)))


def test_leaves_are_named_by_their_path():
    anchors = VirtualSet(images=torch.rand(2, 3, 4, 4), labels=torch.arange(2), origin="server", round=3)
    tensors, plain = pack(Broadcast(round=4, params={"head.weight": torch.rand(2)}, anchors=anchors))
    assert set(tensors) == {"params/head.weight", "anchors/images", "anchors/labels"}
    assert plain["round"] == 4
    assert plain["anchors"]["origin"] == "server"


def test_bytes_are_those_of_all_tensors():
    anchors = VirtualSet(images=torch.rand(6, 3, 8, 8), labels=torch.arange(6), origin="server", round=0)
    weights = {"w": torch.rand(5, 2), "n": torch.tensor(3)}
    assert nbytes(Broadcast(round=0, params=weights)) == 4 * 10 + 8
    assert nbytes(Broadcast(round=0, params=weights, anchors=anchors)) == 48 + 4 * 6 * 3 * 64 + 8 * 6
    assert nbytes(Update(site="a", params=weights, weight=1.0, metrics={"loss": 1.0}, trees={"c": weights})) == 96
    assert (
        nbytes(Hello(site="a", counts=torch.zeros(10, dtype=torch.int64), statistics=torch.zeros(10, 2, 3))) == 320
    )


def test_same_means_the_very_same_tensors():
    state = SiteState(trees={"a": {"w": torch.ones(2)}})
    assert same(state, SiteState(trees={"a": {"w": state.trees["a"]["w"]}}))
    assert not same(state, SiteState(trees={"a": {"w": torch.ones(2)}}))
    assert not same(state, SiteState())
    assert not same(state, SiteState(trees={"a": {"v": state.trees["a"]["w"]}}))
    one = Hello(site="a", counts=torch.ones(1))
    assert not same(one, Hello(site="b", counts=one.counts))
