"""Verdicts on the claims of the paper."""

import json
import re
import tomllib

import pytest

from fedlgd.paper.items import (
    FOLDER,
    NAMES,
    SCALES,
    Claim,
    Item,
    Rule,
    Variant,
    command_of,
    entry_name,
    find_item,
    items,
    parts_at,
    printed,
    reduced,
    requested_runs,
    stored,
)
from fedlgd.paper.verdicts import printed_table, site_table, verdicts, write_paper
from fedlgd.runs.parse import entry_folder
from tests.errors import refuses
from tests.report.fake import write_run

PART = "table-digits/C10"


def store(folder, entry: str, *accuracies: float, part: str = PART, scale: str = "desk", **more) -> None:
    for seed, accuracy in enumerate(accuracies):
        path = folder / scale / part / entry_folder(entry) / f"seed{seed}"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_run(path, label=entry, method=entry.partition(":")[0], seed=seed, final={"a": accuracy}, **more)


def decided(folder, rule: Rule, needs: Rule | None = None, tried: tuple[int, ...] = ()) -> tuple[str, str, str]:
    item = Item(
        **{f: getattr(find_item("table-digits"), f) for f in ("title", "figure", "methods", "settings", "parts")},
        name="table-digits",
        claims=(
            Claim(text="it is better", short="better", printed="", rule=rule, needs=needs, tried={"desk": tried}),
        ),
    )
    (found,) = verdicts(folder, {"table-digits": item})
    return found.word, found.ours, found.why


RULE = Rule(part="C10", left="fedlgd", right=("fedavg", "vhl"))


def test_a_claim_is_confirmed_if_every_interval_is_above_the_margin(tmp_path):
    store(tmp_path, "fedlgd", 0.80, 0.81, 0.82)
    store(tmp_path, "fedavg", 0.70, 0.71, 0.73)
    store(tmp_path, "vhl", 0.75, 0.76, 0.77)
    word, ours, why = decided(tmp_path, RULE)
    assert word == "confirmed"
    assert ours == "FedLGD 81.0 ± 1.0, VHL 76.0 ± 1.0: +5.0 (+5.0 to +5.0)"
    assert "3 seeds" in why


def test_it_is_not_confirmed_if_one_rival_is_clearly_not_below(tmp_path):
    store(tmp_path, "fedlgd", 0.80, 0.81, 0.82)
    store(tmp_path, "fedavg", 0.70, 0.71, 0.73)
    store(tmp_path, "vhl", 0.85, 0.86, 0.88)
    assert decided(tmp_path, RULE)[0] == "not confirmed"


@pytest.mark.parametrize(
    ("wide", "word", "shown"),
    [((0.60, 0.75, 0.90), "not decided", "VHL 75.0"), ((0.85, 0.86, 0.88), "not confirmed", "VHL 86.3")],
)
def test_the_difference_that_is_shown_is_the_one_that_decides(tmp_path, wide, word, shown):
    store(tmp_path, "fedlgd", 0.80, 0.81, 0.82)
    store(tmp_path, "fedavg", 0.77, 0.78, 0.79)  # the better one in the mean, and clearly below, if VHL has 75
    store(tmp_path, "vhl", *wide)
    found, ours, _ = decided(tmp_path, RULE)
    assert found == word
    assert shown in ours


@pytest.mark.parametrize(
    ("tried", "interval", "word", "level"),
    [
        ((), "+0.5 to +5.5", "confirmed", " 95 % interval"),
        (
            (2,),
            "−0.6 to +6.6",
            "not decided",
            "97.5 % interval",
        ),
        ((3, 10), "+0.5 to +5.5", "confirmed", " 95 % interval"),
    ],
    ids=["first", "second", "more-planned"],
)
def test_each_further_test_of_a_claim_asks_for_more(tmp_path, tried, interval, word, level):
    """Differences of 2, 3 and 4 points: Student's quantiles with two degrees of freedom are 4.303 and 6.205."""
    store(tmp_path, "fedlgd", 0.80, 0.81, 0.82)
    store(tmp_path, "fedavg", 0.78, 0.78, 0.78)
    found, ours, why = decided(tmp_path, Rule(part="C10", left="fedlgd", right=("fedavg",)), tried=tried)
    assert ours.endswith(f": +3.0 ({interval})")
    assert found == word
    assert level in why


