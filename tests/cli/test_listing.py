"""`fedlgd methods` and `fedlgd nets`."""

import json
import sys
import textwrap
from pathlib import Path

import pytest

from fedlgd.cli.common import assignments, preset_of
from fedlgd.cli.options import RunOptions
from fedlgd.core.settings import describe_settings
from fedlgd.data.own.layouts import SiteImages, Tree
from fedlgd.data.own.suite import Folders
from fedlgd.data.published.domains import PAIRED, REQUIRED
from fedlgd.data.suites import SUITES
from fedlgd.methods import registry
from fedlgd.nets.registry import NETS
from fedlgd.rundir.disclosure import DISCLOSES

OWN_METHOD = '''
    from dataclasses import dataclass
    from fedlgd.core.settings import setting
    from fedlgd.methods.fedprox import FedProx

    @dataclass(frozen=True, kw_only=True)
    class Mine(FedProx):
        """Half a FedProx."""
        share: float = setting(0.5, "Fraction of the step.", above=0, most=1)
'''


def test_methods_lists_every_method_with_its_presets_and_settings(fedlgd):
    plain, rows = fedlgd("methods"), json.loads(fedlgd("methods", "--json").out)
    assert [row["name"] for row in rows] == registry.names()
    by_name = {row["name"]: row for row in rows}
    assert by_name["fedlgd"]["settings"]["distil"]["per_class"] == 10
    assert "official" in by_name["fedlgd"]["presets"]
    assert all(row["about"] for row in rows)
    assert all(name in plain.out for name in registry.names())
    assert "fedlgd methods NAME" in plain.out
    assert all(part in plain.out for part in registry.stacks())


