"""The result pages about membership inference: claims and answers follow the stored audits."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fedlgd.report.attacks import NO_LEAK
from results.pages import privacy
from tests.report.audits import CONTROLS, LEAK, audit, found


def keep(folder: Path, name: str, content: Any) -> None:
    stored = {"title": name, "commands": [f"fedlgd audit {name}"], "audit": asdict(content)}
    (folder / f"audit-{name}.json").write_text(json.dumps(stored))


def states(folder: Path) -> dict[str, str]:
    """The word on a claim of the paper, by a word of the claim."""
    rows = [line.strip("| ").split(" | ") for line in privacy.claims(privacy.audits(folder)).splitlines()]
    return {
        subject: row[1] for subject in ("FedAvg", "Anchors", "virtual set") for row in rows if subject in row[0]
    }


def test_a_lower_curve_confirms_a_leak_refutes_and_no_leak_decides_nothing(tmp_path):
    anchors = found(target="anchors", statistic="trace")
    keep(tmp_path, "one", audit(findings=(found(), found(target="virtual", auc=LEAK), anchors, *CONTROLS)))
    words = states(tmp_path)
    assert words["FedAvg"] == "confirmed"
    assert words["Anchors"] == f"not decidable: {NO_LEAK}"
    assert words["virtual set"] == f"not confirmed: {privacy.LEAK}"


def test_overlapping_intervals_decide_nothing(tmp_path):
    keep(tmp_path, "one", audit(findings=(found(auc=(0.55, 0.65, 0.75)), *CONTROLS)))
    assert states(tmp_path)["FedAvg"] == "not decidable"


def test_the_summary_has_the_smallest_site_first_and_marks_areas_above_chance(tmp_path):
    leaky = audit(images=100, findings=(found(), found(target="virtual", auc=LEAK), *CONTROLS))
    keep(tmp_path, "a-large", audit(images=60_000))
    keep(tmp_path, "b-small", leaky)
    keep(tmp_path, "c-paper", audit(attack="paper"))
    _, _, small, large = privacy.summary(privacy.audits(tmp_path)).splitlines()
    assert small.startswith("| b-small | 0.512 | **0.700** | – |")
    assert large.startswith("| a-large | 0.512 | – |")


def test_the_answer_says_that_a_missed_control_proves_nothing(tmp_path):
    virtual = found(target="virtual", auc=LEAK)
    keep(tmp_path, "small", audit(images=100, findings=(found(), virtual, *CONTROLS)))
    missed = found(kind="positive", auc=(0.48, 0.5, 0.52))
    for kept, words in ((CONTROLS, False), ((*CONTROLS[:-1], missed), True)):
        keep(tmp_path, "full", audit(images=60_000, findings=(found(), *kept)))
        text = privacy.answer(privacy.audits(tmp_path))
        assert "0.70 on the" in text
        assert "at most 0.512" in text
        assert ("proves nothing" in text) == words


def test_a_model_that_leaks_less_is_counted_with_what_it_loses_in_accuracy(tmp_path):
    virtual = found(target="virtual", auc=LEAK)
    keep(tmp_path, "one", audit(findings=(found(accuracy=0.6), virtual, *CONTROLS)))
    assert privacy.beside_fedavg(privacy.audits(tmp_path)).startswith("1 audit of 1")
    overlapping = audit(findings=(found(auc=LEAK, accuracy=0.6), virtual, *CONTROLS))
    keep(tmp_path, "one", overlapping)
    text = privacy.beside_fedavg(privacy.audits(tmp_path))
    assert text.startswith("No audit of 1")
    assert "30 to 30 points" in text


def test_what_all_audits_share_is_said_once(tmp_path):
    for name in ("one", "two"):
        keep(tmp_path, name, audit())
    text = privacy.each_audit(privacy.audits(tmp_path))
    assert text.count("bootstrap") == 1
    assert text.count("    fedlgd audit") == 2
