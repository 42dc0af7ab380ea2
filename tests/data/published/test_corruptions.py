"""The corruptions do what their formulas say, the same for the same seed, and more of it the more severe."""

import colorsys

import numpy as np
import pytest
from numpy.random import default_rng
from PIL import Image

from fedlgd.data.builtin import package_file
from fedlgd.data.published import blur, corruptions
from fedlgd.data.published.corruptions import BLOCK_SIZE, CORRUPTIONS, as_bytes, corrupted
from fedlgd.data.published.partition import SEVERITIES

NAMES = list(CORRUPTIONS)
WITHOUT_CHANCE = {
    "defocus_blur",
    "zoom_blur",
    "brightness",
    "contrast",
    "pixelate",
    "jpeg_compression",
    "gaussian_blur",
    "saturate",
}
# Severities of these are made in two ways (glass, saturate, spatter), or change two things of which one shrinks.
NOT_BY_SQUARES = {"glass_blur", "saturate", "spatter", "frost", "elastic_transform"}
BLURS = ["gaussian_blur", "glass_blur", "defocus_blur", "motion_blur", "zoom_blur", "elastic_transform", "pixelate"]


@pytest.fixture(scope="module")
def photos():
    """Natural photographs of 32x32: tiles of the two that come with scikit-learn, made half as large."""
    tiles = []
    for name in ("china", "flower"):
        with Image.open(package_file("sklearn", f"datasets/images/{name}.jpg")) as image:
            small = np.asarray(image.convert("RGB").reduce(2))
        rows, columns = (side // 32 for side in small.shape[:2])
        grid = small[: 32 * rows, : 32 * columns].reshape(rows, 32, columns, 32, 3).swapaxes(1, 2)
        tiles.append(grid.reshape(-1, 32, 32, 3))
    every = np.concatenate(tiles)
    every = every[every.std((1, 2, 3)) > 15]  # none of bare sky
    return every[default_rng(0).permutation(len(every))[: BLOCK_SIZE + 5]]


def change(photos, name, severity):
    """Mean squared change of one block."""
    made = corrupted(photos, name, severity, range(BLOCK_SIZE))
    return np.mean((made.astype(float) - photos[:BLOCK_SIZE]) ** 2)


def grey(value, n=4, side=32):
    return np.full((n, side, side, 3), value, np.float32)


def apply(name, severity, images, seed=0):
    return CORRUPTIONS[name](images, *SEVERITIES[name][severity - 1], rng=default_rng(seed))


def test_there_are_nineteen_with_five_severities_each():
    assert len(NAMES) == 19
    assert list(SEVERITIES) == NAMES
    assert all(len(levels) == 5 for levels in SEVERITIES.values())


@pytest.mark.parametrize("name", NAMES)
def test_bytes_of_the_same_shape_come_out_and_are_changed(name, photos):
    before = photos.copy()
    for severity in range(1, 6):
        made = corrupted(photos, name, severity, range(5))
        assert (made.shape, made.dtype) == ((5, 32, 32, 3), np.uint8)
        assert (made != photos[:5]).any()
    assert (photos == before).all()


@pytest.mark.parametrize("name", NAMES)
def test_a_photograph_becomes_the_same_whichever_others_are_wanted(name, photos):
    every = corrupted(photos, name, 3, range(BLOCK_SIZE + 5))
    assert (corrupted(photos, name, 3, range(7)) == every[:7]).all()
    assert (
        corrupted(photos, name, 3, range(BLOCK_SIZE - 3, BLOCK_SIZE + 4)) == every[BLOCK_SIZE - 3 : BLOCK_SIZE + 4]
    ).all()


@pytest.mark.parametrize("name", NAMES)
def test_chance_is_the_seeds(name, photos):
    one, again, other = (corrupted(photos, name, 3, range(5), seed) for seed in (1, 1, 2))
    assert (one == again).all()
    assert (one == other).all() == (name in WITHOUT_CHANCE)


@pytest.mark.parametrize("name", sorted(set(NAMES) - NOT_BY_SQUARES))
def test_a_severer_one_changes_more(name, photos):
    levels = (1, 2, 3, 5) if name == "motion_blur" else range(1, 6)  # its 3 and 4 differ only beyond 6 sigma
    changes = [change(photos, name, severity) for severity in levels]
    assert changes == sorted(changes)


def test_glass_changes_more_with_two_passes():
    """Within as many passes a larger sigma smooths what was displaced."""
    image = default_rng(0).random((20, 32, 32, 3)).astype(np.float32)
    for once, twice in ((2, 4), (3, 5)):
        moved = [np.abs(apply("glass_blur", severity, image) - image).mean() for severity in (once, twice)]
        assert moved[0] < moved[1]


def test_more_water_is_worse_and_so_is_more_mud(photos):
    water = [change(photos, "spatter", severity) for severity in (1, 2, 3)]
    assert water == sorted(water)
    assert change(photos, "spatter", 4) < change(photos, "spatter", 5)


def test_saturate_takes_colour_away_at_1_and_2_and_adds_it_above(photos):
    def colour(severity):
        made = corrupted(photos, "saturate", severity, range(BLOCK_SIZE)) if severity else photos[:BLOCK_SIZE]
        return np.ptp(made.astype(float), axis=3).mean()

    assert colour(2) < colour(1) < colour(0) < colour(3) < colour(4) < colour(5)


def test_frost_hides_more_of_the_photograph_the_severer_it_is(photos):
    def likeness(severity):
        made = corrupted(photos, "frost", severity, range(BLOCK_SIZE)).astype(float).reshape(BLOCK_SIZE, -1)
        clean = photos[:BLOCK_SIZE].astype(float).reshape(BLOCK_SIZE, -1)
        return np.mean([np.corrcoef(a, b)[0, 1] for a, b in zip(made, clean, strict=True)])

    seen = [likeness(severity) for severity in range(1, 6)]
    assert seen == sorted(seen, reverse=True)


def test_elastic_displacement_gets_rougher_as_the_affine_part_shrinks():
    """On a ramp the displacement can be read: its curvature grows from 2 to 5, and there is none at 1."""
    ramp = np.broadcast_to(np.linspace(0.3, 0.7, 32, dtype=np.float32)[:, None], (30, 32, 32, 3))
    rough = []
    for severity in range(1, 6):
        inner = apply("elastic_transform", severity, ramp)[:, 8:24, 8:24, 0]
        rough.append(np.abs(np.diff(inner, 2, axis=2)).mean())
    assert rough == sorted(rough)
    assert rough[0] < 1e-6


@pytest.mark.parametrize("name", BLURS)
def test_what_is_even_stays_even(name):
    for severity in range(1, 6):
        assert apply(name, severity, grey(200 / 255)) == pytest.approx(200 / 255, abs=1e-5)


def test_gaussian_noise_has_the_stated_std_and_no_mean():
    change = corruptions.gaussian_noise(grey(0.5, 50), 0.08, rng=default_rng(0)) - 0.5
    assert change.std() == pytest.approx(0.08, rel=0.01)
    assert change.mean() == pytest.approx(0, abs=5e-4)


def test_shot_noise_has_the_variance_of_counted_photons():
    for value in (0.2, 0.8):
        made = corruptions.shot_noise(grey(value, 50), 100, rng=default_rng(0))
        assert made.mean() == pytest.approx(value, rel=5e-3)
        assert made.var() == pytest.approx(value / 100, rel=0.02)


def test_speckle_noise_is_relative():
    for value in (0.2, 0.8):
        made = corruptions.speckle_noise(grey(value, 50), 0.12, rng=default_rng(0))
        assert made.std() == pytest.approx(0.12 * value, rel=0.01)


def test_impulse_noise_hits_the_stated_share_half_with_salt():
    made = corruptions.impulse_noise(grey(0.5, 100), 0.03, rng=default_rng(0))
    salt, pepper = (made == 1).mean(), (made == 0).mean()
    assert salt + pepper == pytest.approx(0.03, rel=0.03)
    assert salt == pytest.approx(pepper, rel=0.06)
    assert ((made == 0.5) | (made == 0) | (made == 1)).all()


def test_contrast_pulls_towards_the_channels_mean():
    image = grey(0.2, 1)
    image[0, :16] = 0.6
    made = corruptions.contrast(image, 0.5, rng=default_rng(0))
    assert made[0, 0, 0] == pytest.approx(0.5)
    assert made[0, 31, 0] == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("change", "of_hsv"),
    [
        (lambda x: corruptions.brightness(x, 0.15, rng=default_rng(0)), lambda h, s, v: (h, s, min(v + 0.15, 1))),
        (lambda x: corruptions.saturate(x, 0.3, 0, rng=default_rng(0)), lambda h, s, v: (h, 0.3 * s, v)),
        (
            lambda x: corruptions.saturate(x, 2.5, 0.2, rng=default_rng(0)),
            lambda h, s, v: (h, min(2.5 * s + 0.2, 1), v),
        ),
    ],
    ids=["brightness", "paler", "richer"],
)
def test_tones_change_as_in_hue_saturation_value(change, of_hsv):
    image = default_rng(1).random((1, 4, 4, 3)).astype(np.float32)
    image[0, 0, 0], image[0, 0, 1], image[0, 0, 2] = 0, 0.5, 1  # black, grey, white: no hue
    made = change(image)
    for before, after in zip(image.reshape(-1, 3), made.reshape(-1, 3), strict=True):
        assert after == pytest.approx(
            colorsys.hsv_to_rgb(*of_hsv(*colorsys.rgb_to_hsv(*map(float, before)))), abs=1e-5
        )


