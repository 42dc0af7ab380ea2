"""Contact sheets: every image where it belongs."""

import numpy as np
import pytest

from fedlgd.data.describe import ACROSS, COLUMNS, MANY, PAPER, _shortened, contact_sheet, tile
from fedlgd.data.federation import from_arrays


def test_images_stand_in_rows_from_left_to_right():
    pixels = np.arange(6, dtype=np.uint8)[:, None, None, None] * np.ones((1, 3, 4, 5), np.uint8)
    grid = tile(pixels, columns=3, gap=1)
    assert grid.shape == (2 * 4 + 1, 3 * 5 + 2, 3)
    assert grid[::5, ::6, 0].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert (grid[4] == PAPER).all()
    assert (grid[:, 5] == PAPER).all()


def test_without_a_gap_images_touch():
    pixels = np.zeros((4, 1, 2, 2), np.uint8)
    assert (tile(pixels, columns=2, gap=0) == np.zeros((4, 4, 3))).all()


def test_the_last_row_may_be_short():
    grid = tile(np.zeros((3, 3, 2, 2), np.uint8), columns=2, gap=0)
    assert (grid[2:, :2] == 0).all()
    assert (grid[2:, 2:] == PAPER).all()


def test_grey_images_become_rgb_and_colours_keep_their_channels():
    grey = np.full((1, 1, 2, 2), 7, np.uint8)
    assert (tile(grey, 1) == 7).all()
    red = np.zeros((1, 3, 2, 2), np.uint8)
    red[:, 0] = 200
    assert tile(red, 1)[0, 0].tolist() == [200, 0, 0]


def test_a_sheet_has_a_block_for_every_site(digits):
    small, large = contact_sheet(digits, 1), contact_sheet(digits, 3)
    assert small.mode == "RGB"
    assert small.width == large.width >= 10 * 56
    assert large.height - small.height == len(digits.sites) * 2 * 60


@pytest.mark.parametrize("kind", [np.uint8, np.float32])
def test_a_sheet_shows_bytes_and_network_input_alike(kind):
    whole = from_arrays({"a": _arrays(kind)})
    assert contact_sheet(whole, 2).tobytes() == contact_sheet(from_arrays({"a": _arrays(np.uint8)}), 2).tobytes()


def test_a_class_with_few_images_leaves_its_cells_blank():
    one, three = (np.asarray(contact_sheet(from_arrays({"a": _arrays(np.uint8)}), n)) for n in (1, 3))
    assert (three[: len(one)] == one).all()
    assert (three[len(one) :] == PAPER).all()


def test_many_sites_stand_side_by_side_with_one_image_of_each_class():
    few, many = (
        from_arrays({f"site number {i}": _arrays(np.uint8) for i in range(n)}, name="x") for n in (MANY, MANY + 1)
    )
    stacked, beside = contact_sheet(few), contact_sheet(many)
    assert stacked.height > 3 * beside.height
    assert beside.width > ACROSS * 2 * 56
    dark = np.asarray(beside)[:, :, 0] == 0
    right = beside.width // ACROSS
    assert dark[:, :right].any()
    assert dark[:, right : 2 * right].any()


def test_a_caption_that_is_too_long_for_its_place_is_cut():
    assert _shortened("mnist: a long note", 8, len) == "mnist..."
    assert _shortened("mnist: a", 8, len) == "mnist: a"
    assert _shortened("mnist", 2, len) == "..."


def test_of_very_many_classes_the_first_are_shown():
    y = np.arange(COLUMNS + 5)
    x = np.zeros((len(y), 8, 8), np.uint8)
    sheet = contact_sheet(from_arrays({"a": (x, y, x, y)}))
    assert sheet.width < (COLUMNS + 1) * (56 + 14)


def _arrays(kind: type) -> tuple[np.ndarray, ...]:
    """One black image of class 0 and one grey image of class 1, as bytes or as floats from 0 to 1."""
    x = np.stack([np.zeros((8, 8)), np.full((8, 8), 51)])
    x = x.astype(kind) if kind is np.uint8 else (x / 255).astype(kind)
    y = np.arange(2)
    return x, y, x, y
