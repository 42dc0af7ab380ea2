"""The classes of a federation are agreed before its first round: a misspelt folder never is a class more."""

from pathlib import Path

import pytest

from fedlgd.core.errors import RunError, SettingError, looks_like, message
from fedlgd.data.own.classes import misspelt
from fedlgd.data.own.suite import Folders
from fedlgd.deploy.classes import class_lines, classes_of_run
from fedlgd.deploy.client import SiteSettings, answer_question
from fedlgd.deploy.coordinator import ask_sites, coordinate
from fedlgd.deploy.kit import Address, add_sites, provision, read_kit, renew
from fedlgd.deploy.messages import Order, _contents, question
from fedlgd.deploy.policy import TaskError
from fedlgd.engines.site import Answer, Task
from fedlgd.engines.wire import from_bytes
from tests import tiny
from tests.deploy import grid
from tests.deploy.grid import NODES, LocalGrid
from tests.errors import refuses

HERE = Address("127.0.0.1", 9443)
AGREED = ("glaucoma", "normal", "other")
SPELT = "glaucoma=0,normal=1,other=2"
MISSPELT = "glaucomma=0,normal=1,other=2"
TOLD = {"ape": ("glaucoma", "normal"), "bee": ("glaucomma", "normal"), "cat": ("glaucoma", "normal")}


