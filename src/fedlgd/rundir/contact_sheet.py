"""Contact sheets: images side by side in one picture, and such pictures as files of a run folder.

The text chunks of a file say which classes its rows are, and by which number its values were divided for display.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike
from PIL import Image, PngImagePlugin

from fedlgd.core.files import private_folder, write_atomic, writing

PAPER_GREY = 255


def contact_sheet(pixels: ArrayLike, columns: int, gap: int = 0) -> Image.Image:
    """Images (n, 1 or 3, h, w) in rows of `columns`, with `gap` white pixels between; empty cells are white."""
    images = np.asarray(pixels, np.uint8)
    n, c, h, w = images.shape
    rows = -(-n // columns)
    cells = np.full((rows * columns, h + gap, w + gap, c), PAPER_GREY, np.uint8)
    cells[:n, :h, :w] = images.transpose(0, 2, 3, 1)
    grid = cells.reshape(rows, columns, h + gap, w + gap, c).swapaxes(1, 2)
    sheet = grid.reshape(rows * (h + gap), columns * (w + gap), c)[: -gap or None, : -gap or None]
    return Image.fromarray(sheet[..., 0] if c == 1 else sheet)


def write_sheet(
    root: Path, file: Path, pixels: ArrayLike, classes: Sequence[int], notes: Mapping[str, str] | None = None
) -> None:
    """One row for each class. Pictures are made from private images: only this user can read them."""
    images = np.asarray(pixels)
    text = PngImagePlugin.PngInfo()
    for key, value in {"classes": " ".join(map(str, classes)), **(notes or {})}.items():
        text.add_text(key, value)
    sheet = contact_sheet(images, len(images) // len(classes))
    with writing(file):
        private_folder(root)
        private_folder(file.parent)
        write_atomic(file, partial(sheet.save, format="PNG", optimize=False, pnginfo=text), private=True)
