"""Siamese augmentation: each operation by its vector, and what is drawn."""

from collections import Counter

import pytest
import torch
from torch import Tensor

from fedlgd.core.types import Stream
from fedlgd.distill.augment import OPERATIONS, color, crop, cutout, draw_transform, flip, rescale, rotate
from tests.vectors import close, floats, vector

V = vector("dsa_ops")
X = floats(V["x"])
ALMOST_ONE = 1 - 2**-24


def test_color_changes_brightness_then_saturation_then_contrast():
    u = V["u_brightness"], V["u_saturation"], V["u_contrast"]
    close(color(X, u[0], 0.5, 0.5), V["after_brightness"])
    close(color(X, u[0], u[1], 0.5), V["after_saturation"])
    close(color(X, *u), V["after_contrast_color_result"])


def test_crop_shifts_and_fills_with_zero():
    close(crop(X, *V["shift"]), V["crop_result"])


def test_cutout_zeroes_a_square_of_half_the_side():
    assert V["cutout_size"] == X.shape[2] // 2
    close(cutout(X, *V["cutout_offset"]), V["cutout_result"])


def test_flip_is_horizontal():
    close(flip(X), V["flip_result"])


def test_rotate():
    close(rotate(X, V["rotate_degrees"]), V["rotate_result"])


def test_scale_above_one_shrinks():
    close(rescale(X, *V["scale_sx_sy"]), V["scale_result"])


def _images(n: int = 3, side: int = 8, width: int | None = None) -> Tensor:
    return 1 + torch.rand(n, 3, side, width or side, generator=Stream(0).generator("x"))


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("u", [0.0, 0.3, ALMOST_ONE])
def test_all_images_of_both_batches_share_the_drawn_numbers(name, u):
    real, virtual = _images(5), _images(2) * 2
    change = OPERATIONS[name]((8, 8), [u, u, u])
    together = change(torch.cat([real, virtual]))
    torch.testing.assert_close(together, torch.cat([change(real), change(virtual)]))
    for x, y in zip(real, change(real), strict=True):
        torch.testing.assert_close(change(x[None])[0], y)


@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_keep_shape_and_type_and_pass_a_gradient(name):
    x = _images().double().requires_grad_()
    y = OPERATIONS[name]((8, 8), [0.2, 0.7, 0.4])(x)
    assert y.shape == x.shape
    assert y.dtype == x.dtype
    (gradient,) = torch.autograd.grad(y.square().sum(), x)
    assert torch.isfinite(gradient).all()
    assert gradient.any()


def test_rotation_runs_from_minus_to_plus_fifteen_degrees():
    x = _images()
    for u, degrees in ((0.0, -15.0), (0.5, 0.0), (1.0, 15.0), (0.75, 7.5)):
        torch.testing.assert_close(OPERATIONS["rotate"]((8, 8), [u, 0.1, 0.9])(x), rotate(x, degrees))


def test_scaling_runs_from_one_over_one_point_two_to_one_point_two_in_each_direction():
    x = _images()
    low, high = 1 / 1.2, 1.2
    for u, (sx, sy) in (((0.0, 1.0), (low, high)), ((1.0, 0.0), (high, low)), ((0.5, 0.5), [(low + high) / 2] * 2)):
        torch.testing.assert_close(OPERATIONS["scale"]((8, 8), [*u, 0.3])(x), rescale(x, sx, sy))


@pytest.mark.parametrize(("side", "reach"), [(8, 1), (28, 4), (32, 4), (96, 12)])
def test_crop_reaches_an_eighth_of_the_side_both_ways(side, reach):
    x = torch.arange(1.0, side * side + 1).view(1, 1, side, side)
    middle = side // 2
    shifts = set()
    for i in range(4 * reach + 2):
        u = i / (4 * reach + 2)
        value = int(OPERATIONS["crop"]((side, side), [u, ALMOST_ONE - u, 0.0])(x)[0, 0, middle, middle]) - 1
        shifts.add((value // side - middle, value % side - middle))
    assert {down for down, _ in shifts} == set(range(-reach, reach + 1))
    assert {right for _, right in shifts} == set(range(-reach, reach + 1))


def test_crop_reaches_an_eighth_of_each_side_of_an_oblong_image():
    x = torch.arange(1.0, 8 * 32 + 1).view(1, 1, 8, 32)
    for u, shift in ((0.0, (-1, -4)), (ALMOST_ONE, (1, 4))):
        value = int(OPERATIONS["crop"]((8, 32), [u, u, 0.0])(x)[0, 0, 4, 16]) - 1
        assert (value // 32 - 4, value % 32 - 16) == shift


def test_cutout_centres_cover_the_image_and_the_square_is_clamped():
    x, covered = torch.ones(1, 1, 8, 8), torch.zeros(8, 8)
    for i in range(9):
        for j in range(9):
            y = OPERATIONS["cutout"]((8, 8), [(i + 0.5) / 9, (j + 0.5) / 9, 0.0])(x)
            zeros = int((y == 0).sum())
            assert 1 <= zeros <= 16
            covered += y[0, 0] == 0
    assert covered.min() > 0
    assert torch.equal(covered, covered.T)


def test_flip_happens_half_the_time():
    x = _images()
    flipped = 0
    for t in range(200):
        y = draw_transform(("flip",), (8, 8), Stream(t).generator())(x)
        same = torch.equal(y, x)
        assert same or torch.equal(y, flip(x))
        flipped += not same
    assert 70 <= flipped <= 130


def test_every_named_operation_is_drawn_about_equally_often_and_no_other(monkeypatch):
    drawn = Counter()
    for name in OPERATIONS:
        monkeypatch.setitem(OPERATIONS, name, lambda *_, name=name: drawn.update([name]))
    names = ("color", "crop", "cutout", "scale", "rotate")
    for t in range(500):
        draw_transform(names, (8, 8), Stream(t).generator())
    assert set(drawn) == set(names)
    assert all(70 <= count <= 130 for count in drawn.values())


def test_the_numbers_of_a_draw_are_uniform_and_independent(monkeypatch):
    numbers = []
    monkeypatch.setitem(OPERATIONS, "color", lambda _, u: numbers.append(u))
    for t in range(400):
        draw_transform(("color",), (8, 8), Stream(t).generator())
    u = torch.tensor(numbers)
    assert u.min() >= 0
    assert u.max() < 1
    assert (u.mean(0) - 0.5).abs().max() < 0.06
    assert (torch.corrcoef(u.T) - torch.eye(3)).abs().max() < 0.15


def test_drawing_is_addressed_and_leaves_the_global_generator_alone():
    x, before = _images(), torch.random.get_rng_state()
    names = tuple(OPERATIONS)
    first = [draw_transform(names, (8, 8), Stream(t).generator())(x) for t in range(20)]
    again = [draw_transform(names, (8, 8), Stream(t).generator())(x) for t in range(20)]
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert sum(torch.equal(first[0], y) for y in first) < 10
    assert torch.equal(torch.random.get_rng_state(), before)


def test_nothing_to_choose_from_is_the_identity():
    x = _images()
    assert torch.equal(draw_transform((), (8, 8), Stream(0).generator())(x), x)
