"""Randomness is an address: equal addresses agree, different ones have nothing in common."""

import hashlib
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlgd.core.types import Stream

part = st.one_of(st.integers(-(10**6), 10**6), st.text(max_size=4))
paths = st.lists(part, max_size=4).map(tuple)


def test_the_number_is_the_hash_of_the_address():
    digest = hashlib.blake2b(b"(7, 'site', 'usps', 12)", digest_size=8).digest()
    assert Stream(7).at("site", "usps", 12).number() == int.from_bytes(digest, "big") >> 1


def test_an_address_can_be_walked_in_steps():
    assert Stream(7).at("a").at(1, "b") == Stream(7).at("a", 1, "b")
    one, two = Stream(7).at("a").generator("b"), Stream(7).at("a", "b").generator()
    assert torch.equal(torch.rand(3, generator=one), torch.rand(3, generator=two))


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (("a", 1), ("a1",)),
        (("a", 1), ("a", "1")),
        (("a", "b"), ("ab",)),
        (("a", "b"), ("a, b",)),
        (("a", "b"), ("a', 'b",)),
        ((1, 2), (12,)),
        ((), ("",)),
        (("",), ("", "")),
        (("a",), ("a", "")),
        (("a", 0), (0, "a")),
    ],
)
def test_similar_addresses_differ(a, b):
    assert Stream(7).at(*a).number() != Stream(7).at(*b).number()


def test_no_collision_over_the_addresses_of_a_long_run():
    sites, purposes = [f"site{i}" for i in range(12)] + ["1", "1,", "site"], ["shuffle", "noise", "real", "net"]
    numbers = {
        Stream(seed).at("site", name, t, purpose).number()
        for seed, name, t, purpose in product((0, 1, 10), sites, range(40), purposes)
    }
    assert len(numbers) == 3 * len(sites) * 40 * 4


def test_generators_of_a_few_thousand_addresses_start_differently():
    first = {torch.randint(2**62, (), generator=Stream(0).generator("step", t)).item() for t in range(3000)}
    assert len(first) == 3000


@settings(deadline=None, max_examples=100)
@given(a=paths, b=paths, seed=st.integers(0, 3), other=st.integers(0, 3))
def test_addresses_agree_exactly_when_they_are_equal(a, b, seed, other):
    agree = Stream(seed).at(*a).number() == Stream(other).at(*b).number()
    assert agree == ((seed, *a) == (other, *b))


@settings(deadline=None)
@given(paths)
def test_numbers_are_seeds_torch_accepts(path):
    assert 0 <= Stream(3).at(*path).number() < 2**63


def test_opening_a_stream_leaves_the_global_generator_alone():
    before = torch.random.get_rng_state()
    torch.rand(5, generator=Stream(1).generator("x"))
    assert torch.equal(torch.random.get_rng_state(), before)
