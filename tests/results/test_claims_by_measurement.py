"""Claims of the paper that stored measurements decide: their words are those of the numbers."""

import json
from statistics import fmean

from fedlgd.paper.items import find_item
from fedlgd.report.summary import Difference
from fedlgd.rundir.intervals import seed_noise
from results import MEASURED
from results.pages.outlook import seeds_needed

FOLDER = MEASURED / "privacy"
SHADOWED = ("builtin-digits", "mnist-full", "mnist-medium", "mnist-small", "svhn-full", "svhn-medium", "svhn-small")


def area(findings: list[dict], label: str) -> float:
    return next(each["auc"][1] for each in findings if each["statistic"] == "RMIA" and each["label"] == label)


def test_membership_is_told_by_the_areas_of_all_audits_with_shadows():
    gaps = []
    for name in SHADOWED:
        findings = json.loads((FOLDER / f"audit-{name}.json").read_text())["audit"]["findings"]
        gaps.append(area(findings, "FedAvg on real data, equal steps") - area(findings, "FedLGD"))
    mean, half = fmean(gaps), seed_noise(gaps)
    (claim,) = find_item("privacy-membership").claims
    assert f"{mean:+.3f} ({mean - half:+.3f} to {mean + half:+.3f})".replace("-", "−") in claim.ours
    assert (mean - half > 0) == (claim.verdict == "confirmed")
    assert (mean + half < 0) == (claim.verdict == "not confirmed")
    enough = seeds_needed(Difference(mean, len(gaps), (mean - half, mean + half)), margin=0.0)
    assert f"about {enough} audits" in claim.why


def test_the_default_preset_that_is_announced_leaks_but_no_more_than_quick():
    told = {}
    for strong in sorted(FOLDER.glob("audit-*-strong.json")):
        quick = strong.with_name(strong.name.replace("-strong", ""))
        told[strong.stem] = {}
        for file in (strong, quick):
            for each in json.loads(file.read_text())["audit"]["findings"]:
                ends = told[strong.stem].setdefault(each["target"], {}).setdefault(file, [])
                ends += [each["auc"]] if each["kind"] == "run" else []
        for ends in told[strong.stem].values():
            ours, theirs = (max(ends[file], key=lambda auc: auc[1]) for file in (strong, quick))
            assert ours[0] <= theirs[2]
    small = told["audit-svhn-small-strong"]
    for target in ("model", "virtual"):
        assert all(max(ends)[0] > 0.5 for ends in small[target].values())


def test_inversion_is_told_by_the_distances_of_five_seeds():
    found = json.loads((FOLDER / "invert-seeds.json").read_text())
    ends = []
    for kind in ("own", "refined"):
        gaps = [fmean(site[kind][seed] - site["real"][seed] for site in found.values()) for seed in range(5)]
        mean, half = fmean(gaps), seed_noise(gaps)
        ends.append((mean - half, mean, mean + half))
    low, mean, high = min(ends)
    (claim,) = find_item("privacy-inversion").claims
    assert f"{mean:+.3f} ({low:+.3f} to {high:+.3f})".replace("-", "−") in claim.ours
    assert (low > 0) == (claim.verdict == "confirmed")
    assert any(end[2] < 0 for end in ends) == (claim.verdict == "not confirmed")
