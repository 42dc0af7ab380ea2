"""The privacy section: verdicts, tables with controls, caveats, curves, and what left a site."""

from dataclasses import replace

import pytest

from fedlgd.report.formats import as_text
from fedlgd.report.groups import group_runs
from fedlgd.report.page import render, write_figures
from fedlgd.report.privacy import audit as attacks
from fedlgd.report.privacy import roc
from fedlgd.report.privacy import section as privacy
from fedlgd.rundir.manifest import Promise
from fedlgd.rundir.read import read_run
from tests.report.audits import CONTROLS, LEAK, audit, found, write_audit
from tests.report.fake import write_run


def test_a_run_without_a_finding_is_never_called_private():
    said = attacks.verdict(audit())
    assert said.startswith("No leak found by this attack")
    assert "private" not in said


def test_a_leak_is_named_with_its_target_and_area():
    said = attacks.verdict(audit(findings=(found(auc=LEAK), *CONTROLS)))
    assert said == "Leak found: model; the largest area is 0.700 (RMIA)."


@pytest.mark.parametrize("kind", ["blind", "positive"])
def test_nothing_is_concluded_if_a_control_fails(kind):
    wrong = {"blind": LEAK, "positive": (0.4, 0.5, 0.6)}[kind]
    controls = [found(kind=each.kind, auc=wrong if each.kind == kind else each.auc) for each in CONTROLS]
    assert attacks.verdict(audit(findings=(found(auc=LEAK), *controls))).startswith("Nothing can be concluded")


def test_one_of_four_blind_controls_may_miss_chance_by_a_little():
    near, at = (0.410, 0.450, 0.494), (0.45, 0.5, 0.55)
    several = [found(kind="blind", auc=each) for each in (near, at, at, at)]
    others = [each for each in CONTROLS if each.kind != "blind"]
    assert attacks.verdict(audit(findings=(found(auc=LEAK), *several, *others))).startswith("Leak found")
    one = [found(kind="blind", auc=near), *others]
    assert attacks.verdict(audit(findings=(found(auc=LEAK), *one))).startswith("Nothing can be concluded")


def test_controls_are_below_a_line_and_what_few_images_cannot_show_is_not_measurable():
    table = attacks.audit_table(audit(promised=Promise(epsilon=4, delta=1e-5, mu=0.92)))
    text = as_text(table)
    assert table.line == 1
    assert text.splitlines()[2].startswith("---")
    assert "TPR at 0.1 % FPR: not measurable (n = 1000)." in text
    assert "2.0 % [1.0, 3.0]" in text
    assert "Promised: epsilon at most 4 at delta 1e-05." in text
    assert "real start (must leak)" in text


def test_caveats_tell_what_was_done():
    said = " ".join(attacks.audit_caveats(audit()))
    for words in (
        "5 federations",
        "site scans",
        "random half of 400 images",
        "as many SGD steps",
        "bootstrap over images",
    ):
        assert words in said
    assert "FedAvg has" not in said
    fewer = found(label="FedAvg on real data", kind="baseline", federations=3)
    assert "Controls have 3 federations" in " ".join(attacks.audit_caveats(audit(findings=(found(), fewer))))
    said = " ".join(attacks.audit_caveats(audit(attack="paper", settings={"in_sample": True})))
    assert "Biased" in said
    assert "origin" in said


def test_audits_with_other_settings_are_shown_beside_each_other(tmp_path):
    path = write_run(tmp_path / "a")
    write_audit(path, audit(settings={"seed": 0, "site": "scans", "canaries": "none"}))
    write_audit(path, audit(settings={"seed": 0, "site": "", "canaries": "noise", "rounds": 9}), "audit-2")
    write_audit(path, audit(site="fonts", settings={"seed": 0, "canaries": "none"}), "audit-10")
    write_audit(path, audit(site="other"), "audit-of-another-kind")
    (told,) = privacy.privacy_of(group_runs([read_run(path)]))
    assert [each.heading for each in told.audits] == [
        "site scans (canaries=none)",
        "site scans (canaries=noise)",
        "site fonts (canaries=none)",
    ]
    names = [drawing.name for each in told.audits for drawing in each.drawings]
    assert len(set(names)) == len(names)
    assert {file.stem for file in write_figures([path], tmp_path / "figures")} >= set(names)
    assert "Membership inference at site scans (canaries=noise)" in render([read_run(path)])


