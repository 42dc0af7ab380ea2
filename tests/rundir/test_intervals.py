"""Intervals of differences, and what test images can show."""

from math import inf, sqrt
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedlgd.rundir.intervals import MIN_SEEDS, detectable_gap, gap_interval, images_needed, seed_noise

DRAWS = 2000


@pytest.mark.parametrize(
    ("first", "second", "images"), [(0.8, 0.7, 44), (0.97, 0.9, 30), (0.5, 0.5, 200), (1, 1, 5)]
)
def test_the_interval_of_a_difference_covers_it_in_95_of_100_draws_of_images(first, second, images):
    """Of models that err independently; of models that err on the same images more often."""
    random = np.random.default_rng(0)
    drawn = (random.binomial(images, each, DRAWS) / images for each in (first, second))
    found = [gap_interval(one, other, images) for one, other in zip(*drawn, strict=True)]
    assert fmean(low <= first - second <= high for low, high in found) >= 0.935
    hard = random.random((DRAWS, images))  # both models miss the hardest images
    shares = ((hard < each).mean(1) for each in (first, second))
    paired = [gap_interval(one, other, images) for one, other in zip(*shares, strict=True)]
    assert fmean(low <= first - second <= high for low, high in paired) >= 0.95


@given(st.floats(0, 1), st.floats(0, 1), st.integers(1, 500), st.floats(0, 0.3))
def test_an_interval_contains_its_difference_narrows_with_images_and_widens_with_the_noise_of_seeds(p, q, n, noise):
    low, high = gap_interval(p, q, n)
    assert low <= p - q <= high
    more, less = gap_interval(p, q, 2 * n), gap_interval(p, q, n, noise)
    assert low <= more[0] + 1e-9
    assert more[1] <= high + 1e-9
    assert less[0] <= low + 1e-9
    assert high <= less[1] + 1e-9
    swapped = gap_interval(q, p, n)
    assert (low, high) == pytest.approx((-swapped[1], -swapped[0]))


def test_the_noise_of_seeds_adds_in_squares_and_needs_three_of_them():
    """By hand: 1, 2 and 6 have s = sqrt(7), and t_2 is 4.303."""
    assert MIN_SEEDS == 3
    assert seed_noise([1.0, 2.0]) is None
    assert seed_noise([1.0, 2.0, 6.0]) == pytest.approx(4.30265 * sqrt(7) / sqrt(3), rel=1e-5)
    (low, _), (wider, _) = gap_interval(0.8, 0.7, 50), gap_interval(0.8, 0.7, 50, 0.2)
    assert (0.1 - wider) ** 2 == pytest.approx((0.1 - low) ** 2 + 0.04)


@pytest.mark.parametrize("images", [100, 400])
def test_the_difference_that_images_can_show_is_found_in_80_of_100_draws(images):
    gap = detectable_gap(images)
    random = np.random.default_rng(2)
    drawn = (random.binomial(images, 0.8 + sign * gap / 2, DRAWS) / images for sign in (1, -1))
    found = [gap_interval(one, other, images)[0] > 0 for one, other in zip(*drawn, strict=True)]
    assert fmean(found) == pytest.approx(0.8, abs=0.06)
    assert images_needed(0.8 + gap / 2, 0.8 - gap / 2) == pytest.approx(images, rel=0.05)


def test_what_no_number_of_images_shows_has_none():
    assert detectable_gap(0) == inf
    assert images_needed(0.7, 0.7) is None
    assert images_needed(0.75, 0.7, noise=0.06) is None
    assert images_needed(0.75, 0.7, noise=0.03) > images_needed(0.75, 0.7)
