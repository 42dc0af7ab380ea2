"""The page on what the parts of FedLGD are worth: which runs it shows, their differences, and what is missing."""

import tomllib
from types import SimpleNamespace
from typing import Any

import pytest

from fedlgd.core.settings import flat
from fedlgd.rundir.manifest import settings_today
from fedlgd.rundir.read import read_run
from fedlgd.runs.entries import parse_entry, plan_jobs
from fedlgd.runs.parse import parse_assignment
from results import RECORDS
from results.pages import accuracy, parts
from results.parts import PLANS, command
from tests.report.fake import write_run

NO_ANCHORS = "FedLGD without anchors and pull"
ON = {
    "distil": {"steps": 100, "start": "neighbours"},
    "refine": {"steps": 2},
    "anchors": {"per_class": 2},
    "pull": {"weight": 0.1},
}
VIRTUAL = {"distil": {"steps": 100, "start": "neighbours"}}
OFF = {
    "FedLGD without matching": {"distil": {"steps": 0, "start": "neighbours"}},
    "FedLGD without refinement": {"refine": {"steps": 0}},
    "FedLGD without anchors and pull": {"anchors": {"per_class": 0}, "pull": {"weight": 0.0}},
    "FedLGD without pull": {"pull": {"weight": 0.0}},
}
KNOWN = {
    "FedLGD": ("fedlgd", ON),
    **{entry: ("fedlgd", ON | off) for entry, off in OFF.items()},
    "FedLGD + redraw": ("fedlgd+redraw", ON | OFF["FedLGD without matching"]),
    "FedAvg + redraw": ("fedavg+redraw", OFF["FedLGD without matching"]),
    "FedAvg, same first sets": ("fedavg", VIRTUAL),
    "FedAvg, real picks": ("fedavg", {"distil": {"steps": 0, "start": "real"}}),
}


def stored(folder, name, entry, accuracies, **more):
    """Runs of an entry with the seeds 0, 1, ..., whose sites all end at these accuracies."""
    method, settings = KNOWN[entry]
    for seed, value in enumerate(accuracies):
        path = folder / name / entry.replace(" ", "-") / f"seed{seed}"
        path.parent.mkdir(parents=True, exist_ok=True)
        final = dict.fromkeys(("mnist", "svhn"), value)
        write_run(path, label=entry, method=method, seed=seed, final=final, settings=settings, **more)


@pytest.fixture
def records(tmp_path, monkeypatch):
    for module in (parts, accuracy):
        monkeypatch.setattr(module, "RECORDS", tmp_path)
    return tmp_path


def rows(table):
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    return {first: rest for first, *rest in lines}


@pytest.mark.parametrize("entry", KNOWN)
def test_a_run_is_recognised_by_its_method_and_by_what_its_settings_switch_off(tmp_path, entry):
    method, settings = KNOWN[entry]
    assert parts.entry_of(read_run(write_run(tmp_path / "seed0", method=method, settings=settings))) == entry


@pytest.mark.parametrize(
    ("method", "settings", "flags"),
    [
        ("fedlgd", ON | OFF["FedLGD without refinement"] | OFF[NO_ANCHORS], ["virtual"]),
        ("fedlgd+redraw", ON | OFF["FedLGD without refinement"], ["virtual"]),
        ("fedavg", VIRTUAL, []),
        ("fedavg", OFF["FedLGD without matching"], ["virtual"]),
        ("fedprox", VIRTUAL, ["virtual"]),
    ],
)
def test_runs_that_answer_another_question_are_not_shown(tmp_path, method, settings, flags):
    run = read_run(write_run(tmp_path / "seed0", method=method, settings=settings, flags=flags))
    assert parts.entry_of(run) == ""