def test_methods_of_the_family_are_listed_apart(fedlgd, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")  # no line is folded
    family, _, others = fedlgd("methods").out.partition("\n\n")
    others = others.partition("\n\n")[0]
    assert {line.split()[0] for line in family.splitlines()[3:]} == {*registry.FAMILY}
    assert {line.split()[0] for line in others.splitlines()[3:]} == {*registry.names()} - {*registry.FAMILY}
    rows = json.loads(fedlgd("methods", "--json").out)
    assert {row["name"] for row in rows if row["family"]} == {*registry.FAMILY}


def test_a_method_with_parts_is_shown_with_the_settings_of_its_parts(fedlgd):
    row = json.loads(fedlgd("methods", "scaffold+anchors", "--json").out)
    assert {"server_lr", "anchors.per_class", "pull.weight"} <= {info["path"] for info in row["setting_details"]}
    assert row["preset_settings"]["quick"]["anchors.steps"] == 10


def test_one_method_is_shown_with_its_formula_every_setting_and_its_presets(fedlgd, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    done = fedlgd("methods", "fedprox")
    assert done.code == 0
    assert "min_w F_c(w) + mu/2 ||w - theta_t||^2" in done.out
    assert all(info.path in done.out for info in describe_settings(registry.find_method("fedprox")))
    assert '("real" | "virtual")' in done.out
    assert "distil.steps = 10000" in done.out
    (row,) = (row for row in json.loads(fedlgd("methods", "--json").out) if row["name"] == "fedprox")
    assert json.loads(fedlgd("methods", "fedprox", "--json").out) == row
    assert row["preset_settings"]["quick"]["local.lr"] == 0.05
    (mu,) = (info for info in row["setting_details"] if info["path"] == "mu")
    assert mu["default"] == 0.01


def test_your_own_method_is_shown_with_the_help_and_bounds_of_its_fields(fedlgd, tmp_path, monkeypatch):
    (tmp_path / "my_method_shown.py").write_text(textwrap.dedent(OWN_METHOD))
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setenv("COLUMNS", "160")
    row = json.loads(fedlgd("methods", "my_method_shown:Mine", "--json").out)
    assert row["description"] == "Half a FedProx."
    (share,) = (info for info in row["setting_details"] if info["path"] == "share")
    assert share["help"] == "Fraction of the step."
    assert share["bounds"] == {"above": 0, "most": 1}
    assert "Fraction of the step. (> 0, <= 1)" in fedlgd("methods", "my_method_shown:Mine").out


def test_a_method_is_shown_with_what_it_sends_and_reads(fedlgd, monkeypatch):
    monkeypatch.setenv("COLUMNS", "240")
    row = json.loads(fedlgd("methods", "scaffold", "--json").out)
    assert (row["train_on"], row["reads"]) == ("real", ["every"])
    assert row["sends"]["trees/variate"] == "control variates"
    plain = fedlgd("methods", "scaffold").out
    assert all(DISCLOSES[kind] in plain for kind in row["sends"].values())
    unset = json.loads(fedlgd("methods", "fedavg+momentum", "--json").out)  # it needs local.momentum
    assert "sends" not in unset


def test_a_method_that_does_not_exist_is_an_error_with_a_suggestion(fedlgd):
    done = fedlgd("methods", "fedprx")
    assert done.code == 2
    assert "did you mean 'fedprox'" in done.err


def test_nets_lists_every_net_with_its_size(fedlgd):
    plain, rows = fedlgd("nets"), json.loads(fedlgd("nets", "--json").out)
    assert [row["name"] for row in rows] == list(NETS)
    by_name = {row["name"]: row for row in rows}
    assert by_name["convnet"]["settings"]["width"] == 128
    assert by_name["convnet"]["parameters"] > 300_000
    assert all(name in plain.out for name in NETS)


def test_methods_have_different_lines_about_them(fedlgd):
    rows = json.loads(fedlgd("methods", "--json").out)
    assert len({row["about"] for row in rows}) == len(rows)
    assert {row["name"]: row["presets"] for row in rows} == {
        name: list(registry.find_method(name).presets) for name in registry.names()
    }


def test_the_catalogue_of_federations_names_the_files_that_the_suites_read():
    assert SUITES["digits"].files == tuple(f"{name}.npz" for name in REQUIRED)
    assert SUITES["retina-ab"].files == tuple(f"{file}.npz" for file, _ in PAIRED.values())


@pytest.mark.parametrize(
    ("values", "preset"),
    [
        ({"data.name": "folders", "method": "fedavg"}, "strong"),
        ({"data.name": "folders"}, "strong"),
        ({"data.name": "digits"}, ""),
        ({}, ""),
        ({"data.name": "folders", "method": "tests.runs.own:Own"}, ""),
        ({"data.name": "folders", "distil.private.epsilon": 4}, ""),
    ],
)
def test_ones_own_images_have_the_preset_strong_where_it_can_be(values, preset):
    methods = [values.get("method", "fedlgd")]
    assert preset_of(values, {}, methods) == preset
    assert not preset_of(values, {"rounds": 3}, methods)
    assert preset_of(values, {}, [*methods, "fedavg", "fedlgd+proximal"]) == preset
    assert not preset_of(values, {}, [*methods, "tests.runs.own:Own"])


@pytest.mark.parametrize(
    ("images", "given", "width"),
    [
        (1_999, {}, 32),
        (2_000, {}, 64),
        (20_000, {}, 128),
        (10, {"net.depth": 2}, None),
        (10, {"net": "resnet18"}, None),
        (10, {"data.name": "builtin-digits"}, None),
    ],
)
def test_own_images_have_a_network_that_fits_unless_one_is_given(images, given, width, monkeypatch):
    tree = Tree(Path(), "folders", (SiteImages("a", [None] * images, ()),))
    monkeypatch.setattr(Folders, "survey", lambda *_: tree)
    folder = {} if "data.name" in given else {"data.name": "folders", "data.path": "sites"}
    texts = [f"{path}={json.dumps(value)}" for path, value in given.items()]
    found = assignments(RunOptions(settings=texts), folder)
    assert found.get("net.width") == width
