"""Suites by name, suites of one's own, and their settings."""

import inspect
import os
import subprocess
import sys
from dataclasses import MISSING, fields

import pytest

import fedlgd
from fedlgd.core.errors import DataError, SettingError
from fedlgd.data.suites import SUITES, DataChoice, find_suite
from fedlgd.runs.config import resolve
from tests.data.pictures import tree
from tests.errors import refuses

OWN = '''
from dataclasses import dataclass

import numpy as np

import fedlgd


@dataclass(frozen=True, kw_only=True)
class Stripes:
    """Two sites of stripes.

    More about them.
    """

    side: int = 8

    def open(self):
        x = np.zeros((6, self.side, self.side), np.uint8)
        x[::2, ::2] = 255
        y = np.arange(6) % 2
        return fedlgd.from_arrays({name: (x, y, x[:2], y[:2]) for name in ("north", "south")}, name="stripes")


@dataclass(frozen=True, kw_only=True)
class Broken:
    def open(self):
        return [1, 2]


@dataclass(frozen=True)
class Required:
    side: int

    def open(self): ...


@dataclass(frozen=True)
class Taken:
    limit: int = 3

    def open(self): ...


@dataclass(frozen=True)
class Closed:
    side: int = 8


class Plain:
    def open(self): ...


def function(): ...
'''


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A module in the current folder, where a user's own classes are found."""
    (tmp_path / "own_stripes.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield "own_stripes"
    sys.modules.pop("own_stripes", None)


def test_a_suite_of_ones_own_is_loaded_with_its_settings(own):
    federation = fedlgd.load(f"{own}:Stripes", side=10, limit=2)
    assert federation.name == "stripes"
    assert federation.shape == (3, 10, 10)
    assert [len(site.train) for site in federation.sites] == [2, 2]
    assert find_suite(f"{own}:Stripes").about == "Two sites of stripes."


def test_a_suite_of_ones_own_is_resolved_from_a_configuration_by_its_name(own):
    config = resolve({"data": {"name": f"{own}:Stripes", "side": 12}})
    assert config.data.open().shape == (3, 12, 12)
    assert config.plain()["data"] == {"name": f"{own}:Stripes", "limit": 0, "test_limit": 0, "side": 12}
    with pytest.raises(SettingError, match=r"did you mean 'data.side'"):
        resolve({"data": {"name": f"{own}:Stripes", "sid": 12}})


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("own_stripes:Missing", "cannot-import"),
        ("no_such_module:Suite", "cannot-import"),
        ("own_stripes:Required", "suite-without-defaults"),
        ("own_stripes:Taken", "suite-field-taken"),
        ("own_stripes:Closed", "not-a-suite"),
        ("own_stripes:Plain", "not-a-suite"),
        ("own_stripes:function", "not-a-suite"),
        ("own_stripes:Broken", "suite-opens-no-federation"),
    ],
)
def test_what_is_not_a_suite_is_refused_with_what_it_lacks(own, name, code):
    with refuses(code, DataError):
        fedlgd.load(name)


def test_an_unknown_setting_is_refused_with_a_suggestion():
    with refuses("suite-has-no-setting", key="sise", hint="; did you mean 'size'?"):
        fedlgd.load("digits", sise=4)


@pytest.mark.parametrize(
    "cls", [DataChoice, *(suite.settings for suite in SUITES.values())], ids=lambda c: c.__name__
)
def test_every_setting_has_a_line_of_help_and_every_integer_an_upper_bound(cls):
    for field in fields(cls):
        if (cls, field.name) == (DataChoice, "suite"):
            continue
        assert field.metadata["help"].endswith("."), field.name
        assert "\n" not in field.metadata["help"]
        assert field.default is not MISSING
        if inspect.get_annotations(cls, eval_str=True).get(field.name) is int:
            assert field.metadata["most"] >= field.default, field.name
            assert field.metadata["least"] <= field.default, field.name


@pytest.mark.parametrize(
    "settings",
    [
        {"name": "split", "sites": 10**9},
        {"name": "split", "seed": 2**63},
        {"name": "cifar10c", "parts": 10**6},
        {"name": "cifar10c", "train_photos": 10**9},
        {"name": "folders", "min_per_class": 10**9},
        {"name": "builtin-digits", "limit": 10**12},
    ],
    ids=str,
)
def test_an_integer_beyond_its_upper_bound_is_refused(settings):
    setting = list(settings)[-1]
    with pytest.raises(SettingError, match=f"data.{setting} is {settings[setting]}"):
        resolve({"data": settings})


def test_a_folder_is_opened_without_downloads_and_without_other_suites(tmp_path):
    """In a process of its own, as a run does it: by its configuration."""
    tree(tmp_path / "sites")
    code = (
        "import sys; import fedlgd.cli.run; from fedlgd.runs.config import resolve; "
        f"resolve({{}}, {{'data.name': 'folders', 'data.path': {str(tmp_path / 'sites')!r}}}).data.open(); "
        "print(*sorted(name for name in sys.modules if name.startswith('fedlgd.data.')))"
    )
    environment = {**os.environ, "FEDLGD_CACHE": str(tmp_path / "home")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    imported = {name.split(".")[2] for name in done.stdout.split()}
    assert "own" in imported
    assert not imported & {"fetch", "builtin", "published"}
