"""What the documents say is true of the code."""

import importlib
import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAPER_TO_CODE = (ROOT / "docs/paper-to-code.md").read_text()
LINES = re.findall(r"^\| (.+?) \| `([\w.]+):(\w+)` \| `([\w/.]+)` \|$", PAPER_TO_CODE, re.M)


def test_the_page_has_lines():
    assert len(LINES) > 15


@pytest.mark.parametrize(("claim", "module", "name", "test"), LINES)
def test_every_equation_has_a_function_that_its_test_names(claim, module, name, test):
    assert callable(getattr(importlib.import_module(module), name)), claim
    assert re.search(rf"\b{name}\b", (ROOT / test).read_text(), re.I), f"{test} never mentions {name}"


@pytest.mark.parametrize("page", ["README.md", *(str(p.relative_to(ROOT)) for p in (ROOT / "docs").rglob("*.md"))])
def test_links_between_documents_lead_somewhere(page):
    text = (ROOT / page).read_text()
    for target in re.findall(r"\]\((?!http)([^)#]+)", text):
        assert ((ROOT / page).parent / target).exists(), f"{page} links to {target}"


def test_the_settings_page_is_what_the_code_says():
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs/generate.py")
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    assert (ROOT / "docs/settings.md").read_text() == generate.settings_page(), "run: python docs/generate.py"


def test_settings_named_in_the_paper_page_exist():
    settings = (ROOT / "docs/settings.md").read_text()
    named = re.findall(r"`((?:distil|anchors|refine|pull|net)\.[\w.]+)`", PAPER_TO_CODE)
    assert len(named) > 8
    for path in named:
        assert path in settings
