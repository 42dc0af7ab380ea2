"""Every cell of every notebook runs, at a size a test can afford, and what it shows has a representation."""

import json
import re
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from results import tour

ROOT = Path(__file__).parent.parent
NOTEBOOKS = [path for folder in ("docs", "examples") for path in (ROOT / folder).rglob("*.ipynb")]
SMALL = {
    "limit=1000, test_limit=200": "limit=60, test_limit=20",
    "ROUNDS = 20": "ROUNDS = 1",
    '"width": 16': '"width": 4',
    "per_class=5, distil__steps=100": "per_class=2, distil__steps=2, anchors__per_class=2, anchors__steps=1",
}


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
        value = tour.evaluated(source, names)
        if hasattr(value, "_repr_html_") and not isinstance(value, Figure):
            assert value._repr_html_()
        assert len(repr(value)) < 1000
    assert len(names["predictions"].labels) == 4
    assert names["result"].anchors is not None
    assert (tmp_path / "runs/tour/report.html").exists()


def test_the_page_of_the_tour_is_the_notebook_with_pictures():
    page = tour.PAGE.read_text()
    for kind, text in tour.cells():
        assert tour.written(kind, text) in page, "the notebook has changed; run: python -m results.tour"
    pictures = re.findall(r"\]\((images/tour-[^)]+)\)", page)
    assert len(pictures) >= 5
    assert all((tour.DOCS / picture).stat().st_size < 150_000 for picture in pictures)


def test_there_is_a_notebook():
    assert NOTEBOOKS
