"""Classes with few images: as many virtual images as real ones, and no start that silently is a private image."""

from dataclasses import asdict, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedlgd.core.types import LabelledSet, Site, SiteState, Stream
from fedlgd.distill.distribution import first_set, first_set_key, refine_set
from fedlgd.distill.files import write_set
from fedlgd.distill.init import from_clusters, from_mean_image, from_neighbours, from_real, mean_images
from fedlgd.distill.settings import STARTS, Distil
from fedlgd.methods.refine import Refine
from tests import tiny

FAST = Distil(steps=0, width=0, per_class=3)
NET = tiny.net()


def site_with(images: list[int], seed: int = 0) -> Site:
    """A site with so many random images of each class, in random order."""
    labels = torch.arange(len(images)).repeat_interleave(torch.tensor(images))
    labels = labels[torch.randperm(len(labels), generator=Stream(seed).generator("order"))]
    pixels = torch.randint(256, (len(labels), *NET.shape), generator=Stream(seed).generator("x"), dtype=torch.uint8)
    data = LabelledSet(pixels, labels)
    return Site(name="ape", train=data, test=data, classes=("a", "b", "c"))


def correlation(a: Tensor, b: Tensor) -> float:
    return float(torch.corrcoef(torch.stack([a.flatten(), b.flatten()]))[0, 1])


numbers = st.lists(st.integers(0, 9), min_size=3, max_size=3).filter(any)


@given(numbers, st.integers(1, 5), st.sampled_from(STARTS), st.sampled_from([1, 2]), st.integers(0, 2**31))
@settings(max_examples=60)
def test_a_class_has_as_many_virtual_images_as_real_ones_and_at_most_per_class(
    images, per_class, start, tiles, seed
):
    how = replace(FAST, per_class=per_class, start=start, tiles=tiles)
    made = first_set(site_with(images, seed), NET, how, Stream(seed))
    parts = tiles**2 if start in ("real", "kmeans") else 1  # picks fill the tiles with different images
    wanted = [min(per_class, max(n // parts, min(n, 1))) for n in images]
    assert made.labels.bincount(minlength=3).tolist() == wanted
    assert made.labels.tolist() == sorted(made.labels.tolist())
    assert made.images.shape == (sum(wanted), *NET.shape)
    assert bool(made.images.isfinite().all())


@given(numbers, st.integers(1, 4), st.sampled_from([1, 2]))
@settings(max_examples=20)
def test_the_cost_of_a_round_is_that_of_the_images_in_the_set(images, per_class, tiles):
    site, method = site_with(images), tiny.fedavg(distil__per_class=per_class, distil__tiles=tiles)
    cost = method.cost(0, site, 3)
    assert cost is not None
    assert cost.images == len(first_set(site, NET, method.distil, Stream(0)).data)


def test_steps_and_refinement_keep_the_labels_and_move_every_image():
    site, how = site_with([1, 2, 9]), replace(FAST, steps=2, pairs=1, real_per_class=4)
    first = first_set(site, NET, how, Stream(0))
    assert not bool((first.images == first_set(site, NET, FAST, Stream(0)).images).flatten(1).all(1).any())
    refined = Refine(steps=2)
    state = refined.move(SiteState(virtual=first), site, NET, tiny.params(NET), how, 4, Stream(1))
    assert state.virtual is not None
    assert state.virtual.labels.tolist() == first.labels.tolist() == [0, 1, 1, 2, 2, 2]
    assert not bool((state.virtual.images == first.images).flatten(1).all(1).any())
    alone = refine_set(first, site.train, NET, tiny.params(NET), refined.settings(how), 4, Stream(1).at("refine"))
    assert torch.equal(alone.images, state.virtual.images)


@pytest.mark.parametrize("start", [from_neighbours, lambda d, k, n, g: from_mean_image(mean_images(d, k), n, g)])
def test_a_mean_of_a_single_image_is_no_copy_of_it(start):
    site = site_with([1, 20, 0])
    (own,) = site.train.take(site.train.of_class(0)).x
    got = start(site.train, [0, 1], [3, 2], Stream(0).generator())
    assert got.shape == (5, *NET.shape)
    assert all(abs(correlation(each, own)) < 0.4 for each in got[:3])
    torch.testing.assert_close(got[:3].mean((0, 2, 3)), own.mean((1, 2)), atol=0.06, rtol=0)


def test_picks_of_a_small_class_are_its_images_repeated():
    site = site_with([3, 1, 0])
    for start in (from_real, from_clusters):
        picks = start(site.train, [0, 1], [5, 2], Stream(0).generator())
        own = [site.train.take(site.train.of_class(k)).x for k in (0, 1)]
        found = [[next(i for i, x in enumerate(own[0]) if torch.equal(x, each))] for each in picks[:5]]
        assert sorted(i for (i,) in found[:3]) == [0, 1, 2]
        assert found[3:] == found[:2]
        assert all(torch.equal(each, own[1][0]) for each in picks[5:])


def test_the_setting_changes_no_key_of_a_set_and_no_account():
    site, strict = site_with([4, 5, 6]), replace(FAST, short="refuse")
    assert first_set_key(site, NET, FAST, Stream(0)) == first_set_key(site, NET, strict, Stream(0))
    assert strict.made_from == {
        name: value for name, value in asdict(FAST).items() if name not in ("short", "match")
    }
    made = [first_set(site, NET, how, Stream(0)).images for how in (FAST, strict)]
    assert torch.equal(*made)


def test_a_stored_set_with_fewer_images_is_a_start(tmp_path):
    site = site_with([1, 2, 9])
    made = first_set(site, NET, FAST, Stream(0))
    write_set(tmp_path / "ape.npz", made, site.train.scale)
    again = first_set(site, NET, replace(FAST, start=f"{tmp_path}/"), Stream(1))
    assert torch.equal(again.images, made.images)
    assert torch.equal(again.labels, made.labels)
