"""How alike pictures are: identities, what contrast must not change, and the test of memorisation."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from fedlgd.attacks.similarity import (
    aligned,
    best_order,
    correlation_distances,
    feature_distance,
    neighbours,
    psnr,
    psnr_aligned,
    rank,
    ssim,
    tail,
)
from fedlgd.core.types import LabelledSet


def pictures(count=3, side=14, seed=0):
    return 0.2 + 0.6 * torch.rand(count, 3, side, side, generator=torch.Generator().manual_seed(seed))


def test_a_picture_is_like_itself():
    x = pictures()
    assert psnr(x, x).isinf().all()
    torch.testing.assert_close(ssim(x, x), torch.ones(3, dtype=torch.float64))
    assert feature_distance(x, x).abs().max() < 1e-6
    assert correlation_distances(x, x).diagonal().abs().max() < 1e-9


def test_a_tenth_brighter_is_twenty_decibels():
    x = pictures()
    torch.testing.assert_close(psnr(x, x + 0.1), torch.full((3,), 20.0, dtype=torch.float64), rtol=0, atol=1e-4)


def test_contrast_and_brightness_of_each_channel_do_not_count_when_aligned():
    x = pictures()
    change = torch.tensor([0.3, 0.7, 1.1]).view(3, 1, 1)
    assert (psnr_aligned(change * x + change / 5, x) > 100).all()
    assert (correlation_distances(change * x + change / 5, x).diagonal() < 1e-6).all()


def test_a_negative_is_not_aligned():
    x = pictures()
    flat = aligned(1 - x, x)
    torch.testing.assert_close(flat, x.double().flatten(2).mean(2, keepdim=True).expand_as(flat))


def test_other_pictures_are_farther_than_the_same():
    x, y = pictures(), pictures(seed=1)
    assert (ssim(x, y) < 0.9).all()
    assert (feature_distance(x, y) > 0.01).all()
    assert (correlation_distances(x, y) > 0.5).all()


@given(st.permutations(range(6)))
def test_matching_undoes_an_order_within_labels(order):
    x, labels = pictures(6), torch.tensor([0, 1, 0, 1, 0, 2])
    mixed = x.clone()
    for k in range(3):
        rows = (labels == k).nonzero().flatten()
        ranked = sorted(range(len(rows)), key=lambda i: order[i])
        mixed[rows] = x[rows[ranked]]
    assert torch.equal(mixed[best_order(mixed, x, labels)], x)


def test_matching_never_crosses_labels():
    x = pictures(2)
    assert best_order(x.flip(0), x, torch.tensor([0, 1])).tolist() == [0, 1]


def test_the_rank_is_one_only_for_the_nearest():
    x = pictures(20)
    assert rank(x[0], x) == 1
    assert rank(x[3], x) == next(
        i + 1 for i, j in enumerate(correlation_distances(x[3:4], x)[0].argsort()) if j == 0
    )
    assert rank(x[0], x[:1].expand(20, -1, -1, -1)) == 20  # equal candidates identify nobody


def sets(count=30, seed=0):
    """Training and held-out images of two classes, as pixels."""
    x = (255 * pictures(2 * count, seed=seed)).to(torch.uint8)
    y = torch.arange(2).repeat(count)
    return LabelledSet(x[:count], y[:count]), LabelledSet(x[count:], y[count:])


def test_copies_of_training_images_are_found_with_their_indices():
    training, held_out = sets()
    chosen = torch.tensor([7, 2, 11, 4, 20, 9, 13, 6, 15, 0])
    near = neighbours(0.5 * training.x[chosen].float() + 9, training.y[chosen], training, held_out)
    assert torch.equal(near.training, chosen)
    assert near.share == 1
    assert near.p_value == pytest.approx(0.5**10)


def test_new_images_are_as_near_to_training_images_as_chance_says():
    training, held_out = sets()
    new = pictures(60, seed=3)
    near = neighbours(new, torch.arange(2).repeat(30), training, held_out)
    assert abs(near.share - 0.5) < 0.2
    assert near.p_value > 0.01


def test_more_training_images_are_nearer_by_chance():
    training, held_out = sets()
    few = LabelledSet(held_out.x[:10], held_out.y[:10])
    near = neighbours(pictures(4, seed=3), torch.tensor([0, 1, 0, 1]), training, few)
    assert near.expected.tolist() == [0.75] * 4
    assert near.rows.tolist() == [0, 1, 2, 3]


def test_classes_without_images_are_left_out():
    training, held_out = sets()
    near = neighbours(pictures(3), torch.tensor([0, 5, 1]), training, held_out)
    assert near.rows.tolist() == [0, 2]
    assert not len(neighbours(pictures(1), torch.tensor([5]), training, held_out).rows)


@given(st.integers(0, 12), st.floats(0, 1))
def test_the_tail_is_binomial_for_equal_chances(least, p):
    assert tail([p] * 12, least) == pytest.approx(binom.sf(least - 1, 12, p), abs=1e-12)


def test_the_tail_of_different_chances_is_that_of_all_outcomes():
    assert tail([0.5, 0.9], 1) == pytest.approx(1 - 0.5 * 0.1)
    assert tail([0.5, 0.9], 2) == pytest.approx(0.45)
