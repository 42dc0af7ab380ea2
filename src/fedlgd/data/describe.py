"""What `fedlgd data show` shows of a federation: statistics of the images of each site, and a contact sheet."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from fedlgd.core.types import LabelledSet, Site
from fedlgd.data.arrays import Pixels
from fedlgd.data.federation import Federation

LEVELS = 256
BINS = 16  # of a histogram; each is 16 grey levels wide
ENOUGH = 20_000  # images; of a larger set only every second, third, ... is measured
CHUNK = 512
SPARKS = " ▁▂▃▄▅▆▇█"
PAPER = 255
MARGIN = 8
CAPTION = 18
FONT = 12
MANY = 10  # sites; more than these are placed side by side
ACROSS = 3
COLUMNS = 20  # most classes shown per site
LEGIBLE = 56  # pixels; smaller images are enlarged by an integer factor to at most this

Colours = tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """Statistics of one site. mean, std and histogram (shares of BINS bins) are of its training pixels, 0 to 1.

    measured: number of training images measured, all or evenly spaced ones.
    """

    site: str
    note: str
    train: int
    test: int
    train_per_class: tuple[int, ...]
    test_per_class: tuple[int, ...]
    measured: int
    mean: Colours
    std: Colours
    histogram: tuple[Colours, ...]


def statistics_of(site: Site) -> Statistics:
    step = math.ceil(len(site.train) / ENOUGH)
    levels = grey_levels(site.train, step)
    mean, std = _moments(levels)
    bins = levels.view(len(levels), BINS, -1).sum(2) / levels.sum(1, keepdim=True)
    return Statistics(
        site=site.name,
        note=site.note,
        train=len(site.train),
        test=len(site.test),
        train_per_class=tuple(site.train.counts(len(site.classes)).tolist()),
        test_per_class=tuple(site.test.counts(len(site.classes)).tolist()),
        measured=math.ceil(len(site.train) / step),
        mean=_rounded(mean),
        std=_rounded(std),
        histogram=tuple(_rounded(row) for row in bins),
    )


def grey_levels(data: LabelledSet, step: int = 1) -> Tensor:
    """(channels, 256): how often each level occurs in every step-th image; network input is converted to uint8."""
    x = data.x[::step]
    if x.shape[1] > 1 and x.stride(1) == 0:  # grey, expanded to three equal channels
        return grey_levels(LabelledSet(x[:, :1], data.y, data.scale)).expand(x.shape[1], -1)
    counts = torch.zeros(x.shape[1], LEVELS, dtype=torch.float64)
    for part in x.split(CHUNK):
        pixels = data.scale.to_pixels(part) if part.is_floating_point() else part
        counts += torch.stack([torch.bincount(c.flatten(), minlength=LEVELS) for c in pixels.unbind(1)])
    return counts


def _moments(levels: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and std of each channel; level k is the pixel value k / 255."""
    share, value = levels / levels.sum(1, keepdim=True), torch.arange(LEVELS) / (LEVELS - 1)
    mean = (share * value).sum(1)
    return mean, (share * (value - mean[:, None]).square()).sum(1).sqrt()


def _rounded(values: Tensor) -> Colours:
    return tuple(round(v, 4) for v in values.tolist())


def spark(shares: Colours) -> str:
    """A histogram in one line of text; the largest bin is a full block, an empty one is blank."""
    top = max(shares) or 1.0
    return "".join(SPARKS[math.ceil(share / top * (len(SPARKS) - 1))] for share in shares)


def tile(pixels: Pixels, columns: int, gap: int = 2) -> Pixels:
    """(n, c, h, w) in rows of `columns`, side by side, as one RGB image (H, W, 3). c is 1 or 3."""
    n, _, h, w = pixels.shape
    rows = -(-n // columns)
    cells = np.full((rows * columns, h + gap, w + gap, 3), PAPER, np.uint8)
    cells[:n, :h, :w] = pixels.transpose(0, 2, 3, 1)
    grid = cells.reshape(rows, columns, h + gap, w + gap, 3).swapaxes(1, 2)
    return grid.reshape(rows * (h + gap), columns * (w + gap), 3)[: -gap or None, : -gap or None]


def contact_sheet(federation: Federation, per_class: int = 0) -> Image.Image:
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


def _block(site: Site, per_class: int) -> Image.Image:
    classes = min(len(site.classes), COLUMNS)
    cells = np.full((per_class, classes, *site.train.x.shape[1:]), PAPER, np.uint8)
    for k in range(classes):
        pixels = site.train.pixels(site.train.of_class(k)[:per_class])
        cells[: len(pixels), k] = pixels.numpy()
    grid = Image.fromarray(tile(cells.reshape(-1, *cells.shape[2:]), classes))
    zoom = max(1, LEGIBLE // cells.shape[-1])
    return grid.resize((zoom * grid.width, zoom * grid.height), Image.Resampling.NEAREST)
