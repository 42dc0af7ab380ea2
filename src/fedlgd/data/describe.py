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
from fedlgd.data.federation import Federation
from fedlgd.rundir.results import PAPER_GREY, contact_sheet

GREY_LEVELS = 256
HISTOGRAM_BINS = 16  # each is 16 grey levels wide
MAX_MEASURED_IMAGES = 20_000  # of a larger set only every second, third, ... is measured
IMAGES_AT_ONCE = 512
SPARKS = " ▁▂▃▄▅▆▇█"
MARGIN = 8  # pixels
GAP = 2  # pixels between images
CAPTION_HEIGHT = 18
FONT_SIZE = 12
MAX_STACKED_SITES = 10  # more than these are placed side by side
BLOCKS_ACROSS = 3
MAX_CLASSES_SHOWN = 20  # per site
LEGIBLE_SIDE = 56  # pixels; smaller images are enlarged by an integer factor to at most this

Colours = tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """Statistics of one site. mean, std and histogram (shares of its bins) are of its training pixels, 0 to 1.

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
    """Mean and std are sums over grey levels: level k is the pixel value k / 255."""
    step = math.ceil(len(site.train) / MAX_MEASURED_IMAGES)
    levels = grey_levels(site.train, step)
    share, value = levels / levels.sum(1, keepdim=True), torch.arange(GREY_LEVELS) / (GREY_LEVELS - 1)
    mean = (share * value).sum(1)
    std = (share * (value - mean[:, None]).square()).sum(1).sqrt()
    bins = levels.view(len(levels), HISTOGRAM_BINS, -1).sum(2) / levels.sum(1, keepdim=True)
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
    counts = torch.zeros(x.shape[1], GREY_LEVELS, dtype=torch.float64)
    for part in x.split(IMAGES_AT_ONCE):
        pixels = data.scale.to_pixels(part) if part.is_floating_point() else part
        counts += torch.stack([torch.bincount(c.flatten(), minlength=GREY_LEVELS) for c in pixels.unbind(1)])
    return counts


def _rounded(values: Tensor) -> Colours:
    return tuple(round(v, 4) for v in values.tolist())


def spark(shares: Colours) -> str:
    """A histogram in one line of text; the largest bin is a full block, an empty one is blank."""
    top = max(shares) or 1.0
    return "".join(SPARKS[math.ceil(share / top * (len(SPARKS) - 1))] for share in shares)


def sheet_of_sites(federation: Federation, per_class: int = 0) -> Image.Image:
    """The first training images of every class at every site: one block per site, one column per class.

    Many sites show one image per class by default, with several blocks side by side.
    """
    many = len(federation.sites) > MAX_STACKED_SITES
    blocks = [_block(site, per_class or (1 if many else 4)) for site in federation.sites]
    captions = [f"{site.name}: {site.note}" if site.note else site.name for site in federation.sites]
    font = ImageFont.load_default(FONT_SIZE)
    length = partial(ImageDraw.Draw(blocks[0]).textlength, font=font)
    width = max(block.width for block in blocks)
    if many:
        captions = [_shortened(text, width, length) for text in captions]
    width = max(width, *(round(length(text)) for text in captions))
    height = CAPTION_HEIGHT + blocks[0].height + MARGIN
    across = BLOCKS_ACROSS if many else 1
    size = across * (width + MARGIN) + MARGIN, -(-len(blocks) // across) * height + MARGIN
    sheet = Image.new("RGB", size, (PAPER_GREY, PAPER_GREY, PAPER_GREY))
    for i, (caption, block) in enumerate(zip(captions, blocks, strict=True)):
        left, top = MARGIN + i % across * (width + MARGIN), MARGIN + i // across * height
        ImageDraw.Draw(sheet).text((left, top), caption, fill=0, font=font)
        sheet.paste(block, (left, top + CAPTION_HEIGHT))
    return sheet


def _shortened(text: str, width: int, length: Callable[[str], float]) -> str:
    """The beginning of the text, as much as fits."""
    if length(text) <= width:
        return text
    return next(cut for n in range(len(text), -1, -1) if length(cut := text[:n].rstrip() + "...") <= width or not n)


def _block(site: Site, per_class: int) -> Image.Image:
    classes = min(len(site.classes), MAX_CLASSES_SHOWN)
    cells = np.full((per_class, classes, *site.train.x.shape[1:]), PAPER_GREY, np.uint8)
    for k in range(classes):
        pixels = site.train.pixels(site.train.of_class(k)[:per_class])
        cells[: len(pixels), k] = pixels.numpy()
    grid = contact_sheet(cells.reshape(-1, *cells.shape[2:]), classes, GAP)
    zoom = max(1, LEGIBLE_SIDE // cells.shape[-1])
    return grid.resize((zoom * grid.width, zoom * grid.height), Image.Resampling.NEAREST)
