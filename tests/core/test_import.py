"""A slip gets the nearest word; a user's own class is found where the user is."""

import sys

import pytest

from fedlgd.core.errors import DataError, SettingError, did_you_mean
from fedlgd.core.settings import import_object
from tests.errors import refuses

KNOWN = ("fedavg", "fedprox", "scaffold")


@pytest.mark.parametrize(("word", "near"), [("fedvag", "fedavg"), ("fed-prox", "fedprox"), ("scafold", "scaffold")])
def test_a_slip_gets_the_nearest_word(word, near):
    assert did_you_mean(word, KNOWN) == f"; did you mean {near!r}?"
    assert did_you_mean(word, dict.fromkeys(KNOWN)) == f"; did you mean {near!r}?"


@pytest.mark.parametrize("word", ["zzzz", "", "完全"])
def test_a_word_near_to_nothing_gets_none(word):
    assert did_you_mean(word, KNOWN) == ""
    assert did_you_mean(word, ()) == ""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A current folder with modules of a user, forgotten afterwards."""
    (tmp_path / "mine_for_a_test.py").write_text("class Own:\n    number = 7\n")
    (tmp_path / "broken_for_a_test.py").write_text("import nothing_of_this_name\n")
    package = tmp_path / "package_for_a_test"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "inner.py").write_text("class Own:\n    number = 8\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if "for_a_test" in name:
            del sys.modules[name]


def test_a_module_in_the_current_folder_is_found(here):
    assert import_object("mine_for_a_test:Own", "method").number == 7
    assert import_object("package_for_a_test.inner:Own", "method").number == 8


def test_an_installed_module_comes_before_one_in_the_current_folder(here, monkeypatch):
    """A stray file in the current folder does not take the place of a package."""
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    (here / "colorsys.py").write_text("raise RuntimeError('the wrong one')\n")
    import_object("mine_for_a_test:Own", "method")
    assert import_object("colorsys:rgb_to_hsv", "method")(0, 0, 0) == (0, 0, 0)
    assert sys.path.count("") == 1
    assert sys.path[-1] == ""


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("nowhere_at_all:Own", "No module named 'nowhere_at_all'"),
        ("mine_for_a_test:Other", "has no attribute 'Other'"),
        ("broken_for_a_test:Own", "No module named 'nothing_of_this_name'"),
        (":Own", "Empty module name"),
        (".relative:Own", "relative"),
        ("mine_for_a_test:", "cannot import"),
    ],
)
def test_what_cannot_be_imported_is_named_with_the_reason(here, spec, words):
    with pytest.raises(SettingError) as error:
        import_object(spec, "regulariser")
    assert f"cannot import regulariser {spec!r}" in str(error.value)
    assert words in str(error.value)
    with refuses("cannot-import", DataError, what="federation"):
        import_object(spec, "federation", DataError)
