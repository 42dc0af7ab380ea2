"""Audits for tests of the report."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from fedlgd.rundir.results import AUDIT_FORMAT, Audit, Finding

ROC = ((0.0, 0.0, 0.0, 0.0), (0.001, 0.002, 0.001, 0.01), (0.1, 0.12, 0.1, 0.15), (1.0, 1.0, 1.0, 1.0))
FOUND = Finding(
    label="FedLGD",
    kind="run",
    target="model",
    statistic="RMIA",
    federations=5,
    n_in=1000,
    n_out=1000,
    auc=(0.49, 0.512, 0.53),
    tpr={"0.01": (0.01, 0.02, 0.03), "0.001": None},
    exact={"0.01": (0.01, 0.03), "0.001": None},
    roc=ROC,
    accuracy=0.9,
    epsilon_lower=0.0,
)
LEAK = (0.6, 0.7, 0.8)


def found(**changed: Any) -> Finding:
    return replace(FOUND, **changed)


CONTROLS = (
    found(label="blind: saw neither side", kind="blind", auc=(0.48, 0.5, 0.52), accuracy=None),
    found(label="FedAvg on real data, equal steps", kind="baseline", auc=LEAK),
    found(
        label="real start", kind="positive", target="virtual", statistic="nearest image", auc=LEAK, accuracy=None
    ),
)


def audit(**changed: Any) -> Audit:
    plain = Audit(
        format=AUDIT_FORMAT, attack="rmia", site="scans", images=400, federations=5, findings=(found(), *CONTROLS)
    )
    return replace(plain, **changed)


def write_audit(run: Path, content: Audit, name: str = "audit") -> None:
    (run / f"{name}.json").write_text(json.dumps(asdict(content)))
