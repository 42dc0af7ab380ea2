"""The page of the tour, docs/tour.md, with pictures: execute the notebook and write what its cells show.

Run: python -m results.tour      a few minutes; in a folder for its runs: python -m results.tour FOLDER
"""

import ast
import io
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from PIL import Image

from results import DOCS, ROOT

NOTEBOOK = ROOT / "examples" / "tour.ipynb"
PAGE = DOCS / "tour.md"
COLOURS, DPI = 128, 110  # of pictures
FOOT = """This page is the [notebook](../examples/tour.ipynb) with its output. Next: [your own images](own-data.md),
[compare methods](comparing.md), or [write one](write-a-method.md).
"""


def cells() -> Iterator[tuple[str, str]]:
    """The kind and the text of each cell of the notebook."""
    for cell in json.loads(NOTEBOOK.read_text())["cells"]:
        yield cell["cell_type"], "".join(cell["source"])


def written(kind: str, text: str) -> str:
    """A cell as Markdown."""
    return text if kind == "markdown" else f"```python\n{text}\n```"


def evaluated(source: str, names: dict[str, Any]) -> Any:
    """Execute a cell; the value of its last expression."""
    tree = ast.parse(source)
    last = tree.body[-1]
    if not isinstance(last, ast.Expr):
        exec(compile(tree, "cell", "exec"), names)
        return None
    exec(compile(ast.Module(tree.body[:-1], []), "cell", "exec"), names)
    return eval(compile(ast.Expression(last.value), "cell", "eval"), names)


def shown(value: Any, number: int) -> str:
    """The output of a cell as Markdown: a picture, or text."""
    if value is None:
        return ""
    if not isinstance(value, Figure):
        return f"    {str(value) if isinstance(value, str | Path) else repr(value)}".replace("\n", "\n    ")
    curve = bool(value.axes[0].lines)
    name = f"tour-{number}.{'svg' if curve else 'png'}"
    if curve:
        value.savefig(DOCS / "images" / name, bbox_inches="tight", metadata={"Date": None})
    else:
        drawn = io.BytesIO()
        value.savefig(drawn, dpi=DPI, bbox_inches="tight")
        Image.open(drawn).convert("RGB").quantize(COLOURS).save(DOCS / "images" / name, optimize=True)
    return f"![{value.axes[0].get_title(loc='left') or 'Accuracy of each site over rounds'}](images/{name})"


def main(folder: Path) -> None:
    """Execute the notebook in a folder, and write the page."""
    os.chdir(folder)
    names: dict[str, Any] = {}
    parts = ["<!-- made by python -m results.tour -->"]
    for number, (kind, text) in enumerate(cells()):
        parts.append(written(kind, text))
        parts.append(shown(evaluated(text, names), number) if kind == "code" else "")
    PAGE.write_text("\n\n".join(filter(None, [*parts, FOOT])))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp()))
