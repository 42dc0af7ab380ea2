"""Contact sheets: every image where it belongs."""

import numpy as np
import pytest

from fedlgd.data.describe import BLOCKS_ACROSS, MAX_CLASSES_SHOWN, MAX_STACKED_SITES, _shortened, sheet_of_sites
from fedlgd.data.federation import from_arrays
from fedlgd.rundir.results import PAPER_GREY


def test_a_sheet_has_a_block_for_every_site(digits):
    small, large = sheet_of_sites(digits, 1), sheet_of_sites(digits, 3)
    assert small.mode == "RGB"
    assert small.width == large.width >= 10 * 56
    assert large.height - small.height == len(digits.sites) * 2 * 60


@pytest.mark.parametrize("kind", [np.uint8, np.float32])
def test_a_sheet_shows_bytes_and_network_input_alike(kind):
    whole = from_arrays({"a": _arrays(kind)})
    assert sheet_of_sites(whole, 2).tobytes() == sheet_of_sites(from_arrays({"a": _arrays(np.uint8)}), 2).tobytes()


def test_a_class_with_few_images_leaves_its_cells_blank():
    one, three = (np.asarray(sheet_of_sites(from_arrays({"a": _arrays(np.uint8)}), n)) for n in (1, 3))
    assert (three[: len(one)] == one).all()
    assert (three[len(one) :] == PAPER_GREY).all()


def test_many_sites_stand_side_by_side_with_one_image_of_each_class():
    few, many = (
        from_arrays({f"site number {i}": _arrays(np.uint8) for i in range(n)}, name="x")
        for n in (MAX_STACKED_SITES, MAX_STACKED_SITES + 1)
    )
    stacked, beside = sheet_of_sites(few), sheet_of_sites(many)
    assert stacked.height > 3 * beside.height
    assert beside.width > BLOCKS_ACROSS * 2 * 56
    dark = np.asarray(beside)[:, :, 0] == 0
    right = beside.width // BLOCKS_ACROSS
    assert dark[:, :right].any()
    assert dark[:, right : 2 * right].any()


def test_a_caption_that_is_too_long_for_its_place_is_cut():
    assert _shortened("mnist: a long note", 8, len) == "mnist..."
    assert _shortened("mnist: a", 8, len) == "mnist: a"
    assert _shortened("mnist", 2, len) == "..."


def test_of_very_many_classes_the_first_are_shown():
    y = np.arange(MAX_CLASSES_SHOWN + 5)
    x = np.zeros((len(y), 8, 8), np.uint8)
    sheet = sheet_of_sites(from_arrays({"a": (x, y, x, y)}))
    assert sheet.width < (MAX_CLASSES_SHOWN + 1) * (56 + 14)


def _arrays(kind: type) -> tuple[np.ndarray, ...]:
    """One black image of class 0 and one grey image of class 1, as bytes or as floats from 0 to 1."""
    x = np.stack([np.zeros((8, 8)), np.full((8, 8), 51)])
    x = x.astype(kind) if kind is np.uint8 else (x / 255).astype(kind)
    y = np.arange(2)
    return x, y, x, y
