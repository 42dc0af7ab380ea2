"""The section on privacy says what the run wrote down, and nothing more: every sentence, every number."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scipy.optimize import brentq
from scipy.stats import norm

from fedlgd.report import attacks, privacy
from fedlgd.report.groups import group_runs
from fedlgd.report.page import render, write_figures
from fedlgd.rundir.manifest import Promise
from fedlgd.rundir.read import Run, read_run
from tests.report.audits import CONTROLS, LEAK, audit, found, write_audit
from tests.report.fake import write_run

pytestmark = pytest.mark.usefixtures("undrawn")
PROMISE = Promise(epsilon=4.0, delta=1e-5, gaussian=True)
CHANCE = (0.45, 0.5, 0.55)
OTHERS = [each for each in CONTROLS if each.kind != "blind"]


def run_with(path: Path, promise: Promise | None = None, **method: Any) -> Run:
    """A run whose manifest has this promise, and these facts of its method."""
    run = read_run(write_run(path))
    manifest = replace(run.manifest, promise=promise, method=replace(run.manifest.method, **method))
    return replace(run, manifest=manifest)


# What is promised


@pytest.mark.parametrize(
    ("promise", "kind", "said", "unsaid"),
    [
        (PROMISE, "image", ["Each training image", "(4, 1e-05)", "one image", "scores"], ["release", "one site"]),
        (replace(PROMISE, adjacency="replace"), "image", ["replace one image"], ["add"]),
        (replace(PROMISE, releases=1), "image", ["over 1 release."], []),
        (replace(PROMISE, releases=60), "image", ["over 60 releases."], ["+"]),
        (replace(PROMISE, releases=60, refinements=15), "image", ["over 60 + 15 releases."], []),
        (
            replace(PROMISE, releases=60, shares={"counts": 0.1, "start": 0.1, "distil": 0.8, "refine": 0.0}),
            "image",
            ["over 60 releases, noisy counts and the initial images."],
            [],
        ),
        (replace(PROMISE, scores=2.0), "image", ["Each test image: epsilon 2.", "time"], ["scores"]),
        (
            replace(PROMISE, protects="site"),
            "site",
            ["Each site", "(4, 1e-05)", "one site"],
            ["image of", "anchors"],
        ),
        (replace(PROMISE, simulation=True), "simulation", ["no privacy", "test_key"], ["epsilon", "covers", "4"]),
        (replace(PROMISE, simulation=True, protects="site"), "simulation", ["no privacy"], ["Each"]),
    ],
)
def test_a_promise_says_to_whom_how_much_and_what_it_does_not_cover(
    promise: Promise, kind: str, said: list[str], unsaid: list[str], tmp_path: Path
) -> None:
    sentence = privacy.promise_sentence(run_with(tmp_path / "b", promise))
    assert sentence.kind == kind
    assert [each for each in said if each not in sentence.text] == []
    assert [each for each in unsaid if each in sentence.text] == []
    assert f'data-promise="{kind}"' in render([run_with(tmp_path / "a", promise)])


def test_no_promise_is_no_sentence(tmp_path: Path) -> None:
    run = run_with(tmp_path / "a")
    assert privacy.promise_sentence(run) is None
    page = render([run])
    assert re.findall(r'data-promise="(\w+)"', page) == ["none"]
    assert "epsilon, delta" not in page


def test_the_parts_of_the_budget_are_in_percent_and_named(tmp_path: Path) -> None:
    promise = replace(PROMISE, shares={"counts": 0.02, "start": 0.0, "refine": 0.18, "distil": 0.8})
    shares = privacy.budget_parts(promise)
    assert shares == pytest.approx({"counts": 2.0, "refinement": 18.0, "distillation": 80.0})
    assert sum(shares.values()) == pytest.approx(100)
    page = render([run_with(tmp_path / "a", promise)])
    assert re.findall(r"width: ([\d.]+)%; background", page) == ["2.0", "18.0", "80.0"]
    assert privacy.budget_parts(PROMISE) == privacy.budget_parts(None) == {}


# What left a site


def test_bytes_are_those_of_the_records_per_site(tmp_path: Path) -> None:
    """Recomputed from the file: enrolment and updates apart, divided by the three sites."""
    run = run_with(tmp_path / "a")
    records = [json.loads(line) for line in (run.path / "records.jsonl").read_text().splitlines()]
    *_, hello, updates, scores, time = privacy.left_table(run).rows
    assert hello[1].value == sum(each["bytes_up"] for each in records if each["round"] < 0) / 3
    assert updates[1].value == sum(each["bytes_up"] for each in records if each["round"] >= 0) / 3
    assert scores[1].value is time[1].value is None
    assert scores[0].text == f"scores, {sum(bool(each['scores']) for each in records)} times"


@pytest.mark.parametrize(
    ("promise", "noise"),
    [
        (None, ["no", "no", "no", "no", "no"]),
        (PROMISE, ["yes", "yes", "yes", "no", "no"]),
        (replace(PROMISE, scores=1.0), ["yes", "yes", "yes", "yes", "no"]),
        (replace(PROMISE, protects="site"), ["no", "at the server", "at the server", "no", "no"]),
    ],
    ids=["none", "images", "scores too", "sites"],
)
def test_the_table_says_what_has_noise(promise: Promise | None, noise: list[str], tmp_path: Path) -> None:
    hello, *_ = rows = privacy.left_table(run_with(tmp_path / "a", promise)).rows
    assert [row[3].text for row in rows if row[3].text != "–"] == noise
    assert hello[2].text.startswith("noisy" if noise[0] == "yes" else "exact")


# What several runs spent together


def spent(*runs: Run) -> tuple[float, float] | None:
    """Epsilon and delta of the sentence."""
    said = re.search(r"= \(([\d.e+-]+), ([\d.e+-]+)\)", privacy.spent_together(group_runs(runs)))
    return (float(said[1]), float(said[2])) if said else None


def seeds(tmp_path: Path, *promises: Promise | None, **changed: Any) -> list[Run]:
    runs = [run_with(tmp_path / str(seed), promise) for seed, promise in enumerate(promises)]
    return [replace(run, seed=seed, **changed) for seed, run in enumerate(runs)]


def delta_of(mu: float, epsilon: float) -> float:
    """The curve of mu-GDP (Dong et al., Corollary 1), by scipy."""
    return norm.cdf(-epsilon / mu + mu / 2) - math.exp(epsilon) * norm.cdf(-epsilon / mu - mu / 2)


def test_gaussian_budgets_add_up_in_squares_of_mu(tmp_path: Path) -> None:
    epsilon, delta = spent(*seeds(tmp_path, PROMISE, PROMISE, replace(PROMISE, epsilon=2.0)))
    mus = [brentq(lambda mu, e=each: delta_of(mu, e) - 1e-5, 0.01, 10) for each in (4.0, 4.0, 2.0)]
    assert delta == 1e-5
    assert epsilon == pytest.approx(
        brentq(lambda e: delta_of(math.sqrt(sum(mu * mu for mu in mus)), e) - 1e-5, 0.1, 50), rel=5e-3
    )


def test_other_budgets_add_up_as_they_are(tmp_path: Path) -> None:
    sampled = replace(PROMISE, gaussian=False)
    assert spent(*seeds(tmp_path, PROMISE, PROMISE, sampled)) == (12.0, 3e-5)


def test_promises_to_sites_and_to_images_have_no_common_sum(tmp_path: Path) -> None:
    site = Promise(epsilon=4.0, delta=1e-5, protects="site")
    assert spent(*seeds(tmp_path / "mixed", PROMISE, site)) is None
    runs = seeds(tmp_path / "sites", site, site)
    assert spent(*runs) == (8.0, 2e-5)
    assert "ledger" not in privacy.spent_together(group_runs(runs))  # DP-FedAvg has none


@pytest.mark.parametrize(
    "promises",
    [(PROMISE,), (PROMISE, None), (PROMISE, replace(PROMISE, simulation=True))],
    ids=["one", "none", "sim"],
)
def test_one_promise_is_no_sum(promises: tuple[Promise | None, ...], tmp_path: Path) -> None:
    assert spent(*seeds(tmp_path, *promises)) is None


def test_a_run_that_is_there_twice_is_counted_once_and_other_images_not_at_all(tmp_path: Path) -> None:
    first, second = seeds(tmp_path, PROMISE, PROMISE)
    assert spent(first, replace(first, path=second.path)) is None
    elsewhere = replace(second.manifest, data=replace(second.manifest.data, digest="other"))
    assert spent(first, replace(second, manifest=elsewhere)) is None
    assert spent(first, second) == pytest.approx((5.85, 1e-5), abs=0.2)


# What attacks found


@pytest.mark.parametrize(
    ("findings", "kind"),
    [
        ((found(), *CONTROLS), "no-leak"),
        ((found(),), "no-leak"),
        ((found(auc=(0.5, 0.6, 0.7)), *CONTROLS), "no-leak"),
        ((found(auc=LEAK), *CONTROLS), "leak"),
        ((found(auc=LEAK),), "leak"),
        ((found(), found(target="updates", auc=(0.501, 0.51, 0.52)), *CONTROLS), "leak"),
        ((found(auc=LEAK), found(kind="blind", auc=LEAK), *OTHERS), "blind-off-chance"),
        ((found(), found(kind="blind", auc=(0.3, 0.35, 0.4)), *OTHERS), "blind-off-chance"),
        ((found(auc=LEAK), *CONTROLS[:2], found(kind="positive", auc=CHANCE)), "control-missed"),
        ((found(), found(kind="positive", auc=CHANCE), found(kind="positive", auc=LEAK)), "no-leak"),
        ((found(), found(kind="baseline", auc=LEAK)), "no-leak"),
    ],
)
def test_the_controls_decide_whether_a_leak_can_be_told(
    findings: tuple[Any, ...], kind: str, tmp_path: Path
) -> None:
    judged = audit(findings=findings)
    assert attacks.verdict(judged).kind == kind
    path = write_run(tmp_path / "a")
    write_audit(path, judged)
    assert f'data-kind="{kind}"' in render([read_run(path)])


@pytest.mark.parametrize("kind", ["no-leak", "blind-off-chance", "control-missed"])
def test_no_verdict_calls_a_run_private(kind: str) -> None:
    findings = {
        "no-leak": (found(), *CONTROLS),
        "blind-off-chance": (found(), found(kind="blind", auc=LEAK)),
        "control-missed": (found(), found(kind="positive", auc=CHANCE)),
    }
    said = attacks.verdict(audit(findings=findings[kind]))
    assert said.kind == kind
    assert not re.search("private|safe|protect|secure", said.text, re.IGNORECASE)


def test_a_leak_is_named_with_its_targets_and_the_largest_area() -> None:
    findings = (
        found(auc=LEAK),
        found(target="virtual", statistic="nearest image", auc=(0.7, 0.8, 0.9)),
        found(target="anchors", auc=CHANCE),
    )
    said = attacks.verdict(audit(findings=(*findings, *CONTROLS)))
    assert [each.target for each in attacks.leaking(audit(findings=findings))] == ["model", "virtual"]
    assert "model, virtual set; " in said.text
    assert said.text.endswith("0.800 (nearest image).")


@pytest.mark.parametrize("tests", [1, 2, 4])
@pytest.mark.parametrize("side", [-1, 1])
def test_a_blind_control_may_miss_chance_as_often_as_several_tests_do(tests: int, side: int) -> None:
    """An area with a standard error of 0.02: the bound is Bonferroni's, and at least the tolerance."""
    bound = 0.02 * norm.ppf(1 - 0.025 / tests)
    for distance, kind in ((bound - 1e-4, "no-leak"), (bound + 1e-4, "blind-off-chance")):
        middle, half = 0.5 + side * distance, 0.02 * norm.ppf(0.975)
        blind = [found(kind="blind", auc=(middle - half, middle, middle + half))]
        blind += [found(kind="blind", auc=CHANCE)] * (tests - 1)
        assert attacks.verdict(audit(findings=(found(), *blind, *OTHERS))).kind == kind


