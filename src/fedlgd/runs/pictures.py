"""Contact sheets of virtual and real images as PNG files: one row per class, one column per image."""

import io
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from fedlgd.core.files import private_folder, write_atomic, writing
from fedlgd.core.types import LabelledSet, Scale, VirtualSet
from fedlgd.engines.memory import version_name


def write_picture(root: Path, folder: str, virtual: VirtualSet, scale: Scale) -> None:
    """`root/<version>/<folder>.png`; values outside the valid range are clipped in the image only."""
    rows = len(virtual.labels.unique())
    file = root / version_name(virtual.round) / f"{folder}.png"
    write_sheet(root, file, scale.to_pixels(virtual.images), rows)


def write_samples(root: Path, folder: str, data: LabelledSet, per_class: int) -> None:
    """Write `root/<folder>.png` once: the first real images of each class of the site; missing ones are blank."""
    file = root / f"{folder}.png"
    if per_class and not file.exists():
        rows = [_first(data, k, per_class) for k in data.y.unique().tolist()]
        write_sheet(root, file, torch.cat(rows), len(rows))


def _first(data: LabelledSet, k: int, count: int) -> Tensor:
    pixels = data.pixels(data.of_class(k)[:count])
    return torch.cat([pixels, pixels.new_full((count - len(pixels), *pixels.shape[1:]), 255)])


def write_sheet(root: Path, file: Path, pixels: Tensor, rows: int) -> None:
    """Pictures are made from private images: only this user can read them."""
    n, c, h, w = pixels.shape
    sheet = pixels.view(rows, n // rows, c, h, w).permute(0, 3, 1, 4, 2).reshape(rows * h, n // rows * w, c)
    buffer = io.BytesIO()
    Image.fromarray(sheet.numpy().squeeze()).save(buffer, "PNG", optimize=False)
    with writing(file):
        private_folder(root)
        private_folder(file.parent)
        write_atomic(file, buffer.getvalue(), private=True)