def test_a_claim_was_tried_with_fewer_seeds_than_are_run_now():
    for item in items().values():
        for claim in item.claims:
            for scale, counts in claim.tried.items():
                rule = claim.rule_at(scale)
                assert rule
                assert 0 < max(counts) < requested_runs(item, rule.part, scale).seeds
                assert list(counts) == sorted(set(counts))


def test_equal_runs_do_not_confirm_a_difference(tmp_path):
    for entry in ("fedlgd", "fedavg", "vhl"):
        store(tmp_path, entry, 0.7, 0.8, 0.9)
    word, _, why = decided(tmp_path, RULE)
    assert word == "not confirmed"
    assert "equal" in why


@pytest.mark.parametrize(
    ("rival", "words"), [([0.79, 0.70, 0.90], "contains the margin"), ([0.1], "one seed"), ([], "VHL")]
)
def test_noise_one_seed_or_a_missing_rival_decide_nothing(tmp_path, rival, words):
    store(tmp_path, "fedlgd", *[0.80, 0.81, 0.82][: len(rival) or 3])
    store(tmp_path, "fedavg", 0.1, 0.1, 0.1)
    store(tmp_path, "vhl", *rival)
    word, _, why = decided(tmp_path, RULE)
    assert word == "not decided"
    assert words.lower() in why.lower()


def test_unfinished_runs_and_the_scale_tiny_decide_nothing(tmp_path):
    for entry in ("fedlgd", "fedavg", "vhl"):
        store(tmp_path, entry, 0.7, 0.8, 0.9, scale="tiny")
        store(tmp_path, entry, 0.7, 0.8, 0.9, done=2)
    assert "no runs" in decided(tmp_path, RULE)[2].lower()


@pytest.mark.parametrize(("seeds", "word"), [(1, "confirmed"), (2, "confirmed"), (3, "not confirmed")])
def test_a_larger_scale_decides_once_its_seeds_have_an_interval(tmp_path, seeds, word):
    for entry, accuracies in {
        "fedlgd": (0.8, 0.81, 0.82),
        "fedavg": (0.7, 0.71, 0.72),
        "vhl": (0.5, 0.51, 0.52),
    }.items():
        store(tmp_path, entry, *accuracies)
        store(tmp_path, entry, *(1 - accuracy for accuracy in accuracies[:seeds]), scale="full")
    assert decided(tmp_path, RULE)[0] == word
    labels = [found.label for found in stored(tmp_path, find_item("table-digits"))]
    assert [label.split(",")[0] for label in labels] == ["C10 (full", "C10 (desk"]


def test_a_scale_with_other_swept_values_has_its_own_rule(tmp_path):
    near, far = "fedlgd:refine.steps=20:anchors.steps=25", "fedlgd:refine.steps=20:anchors.steps=50"
    store(tmp_path, near, 0.801, 0.812, 0.823, part="figure-steps/digits")
    store(tmp_path, far, 0.80, 0.81, 0.82, part="figure-steps/digits")
    (found,) = verdicts(tmp_path, {"figure-steps": find_item("figure-steps")})
    assert (found.word, found.scale) == ("confirmed", "desk")
    assert found.ours.startswith("FedLGD, 20 steps of refinement, 25 of matching 81.2")


@pytest.mark.parametrize("item", [each for each in items().values() if each.methods], ids=lambda item: item.name)
def test_every_entry_of_a_rule_is_run_at_the_scales_at_which_its_part_is(item):
    for claim in (each for each in item.claims if each.rule):
        for scale in ("desk", "half", "full", "paper"):
            rule = claim.at.get(scale, claim.rule)
            seeds = requested_runs(item, rule.part, scale).seeds
            if scale in item.scales and rule.part in parts_at(item, scale) and seeds > 1:
                assert {rule.left, *rule.right} <= set(requested_runs(item, rule.part, scale).methods)


