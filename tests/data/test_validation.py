"""A validation part is held out of the training images; test images are never read."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from fedlgd.data.federation import validation_of
from tests import tiny
from tests.errors import refuses


class Sealed:
    """A test set that nobody may look at."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"test images were read: {name}")

    def __len__(self) -> int:
        raise AssertionError("test images were counted")


def sealed(federation):
    """The federation with test sets that raise an error on any use."""
    return replace(federation, sites=tuple(replace(site, test=Sealed()) for site in federation.sites))


def test_every_training_image_is_in_one_of_the_two_parts_and_no_test_image_is_read():
    whole = tiny.federation(train=10)
    parts = validation_of(sealed(whole), 0.2)
    for before, after in zip(whole.sites, parts.sites, strict=True):
        together = torch.cat([after.train.x, after.test.x]).flatten(1)
        assert sorted(map(tuple, together.tolist())) == sorted(map(tuple, before.train.x.flatten(1).tolist()))
        assert after.train.counts(3).tolist() == [8, 8, 8]
        assert after.test.counts(3).tolist() == [2, 2, 2]
        assert after.test.scale == before.train.scale


def test_the_parts_depend_on_the_seed_and_not_on_the_other_sites():
    whole = tiny.federation(train=10)
    one, again, other = (validation_of(whole, 0.3, seed) for seed in (0, 0, 1))
    alone = validation_of(replace(whole, sites=whole.sites[1:2]), 0.3)
    assert one.digest == again.digest != other.digest
    assert torch.equal(alone.sites[0].test.x, one.sites[1].test.x)


def test_the_only_image_of_a_class_stays_and_a_small_class_gives_one():
    whole = tiny.federation(train=2, missing={"ape": 1})
    ape = validation_of(whole, 0.2).by_name["ape"]
    assert (ape.train.counts(3).tolist(), ape.test.counts(3).tolist()) == ([1, 0, 1], [1, 0, 1])


def test_a_site_too_small_for_a_validation_part_is_named():
    with refuses("nothing-to-hold-out", site="ape"):
        validation_of(tiny.federation(train=1))


@pytest.mark.parametrize("share", [0.0, 1.0, -1.0, float("nan")])
def test_a_share_outside_0_and_1_is_refused(share):
    with refuses("setting-value", setting="validation"):
        validation_of(tiny.federation(), share)
