"""Contact sheets: images side by side."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

if TYPE_CHECKING:  # for types only: tiling images does not load torch
    from fedlgd.core.types import Site
    from fedlgd.data.federation import Federation

Pixels = NDArray[np.uint8]

PAPER = 255
MARGIN = 8
CAPTION = 18
FONT = 12
MANY = 10  # sites; more than these are placed side by side
ACROSS = 3
COLUMNS = 20  # most classes shown per site
LEGIBLE = 56  # pixels; smaller images are enlarged by an integer factor to at most this


def tile(pixels: Pixels, columns: int, gap: int = 2) -> Pixels:
    """(n, c, h, w) in rows of `columns`, side by side, as one RGB image (H, W, 3). c is 1 or 3."""
    n, _, h, w = pixels.shape
    rows = -(-n // columns)
    cells = np.full((rows * columns, h + gap, w + gap, 3), PAPER, np.uint8)
    cells[:n, :h, :w] = pixels.transpose(0, 2, 3, 1)
    grid = cells.reshape(rows, columns, h + gap, w + gap, 3).swapaxes(1, 2)
    return grid.reshape(rows * (h + gap), columns * (w + gap), 3)[: -gap or None, : -gap or None]


def contact_sheet(federation: "Federation", per_class: int = 0) -> Image.Image:
    """The first training images of every class at every site: one block per site, one column per class.

    With more than MANY sites, each shows one image per class by default, with ACROSS blocks side by side.
    """
    many = len(federation.sites) > MANY
    blocks = [_block(site, per_class or (1 if many else 4)) for site in federation.sites]
    captions = [f"{site.name}: {site.note}" if site.note else site.name for site in federation.sites]
    font = ImageFont.load_default(FONT)
    length = partial(ImageDraw.Draw(blocks[0]).textlength, font=font)
    width = max(block.width for block in blocks)
    if many:
        captions = [_shortened(text, width, length) for text in captions]
    width = max(width, *(round(length(text)) for text in captions))
    height = CAPTION + blocks[0].height + MARGIN
    across = ACROSS if many else 1
    size = across * (width + MARGIN) + MARGIN, -(-len(blocks) // across) * height + MARGIN
    sheet = Image.new("RGB", size, (PAPER, PAPER, PAPER))
    for i, (caption, block) in enumerate(zip(captions, blocks, strict=True)):
        left, top = MARGIN + i % across * (width + MARGIN), MARGIN + i // across * height
        ImageDraw.Draw(sheet).text((left, top), caption, fill=0, font=font)
        sheet.paste(block, (left, top + CAPTION))
    return sheet


def _shortened(text: str, width: int, length: Callable[[str], float]) -> str:
    """The beginning of the text, as much as fits."""
    if length(text) <= width:
        return text
    return next(cut for n in range(len(text), -1, -1) if length(cut := text[:n].rstrip() + "...") <= width or not n)


def _block(site: "Site", per_class: int) -> Image.Image:
    classes = min(len(site.classes), COLUMNS)
    cells = np.full((per_class, classes, *site.train.x.shape[1:]), PAPER, np.uint8)
    for k in range(classes):
        pixels = site.train.pixels(site.train.of_class(k)[:per_class])
        cells[: len(pixels), k] = pixels.numpy()
    grid = Image.fromarray(tile(cells.reshape(-1, *cells.shape[2:]), classes))
    zoom = max(1, LEGIBLE // cells.shape[-1])
    return grid.resize((zoom * grid.width, zoom * grid.height), Image.Resampling.NEAREST)
