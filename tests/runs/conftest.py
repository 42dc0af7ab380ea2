"""What tests of runs share."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Each test keeps its distilled sets in a folder of its own."""
    monkeypatch.setenv("FEDLGD_CACHE", str(tmp_path / "home"))
    return tmp_path / "home"
