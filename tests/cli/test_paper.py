"""fedlgd paper: every item is listed, runs at the scale tiny, and is reported."""

import json

import pytest

from fedlgd.core.errors import did_you_mean, message
from fedlgd.paper.items import items, parts_at
from fedlgd.paper.plan import missing_runs, undecided
from fedlgd.paper.verdicts import shipped
from fedlgd.runs.parse import entry_folder
from tests.report.fake import write_run

PARTS = list(items()["table-digits"].parts)
COMMAND = items()["figure-communication"].command
RUN = [name for name, item in items().items() if parts_at(item, "tiny")]


def test_the_list_names_every_item_with_its_command_and_verdicts(fedlgd):
    done = fedlgd("paper")
    assert done.code == 0
    out = " ".join(done.out.split())  # lines are wrapped to the terminal
    for item in items().values():
        assert f"{item.name}: {item.title}" in out
        assert all(claim.text in out for claim in item.claims)
    listed = json.loads(fedlgd("paper", "--json").out)
    assert [each["item"] for each in listed] == list(items())
    assert all(each["command"] for each in listed)
    assert all(claim["verdict"] for each in listed for claim in each["claims"])


def test_without_runs_the_verdicts_of_the_package_are_listed_and_with_runs_their_own(fedlgd, tmp_path):
    measured = shipped()
    listed = {each["item"]: each for each in json.loads(fedlgd("paper", "--json").out)}
    assert measured.verdicts
    for key, known in measured.verdicts.items():
        name, _, text = key.partition(": ")
        claim = next(each for each in listed[name]["claims"] if each["claim"] == text)
        assert (claim["verdict"], claim["ours"]) == (known["word"], known["ours"])
    assert "C10 (desk" in " ".join(listed["table-digits"]["stored"])
    for entry in ("fedlgd", "fedavg:local.steps=7"):
        path = tmp_path / "runs/paper/desk/table-digits/C10" / entry_folder(entry) / "seed0"
        path.parent.mkdir(parents=True)
        write_run(path, label=entry, method=entry.partition(":")[0])
    again = {each["item"]: each for each in json.loads(fedlgd("paper", "--json").out)}["table-digits"]
    assert again["stored"] == ["C10 (desk, 1 seed)"]
    equal_steps = next(each for each in again["claims"] if "more SGD steps" in each["claim"])
    assert "one seed" in equal_steps["why"].lower()


def test_what_undecided_claims_wait_for_is_listed(fedlgd, tmp_path):
    listed = json.loads(fedlgd("paper", "--undecided", "--estimate", "--json").out)
    assert [(each["item"], each["part"], each["runs"]) for each in listed["waiting"]] == [
        (each.item.name, each.part, len(each.jobs))
        for each in missing_runs(tmp_path, "desk", 0, undecided(tmp_path))
    ]
    assert listed["undecided"] == [each.key for each in undecided(tmp_path)]
    one = json.loads(fedlgd("paper", "table-alpha", "--part", "5", "--undecided", "--estimate", "--json").out)
    assert [each for each in listed["waiting"] if (each["item"], each["part"]) == ("table-alpha", "5")] == one[
        "waiting"
    ]
    shown = fedlgd("paper", "--undecided", "--estimate")
    assert shown.code == 0
    assert all(f"{each['item']} {each['part']}".strip() in shown.out for each in listed["waiting"])


@pytest.mark.drawn
def test_an_item_runs_resumes_and_is_reported(fedlgd, tmp_path):
    done = fedlgd("paper", "table-batch", "--scale", "tiny")
    assert done.code == 0, done.err
    assert "FedLGD, batch 64" in done.out
    folder = tmp_path / "runs/paper/tiny/table-batch"
    assert sorted(path.name.split("-")[0] for path in folder.iterdir()) == ["fedlgd", "fedlgd", "report.html"]
    before = {file: file.read_bytes() for file in folder.rglob("records.jsonl")}
    assert fedlgd("paper", "table-batch", "--scale", "tiny", "--quiet").code == 0
    assert before == {file: file.read_bytes() for file in folder.rglob("records.jsonl")}
    again = json.loads(fedlgd("paper", "table-batch", "--scale", "tiny", "--json").out)
    assert [each["entry"] for each in again["parts"][""]] == ["fedlgd:local.batch=8", "fedlgd:local.batch=64"]
    assert all(0 <= each["mean"] <= 1 and each["seeds"] == 1 for each in again["parts"][""])
    assert "seed 0 (finished)" in fedlgd("paper", "table-batch", "--scale", "tiny").out
    assert fedlgd("paper", "report").code == 0
    assert "Table batch size" in (tmp_path / "runs/paper/report.html").read_text()


@pytest.mark.parametrize(
    ("words", "code", "values"),
    [
        ("table-digit", "unknown-item", {"item": "table-digit", "hint": did_you_mean("table-digit", items())}),
        ("table-digits --part C11", "unknown-part", {"item": "table-digits", "part": "C11", "parts": PARTS}),
        ("table-batch --part x", "item-without-parts", {"item": "table-batch"}),
        (
            "table-digit --undecided",
            "unknown-item",
            {"item": "table-digit", "hint": did_you_mean("table-digit", items())},
        ),
        (
            "table-digits --part C11 --undecided",
            "unknown-part",
            {"item": "table-digits", "part": "C11", "parts": PARTS},
        ),
        ("report --out nowhere", "no-paper-runs", {"folder": "nowhere"}),
        ("figure-communication", "item-without-runs", {"item": "figure-communication", "command": COMMAND}),
    ],
)
def test_what_does_not_exist_is_an_error_with_a_way_out(fedlgd, words, code, values):
    done = fedlgd("paper", *words.split())
    assert done.code == 2
    assert message(code, **values) in " ".join(done.err.split())


def test_a_run_of_another_item_is_copied_and_the_result_fits_the_terminal(fedlgd, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert fedlgd("paper", "table-init", "--scale", "tiny", "--quiet").code == 0
    folder = tmp_path / "runs/paper/tiny"
    part = ("table-digits", "--part", "C10", "--scale", "tiny")
    seconds = json.loads(fedlgd("paper", *part, "--estimate", "--json").out)["seconds"]
    assert seconds["C10"] > 0
    done = fedlgd("paper", *part)
    assert done.code == 0, done.err
    assert "(a copy of runs/paper/tiny/table-init/" in " ".join(done.out.split())
    copied = json.loads((folder / "table-digits/C10/fedlgd/seed0/manifest.json").read_text())
    assert copied["label"] == "FedLGD"
    table = done.out[done.out.index("table-digits C10, accuracy:") :]
    assert max(map(len, table.splitlines())) <= 80
    assert {"minus", "FedLGD"} <= set(table.split())  # cells of the heading are folded


@pytest.mark.slow
@pytest.mark.parametrize("name", RUN)
def test_every_suite_runs_at_the_scale_tiny(fedlgd, tmp_path, name):
    done = fedlgd("paper", name, "--scale", "tiny", "--quiet", "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["failed"] == {}
    for part in parts_at(items()[name], "tiny"):
        assert (tmp_path / "runs/paper/tiny" / name / part / "report.html").exists()