def test_a_precise_blind_control_has_a_tolerance() -> None:
    for area, kind in ((0.515, "no-leak"), (0.525, "blind-off-chance")):
        blind = found(kind="blind", auc=(area - 0.001, area, area + 0.001))
        assert attacks.verdict(audit(findings=(found(), blind))).kind == kind


def test_the_table_has_the_numbers_of_the_findings_and_controls_below_a_line() -> None:
    bounded = (found(epsilon_lower=0.31), *(replace(each, epsilon_lower=0.4) for each in CONTROLS))
    judged = audit(promised=Promise(epsilon=4, delta=1e-5, mu=0.92), findings=bounded)
    table = attacks.audit_table(judged)
    assert table.line == 1
    own = [each for each in judged.findings if each.kind == "run"]
    for row, each in zip(table.rows, (*own, *bounded[1:]), strict=True):
        name, attack, auc, rate, epsilon, accuracy = row
        assert each.label in name.text
        assert ("must leak" in name.text) is (each.kind == "positive")
        assert attack.text == f"{attacks.TARGETS[each.target]}: {each.statistic}"
        assert (auc.value, auc.text) == (each.auc[1], "{1:.3f} [{0:.3f}, {2:.3f}]".format(*each.auc))
        low, middle, high = (100 * share for share in each.tpr["0.01"])
        assert (rate.value, rate.text) == (middle / 100, f"{middle:.1f} % [{low:.1f}, {high:.1f}]")
        assert (epsilon.value, epsilon.text) == (each.epsilon_lower, f"{each.epsilon_lower:.2f}")
        assert accuracy.value == each.accuracy
    unmeasured, promised = table.notes
    assert "0.1 % FPR" in unmeasured
    assert "n = 1000" in unmeasured
    assert all(each in promised for each in ("epsilon at most 4", "1e-05"))


