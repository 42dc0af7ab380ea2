"""The style of all figures, and how they are saved: as SVG inside a page, or as PDF and PNG files.

The colours are Okabe and Ito's, distinct for all kinds of colour vision; in the page they are CSS variables.
"""

import io
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK = "#1d1d20"
FAINT = "#c9c7c2"
SERIES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
DASHES = ("-", "--", ":")
FORMATS = ("pdf", "png")

_VARIABLES = {INK: "--ink", FAINT: "--rule"} | {
    colour: f"--series-{number}" for number, colour in enumerate(SERIES, start=1)
}
WIDTH = 5.6
_POINTS, _FONT_SIZE = 72, 9.5
_LETTER, _LONGEST_LABEL = 0.58, 26
_NO_METADATA = {
    "svg": dict.fromkeys(("Date", "Creator", "Format", "Type")),
    "pdf": dict.fromkeys(("CreationDate", "Creator", "Producer")),
    "png": {"Software": None},
}
_STYLE: Any = {
    "svg.fonttype": "none",
    "pdf.fonttype": 42,
    "text.parse_math": False,
    "font.size": _FONT_SIZE,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": FAINT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.5,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "ytick.major.size": 0,
}


def series_style(number: int) -> tuple[str, str]:
    """Colour and line style of the series with this number; the line style changes when the colours repeat."""
    return SERIES[number % len(SERIES)], DASHES[number // len(SERIES) % len(DASHES)]


def shorten(label: str, letters: int = _LONGEST_LABEL) -> str:
    return label if len(label) <= letters else label[: letters - 1] + "…"


@contextmanager
def styled() -> Iterator[None]:
    """A context, or decorator, in which figures are drawn and saved in the style of this module."""
    import matplotlib

    with matplotlib.rc_context(_STYLE), warnings.catch_warnings():
        # The browser has fonts for the scripts that matplotlib's own font lacks.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield


def canvas(
    title: str, height: float, left: list[str], right: list[str], bottom: float = 0.1, top_ticks: bool = False
) -> "tuple[Figure, Axes]":
    """A figure with one pair of axes, a title above, and room for these texts on either side."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, height))
    top, pad = (0.65, 10) if top_ticks else (0.3, 6)
    start, end = text_width(left), 1 - text_width(right)
    axes = figure.add_axes((start, bottom / height, end - start, 1 - (bottom + top) / height))
    axes.set_title(title, loc="left", fontsize="medium", pad=pad)
    return figure, axes


def text_width(texts: Sequence[str]) -> float:
    """The share of the figure's width that the longest of these texts takes, with some padding."""
    letters = max(map(len, texts), default=0)
    return (_LETTER * letters + 0.8) * _FONT_SIZE / (WIDTH * _POINTS)


def svg(figure: "Figure", salt: str) -> str:
    """SVG text for a page, without group ids, which would repeat in every figure.

    The salt makes the remaining ids reproducible, and different in every figure."""
    import matplotlib

    buffer = io.StringIO()
    with styled(), matplotlib.rc_context({"svg.hashsalt": salt}):
        figure.savefig(buffer, format="svg", transparent=True, metadata=_NO_METADATA["svg"])
    written = buffer.getvalue()
    inside = re.sub(r'<g id="[^"]*"', "<g", written[written.index("<svg") :])
    for colour, variable in _VARIABLES.items():
        inside = inside.replace(colour, f"var({variable}, {colour})")
    return inside


def save(figure: "Figure", stem: Path) -> list[Path]:
    """Writes `<stem>.pdf` and `<stem>.png`; the same figure gives the same bytes."""
    files = [stem.with_name(f"{stem.name}.{kind}") for kind in FORMATS]
    with styled():
        for file, kind in zip(files, FORMATS, strict=True):
            figure.savefig(file, format=kind, dpi=200, facecolor="white", metadata=_NO_METADATA[kind])
    return files