def test_pixelate_leaves_no_more_rows_and_columns_than_stated():
    image = default_rng(0).random((1, 32, 32, 3)).astype(np.float32)
    made = corruptions.pixelate(image, 0.65, rng=default_rng(0))[0]
    assert len(np.unique(made.reshape(32, -1), axis=0)) == int(32 * 0.65)
    assert len(np.unique(made.swapaxes(0, 1).reshape(32, -1), axis=0)) == int(32 * 0.65)


def test_jpeg_takes_little_away_the_second_time(photos):
    clean = photos[:20] / np.float32(255)
    once = corruptions.jpeg_compression(clean, 40, rng=default_rng(0))
    twice = corruptions.jpeg_compression(once, 40, rng=default_rng(0))
    assert np.abs(twice - once).mean() < 0.2 * np.abs(once - clean).mean()


def test_bytes_are_cut_to_the_level_below_and_whole_levels_stay():
    levels = np.arange(256, dtype=np.uint8)
    assert (as_bytes(levels / np.float32(255)) == levels).all()
    assert as_bytes(np.array([-0.5, 0.5, 1.5], np.float32)).tolist() == [0, 127, 255]


def test_glass_puts_a_near_pixel_in_place_of_each():
    """Nothing is smoothed at sigma 0.05. A pixel is itself or one above, left or both; the first two stay."""
    image = default_rng(0).integers(0, 256, (3, 32, 32, 3)).astype(np.float32) / 255
    made = blur.glass_blur(image, 0.05, 1, 1, rng=default_rng(0))
    assert made[:, :2] == pytest.approx(image[:, :2])
    assert made[:, :, :2] == pytest.approx(image[:, :, :2])
    near = [np.roll(image, (down, right), (1, 2)) for down in (0, 1) for right in (0, 1)]
    same = np.stack([np.isclose(made, other, atol=1e-5).all(3) for other in near])[:, :, 2:, 2:]
    assert same.any(0).all()
    assert same.mean((1, 2, 3)) == pytest.approx(0.25, abs=0.03)


def test_fog_keeps_the_largest_value_within_reach():
    made = corruptions.fog(grey(0.5, 8), 0.75, 2.5, rng=default_rng(0))
    assert made.min() == pytest.approx(0.5 * 0.5 / 1.25)
    assert made.max() == pytest.approx((0.5 + 0.75) * 0.5 / 1.25)


def test_snow_only_brightens():
    assert (apply("snow", 3, grey(0.4)) >= 0.4 - 1e-6).all()
    assert apply("snow", 3, grey(0.4)).max() > 0.6


def test_mud_is_brown_and_covers_while_water_brightens():
    muddy = apply("spatter", 5, grey(0.9))
    assert muddy.min((0, 1, 2)) == pytest.approx(np.array([63, 42, 20]) / 255, abs=0.05)
    wet = apply("spatter", 2, grey(0.4))
    assert (wet >= 0.4 - 1e-6).all()
    assert wet.max() == pytest.approx(0.4 + 0.5 * 238 / 255, abs=1e-4)


def test_a_dry_lens_changes_nothing():
    made = corruptions.spatter(grey(0.4), 0.1, 0.01, 1, 0.7, 0.5, 0, rng=default_rng(0))
    assert made == pytest.approx(grey(0.4))
