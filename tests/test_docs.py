"""What the documents say is true of the code."""

import ast
import importlib
import importlib.util
import re
import shlex
from pathlib import Path

import click
import pytest
import typer

from fedlgd.cli import app
from fedlgd.methods import registry
from results.__main__ import generated

ROOT = Path(__file__).parent.parent
PAPER_TO_CODE = (ROOT / "docs/paper-to-code.md").read_text()
LINES = re.findall(r"^\| (.+?) \| `([\w.]+):(\w+)` \| `([\w/.]+)` \|$", PAPER_TO_CODE, re.M)


def test_the_page_has_lines():
    assert len(LINES) > 15


@pytest.mark.parametrize(("claim", "module", "name", "test"), LINES)
def test_every_equation_has_a_function_that_its_test_names(claim, module, name, test):
    assert callable(getattr(importlib.import_module(module), name)), claim
    assert re.search(rf"\b{name}\b", (ROOT / test).read_text(), re.I), f"{test} never mentions {name}"


LINKED = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "results/notes").glob("*.md")]


@pytest.mark.parametrize("page", [str(page.relative_to(ROOT)) for page in LINKED])
def test_links_between_documents_lead_somewhere(page):
    text = (ROOT / page).read_text()
    for target in re.findall(r"\]\((?!http)([^)#]+)", text):
        assert ((ROOT / page).parent / target).exists(), f"{page} links to {target}"


TEXTS = [*ROOT.glob("*.md"), *LINKED[1:]]


@pytest.mark.parametrize(
    "page", [page for page in TEXTS if page.name != "CHANGELOG.md"], ids=lambda page: page.name
)
def test_source_files_named_in_the_pages_exist(page):
    for name in re.findall(r"`((?:\w+/)+\w+\.py|(?:src|tests|bench|results|examples)/[\w./-]+)`", page.read_text()):
        assert (ROOT / name).exists() or (ROOT / "src/fedlgd" / name).exists(), f"{page.name} names {name}"


COMMANDS = sorted({line for page in LINKED for line in re.findall(r"^ {4,}(fedlgd .+)$", page.read_text(), re.M)})


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_in_the_pages_has_the_options_of_the_program(command):
    """Parsed, not run. `...` stands for more words, and `#` starts a comment."""
    words = [word for word in shlex.split(command, comments=True) if word not in ("...", "[...]")]
    found, arguments = typer.main.get_command(app), words[1 : words.index(">") if ">" in words else None]
    while isinstance(found, click.Group):
        found = found.commands[arguments.pop(0)]
    assert found.make_context("fedlgd", arguments)


SCRIPTS = [file for folder in ("results", "bench", "examples") for file in (ROOT / folder).rglob("*.py")]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: str(script.relative_to(ROOT)))
def test_scripts_beside_the_package_use_names_that_it_has(script):
    for node in ast.walk(ast.parse(script.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fedlgd"):
            module = importlib.import_module(node.module)
            missing = [name.name for name in node.names if not hasattr(module, name.name)]
            assert not [name for name in missing if not importlib.util.find_spec(f"{node.module}.{name}")]


MAPS = [
    file.parent for file in sorted((ROOT / "src/fedlgd").glob("*/**/__init__.py")) if file.parent.name != "methods"
]


@pytest.mark.parametrize("package", MAPS, ids=lambda folder: str(folder.relative_to(ROOT / "src")))
def test_the_docstring_of_a_package_names_everything_in_it(package):
    parts = (path for path in package.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists())
    text = ast.get_docstring(ast.parse((package / "__init__.py").read_text()))
    said = {name for names in re.findall(r"`(\w+)`|^ {4}(\w+) |^(\w+)  ", text, re.M) for name in names}
    assert {path.stem for path in parts} - {"__init__"} <= said


def test_derived_pages_are_what_the_code_and_the_stored_runs_say():
    for path, text in generated().items():
        assert path.read_text() == text, f"{path.name} is old; run: make results"


HEADINGS = [
    "About",
    "Formulas",
    "Hyper-parameters",
    "Messages and state",
    "Expected results",
    "Differences to the original",
]


@pytest.mark.parametrize("method", registry.names())
def test_every_method_has_a_page_with_the_same_headings(method):
    pages = [ROOT / f"docs/methods/{name}.md" for name in (method, method.rpartition("-")[0])]
    page = next(page for page in pages if page.exists())
    text = page.read_text()
    assert re.findall(r"^## (.+)$", text, re.M) == HEADINGS
    assert f"--method {method.split('-')[0]}" in text
    assert f"`{method}`" in text


SOURCES = sorted((ROOT / "src").rglob("*.py"))
UNPICKLES = r"import (c?pickle|joblib|shelve|dill)\b|\b(c?pickle|joblib|dill)\.\w|torch\.load\(|\.recv\(\)"


@pytest.mark.parametrize("code", ["import pickle", "pickle.loads(x)", "torch.load(file)", "connection.recv()"])
def test_what_reads_a_pickle_is_recognised(code):
    assert re.search(UNPICKLES, code)


@pytest.mark.parametrize("file", SOURCES, ids=lambda file: str(file.relative_to(ROOT / "src")))
def test_no_module_reads_a_pickle(file):
    """As README and SECURITY.md say. Messages between processes are bytes of our own; arrays refuse objects."""
    text = file.read_text()
    assert not re.search(UNPICKLES, text)
    for call in re.findall(r"np\.load\(.*|read_array\(.*", text):
        assert "allow_pickle=False" in call


def test_settings_named_in_the_paper_page_exist():
    settings = (ROOT / "docs/settings.md").read_text()
    named = re.findall(r"`((?:distil|anchors|refine|pull|net)\.[\w.]+)`", PAPER_TO_CODE)
    assert len(named) > 8
    for path in named:
        assert path in settings
