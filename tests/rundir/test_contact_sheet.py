"""Contact sheets: every image where it belongs, and files that only this user can read."""

import numpy as np

from fedlgd.rundir.results import PAPER_GREY, contact_sheet


def sheet(pixels, columns, gap=2):
    return np.asarray(contact_sheet(pixels, columns, gap))


def test_images_stand_in_rows_from_left_to_right():
    pixels = np.arange(6, dtype=np.uint8)[:, None, None, None] * np.ones((1, 3, 4, 5), np.uint8)
    grid = sheet(pixels, columns=3, gap=1)
    assert grid.shape == (2 * 4 + 1, 3 * 5 + 2, 3)
    assert grid[::5, ::6, 0].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert (grid[4] == PAPER_GREY).all()
    assert (grid[:, 5] == PAPER_GREY).all()


def test_without_a_gap_images_touch():
    pixels = np.zeros((4, 1, 2, 2), np.uint8)
    assert (sheet(pixels, columns=2, gap=0) == np.zeros((4, 4))).all()


def test_the_last_row_may_be_short():
    grid = sheet(np.zeros((3, 3, 2, 2), np.uint8), columns=2, gap=0)
    assert (grid[2:, :2] == 0).all()
    assert (grid[2:, 2:] == PAPER_GREY).all()


def test_grey_images_stay_grey_and_colours_keep_their_channels():
    grey = np.full((1, 1, 2, 2), 7, np.uint8)
    assert sheet(grey, 1).tolist() == [[7, 7], [7, 7]]
    red = np.zeros((1, 3, 2, 2), np.uint8)
    red[:, 0] = 200
    assert sheet(red, 1)[0, 0].tolist() == [200, 0, 0]