@pytest.fixture(autouse=True)
def _home(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDLGD_CACHE", str(tmp_path / "home"))


@pytest.fixture
def folders(tmp_path: Path) -> dict[int, Path]:
    """Three sites, of which bee has misspelt a class."""
    found, _ = grid.sites(tmp_path, tiny.federation())
    for name, node in NODES.items():
        spell(found[node], MISSPELT if name == "bee" else SPELT)
    return found


def spell(folder: Path, names: str, classes: tuple[str, ...] = ()) -> SiteSettings:
    """Let a site call its classes by these names."""
    site = folder.name.removeprefix("site-")
    images = Folders(path=str(folder.parent / "all" / f"{site}.npz"), classes=names)
    settings = SiteSettings(site=site, folder=folder, images=images, classes=classes)
    settings.write()
    return settings


def ask(folders: dict[int, Path], out: Path, quorum: float = 1.0, **how):
    config = grid.config(tiny.fedavg(), rounds=2, quorum=quorum)
    return ask_sites(LocalGrid(folders), config, out, NODES, timeout=0.0, pause=0.0, **how)


@pytest.mark.parametrize(
    ("word", "known", "found"),
    [
        ("glaucomma", ["normal", "glaucoma"], "glaucoma"),
        ("NORMAL", ["Glaucoma", "Normal"], "Normal"),
        ("nomral", ["normal"], "normal"),
        ("abnormal", ["normal"], ""),
        ("no_glaucoma", ["glaucoma"], ""),
        ("atypical", ["typical"], ""),
        ("NRG", ["RG"], ""),
        ("grade2", ["grade1"], ""),
        ("11", ["1"], ""),
    ],
)
def test_a_class_looks_like_another_if_it_is_misspelt_and_not_if_it_is_its_opposite(word, known, found):
    assert looks_like(word, known) == found


def test_agreed_classes_are_in_every_kit_also_in_those_that_come_later(tmp_path):
    kits = tmp_path / "kits"
    provision(kits, ["a", "b"], HERE, classes=["normal", "glaucoma"])
    add_sites(kits, ["c"])
    renew(kits)
    for name in ("server", "site-a", "site-b", "site-c"):
        assert read_kit(kits / name).classes == ("normal", "glaucoma")
    assert "normal, glaucoma" in (kits / "site-c" / "README.md").read_text()


@pytest.mark.parametrize("classes", [["one"], ["one", "one"], ["one", "One"], ["one", ""], ["one", "t\nwo"]])
def test_classes_that_no_federation_can_have_are_refused_before_a_kit_is_made(tmp_path, classes):
    with refuses("kit-classes", SettingError, classes=classes):
        provision(tmp_path / "kits", ["a"], HERE, classes=classes)
    assert not (tmp_path / "kits").exists()


def test_a_site_with_a_class_that_was_not_agreed_on_is_refused_with_what_it_looks_like(folders):
    settings = spell(folders[NODES["bee"]], MISSPELT, AGREED)
    with refuses("class-not-agreed", TaskError, unknown=["glaucomma"], agreed=list(AGREED)) as refused:
        settings.open()
    assert "--set data.classes=glaucoma=glaucomma" in refused.value.values["way_out"]
    assert spell(folders[NODES["bee"]], "glaucoma=glaucomma=0,normal=1,other=2", AGREED).open().classes == AGREED


def test_sites_that_disagree_stop_a_run_before_anything_is_computed(folders, tmp_path):
    config = grid.config(tiny.fedavg(), rounds=2)
    at = LocalGrid(folders)
    with refuses("classes-of-sites-differ", RunError, classes="glaucoma,glaucomma,normal,other") as refused:
        coordinate(at, config, tmp_path / "run", NODES, timeout=0.0, pause=0.0)
    assert refused.value.values["only"] == "'glaucoma' only at ape, cat; 'glaucomma' only at bee"
    assert "--set data.classes=glaucoma=glaucomma" in refused.value.values["way_out"]
    assert {tuple(tasks) for _, tasks in at.sent} == {()}
    assert not (tmp_path / "run").exists()


def test_the_coordinator_is_asked_once_and_only_if_the_sites_differ(folders, tmp_path):
    asked = []

    def confirm(told):
        asked.append(told)
        return True

    assert ask(folders, tmp_path / "run", confirm=confirm).classes == ("glaucoma", "glaucomma", "normal", "other")
    assert asked == [{"ape": AGREED, "bee": ("glaucomma", "normal", "other"), "cat": AGREED}]
    spell(folders[NODES["bee"]], SPELT)
    assert ask(folders, tmp_path / "run", confirm=confirm).classes == AGREED
    assert len(asked) == 1


def test_with_agreed_classes_the_others_go_on_without_the_site_and_the_record_says_why(folders, tmp_path):
    known = ask(folders, tmp_path / "run", quorum=0.6, classes=AGREED[::-1])
    assert known.classes == AGREED  # as for folders on one machine
    config = grid.config(tiny.fedavg(), rounds=1, quorum=0.6)
    at = LocalGrid(folders)
    records = coordinate(at, config, tmp_path / "run", NODES, timeout=0.0, pause=0.0, federation=known).records
    assert [list(record.refused) for record in records] == [["bee"]] * 2
    assert "glaucomma" in records[0].refused["bee"]
    assert sorted(records[-1].scores) == ["ape", "cat"]


def test_with_agreed_classes_and_all_sites_required_the_run_does_not_start(folders, tmp_path):
    with refuses("too-few-enrolled", RunError) as refused:
        ask(folders, tmp_path / "run", classes=AGREED)
    assert "glaucomma" in refused.value.values["sites"]


def test_a_site_refuses_a_run_with_classes_that_its_kit_does_not_have(folders):
    settings = spell(folders[NODES["ape"]], SPELT, AGREED)
    config = grid.config(tiny.fedavg(), rounds=2).toml()
    order = Order(run="r", config=config, classes=(*AGREED, "glaucomma"), shape=(3, tiny.SIDE, tiny.SIDE))
    replied = answer_question(question(order, [Task(what="enrol", site="ape")]), settings)
    (answer,) = (from_bytes(Answer, part) for part in _contents(replied, "answers"))
    assert answer.hello is None
    assert answer.fault == message("run-not-agreed", unknown=["glaucomma"], agreed=AGREED)


def test_the_classes_of_a_command_are_those_of_the_kit_or_stand_alone():
    assert classes_of_run(["b", "a"], []) == ("b", "a")
    assert classes_of_run([], ["a", "b"]) == ("a", "b")
    assert classes_of_run(["b", "a"], ["a", "b"]) == ("b", "a")
    with refuses("classes-not-of-kit", SettingError, given=["a", "c"], of_kit=["a", "b"]):
        classes_of_run(["a", "c"], ["a", "b"])


def test_what_fewer_sites_have_is_the_misspelling():
    assert misspelt(TOLD) == {"glaucomma": "glaucoma"}
    assert class_lines(TOLD)[1:] == [
        "  glaucoma: ape, cat",
        "  glaucomma: bee (looks like glaucoma)",
        "  normal: ape, bee, cat",
    ]
