"""The generated parts of the page about inversion follows the stored numbers."""

import json
from pathlib import Path
from typing import Any

from results.pages.inversion import answer, stored_attacks, tables
from tests.report.test_inversion import CELL, MEMORY

VIRTUAL = CELL | {"title": "FedAvg on virtual images", "case": "virtual"}


def keep(folder: Path, *cells: dict[str, Any]) -> None:
    settings = {"site": "a", "show": True, "attack": {"iterations": 9, "tv": 0.2}}
    found = {"settings": settings, "cells": {str(i): c for i, c in enumerate(cells)}, "memorisation": [MEMORY]}
    (folder / "invert.json").write_text(json.dumps({"digits": found}))


def test_no_sign_of_training_images_decides_nothing_and_a_sign_refutes(tmp_path):
    keep(tmp_path, CELL, VIRTUAL)
    text = tables(stored_attacks(tmp_path))
    assert "**Not decidable**" in text
    assert "(8 images" in text
    assert "p = 0.003" in text
    assert "no leak was" in answer(stored_attacks(tmp_path))
    keep(tmp_path, CELL, VIRTUAL | {"p_value": 0.001})
    text = tables(stored_attacks(tmp_path))
    (line,) = (line for line in text.splitlines() if "**Not confirmed**" in line)
    assert VIRTUAL["title"] in line
    assert "found at digits" in answer(stored_attacks(tmp_path))
