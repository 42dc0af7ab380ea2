"""What authors of methods, suites and networks import stays where it is, and says what it is."""

import ast
import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fedlgd.core.public import public_names
from tests import PATIENCE

ROOT = Path(__file__).parent.parent
PUBLIC = {
    "fedlgd.methods": """
        Batch Broadcast Distil Expected Fit Hello Hellos LabelledSet Local Method Net Params Part Regularised
        Regulariser ServerState Settings Site SiteState Stream Term Trained Training Trees Update Updates VirtualSet
        Visit average broadcast enrol expected_upload first_model first_set fit fit_on refine_set register setting
        start training_set tree union_of update upload_of weighted_mean
    """,
    "fedlgd.data": """
        Federation LabelledSet Scale Site Stream SuiteSettings data_home from_arrays from_folders from_sites
        load setting
    """,
    "fedlgd.nets": "ConvNet Net Output Params ResNet18 Shape Stream build_net norm_layer",
}
"""A name leaves this list only with a line in the changelog."""

EACH = [(package, name) for package, names in PUBLIC.items() for name in names.split()]


@pytest.mark.parametrize("package", PUBLIC)
def test_the_public_names_are_these(package):
    module = importlib.import_module(package)
    assert sorted(module.__all__) == sorted(PUBLIC[package].split())
    assert set(module.__all__) <= set(dir(module))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = module.nothing


@pytest.mark.parametrize(("package", "name"), EACH)
def test_a_public_name_can_be_imported_and_has_a_docstring(package, name):
    module = importlib.import_module(package)
    found, home = getattr(module, name), public_names(module.__file__)[name]
    if inspect.ismodule(found) or inspect.isroutine(found) or isinstance(found, type):
        assert inspect.getdoc(found)
        assert found.__name__.startswith("fedlgd.") or found.__module__ == home  # where it is defined
    else:
        assert _text_after(name, home)


def _text_after(name: str, module: str) -> str:
    """The string below the assignment of an alias."""
    body = ast.parse(Path(importlib.import_module(module).__file__).read_text()).body
    at = next(i for i, node in enumerate(body) if isinstance(node, ast.Assign) and node.targets[0].id == name)
    return ast.literal_eval(body[at + 1].value)


def test_a_public_name_of_a_package_is_none_of_its_modules():
    """Else it would depend on what has been imported which of the two is found."""
    for package in PUBLIC:
        module = importlib.import_module(package)
        assert not {file.stem for file in Path(module.__file__).parent.iterdir()} & {*module.__all__}


def test_the_page_lists_the_public_names():
    rows = re.findall(r"^\| `(fedlgd\.\w+)` \| (.+) \|$", (ROOT / "docs" / "api.md").read_text(), re.M)
    listed = {package: re.findall(r"`(\w+)`", names) for package, names in rows}
    assert listed == {package: sorted(names.split()) for package, names in PUBLIC.items()}


def test_packages_are_imported_without_torch():
    code = f"import sys, {', '.join(PUBLIC)}; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=PATIENCE)
