"""Contact sheets say what their rows are, and how the values of anchors were scaled for display."""

import numpy as np
import torch
from PIL import Image

from fedlgd.core.types import LabelledSet, Scale, VirtualSet
from fedlgd.runs.folder import DIVISOR, write_picture, write_samples

IMAGES = torch.linspace(-3, 3, 2 * 3 * 4 * 4).view(2, 3, 4, 4)
ANCHORS = VirtualSet(images=IMAGES, labels=torch.tensor([2, 5]), origin="server", round=-1)


def test_anchors_are_divided_before_they_are_clipped_and_the_file_says_so(tmp_path):
    write_picture(tmp_path, "anchors", ANCHORS, Scale(), DIVISOR)
    drawn = Image.open(tmp_path / "start" / "anchors.png")
    assert drawn.text == {"classes": "2 5", "divided by": "3"}
    pixels = np.asarray(drawn)
    assert (pixels.min(), pixels.max()) == (0, 255)
    assert np.array_equal(pixels[:4], Scale().to_pixels(IMAGES / 3)[0].permute(1, 2, 0).numpy())


def test_the_images_of_a_site_are_shown_as_they_are(tmp_path):
    write_picture(tmp_path, "a", ANCHORS, Scale())
    assert Image.open(tmp_path / "start" / "a.png").text == {"classes": "2 5"}


def test_samples_name_the_classes_that_a_site_has(tmp_path):
    data = LabelledSet(torch.zeros(3, 3, 4, 4, dtype=torch.uint8), torch.tensor([1, 4, 4]))
    write_samples(tmp_path, "a", data, 2)
    assert Image.open(tmp_path / "a.png").text == {"classes": "1 4"}
