"""Small tables and images for notebooks: what `_repr_html_` of sets, federations and results is made of."""

import base64
import struct
import zlib
from collections.abc import Iterable, Sequence
from html import escape

import torch
from torch import Tensor

from fedlgd.core.text import plural

ZOOMED = 48  # pixels; smaller images are shown larger by an integer factor up to this


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table of text; cells that are already `Html` are kept."""
    lines = ["".join(f"<th>{escape(cell)}</th>" for cell in head)]
    for row in rows:
        cells = (cell if isinstance(cell, Html) else escape(str(cell)) for cell in row)
        lines.append("".join(f"<td>{cell}</td>" for cell in cells))
    return "<table>" + "".join(f"<tr>{line}</tr>" for line in lines) + "</table>"


class Html(str):
    """Text that is HTML already."""


def images(pixels: Tensor, columns: int) -> Html:
    """Pixels (n, 1 or 3, h, w) 0..255 side by side, as one embedded PNG."""
    n, _, h, w = pixels.shape
    rows = -(-n // columns)
    cells = torch.full((rows * columns, 3, h + 1, w + 1), 255, dtype=torch.uint8)
    cells[:n, :, :h, :w] = pixels
    sheet = cells.view(rows, columns, 3, h + 1, w + 1).permute(0, 3, 1, 4, 2)
    sheet = sheet.reshape(rows * (h + 1), columns * (w + 1), 3)
    data = base64.b64encode(png(sheet)).decode()
    width = columns * (w + 1) * max(1, ZOOMED // w)
    style = f"image-rendering:pixelated;width:{width}px;max-width:100%"
    alt = plural(n, "image")
    return Html(f'<img alt="{alt}" style="{style}" src="data:image/png;base64,{data}">')


def png(pixels: Tensor) -> bytes:
    """RGB pixels (h, w, 3) as a PNG file (8 bits, no filter)."""
    h, w, _ = pixels.shape
    lines = torch.cat([torch.zeros(h, 1, dtype=torch.uint8), pixels.reshape(h, 3 * w)], 1)
    head = struct.pack(">IIBBBBB", w, h, 8, 2, 0, 0, 0)
    parts = ((b"IHDR", head), (b"IDAT", zlib.compress(bytes(lines.flatten().tolist()))), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in parts
    )
