"""Every image goes to one site, minimums are met or refused, and seeds decide everything."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedlgd.core.types import Stream
from fedlgd.data.published import partition
from fedlgd.data.published.partition import Split, allotted, dirichlet, iid, quantity, shards
from tests.errors import refuses

LABELS = st.lists(st.integers(0, 4), max_size=120).map(lambda y: np.array(y, np.uint8))
SITES = st.integers(1, 8)
ALPHA = st.floats(1e-3, 1e4)
SEED = st.integers(0, 2**32)

BALANCED = np.repeat(np.arange(10, dtype=np.uint8), 600)

WAYS = {
    "iid": lambda y, n, rng, least: iid(y, n, rng, least),
    "dirichlet": lambda y, n, rng, least: dirichlet(y, n, rng, 0.3, least),
    "quantity": lambda y, n, rng, least: quantity(y, n, rng, 0.3, least),
}


def counts(labels, parts):
    """Images per site and class."""
    return np.stack([np.bincount(labels[part], minlength=int(labels.max()) + 1) for part in parts])


def every_index_once(labels, parts):
    return sorted(np.concatenate(parts).tolist()) == list(range(len(labels)))


@given(LABELS, SITES, SEED)
def test_iid_sites_differ_by_at_most_one_image_in_all_and_in_every_class(labels, sites, seed):
    parts = iid(labels, sites, Stream(seed))
    assert len(parts) == sites
    assert every_index_once(labels, parts)
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 1
    if len(labels):
        assert np.ptp(counts(labels, parts), axis=0).max() <= 1


@given(LABELS, SITES, ALPHA, SEED)
def test_every_image_goes_to_exactly_one_site(labels, sites, alpha, seed):
    for way in (dirichlet, quantity):
        parts = way(labels, sites, Stream(seed), alpha)
        assert len(parts) == sites
        assert every_index_once(labels, parts)


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@given(labels=LABELS, sites=SITES, least=st.integers(0, 6), seed=SEED)
def test_a_minimum_is_met_or_refused_with_what_is_possible(way, labels, sites, least, seed):
    present, sizes = np.unique(labels, return_counts=True)
    possible = not len(sizes) or sizes.min() >= sites * least
    if possible:
        parts = way(labels, sites, Stream(seed), least)
        assert every_index_once(labels, parts)
        assert all((np.bincount(labels[part], minlength=5)[present] >= least).all() for part in parts)
        return
    with refuses("class-too-small-to-divide", possible=sizes.min() // sites):
        way(labels, sites, Stream(seed), least)


@given(LABELS, SITES, st.integers(1, 3), SEED)
def test_shards_are_dealt_out_completely(labels, sites, each, seed):
    if len(labels) < sites * each:
        with refuses("too-many-shards"):
            shards(labels, sites, Stream(seed), each)
        return
    parts = shards(labels, sites, Stream(seed), each)
    assert every_index_once(labels, parts)
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= each


@given(st.integers(0, 500), st.lists(st.floats(0.01, 1), min_size=1, max_size=6), st.integers(0, 5))
def test_what_is_allotted_adds_up_and_is_near_the_shares(extra, weights, least):
    shares = np.array(weights) / sum(weights)
    given_out = allotted(extra + least * len(shares), shares, least)
    assert given_out.sum() == extra + least * len(shares)
    assert (np.abs(given_out - least - shares * extra) <= 1 + 1e-6).all()


@pytest.mark.parametrize("way", [*WAYS.values(), lambda y, n, rng, _: shards(y, n, rng, 2)], ids=[*WAYS, "shards"])
def test_a_seed_decides_who_gets_what(way):
    one, again, other = (way(BALANCED, 3, Stream(seed), 0) for seed in (1, 1, 2))
    assert all((a == b).all() for a, b in zip(one, again, strict=True))
    assert any(a.tolist() != b.tolist() for a, b in zip(one, other, strict=True))


def test_a_class_is_divided_the_same_way_whatever_other_classes_there_are():
    alone = dirichlet(np.full(600, 7), 3, Stream(0), 2.0, 100)
    among = dirichlet(BALANCED, 3, Stream(0), 2.0, 100)
    first = np.flatnonzero(BALANCED == 7)[0]
    assert [len(part) for part in alone] == counts(BALANCED, among)[:, 7].tolist()
    assert all((a + first == b[BALANCED[b] == 7]).all() for a, b in zip(alone, among, strict=True))


def test_bytes_and_whole_numbers_are_the_same_labels():
    one, other = (dirichlet(BALANCED.astype(kind), 3, Stream(0), 2.0) for kind in (np.uint8, np.int64))
    assert all((a == b).all() for a, b in zip(one, other, strict=True))


def test_the_papers_division_meets_its_minimum_and_is_skewed():
    shares = counts(BALANCED, dirichlet(BALANCED, 3, Stream(0), 2.0, 100))
    assert shares.min() >= 100
    assert shares.sum(0).tolist() == [600] * 10
    assert shares.std() > 50


def test_a_minimum_that_leaves_no_choice_is_met_exactly():
    assert (counts(BALANCED, dirichlet(BALANCED, 3, Stream(0), 0.01, 200)) == 200).all()


def test_classes_are_redrawn_before_anything_is_set_aside(monkeypatch):
    """With one draw and a minimum most classes need the construction; with a hundred, none of these ten."""
    kept = []
    monkeypatch.setattr(partition, "allotted", lambda n, p, least: kept.append(least) or allotted(n, p, least))
    dirichlet(BALANCED, 3, Stream(0), 2.0, 100)
    assert set(kept) == {0}
    monkeypatch.setattr(partition, "MAX_DRAWS", 1)
    dirichlet(BALANCED, 3, Stream(0), 2.0, 100)
    assert 100 in kept


def test_a_smaller_alpha_is_more_skewed():
    spread = [counts(BALANCED, dirichlet(BALANCED, 5, Stream(0), alpha)).std() for alpha in (0.1, 1, 10, 1000)]
    assert spread == sorted(spread, reverse=True)


def test_quantity_sites_differ_in_size_not_in_classes():
    table = counts(BALANCED, quantity(BALANCED, 4, Stream(3), 0.5))
    assert np.ptp(table.sum(1)) > 500
    assert np.ptp(table, axis=1).max() == 0


def test_a_site_of_two_shards_has_about_two_classes():
    table = counts(BALANCED, shards(BALANCED, 10, Stream(0), 2))
    assert ((table > 0).sum(1) <= 2).all()


@pytest.mark.parametrize("alpha", [0.0, -1.0, float("nan"), float("inf")])
def test_an_alpha_that_is_none_is_refused(alpha):
    with refuses("setting-out-of-bounds", setting="data.alpha"):
        Split(alpha=alpha)


@pytest.mark.parametrize("sites", [0, -1])
def test_no_site_is_refused(sites):
    with refuses("setting-out-of-bounds", setting="data.sites"):
        Split(sites=sites)


def test_a_negative_minimum_and_no_shards_are_refused():
    with refuses("setting-out-of-bounds", setting="data.min_per_class", value=-1):
        Split(min_per_class=-1)
    with refuses("setting-out-of-bounds", setting="data.shards", value=0):
        Split(shards=0)
