"""Contact sheets of virtual and real images as PNG files: one row per class, one column per image.

The text chunks of a file say which classes its rows are, and by which number its values were divided for display.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import torch
from PIL import Image, PngImagePlugin
from torch import Tensor

from fedlgd.core.files import private_folder, write_atomic, writing
from fedlgd.core.types import LabelledSet, Scale, VirtualSet
from fedlgd.engines.storage import version_name

DIVISOR = 3  # for anchors, whose values are not bounded: most are within 3 standard deviations of an input


def write_picture(root: Path, folder: str, virtual: VirtualSet, scale: Scale, divisor: int = 1) -> None:
    """`root/<version>/<folder>.png`; values outside the valid range are clipped in the image only."""
    file = root / version_name(virtual.round) / f"{folder}.png"
    notes = {"divided by": str(divisor)} if divisor > 1 else {}
    write_sheet(root, file, scale.to_pixels(virtual.images / divisor), virtual.labels.unique().tolist(), notes)


def write_samples(root: Path, folder: str, data: LabelledSet, per_class: int) -> None:
    """Write `root/<folder>.png` once: the first real images of each class of the site; missing ones are blank."""
    file = root / f"{folder}.png"
    if per_class and not file.exists():
        classes = data.y.unique().tolist()
        write_sheet(root, file, torch.cat([_first(data, k, per_class) for k in classes]), classes)


def _first(data: LabelledSet, k: int, count: int) -> Tensor:
    pixels = data.pixels(data.of_class(k)[:count])
    return torch.cat([pixels, pixels.new_full((count - len(pixels), *pixels.shape[1:]), 255)])


def write_sheet(
    root: Path, file: Path, pixels: Tensor, classes: Sequence[int], notes: Mapping[str, str] | None = None
) -> None:
    """Pictures are made from private images: only this user can read them."""
    (n, c, h, w), rows = pixels.shape, len(classes)
    sheet = pixels.view(rows, n // rows, c, h, w).permute(0, 3, 1, 4, 2).reshape(rows * h, n // rows * w, c)
    text = PngImagePlugin.PngInfo()
    for key, value in {"classes": " ".join(map(str, classes)), **(notes or {})}.items():
        text.add_text(key, value)
    save = partial(Image.fromarray(sheet.numpy().squeeze()).save, format="PNG", optimize=False, pnginfo=text)
    with writing(file):
        private_folder(root)
        private_folder(file.parent)
        write_atomic(file, save, private=True)
