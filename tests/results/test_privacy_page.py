"""The results page about privacy: sections without their file are absent, and claims follow the numbers."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fedlgd.report.attacks import NO_LEAK
from results.pages.privacy import LEAK as FOUND
from results.pages.privacy import page
from tests.report.audits import CONTROLS, LEAK, audit, found


def keep(folder: Path, name: str, content: Any) -> None:
    stored = {"title": name, "commands": [f"fedlgd audit {name}"], "audit": asdict(content)}
    (folder / f"audit-{name}.json").write_text(json.dumps(stored))


def states(folder: Path) -> dict[str, str]:
    """The word on a claim of the paper, by a word of the claim."""
    rows = [line.strip("| ").split(" | ") for line in page(folder).splitlines() if line.startswith("| ")]
    return {
        subject: row[1] for subject in ("FedAvg", "Anchors", "virtual set") for row in rows if subject in row[0]
    }


def test_without_files_only_the_introduction_is_there(tmp_path):
    assert "## " not in page(tmp_path)


def test_a_lower_curve_confirms_a_leak_refutes_and_no_leak_decides_nothing(tmp_path):
    anchors = found(target="anchors", statistic="trace")
    keep(tmp_path, "one", audit(findings=(found(), found(target="virtual", auc=LEAK), anchors, *CONTROLS)))
    words = states(tmp_path)
    assert words["FedAvg"] == "confirmed"
    assert words["Anchors"] == f"not decidable: {NO_LEAK}"
    assert words["virtual set"] == f"not confirmed: {FOUND}"


def test_overlapping_intervals_decide_nothing(tmp_path):
    keep(tmp_path, "one", audit(findings=(found(auc=(0.55, 0.65, 0.75)), *CONTROLS)))
    assert states(tmp_path)["FedAvg"] == "not decidable"


def test_accuracy_against_epsilon_is_a_mean_over_sites_and_seeds(tmp_path):
    rows = [
        {"method": "FedLGD", "epsilon": epsilon, "seed": seed, "accuracy": {"a": 0.8 + seed / 10, "b": 0.6}}
        for epsilon in (0.0, 4.0)
        for seed in (0, 1)
    ]
    (tmp_path / "epsilon.json").write_text(json.dumps(rows))
    text = page(tmp_path)
    assert "| method | no noise | epsilon 4 |" in text
    assert "| FedLGD | 72.5 ± 3.5 | 72.5 ± 3.5 |" in text