def test_a_rate_that_one_row_cannot_measure_is_said_in_its_cell() -> None:
    few = found(n_out=50, tpr={"0.01": None, "0.001": None}, epsilon_lower=None, accuracy=None)
    (row, _) = attacks.audit_table(audit(findings=(few, found(epsilon_lower=0.3)))).rows
    assert [cell.text for cell in row[3:]] == ["not measurable (n = 50)", "–", "–"]


def test_a_lower_bound_of_zero_is_not_printed() -> None:
    table = attacks.audit_table(audit())
    assert not any("epsilon" in column.name for column in table.columns)
    assert any("no lower bound above 0" in note for note in table.notes)
    own, _ = attacks.audit_table(audit(findings=(found(), found(kind="baseline", epsilon_lower=0.3)))).rows
    assert own[4].text == "–"


@pytest.mark.parametrize(("low", "kind"), [(0.499, "leak"), (0.505, "blind-off-chance")])
def test_beside_a_leak_a_control_whose_interval_excludes_chance_decides_nothing(low: float, kind: str) -> None:
    """One of four controls: alone it would be within what four tests allow."""
    blind = [found(kind="blind", auc=(low, 0.54, 1.08 - low)), *[found(kind="blind", auc=CHANCE)] * 3]
    judged = audit(findings=(found(auc=LEAK, epsilon_lower=0.2), *blind, *OTHERS))
    assert attacks.verdict(judged).kind == kind
    assert any("epsilon" in column.name for column in attacks.audit_table(judged).columns) is (kind == "leak")


