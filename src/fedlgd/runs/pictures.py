"""Contact sheets of virtual images: a row per class, a column per image, bytes to look at."""

import io
from collections.abc import Iterable, Sequence
from pathlib import Path

from PIL import Image

from fedlgd.core.types import Scale, VirtualSet
from fedlgd.runs.files import write_atomic


def mean_scale(scales: Sequence[Scale]) -> Scale:
    """The anchors belong to no site: they are shown under the mean of the sites' scales."""

    def mean(columns: Iterable[tuple[float, ...]]) -> tuple[float, ...]:
        return tuple(sum(column) / len(column) for column in zip(*columns, strict=True))

    return Scale(mean(s.mean for s in scales), mean(s.std for s in scales))


def write_picture(root: Path, folder: str, virtual: VirtualSet, scale: Scale) -> None:
    """`root/<version>/<folder>.png`; values outside the valid range are clipped, in the picture only."""
    pixels = scale.to_pixels(virtual.images)
    rows = len(virtual.labels.unique())
    n, c, h, w = pixels.shape
    sheet = pixels.view(rows, n // rows, c, h, w).permute(0, 3, 1, 4, 2).reshape(rows * h, n // rows * w, c)
    buffer = io.BytesIO()
    Image.fromarray(sheet.numpy().squeeze()).save(buffer, "PNG", optimize=False)
    version = "start" if virtual.round < 0 else f"{virtual.round:04d}"
    write_atomic(root / version / f"{folder}.png", buffer.getvalue())
