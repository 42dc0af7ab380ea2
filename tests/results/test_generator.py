"""The generator of pages: what it stores, and what it fills in."""

from dataclasses import replace

import pytest

from fedlgd.rundir.manifest import read_manifest
from results import __main__ as generator
from results.pages import comparisons
from tests.report.fake import write_run


def test_finished_runs_are_stored_with_the_files_that_tables_need(tmp_path, monkeypatch):
    monkeypatch.setattr(generator, "RECORDS", tmp_path / "records")
    for name, more in {"done": {}, "half": {"done": 1}}.items():
        path = tmp_path / "runs/desk" / name / "seed0"
        path.parent.mkdir(parents=True)
        write_run(path, label=name, method="fedavg", **more)
    generator.store(tmp_path / "runs", "mine")
    stored = {
        file.relative_to(tmp_path / "records") for file in (tmp_path / "records").rglob("*") if file.is_file()
    }
    assert {str(file.parent) for file in stored} == {"mine/desk/done/seed0"}
    names = {file.name for file in stored}
    assert {"config.toml", "manifest.json", "records.jsonl"} <= names <= {"manifest.json", *generator.KEPT}


@pytest.mark.parametrize("place", [" --out runs/mine", " --out=runs/mine", " -o 'a folder/of mine'"])
def test_the_command_of_a_stored_run_names_no_folder_of_its_machine(tmp_path, monkeypatch, place):
    monkeypatch.setattr(generator, "RECORDS", tmp_path / "records")
    run = write_run(tmp_path / "runs/seed0")
    before = read_manifest(run, as_written=False)
    replace(before, command=f"fedlgd compare digits{place} --seeds 3").write(run)
    generator.store(tmp_path / "runs", "mine")
    stored = read_manifest(tmp_path / "records/mine/seed0")
    assert stored == replace(before, command="fedlgd compare digits --seeds 3")


@pytest.mark.parametrize("old", ["", "old\n\nlines\n"])
def test_only_the_text_between_marks_is_replaced(monkeypatch, old):
    monkeypatch.setattr(generator, "BLOCKS", {"twice": lambda word: f"{word} {word}"})
    page = "before\n<!-- generated: twice a/b-c -->\n{}<!-- end -->\nafter\n"
    assert generator.filled(page.format(old)) == page.format("a/b-c a/b-c\n")


def test_runs_are_on_the_page_of_their_method_whatever_their_label(tmp_path, monkeypatch):
    labels = {"alone": "local-only", "FedProx": "fedprox", "DP-SGD": "fedavg+dp-sgd"}
    for folder in ("family-digits", "speed-trade"):
        for label, method in labels.items():
            (tmp_path / folder / method).mkdir(parents=True)
            write_run(tmp_path / folder / method / "seed0", label=label, method=method)
    monkeypatch.setattr(comparisons, "RECORDS", tmp_path)
    for label, method in labels.items():
        rows = comparisons.own_results(method.partition("+")[0]).splitlines()[2:]
        assert [row.split(" | ")[:2] for row in rows] == [["| [Methods side by side](../results/family.md)", label]]