def test_a_simulated_promise_is_not_shown_as_one() -> None:
    simulated = Promise(epsilon=4, delta=1e-5, mu=0.92, simulation=True)
    (*_, note) = attacks.audit_table(audit(promised=simulated)).notes
    assert "simulation" in note


FEWER = found(label="FedAvg on real data", kind="baseline", federations=3)


@pytest.mark.parametrize(
    ("changed", "kinds"),
    [
        ({}, ["shadows", "equal-steps", "intervals"]),
        ({"findings": (found(),)}, ["shadows", "intervals"]),
        ({"findings": (found(), FEWER)}, ["shadows", "fewer-controls", "intervals"]),
        ({"findings": (found(worst=0.7), found(worst=0.9))}, ["shadows", "intervals", "worst-image"]),
        ({"settings": {"in_sample": True}, "findings": (found(),)}, ["shadows", "in-sample", "intervals"]),
        ({"attack": "paper", "findings": (found(), FEWER)}, ["paper-protocol", "intervals"]),
    ],
)
def test_how_to_read_the_numbers_follows_from_what_was_done(changed: dict[str, Any], kinds: list[str]) -> None:
    said = {each.kind: each.text for each in attacks.audit_caveats(audit(**changed))}
    assert list(said) == kinds
    assert "3 federations" in said.get("fewer-controls", "3 federations")
    assert "0.900" in said.get("worst-image", "0.900")


