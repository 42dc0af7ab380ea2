"""What corruptions are made of: zooms, trails, displacements, kernels, clouds, edges."""

import math

import numpy as np
import pytest
from numpy.random import default_rng
from scipy import ndimage

from fedlgd.data.published import blur, corruptions
from fedlgd.data.published.blur import (
    displaced,
    gaussian_smoothed,
    shifted,
    trails,
    zoom_matrix,
    zoomed,
)
from fedlgd.data.published.partition import SEVERITIES


def test_a_disk_is_even_within_its_radius_and_adds_up_to_one():
    for radius, softness in SEVERITIES["defocus_blur"]:
        kernel = blur.disk(radius, softness)
        assert kernel.sum() == pytest.approx(1)
        assert kernel == pytest.approx(kernel[::-1])
        assert kernel == pytest.approx(kernel.T)
    assert blur.disk(1.5, 0.1)[2:5, 2:5] == pytest.approx(np.full((3, 3), 1 / 9), abs=1e-6)
    bell = math.exp(-1 / (2 * 0.4**2))
    assert blur.disk(0.3, 0.4)[2, 1:4] == pytest.approx(np.array([bell, 1, bell]) / (1 + 2 * bell) ** 2)


def test_a_trail_is_a_half_bell_along_its_angle():
    point = np.zeros((2, 9, 9, 3), np.float32)
    point[:, 4, 4] = 1
    made = trails(point, 2, 1.0, np.radians([0.0, -90.0]))
    bell = np.exp(-(np.arange(5) ** 2) / 2)
    bell /= bell.sum()
    assert made[0, 4, 4::-1, 0] == pytest.approx(bell)  # from the right: the point drags to the left
    assert made[1, 4:, 4, 0] == pytest.approx(bell)
    assert made.sum((1, 2)) == pytest.approx(1)


def test_a_shift_repeats_the_outermost_pixels():
    image = np.arange(9, dtype=np.float32).reshape(1, 3, 3)
    assert shifted(image, np.array([2]), np.array([0]))[0].tolist() == [[6, 7, 8]] * 3
    assert shifted(image, np.array([0]), np.array([-1]))[0].tolist() == [[0, 0, 1], [3, 3, 4], [6, 6, 7]]


@pytest.mark.parametrize("factor", [1, 1.05, 1.15, 1.25, 1.75, 2.25])
def test_a_zoom_is_scipys_of_the_middle(factor):
    image = default_rng(0).random((2, 32, 32, 3)).astype(np.float32)
    crop = math.ceil(32 / factor)
    top = (32 - crop) // 2
    large = ndimage.zoom(image[0, top : top + crop, top : top + crop], (factor, factor, 1), order=1)
    trim = (len(large) - 32) // 2
    assert zoomed(image, factor)[0] == pytest.approx(large[trim : trim + 32, trim : trim + 32], abs=1e-6)
    assert zoom_matrix(32, factor).sum(1) == pytest.approx(1)


def test_zoom_blur_is_the_mean_of_its_zooms():
    image = default_rng(0).random((2, 32, 32, 3)).astype(np.float32)
    steps = [zoomed(image, 1 + i / 100) for i in range(16)]
    assert blur.zoom_blur(image, 1.16, rng=default_rng(0)) == pytest.approx((image + sum(steps)) / 17, abs=1e-5)


@pytest.mark.parametrize(
    ("mode", "around"), [("mirror", [3, 2, 1, 0, 1, 2, 3, 2, 1, 0]), ("reflect", [2, 1, 0, 0, 1, 2, 3, 3, 2, 1])]
)
def test_displaced_pixels_are_interpolated_and_folded_at_the_border(mode, around):
    """`around` has the pixels of a line of four that stand for the coordinates -3 to 6."""
    rng = default_rng(0)
    image = rng.random((2, 4, 4, 3)).astype(np.float32)
    wide = image[:, around][:, :, around]
    rows, columns = rng.uniform(-3, 6, (2, 2, 4, 4))
    made = displaced(image, rows, columns, mode)
    for i, y, x in np.ndindex(2, 4, 4):
        row, column = rows[i, y, x] + 3, columns[i, y, x] + 3
        top, left = int(row), int(column)
        down, right = row - top, column - left
        above, below = ((1 - right) * wide[i, r, left] + right * wide[i, r, left + 1] for r in (top, top + 1))
        assert made[i, y, x] == pytest.approx((1 - down) * above + down * below, abs=1e-5)


def test_the_affine_map_takes_the_moved_corners_back():
    rows, columns = blur.affine(3, 32, 0, default_rng(0))
    assert rows[1] == pytest.approx(np.mgrid[:32, :32][0])
    assert columns[1] == pytest.approx(np.mgrid[:32, :32][1])
    rows, columns = blur.affine(200, 32, 2.0, default_rng(0))
    away = np.hypot(rows - np.mgrid[:32, :32][0], columns - np.mgrid[:32, :32][1])[:, 26, 26]
    assert 0.5 < away.mean() < away.max() < 4


def test_smoothing_stays_within_an_image_and_a_channel():
    image = np.zeros((3, 9, 9, 3), np.float32)
    image[1, 4, 4, 1] = 1
    made = gaussian_smoothed(image, 1.0)
    assert made[1, ..., 1].sum() == pytest.approx(1, abs=1e-4)
    assert made.sum() == pytest.approx(made[1, ..., 1].sum())


def test_plasma_fills_0_to_1_and_is_rougher_with_a_slower_decay():
    smooth, rough = (corruptions.plasma(20, 32, decay, default_rng(0)) for decay in (3, 1.75))
    for heights in (smooth, rough):
        assert heights.min((1, 2)) == pytest.approx(0)
        assert heights.max((1, 2)) == pytest.approx(1)
    assert np.abs(np.diff(smooth, axis=2)).mean() < np.abs(np.diff(rough, axis=2)).mean()


def test_drawn_frost_is_pale_blue_and_uneven():
    ice = corruptions.ice(10, 32, default_rng(0))
    red, green, blue = ice.mean((0, 1, 2))
    assert red < green < blue
    assert 0 <= ice.min() < 0.35 < 0.75 < ice.max() <= 1
    assert ice.std((1, 2)).min() > 0.08


def test_edges_are_the_outline_of_a_square():
    layer = np.zeros((2, 16, 16), np.float32)
    layer[0, 4:12, 4:12] = 200
    found = corruptions.edges(layer)
    rows, columns = np.nonzero(found[0])
    assert not found[1].any()
    assert set(rows[(columns > 5) & (columns < 10)]) <= {3, 4, 11, 12}
    assert found[0].any(0)[4:12].all()
    assert not found[0, 6:10, 6:10].any()


def test_distances_are_to_the_nearest_marked_pixel_of_the_same_image():
    marked = default_rng(0).random((4, 9, 9)) < 0.1
    marked[2] = False
    made = corruptions.edge_distances(marked)
    for i in (0, 1, 3):
        spots = np.argwhere(marked[i])
        expected = [[np.hypot(*(spots - (r, c)).T).min() for c in range(9)] for r in range(9)]
        assert made[i] == pytest.approx(np.array(expected))
    assert (made[2] > 20).all()


def test_equalising_spreads_the_levels_of_each_image():
    layers = np.zeros((2, 4, 4), np.uint8)
    layers[0, :2] = 7
    layers[1] = 9
    made = corruptions.equalised(layers)
    assert made[0, :2] == pytest.approx(255)
    assert made[0, 2:] == pytest.approx(0)
    assert made[1] == pytest.approx(9)
