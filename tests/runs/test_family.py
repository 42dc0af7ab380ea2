"""Every method of the family through all that the package does with a method: one short run each."""

import pytest

import fedlgd
from fedlgd.attacks import audit, membership
from fedlgd.attacks.audit import AuditRequest, plan_audit
from fedlgd.attacks.target import AuditTarget
from fedlgd.deploy.coordinator import coordinate
from fedlgd.methods import registry
from fedlgd.report.page import write_report
from tests import tiny
from tests.contract import battery
from tests.deploy import grid
from tests.deploy.grid import NODES, LocalGrid

PLAN = {"rounds": 2, "seed": 5, "evaluate_every": 1}
NET = {"name": "convnet", "depth": 2, "width": tiny.WIDTH}
ATTACKED = {"images": "uploads", "weights": "updates", "feature means": "features"}
"""The target of the attack on a kind of message."""


@pytest.fixture(autouse=True)
def _short(tmp_path, monkeypatch):
    """Audits have no controls and few draws of the bootstrap."""
    monkeypatch.setenv("FEDLGD_CACHE", str(tmp_path / "home"))
    monkeypatch.setattr(membership.bootstrap, "__defaults__", ((), 20))
    monkeypatch.setattr(audit, "arms_of", lambda target, *_: [audit.Arm("x", "run", target.config)])


class CutError(Exception):
    """The run is cut off."""


def cut(record):
    if record.round == 0:
        raise CutError


@pytest.mark.parametrize("name", registry.FAMILY)
def test_a_method_of_the_family_is_run_resumed_compared_reported_audited_and_deployed(name, tmp_path):
    method = battery.quick(name)
    folders, data = grid.sites(tmp_path, tiny.federation(train=24, test=8))
    out = tmp_path / "run"

    with pytest.raises(CutError):
        fedlgd.run(data, method, net=NET, out=out, on_round=cut, **PLAN)
    resumed = fedlgd.run(data, method, net=NET, out=out, **PLAN)
    whole = fedlgd.run(data, method, net=NET, **PLAN)
    away = coordinate(
        LocalGrid(folders), grid.config(method, **PLAN), tmp_path / "away", NODES, timeout=0.0, pause=0.0
    )
    for other in (resumed, away):
        assert tiny.equal(other.params, whole.params)
        assert tiny.without_seconds(other.records) == tiny.without_seconds(whole.records)

    compared = fedlgd.compare(data, {"this": method, "FedAvg": fedlgd.FedAvg()}, seeds=1, net=NET, rounds=1)
    assert [row[0] for row in compared.rows()] == ["this", "FedAvg"]

    assert method.label in write_report(out, tmp_path / "report.html").read_text()

    target = AuditTarget(out, grid.config(method, **PLAN), data, whole.net, whole, method.sends)
    found = plan_audit(target, AuditRequest()).run(1)
    targets = {each.target for each in found.findings if each.kind == "run"}
    assert targets >= {ATTACKED[kind] for kind in method.sends.values() if kind in ATTACKED}
    assert targets.isdisjoint(ATTACKED[kind] for kind in found.unattacked.values() if kind in ATTACKED)