def test_the_attacked_images_are_counted_once_with_the_rest_of_the_site() -> None:
    """By hand: 2 x 1000 attacked images over 5 federations are 400; canaries are a finding of their own."""
    half, canaries = found(), found(statistic="canaries", n_in=25, n_out=25)
    for images, findings, said in (
        (400, (half,), ("5 federations", "site scans", "half of 400 images.")),
        (1650, (half,), ("half of 400 images and", "1,250 other images.")),
        (401, (half,), ("1 other image.",)),
        (410, (half, canaries), ("half of 410 images.",)),
    ):
        (text, *_) = attacks.audit_caveats(audit(images=images, findings=findings))
        assert [each for each in said if each not in text.text] == []


# Curves, and several audits of a run


def test_the_ceiling_of_a_promise_is_the_best_test_of_two_gaussians() -> None:
    for mu in (0.1, 0.92493, 3.0):
        for fpr in (0.001, 0.01, 0.5):
            threshold = norm.isf(fpr)
            assert attacks.ceiling(mu, fpr) == pytest.approx(norm.sf(threshold, loc=mu))
    assert attacks.ceiling(0.92493, 0.001) == pytest.approx(0.015, abs=0.0005)  # epsilon 4 at delta 1e-5
    assert attacks.ceiling(1.0, 1.0) == 1.0


def test_curves_are_the_points_of_the_findings(tmp_path: Path) -> None:
    plots = dict(attacks.roc_plots(audit(promised=Promise(epsilon=4, delta=1e-5, mu=0.9))))
    assert len(plots) == 2
    model, others = (figure.axes[0] for figure in plots.values())
    guess, own, *_, best = model.lines
    assert list(guess.get_xdata()) == list(guess.get_ydata()) == [1e-3, 1]
    assert list(zip(own.get_xdata(), own.get_ydata(), strict=True)) == [point[:2] for point in found().roc[1:]]
    assert list(best.get_ydata()) == pytest.approx([norm.sf(norm.isf(rate), loc=0.9) for rate in best.get_xdata()])
    assert [len(axes.lines) for axes in (model, others)] == [1 + 3 + 1, 1 + 1 + 1]
    without = dict(attacks.roc_plots(audit(findings=(found(), *CONTROLS[:2]))))
    assert [len(figure.axes[0].lines) for figure in without.values()] == [1 + 3]


def test_audits_with_other_settings_are_shown_beside_each_other(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a")
    write_audit(path, audit(settings={"seed": 0, "site": "scans", "canaries": "none"}))
    write_audit(path, audit(settings={"seed": 0, "site": "", "canaries": "noise", "rounds": 9}), "audit-2")
    write_audit(path, audit(site="fonts", settings={"seed": 0, "canaries": "none"}), "audit-10")
    write_audit(path, audit(site="other"), "audit-of-another-kind")
    ((shown,), page) = privacy.privacy_section(group_runs([read_run(path)]))["runs"], render([read_run(path)])
    headings = ["site scans (canaries=none)", "site scans (canaries=noise)", "site fonts (canaries=none)"]
    assert [each["heading"] for each in shown["audits"]] == re.findall(r'data-audit="([^"]*)"', page) == headings
    names = [drawing.name for each in shown["audits"] for drawing in each["drawings"]]
    assert len(set(names)) == len(names)
    assert {file.stem for file in write_figures([path], tmp_path / "figures")} >= set(names)


def test_every_audited_run_is_shown_and_else_one_of_each_method(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / f"{label}{seed}", label=label, seed=seed) for label in "AB" for seed in range(3)]
    for path in runs[1:3]:
        write_audit(path, audit())
    section = privacy.privacy_section(group_runs(map(read_run, runs)))
    assert [(each["heading"], len(each["audits"])) for each in section["runs"]] == [
        ("A, seed 1", 1),
        ("A, seed 2", 1),
        ("B, seed 0", 0),
    ]