def test_differences_are_paired_by_seed_and_what_is_missing_is_not_measured(records):
    stored(records, "strong-digits", "FedLGD", [0.80, 0.82, 0.84, 0.90])
    stored(records, "strong-digits", "FedLGD without refinement", [0.78, 0.80, 0.82])
    stored(records, "strong-digits", "FedLGD without pull", [0.80, 0.83])
    found = rows(parts.worth("strong-digits"))
    assert list(found) == list(parts.ALL)
    assert found["FedLGD"] == ["4", "84.0 ± 4.3", ""]
    assert found["FedLGD without refinement"] == ["3", "80.0 ± 2.0", "-2.0 (-2.0 to -2.0)"]
    assert found["FedLGD without pull"][2] == "+0.5 (too few seeds)"
    assert found[NO_ANCHORS] == ["", parts.NOT_MEASURED, ""]


def test_runs_that_are_not_finished_are_not_measured(records):
    stored(records, "parts-split", "FedLGD", [0.8, 0.8, 0.8], done=1)
    assert rows(parts.worth("parts-split"))["FedLGD"] == ["", parts.NOT_MEASURED, ""]


def test_federations_are_side_by_side_and_what_is_not_planned_there_is_empty(records):
    stored(records, "parts-split", "FedLGD", [0.80, 0.82, 0.84])
    stored(records, "parts-split", "FedAvg + redraw", [0.81, 0.82, 0.86])
    found = rows(parts.worth("all"))
    assert found["FedAvg + redraw"][:-1] == [parts.NOT_MEASURED] * 4
    assert found["FedAvg + redraw"][-1].startswith("+1.0 (")
    assert found["FedLGD without pull"][-2:] == ["", ""]


def test_the_answer_says_gains_losses_and_noise_of_each_part(records):
    stored(records, "strong-digits", "FedLGD", [0.80, 0.82, 0.84])
    stored(records, "strong-digits", "FedLGD without refinement", [0.78, 0.80, 0.82])
    stored(records, "strong-digits", "FedLGD without pull", [0.81, 0.83, 0.85])
    stored(records, "strong-digits", "FedLGD without matching", [0.70, 0.92, 0.84])
    stored(records, "parts-builtin", "FedLGD", [0.80, 0.82])
    stored(records, "parts-builtin", "FedLGD without refinement", [0.78, 0.80])
    told = parts.worth("answer")
    assert "Refinement gains 2.0 points on real digits; has too few seeds on built-in digits." in told
    assert "Pull loses 1.0 points on real digits." in told
    assert "Matching is within the noise on real digits." in told
    assert told.endswith("yet: FedLGD instead of FedAvg on the same first sets and anchors.")


def planned(name, folder):
    """The configuration of each run of a comparison with seed 0, as its command asks for it."""
    words = command(name, folder)
    options = [word.removeprefix("--").split("=", 1) for word in words if word.startswith("--")]
    asked = dict(options)
    given = dict(parse_assignment(value) for option, value in options if option == "set")
    given |= {"data.name": words[1], "rounds": int(asked["rounds"])}
    entries = [parse_entry(spec) for spec in asked["methods"].split(",")]
    return [tomllib.loads(job.config.toml()) for job in plan_jobs(entries, 1, None, given, asked["preset"])]


@pytest.mark.parametrize("name", PLANS)
def test_the_runs_of_a_comparison_are_the_entries_of_its_table(tmp_path, name):
    found = set()
    for settings in planned(name, tmp_path):
        run: Any = SimpleNamespace(settings=settings)
        run.manifest = SimpleNamespace(method=SimpleNamespace(name=settings["method"]))
        found.add(parts.entry_of(run))
    assert found == set({**parts.TRIALS, **parts.OTHERS}[name].entries)


def test_stored_runs_are_those_that_the_commands_make(tmp_path):
    """But for settings that were added or renamed since."""
    checked = 0
    for name in PLANS:
        wanted = [dict(flat(settings)) for settings in planned(name, tmp_path)]
        for file in (RECORDS / name).glob("*/seed0/config.toml"):
            run = dict(flat(settings_today(tomllib.loads(file.read_text()))))
            assert any(all(own.get(path) == value for path, value in run.items()) for own in wanted), file
            checked += 1
    assert checked >= 7
    assert set(PLANS) == {*parts.TRIALS, *parts.OTHERS}
