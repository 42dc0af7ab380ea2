"""examples/04_flower: the Flower app, without a network."""

import runpy
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
from flwr.app import Context, RecordDict
from flwr.cli.build import build_fab_from_disk

from fedlgd.deploy.kit import template
from fedlgd.rundir.records import committed_records
from tests.contract import battery
from tests.deploy import grid
from tests.deploy.grid import NODES, LocalGrid

APP = Path(__file__).parents[2] / "examples" / "04_flower"
TINY = (
    "net.width=4 net.depth=2 distil.per_class=2 distil.steps=1 refine.steps=1 anchors.per_class=2 anchors.steps=1"
)


class NamedGrid(LocalGrid):
    """Nodes that are registered with their names."""

    def get_nodes(self) -> list[SimpleNamespace]:
        return [SimpleNamespace(name=name, node_id=node) for name, node in NODES.items()]


@pytest.mark.parametrize("named", [True, False])
def test_the_app_runs_fedlgd_at_the_sites_that_are_registered(named, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDLGD_CACHE", str(tmp_path / "home"))
    monkeypatch.syspath_prepend(str(APP))
    from fedlgd_app import client_app, server_app

    from fedlgd.deploy import client

    assert client_app.app is client.app
    folders, _ = grid.sites(tmp_path, battery.uneven(), template("site.toml"))
    config = tomllib.loads((APP / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    config |= {"rounds": 2, "out": str(tmp_path / "run"), "settings": TINY}
    if not named:
        config["sites"] = " ".join(f"{name}={node}" for name, node in NODES.items())
    place = (NamedGrid if named else LocalGrid)(folders)
    server_app.app(place, Context(1, 1, {}, RecordDict(), config))
    records = list(committed_records(tmp_path / "run"))
    assert [r.round for r in records] == [-1, 0, 1]
    assert set(records[-1].scores) == set(NODES)


@pytest.mark.filterwarnings("ignore:GitWildMatch:DeprecationWarning")
def test_flower_can_build_the_app():
    assert len(build_fab_from_disk(APP)) > 1000


def test_the_images_for_the_walk_through_are_accepted(digits, tmp_path):
    from fedlgd.data.own.check import check_data

    write = runpy.run_path(str(APP / "make_images.py"))["main"]
    images = write(tmp_path / "images", limit=20, test_limit=10)
    assert [path.name for path in sorted(images.iterdir())] == ["a", "b", "c"]
    checked = check_data(images / "a", least=1, only="a")
    assert (checked.sites, checked.images) == (1, 30)
    assert checked.count("error") == 0


def test_a_site_is_prepared_with_a_policy_and_its_images(digits, tmp_path):
    from fedlgd.deploy.client import SiteSettings
    from fedlgd.deploy.policy import Policy

    write = runpy.run_path(str(APP / "make_images.py"))["main"]
    images = write(tmp_path / "images", limit=20, test_limit=10)
    folder = runpy.run_path(str(APP / "prepare_site.py"))["main"](tmp_path / "site", "a", images / "a")
    assert SiteSettings.read(folder, "a").open().name == "a"
    policy = Policy.read(folder / "site.toml")
    assert (policy.rounds, policy.train_on, policy.missing) == (500, ("virtual",), ())
