"""Small tables and images for notebooks: what `_repr_html_` of sets, federations and results is made of."""

import base64
import io
from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING

import torch

from fedlgd.core.text import plural
from fedlgd.rundir.results import contact_sheet

if TYPE_CHECKING:
    from fedlgd.core.types import LabelledSet

LEGIBLE_SIDE = 48  # pixels; smaller images are shown larger by an integer factor up to this
MAX_CLASSES = 20


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table of text; cells that are already `Html` are kept."""
    lines = ["".join(f"<th>{escape(cell)}</th>" for cell in head)]
    for row in rows:
        cells = (cell if isinstance(cell, Html) else escape(str(cell)) for cell in row)
        lines.append("".join(f"<td>{cell}</td>" for cell in cells))
    return "<table>" + "".join(f"<tr>{line}</tr>" for line in lines) + "</table>"


class Html(str):
    """Text that is HTML already."""


def first_images(data: "LabelledSet", per_class: int = 2) -> Html:
    """The first images of each class, one column per class, as one embedded PNG."""
    classes = data.y.unique()[:MAX_CLASSES].tolist()
    members = [data.of_class(k)[:per_class].tolist() for k in classes]
    rows = min(map(len, members), default=0)
    if not rows:
        return Html("")
    chosen = torch.tensor([each[row] for row in range(rows) for each in members], dtype=torch.int64)
    sheet, buffer = contact_sheet(data.pixels(chosen), len(classes), gap=1), io.BytesIO()
    sheet.save(buffer, "PNG")
    width = sheet.width * max(1, LEGIBLE_SIDE // data.x.shape[-1])
    style = f"image-rendering:pixelated;width:{width}px;max-width:100%"
    source = f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"
    return Html(f'<img alt="{plural(len(chosen), "image")}" style="{style}" src="{source}">')
