"""`make docs`: the pages build into a site without a warning, and the site asks no other host for anything."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LOADED = (
    r"<(?:script|img|iframe)\b[^>]*\bsrc=\"([^\"]+)"
    r"|<link\b[^>]*rel=\"(?:stylesheet|preload|preconnect)\"[^>]*href=\"([^\"]+)"
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for module in ("mkdocs", "material", "mkdocstrings"):
        pytest.importorskip(module, reason=f"{module} is not installed (make docs)")
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(out)]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=quiet, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


def test_every_page_is_there_and_loads_nothing_from_another_host(site: Path) -> None:
    for page in (ROOT / "docs").rglob("*.md"):
        text = (site / page.relative_to(ROOT / "docs").with_suffix(".html")).read_text()
        loaded = [link for pair in re.findall(LOADED, text) for link in pair if link]
        assert loaded
        assert not [link for link in loaded if link.startswith(("http", "//"))], page


def test_the_search_finds_words_of_the_field_and_names_of_the_api(site: Path) -> None:
    index = json.loads((site / "search" / "search_index.json").read_text())["docs"]
    found = {
        word: {each["location"].split("#")[0] for each in index if word in each["text"]} for word in ("silo", "IPC")
    }
    assert all("glossary.html" in pages for pages in found.values())
    assert {"load", "run", "FedLGD"} <= {
        each["title"] for each in index if each["location"].startswith("api.html#")
    }


def test_the_folder_of_the_pages_has_pages_pictures_and_their_style_only() -> None:
    files = {file for file in (ROOT / "docs").rglob("*") if file.is_file() and "__pycache__" not in file.parts}
    assert {file.suffix for file in files} == {".md", ".png", ".svg", ".css"}