def test_the_ceiling_of_a_promise_is_that_of_the_specification():
    mu = 0.92493  # epsilon 4 at delta 1e-5
    assert roc.ceiling(mu, 0.001) == pytest.approx(0.015, abs=0.0005)
    assert roc.ceiling(mu, 1.0) == 1.0


def test_what_left_a_site_is_counted_per_site_and_noise_is_told(tmp_path):
    run = read_run(write_run(tmp_path / "a"))
    rows = {row[0].text: row for row in privacy.left_table(run).rows}
    updates = sum(record.bytes_up for record in run.records if record.round >= 0)
    assert rows["updates"][1].value == updates / len(run.manifest.data.sites)
    assert "exact counts" in rows["hello, once"][2].text
    assert {row[3].text for row in rows.values()} == {"no"}
    private = {"distil": {"private": {"epsilon": 4.0, "delta": 1e-5, "scores": 1.0}}}
    noisy = privacy.left_table(read_run(write_run(tmp_path / "b", settings=private))).rows
    assert [row[3].text for row in noisy] == ["yes", "yes", "yes", "no"]
    assert privacy.promise_text(run.manifest.promise) == ""
    assert "training loss" in rows["updates"][2].text
    sgd = {"train_on": "real", "dp": {"epsilon": 4.0, "delta": 1e-5}}
    sent = privacy.left_table(read_run(write_run(tmp_path / "c", settings=sgd))).rows[1][2].text
    assert sent == "weights. Trained on real images."  # DP-SGD sends no loss


IMAGES = Promise(epsilon=4.0, delta=1e-5, releases=60, gaussian=True)


def test_a_promise_names_what_it_covers_and_a_simulation_says_so():
    assert "(4, 1e-05), add or remove one image" in privacy.promise_text(IMAGES)
    assert "not scores on test images" in privacy.promise_text(IMAGES)
    assert privacy.promise_text(replace(IMAGES, protects="site")).startswith("Each site:")
    assert privacy.promise_text(replace(IMAGES, simulation=True)).startswith("Simulation, no privacy")


def test_a_promise_tells_over_how_many_releases_and_whether_scores_have_noise():
    assert "one image, over 60 releases." in privacy.promise_text(IMAGES)
    assert "over 60 + 15 releases" in privacy.promise_text(replace(IMAGES, refinements=15))
    said = privacy.promise_text(replace(IMAGES, scores=2.0))
    assert said.endswith("Each test image: epsilon 2.")
    assert "not scores" not in said


def test_the_noise_of_dp_fedavg_is_added_by_the_server(tmp_path):
    """Sites send exact counts and their own weights: the server is trusted."""
    run = read_run(write_run(tmp_path / "a", settings={"site_dp": {"epsilon": 4.0, "delta": 1e-5}}))
    assert [row[3].text for row in privacy.left_table(run).rows] == ["no", "at the server", "no", "no"]


def test_runs_on_the_same_images_add_up_what_a_site_has_spent(make_groups):
    private = {"epsilon": 4.0, "delta": 1e-5, "adjacency": "add-remove", "releases": 60, "rate": 1.0}
    runs = [{"label": "A", "seed": seed, "settings": {"distil": {"private": private}}} for seed in range(3)]
    assert privacy.spent_together(make_groups(runs[0])) == ""
    assert "(epsilon, delta) = (7.63, 1e-05)" in privacy.spent_together(make_groups(*runs))
    private |= {"rate": 0.1}
    assert "(epsilon, delta) = (12, 3e-05)" in privacy.spent_together(make_groups(*runs))
    private |= {"test_key": "k"}
    assert privacy.spent_together(make_groups(*runs)) == ""
