"""Every cell of every notebook runs, at a size a test can afford, and what it shows has a representation."""

import ast
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
NOTEBOOKS = [path for folder in ("docs", "examples") for path in (ROOT / folder).rglob("*.ipynb")]
SMALL = {
    "limit=300, test_limit=100": "limit=60, test_limit=20",
    "ROUNDS = 6": "ROUNDS = 1",
    '"width": 16': '"width": 4',
    "per_class=5, distil__steps=50": "per_class=2, distil__steps=2, anchors__per_class=2, anchors__steps=1",
    "seeds=2, rounds=ROUNDS": "seeds=1, rounds=ROUNDS",
}


def shown(source: str, names: dict) -> object:
    """Run a cell; the value of its last expression, as a notebook shows it."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), names)
    return eval(compile(ast.Expression(last.value), "cell", "eval"), names) if last else None


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_cell_runs_in_order(path, tmp_path, monkeypatch, digits_home):
    monkeypatch.chdir(tmp_path)
    cells = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
    text = "\n".join("".join(cell["source"]) for cell in cells)
    assert all(part in text for part in SMALL)
    names: dict = {}
    for cell in cells:
        assert cell["outputs"] == [], "a notebook is stored without outputs"
        source = "".join(cell["source"])
        for long, short in SMALL.items():
            source = source.replace(long, short)
        value = shown(source, names)
        if hasattr(value, "_repr_html_"):
            assert value._repr_html_()
        assert len(repr(value)) < 1000
    assert len(names["predictions"].labels) == 4
    assert (tmp_path / "runs/compared/report.html").exists()


def test_there_is_a_notebook():
    assert NOTEBOOKS
