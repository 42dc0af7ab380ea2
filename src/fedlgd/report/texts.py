"""A table as text: for a terminal, a spreadsheet, a paper, a README. Names are text there too, never code."""

import csv
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fedlgd.report.tables import Cell, Column, Table

_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "−": "$-$",
    "–": "--",
} | {letter: f"\\{letter}" for letter in "&%$#_{}"}
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


@dataclass(frozen=True, slots=True)
class Copy:
    """A table in one format, ready to be copied."""

    format: str
    text: str


def copies(table: Table) -> tuple[Copy, ...]:
    return (Copy("CSV", as_csv(table)), Copy("LaTeX", as_latex(table)), Copy("Markdown", as_markdown(table)))


def as_text(table: Table) -> str:
    """Aligned lines for a terminal; `*` marks the best of a column."""
    heading = [column.name for column in table.columns]
    lines = [heading, *([f"{cell.text}*" if cell.best else cell.text for cell in row] for row in table.rows)]
    widths = [max(map(len, texts)) for texts in zip(*lines, strict=True)]
    return "\n".join(_text_line(line, widths, table.columns) for line in lines)


def as_csv(table: Table) -> str:
    """Numbers as numbers, shares in percent; a standard deviation has a column of its own."""
    spread = [any(row[at].std is not None for row in table.rows) for at in range(len(table.columns))]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    heading = ((column.name, f"{column.name} std") for column in table.columns)
    writer.writerow(_harmless(name) for pair, two in zip(heading, spread, strict=True) for name in pair[: 1 + two])
    for row in table.rows:
        cells = zip(row, table.columns, spread, strict=True)
        writer.writerow(value for cell, column, two in cells for value in _csv_cell(cell, column, two))
    return out.getvalue()


def as_latex(table: Table) -> str:
    """A `tabular` for the package booktabs; the best is bold."""
    sides = "".join("r" if column.number else "l" for column in table.columns)
    heading = _latex_line([_latex(column.name) for column in table.columns])
    rows = (_latex_line([_latex_cell(cell) for cell in row]) for row in table.rows)
    return "\n".join(
        (
            f"\\begin{{tabular}}{{{sides}}}",
            r"\toprule",
            heading,
            r"\midrule",
            *rows,
            r"\bottomrule",
            r"\end{tabular}",
            "",
        )
    )


def as_markdown(table: Table) -> str:
    heading = [_markdown(column.name) for column in table.columns]
    sides = ["---:" if column.number else "---" for column in table.columns]
    rows = ([_markdown_cell(cell) for cell in row] for row in table.rows)
    return "".join(f"| {' | '.join(line)} |\n" for line in (heading, sides, *rows))


def _text_line(texts: Sequence[str], widths: Sequence[int], columns: Sequence[Column]) -> str:
    cells = zip(texts, widths, columns, strict=True)
    return "  ".join(f"{text:{'>' if column.number else '<'}{width}}" for text, width, column in cells).rstrip()


def _csv_cell(cell: Cell, column: Column, spread: bool) -> Iterator[str]:
    if cell.value is None or not column.number:
        yield _harmless(cell.text if cell.value is None and not column.number else "")
    else:
        yield _number(cell.value, column)
    if spread:
        yield "" if cell.std is None else _number(cell.std, column)


def _number(value: float, column: Column) -> str:
    return f"{100 * value:.4f}" if column.percent else f"{value:g}"


def _harmless(text: str) -> str:
    """A name that a spreadsheet would take for a formula gets a quote in front."""
    return f"'{text}" if text.startswith(_FORMULA) else text


def _latex_line(texts: Sequence[str]) -> str:
    return f"{' & '.join(texts)} \\\\"


def _latex_cell(cell: Cell) -> str:
    return f"\\textbf{{{_latex(cell.text)}}}" if cell.best else _latex(cell.text)


def _latex(text: str) -> str:
    return "".join(_LATEX.get(letter, letter) for letter in " ".join(text.split()))


def _markdown_cell(cell: Cell) -> str:
    return f"**{_markdown(cell.text)}**" if cell.best else _markdown(cell.text)


def _markdown(text: str) -> str:
    return re.sub(r"([\\`*_\[\]<>|#&~])", r"\\\1", " ".join(text.split()))
