"""The time estimate: its counts are those of the run, and it knows what need not be done again."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedlgd.core.net import Net
from fedlgd.data.federation import Federation, from_arrays
from fedlgd.nets.registry import build_net
from fedlgd.runs.config import Config, resolve
from fedlgd.runs.estimate import Estimate, estimate
from fedlgd.runs.folder import FolderCache
from fedlgd.runs.run import execute

SIDE, CLASSES = 8, 3
SMALL = {
    "rounds": 4,
    "net": {"name": "convnet", "width": 4, "depth": 2},
    "distil": {"steps": 8, "per_class": 4, "real_per_class": 5},
    "local": {"batch": 8},
}


@pytest.fixture(scope="module")
def sites() -> Federation:
    rng = np.random.default_rng(0)

    def part(count: int) -> tuple[np.ndarray, np.ndarray]:
        return rng.integers(0, 256, (count, SIDE, SIDE, 3), dtype=np.uint8), np.arange(count) % CLASSES

    return from_arrays({name: (*part(count), *part(15)) for name, count in (("a", 24), ("b", 48), ("c", 36))})


def config(method: str, **settings: Any) -> Config:
    return resolve({"method": method, **SMALL}, settings)


def network(sites: Federation) -> Net:
    return build_net("convnet", sites.shape, CLASSES, {"width": 4, "depth": 2})


def foreseen(how: Config, sites: Federation, **more: Any) -> Estimate:
    found = estimate(how, sites, network(sites), **more)
    assert found is not None
    return found


def spent(how: Config, sites: Federation, out: Path | None = None) -> Counter[str]:
    flops: Counter[str] = Counter()
    for record in execute(how, sites, out).records:
        flops.update(record.flops)
    return flops


PLAIN_VCK = {"beta": 0.0, "slope": 0.0, "latent": False, "memory": 1}
LGD = {"refine.steps": 4, "refine.reuse": 2, "anchors.steps": 5, "anchors.plan": "exact", "anchors.per_class": 4}


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("fedlgd", {**LGD, "anchors.selected.every": 2, "refine.selected.every": 2}),
        ("fedlgd", {**LGD, "distil.plan": "exact", "evaluate_every": 2}),
        ("fedlgd", {**LGD, "anchors.plan": "target", "anchors.tolerance": 0.0, "anchors.steps": 1}),
        ("fedavg", {"train_on": "virtual"}),
        ("fedavg", {"train_on": "real", "local.epochs": 2}),
        ("scaffold", {"local.steps": 3}),
        ("feddm", {"local.steps": 30, "local.batch": 12, "distil.steps": 40}),
        ("fedvck", {"local.steps": 30, "local.batch": 12, "distil.steps": 40, **PLAIN_VCK}),
        ("fedprox", {"train_on": "virtual", "ratio": 0.67}),
    ],
)
def test_counts_are_those_of_the_run(method: str, settings: dict[str, Any], sites: Federation):
    how = config(method, **settings)
    expected, actual = foreseen(how, sites).flops, spent(how, sites)
    for phase in ("distil", "train", "server", "evaluate"):
        assert expected.get(phase, 0) == pytest.approx(actual[phase], rel=0.1), phase
    assert sum(actual.values()) > 0


def test_a_method_that_remembers_is_tried_in_a_round_with_a_memory(sites: Federation):
    how = config("moon", train_on="virtual", rounds=8)
    assert foreseen(how, sites).flops["train"] == pytest.approx(spent(how, sites)["train"], rel=0.2)


def test_seconds_of_all_phases_are_foreseen(sites: Federation):
    found = foreseen(config("fedlgd", **LGD), sites)
    assert all(found.seconds[phase] > 0 for phase in ("distil", "train", "server", "evaluate"))
    assert 0 < found.enrolment < found.seconds["distil"]


def test_workers_share_what_sites_do_but_not_what_the_server_does():
    found = Estimate({"distil": 60.0, "train": 20.0, "server": 5.0}, {})
    assert found.total() == 85.0
    assert found.total(workers=4) == 25.0


def test_committed_rounds_and_sets_in_the_cache_are_not_counted(sites: Federation, tmp_path: Path, monkeypatch):
    monkeypatch.setenv("FEDLGD_CACHE", str(tmp_path / "home"))
    how = config("fedavg", train_on="virtual")
    whole = foreseen(how, sites)
    assert foreseen(how, sites, committed=2).flops["train"] == pytest.approx(whole.flops["train"] / 2)
    assert foreseen(how, sites, committed=0).flops["distil"] == 0
    execute(how, sites, tmp_path / "run")
    (folder,) = (tmp_path / "home" / "distilled").iterdir()
    assert foreseen(how, sites, cache=FolderCache(folder)).flops["distil"] == 0
    other = config("fedavg", train_on="virtual", **{"distil.lr": 0.5})
    assert foreseen(other, sites, cache=FolderCache(folder)).flops["distil"] == whole.flops["distil"]


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("pooled", {}),
        ("fedaf", {}),
        ("fedaf", {"agree": 0.0}),
        ("fedlap", {}),
        ("collabdm", {}),
        ("fedvck", {}),
        ("fedvck", {"beta": 0.0}),
    ],
)
def test_nobody_can_tell_for_pooled_data_several_exchanges_a_server_that_stops_by_itself_or_passes_over_all_images(
    method: str, settings: dict[str, Any], sites: Federation
):
    assert estimate(config(method, **settings, **{"local.steps": 3}), sites, network(sites)) is None


@pytest.mark.slow
def test_a_run_of_some_seconds_takes_what_was_said(digits: Federation):
    settings = {"net.width": 16, "distil.steps": 40, "rounds": 7, "refine.steps": 20, "data.name": "builtin-digits"}
    how = resolve({"method": "fedlgd"}, settings, "quick")
    network = build_net("convnet", digits.shape, 10, {"width": 16})
    found = estimate(how, digits, network)
    assert found is not None
    cpu = sum(sum(record.cpu.values()) for record in execute(how, digits).records)
    assert cpu / 1.5 < sum(found.cpu.values()) < cpu * 1.5