def test_a_scale_takes_less_of_a_data_set_in_every_item():
    for name, part in (("table-alpha", "5"), ("table-cifar10c", "0.2-10"), ("figure-lambda", "cifar10c")):
        assert len(requested_runs(find_item(name), part, "desk").settings["data.corruptions"]) == 5
        assert "5 of 19 corruptions" in reduced(find_item(name), part, "desk")
        assert "data.corruptions" not in requested_runs(find_item(name), part, "paper").settings
    assert "data.corruptions" not in requested_runs(find_item("figure-lambda"), "digits", "desk").settings


def test_the_shift_between_sites_is_compared_at_the_same_seed(tmp_path):
    for entry, means in {"fedlgd": (0.1, 0.2), "fedavg": (0.2, 0.5)}.items():
        store(tmp_path, entry, 0.7, 0.8)
        for seed, mean in enumerate(means):
            mmd = {"real": [[0.0, mean], [mean, 0.0]]}
            content = {"distances": [], "sites": ["a", "b"], "images": 9, "mmd": mmd, "map": [], "complete": True}
            file = tmp_path / "desk" / PART / entry / f"seed{seed}" / "analysis.json"
            file.write_text(json.dumps(content))
    _, ours, _ = decided(tmp_path, Rule(part="C10", left="fedlgd", right=("fedavg",), metric="shift"))
    assert ours.startswith("55.0 % (")
    assert ours.endswith("under FedAvg")


def test_the_printed_number_stands_beside_ours(tmp_path):
    store(tmp_path, "fedavg", 0.5, 0.6)
    store(tmp_path, "fedlgd", 0.7, 0.9)
    (found,) = stored(tmp_path, find_item("table-digits"))
    rows = [[cell.text for cell in row] for row in printed_table(found).rows]
    assert rows[0][:4] == ["FedAvg", "2", "55.0 ± 7.1", "75.9"]
    assert rows[1][:4] == ["FedLGD", "2", "80.0 ± 14.1", "80.6"]
    assert rows[1][4].startswith("+25.0 (")


def test_sites_of_the_paper_have_its_numbers_and_a_stand_in_has_none(tmp_path):
    for entry in ("fedlgd", "fedavg:local.steps=7"):
        path = tmp_path / "desk" / PART / entry_folder(entry) / "seed0"
        write_run(path, label=entry, method="fedlgd", final={"svhn": 0.5, "synth-rendered": 0.4, "usps": 0.9})
    (found,) = stored(tmp_path, find_item("table-digits"))
    table = site_table(found)
    assert [column.name for column in table.columns] == ["method", "svhn", "usps"]
    assert [[cell.text for cell in row] for row in table.rows] == [["FedLGD", "50.0 (68.2)", "90.0 (92.4)"]]
    store(tmp_path, "fedlgd:local.batch=8", 0.8, part="table-batch")
    (other,) = stored(tmp_path, find_item("table-batch"))
    assert site_table(other) is None


def test_printed_numbers_are_found_for_every_part_that_names_a_place():
    for item in items().values():
        for part in item.parts.values():
            entries = NAMES if isinstance(part.printed, str) else part.printed
            found = [printed(part, entry) for entry in entries]
            assert not part.printed or any(found)
    assert printed(Variant(printed="cifar10c/*/0.2/10"), "fedlgd") == 32.9


def test_every_item_has_a_command_and_every_claim_a_rule_or_a_reason():
    for item in items().values():
        assert command_of(item).startswith("fedlgd ")
        assert item.methods or item.command
        for claim in item.claims:
            assert claim.rule or claim.why
    files = {file.name.removesuffix(".toml") for file in FOLDER.iterdir() if file.name.endswith(".toml")}
    assert files == {*items(), "scales"}


