"""The engine flower in one process: the bits of `loop` for every method, and sites that are lost or lie."""

from pathlib import Path
from typing import Any

import pytest

from fedlgd.deploy.server import Request, coordinate
from fedlgd.runs.runner import Result, execute
from tests import tiny
from tests.contract import battery
from tests.deploy import grid
from tests.deploy.grid import LocalGrid


@pytest.fixture(autouse=True)
def _home(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDLGD_DATA", str(tmp_path / "home"))


def run(at: LocalGrid, config: Any, out: Path, timeout: float = 0.0, **how: Any) -> Result:
    request = Request(config=config.toml(), out=str(out), sites=dict(grid.NODES), timeout=timeout)
    return coordinate(at, request, pause=0.0, **how)


CASES = [case for case, method in battery.CASES.items() if not method.pooled]


@pytest.mark.parametrize("case", CASES)
def test_every_method_has_the_bits_of_loop(case, tmp_path):
    config = grid.config(battery.CASES[case], rounds=3, ratio=0.67, seed=5, evaluate_every=2)
    folders, data = grid.sites(tmp_path, battery.uneven())
    away = run(LocalGrid(folders), config, tmp_path / "run")
    here = execute(config, data)
    assert tiny.equal(away.params, here.params)
    assert tiny.without_seconds(away.records) == tiny.without_seconds(here.records)
    assert (away.anchors is None) == (here.anchors is None)
    if here.anchors:
        assert tiny.equal({"": away.anchors.images}, {"": here.anchors.images})