def test_the_entries_of_every_rule_are_run_at_full_length():
    for item in items().values():
        for rule in (claim.rule for claim in item.claims if claim.rule):
            run = requested_runs(find_item(item.runs_of or item.name), rule.part, "paper").methods
            assert {rule.left, *rule.right} <= set(run), item.name


@pytest.mark.parametrize(("auc", "word"), [(0.55, "cannot be decided"), (0.9, "confirmed")])
def test_a_claim_cannot_be_decided_where_the_data_it_needs_has_nothing_to_learn(tmp_path, auc, word):
    store(tmp_path, "fedlgd", 0.80, 0.81, 0.82)
    store(tmp_path, "fedavg", 0.70, 0.71, 0.73)
    pair = {"classes": ("no", "yes"), "totals": {"a": (20, 20)}, "auc": auc}
    store(tmp_path, "vhl", 0.5, part="table-digits/R10", **pair)
    needs = Rule(part="R10", left="vhl", metric="area", margin=0.5)
    rule = Rule(part="C10", left="fedlgd", right=("fedavg",))
    found, ours, why = decided(tmp_path, rule, needs)
    assert found == word
    assert f"{100 * auc:.1f}" in (ours if word == "cannot be decided" else why)


def test_a_claim_says_that_what_it_needs_was_not_measured(tmp_path):
    store(tmp_path, "fedlgd", 0.80, 0.81, 0.82)
    store(tmp_path, "fedavg", 0.70, 0.71, 0.73)
    needs = Rule(part="R10", left="vhl", metric="area", margin=0.5)
    word, _, why = decided(tmp_path, Rule(part="C10", left="fedlgd", right=("fedavg",)), needs)
    assert word == "confirmed"
    assert "not measured (part R10)" in why


def test_entries_are_named_in_words():
    assert entry_name("fedlgd:local.batch=8") == "FedLGD, batch 8"
    assert entry_name("fedlgd:pull.loss=mmd-rbf:pull.weight=10") == "FedLGD, MMD form, weight 10"
    selected = "fedlgd:anchors.selected.count=5:refine.selected.count=5"
    assert entry_name(selected) == "FedLGD, 5 selected rounds"
    for item in items().values():
        for scale in SCALES[1:]:
            for part in parts_at(item, scale):
                assert not any("=" in entry_name(entry) for entry in requested_runs(item, part, scale).methods)


def test_tables_have_the_controls():
    controls = (
        "fedavg:local.steps=",
        "fedavg+noise",
        "fedavg+refine",
        "fedavg+anchors",
        "start=real",
        "start=kmeans",
    )
    for name in ("table-digits", "table-cifar10c", "table-retina"):
        ruled = {claim.rule.part for claim in find_item(name).claims if claim.rule}
        for part in ruled:
            run = requested_runs(find_item(name), part, "paper").methods
            assert all(any(control in entry for entry in run) for control in controls)
            assert not any("{" in entry for entry in run)


def test_a_reduced_scale_says_what_is_less():
    for item in items().values():
        for scale in SCALES[:-1]:
            if parts_at(item, scale):
                assert re.search(r"\d", tomllib.loads((FOLDER / "scales.toml").read_text())[scale]["reduced"])


def test_the_page_has_every_claim_and_needs_no_script(tmp_path):
    store(tmp_path, "fedavg", 0.5, 0.6)
    store(tmp_path, "fedlgd", 0.7, 0.9)
    write_paper(tmp_path, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "<script" not in page
    for item in items().values():
        assert f'id="{item.name}"' in page
        assert f'href="#{item.name}"' in page
    assert '<a href="#figure-communication">Figure communication: 1 confirmed</a>' in page
    assert "reduced: 2000 training" in page
    write_paper(tmp_path, tmp_path / "again.html")
    assert page == (tmp_path / "again.html").read_text()


def test_scales_are_named():
    assert {scale for item in items().values() for scale in item.scales} <= set(SCALES)


def test_an_unknown_item_has_a_suggestion():
    with refuses("unknown-item", item="table-digit", hint="; did you mean 'table-digits'?"):
        find_item("table-digit")
