"""A manifest says what the method does; those of older versions are upgraded to the same."""

import json
import subprocess
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest

from fedlgd.core.types import Site, Stream
from fedlgd.methods import registry
from fedlgd.methods.common import Training
from fedlgd.methods.fedavg import FedAvg
from fedlgd.report.claims import training_sentence
from fedlgd.report.groups import group_runs
from fedlgd.rundir.manifest import FORMAT, Manifest, Rounds, read_manifest, settings_today, upgrade
from fedlgd.rundir.read import read_run, run_folders
from fedlgd.runs import resume
from fedlgd.runs.config import Config, resolve
from fedlgd.runs.resume import new_manifest
from fedlgd.runs.run import execute
from tests import tiny
from tests.errors import refuses
from tests.runs.folder import config, method

ROOT = Path(__file__).parents[2]
RECORDS = ROOT / "results" / "records"
STACKED = {
    "fedavg+anchors": {},
    "fedavg+refine": {},
    "scaffold+anchors+refine": {},
    "fedavg+noise": {},
    "fedavg+dp-sgd": {"dp.test_key": "k", "dp.scores": 1.0},
    "fedavg+dp-fedavg": {"site_dp.test_key": "k"},
}
PRIVATE = {
    "distil.start": "mean-image",
    "distil.plan": "bank",
    "distil.steps": 300,
    "distil.private.epsilon": 8.0,
    "distil.private.test_key": "k",
}
ONCE = {"collabdm"}  # sites send feature means at their enrolment, and then do nothing
NEWER = sorted({*registry.FAMILY} - {"fedlgd", "vhl"})  # than any manifest of another format
CASES: dict[str, Any] = {name: (name, {}) for name in registry.names() if name not in NEWER}
CASES |= {f"{name} on virtual data": (name, {"train_on": "virtual"}) for name in ("fedavg", "fedprox")}
CASES |= {name: (name, settings) for name, settings in STACKED.items()}
CASES |= {
    "private": ("fedlgd", PRIVATE),
    "private, alone": ("fedavg", {"train_on": "virtual", **PRIVATE}),
    "protected": ("fedlgd", {**PRIVATE, "distil.private.test_key": "", "distil.private.adjacency": "replace"}),
    "without anchors": ("fedlgd", {"anchors.per_class": 0, "refine.steps": 0}),
    "statistics": ("fedlgd", {"anchors.start": "statistics"}),
    "steps": ("fedavg", {"local.steps": 5}),
}


@dataclass(frozen=True, kw_only=True)
class Fixed(Training):
    """A user's method on virtual sets, which it fixes as FedLGD does, and which has no anchors."""

    name: ClassVar[str] = "fixed"
    train_on: ClassVar[Any] = "virtual"
    enrol, start, broadcast = FedAvg.enrol, FedAvg.start, FedAvg.broadcast
    site, server = FedAvg.site, FedAvg.server


def made(name: str, settings: dict[str, Any]) -> Config:
    return config(method(name, **settings), rounds=4)


def manifest_of(how: Config) -> Manifest:
    return new_manifest(how, tiny.federation(), tiny.net(), "fedlgd run", "A name")


def as_format_2(manifest: Manifest) -> dict[str, Any]:
    """What version 0.1.0 wrote of the same run."""
    raw = msgspec.to_builtins(manifest)
    del raw["promise"], raw["extended"], raw["copy_of"]
    for site in raw["data"]["sites"]:
        del site["real_work"]
    return raw | {"format": 2, "method": manifest.method.name}


@pytest.mark.parametrize("case", CASES)
def test_an_older_manifest_is_upgraded_to_what_the_method_says_today(case):
    how = made(*CASES[case])
    today = manifest_of(how)
    raw = upgrade(as_format_2(today), tomllib.loads(how.toml()))
    upgraded = msgspec.convert(raw, Manifest)
    assert upgraded.method == replace(today.method, label="A name")
    assert upgraded.data == today.data
    assert (upgraded.promise is None) == (today.promise is None)
    if today.promise and upgraded.promise:
        assert dict(upgraded.promise.shares) == pytest.approx(dict(today.promise.shares))
        assert replace(upgraded.promise, mu=today.promise.mu, shares=today.promise.shares) == today.promise


@pytest.mark.parametrize("name", [each for each in registry.names() if not registry.find_method(each).pooled])
@pytest.mark.parametrize("train_on", ["real", "virtual"])
def test_a_site_has_a_virtual_set_if_the_manifest_says_so(name, train_on):
    fixed = "train_on" in registry.fixed(registry.find_method(name))
    how = made(name, {} if fixed else {"train_on": train_on})
    site: Site = tiny.federation().sites[0]
    state, _ = how.method.enrol(site, how.method.adapt(tiny.net()), Stream(0).at("enrol"))
    said = manifest_of(how).method
    without = "nothing" if how.method.train_on == "nothing" else "real"
    assert said.train_on == ("virtual" if state.virtual else without)
    assert (said.reads == ("every",)) == (state.virtual is None and name not in ONCE)


@pytest.mark.parametrize("name", ["fedlgd", "scaffold+anchors+refine", "fedavg"])
def test_virtual_sets_and_anchors_move_in_the_selected_rounds(name):
    """tau = {0, 2} in the tiny settings."""
    how = made(name, {})
    records = execute(how, tiny.federation()).records
    selected = manifest_of(how).method.selected
    for part, flag in (("refine", "virtual"), ("anchors", "anchors")):
        moved = [record.round for record in records if flag in record.flags and record.round >= 0]
        assert moved == (list(selected[part].until(4)) if part in selected else [])


def test_a_promise_is_that_of_the_method():
    """By hand: 2 selected rounds with 10 releases each, and shares that sum up to one."""
    promised = manifest_of(made("fedlgd", PRIVATE)).promise
    assert promised is not None
    assert (promised.epsilon, promised.delta, promised.protects) == (8.0, 1e-5, "image")
    assert (promised.simulation, promised.gaussian) == (True, True)
    assert (promised.releases, promised.refinements) == (300, 20)
    assert sum(promised.shares.values()) == pytest.approx(1)
    assert promised.shares["start"] == 0.1
    assert manifest_of(made("fedlgd", {})).promise is None
    site = manifest_of(made(*CASES["fedavg+dp-fedavg"])).promise
    assert site is not None
    assert (site.protects, site.releases) == ("site", 0)


def test_dp_sgd_does_not_send_its_loss():
    without = {"hello/counts": "counts", "params": "weights"}
    assert manifest_of(made(*CASES["fedavg+dp-sgd"])).method.sends == without
    assert manifest_of(made("fedavg", {})).method.sends == {**without, "metrics/loss": "loss"}


def test_a_users_method_that_fixes_virtual_sets_is_reported_as_trained_on_them(tmp_path):
    of = tiny.settings(Fixed(), tiny.SETTINGS)
    execute(config(of, rounds=1), tiny.federation(), tmp_path / "run")
    run = read_run(tmp_path / "run")
    assert run.manifest.method.train_on == "virtual"
    assert training_sentence(run).kind == "virtual-only"


def test_the_work_on_real_images_is_that_of_the_settings():
    """By hand: 18 images in batches of 4; five steps are 20 images, two epochs 36."""
    assert {site.real_work for site in manifest_of(made("fedavg", {"local.steps": 5})).data.sites} == {20}
    assert {site.real_work for site in manifest_of(made("fedavg", {"local.epochs": 2})).data.sites} == {36}


def test_a_manifest_is_read_as_it_was_written(tmp_path):
    for case in ("private", "scaffold+anchors+refine"):
        manifest = manifest_of(made(*CASES[case]))
        manifest.write(tmp_path / "once")
        read_manifest(tmp_path / "once").write(tmp_path / "again")
        once, again = (tmp_path / each / "manifest.json" for each in ("once", "again"))
        assert once.read_bytes() == again.read_bytes()
        assert read_manifest(tmp_path / "again").promise == manifest.promise


def test_a_changed_manifest_is_refused_to_all_but_a_report(tmp_path):
    manifest_of(made("fedavg", {})).write(tmp_path)
    file = tmp_path / "manifest.json"
    file.write_text(file.read_text().replace("A name", "Another name"))
    assert read_manifest(tmp_path, as_written=False).label == "Another name"
    with pytest.raises(ValueError, match=r"manifest\.json"):
        read_manifest(tmp_path)


def test_a_manifest_of_a_later_format_is_refused(tmp_path):
    manifest_of(made("fedavg", {})).write(tmp_path)
    file = tmp_path / "manifest.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"format": FORMAT + 1}))
    with refuses("manifest-format", format=FORMAT + 1, known=FORMAT):
        read_manifest(tmp_path)


def test_a_manifest_with_the_former_name_of_precision_is_read(tmp_path):
    manifest_of(made("fedavg", {})).write(tmp_path)
    file = tmp_path / "manifest.json"
    raw = json.loads(file.read_text())
    for autocast, precision in ((True, "bf16"), (False, "float32")):
        kept = {key: value for key, value in raw["engine"].items() if key != "precision"}
        file.write_text(json.dumps(raw | {"engine": kept | {"autocast": autocast}}))
        assert read_manifest(tmp_path, as_written=False).engine.precision == precision


def test_selected_rounds_go_on_after_the_end_of_a_run():
    assert list(Rounds(1, 3, 4).until(8)) == [1, 4, 7]
    assert list(Rounds(1, 3, 2).until(100)) == [1, 4]


def test_stored_runs_that_redrew_are_called_so_and_what_was_off_is_said():
    """Until format 4 redrawing was a setting of refinement, and labels did not say what a preset switched off."""
    run = read_run(RECORDS / "accuracy-four" / "fedlgd" / "seed0")
    assert (run.settings["method"], run.settings["refine"]["start"]) == ("fedlgd", "neighbours")
    assert run.label == "FedLGD + redraw without matching, refinement and anchors"
    assert run.manifest.method.name == "fedlgd+redraw"
    assert run.manifest.method.selected.keys() == {"redraw"}
    assert run.manifest.method.reads == ("enrolment", "selected")
    counted = read_run(RECORDS / "accuracy-count" / "fedlgd-1" / "seed0")
    assert counted.label == "FedLGD + redraw without matching, refinement and anchors, 1 per class"
    today = resolve(settings_today(run.settings)).method
    assert (today.label, today.name) == (run.manifest.method.label, "fedlgd+redraw")


@pytest.mark.parametrize(
    ("settings", "label"),
    [
        ({"refine": {"start": "keep", "steps": 0}}, "FedLGD without refinement (mu=1)"),
        ({"anchors": {"per_class": 0}}, "FedLGD without anchors (mu=1)"),
        ({"distil": {"steps": 0}, "refine": {"steps": 2, "selected": {"count": 0}}}, None),
        ({}, "FedLGD (mu=1)"),
    ],
)
def test_an_older_label_gets_what_the_settings_switch_off(settings, label):
    raw = msgspec.to_builtins(manifest_of(made("fedlgd", {}))) | {"format": 4, "label": "FedLGD (mu=1)"}
    upgraded = upgrade(raw, {"method": "fedlgd", **settings})
    assert upgraded["label"] == (label or "FedLGD without matching and refinement (mu=1)")
    assert upgraded["method"]["label"] == upgraded["label"].removesuffix(" (mu=1)")
    assert upgrade({**raw, "label": "my name"}, {"method": "fedlgd", **settings})["label"] == "my name"


def test_an_older_refinement_of_new_images_is_both_parts():
    raw = msgspec.to_builtins(manifest_of(made("fedavg+refine", {}))) | {"format": 4}
    old = {"method": "fedavg+refine", "refine": {"start": "neighbours", "steps": 3, "selected": {"every": 5}}}
    method = upgrade(raw, old)["method"]
    assert method["name"] == "fedavg+refine+redraw"
    assert method["label"] == "FedAvg + refine + redraw on virtual data"
    assert method["selected"].keys() == {"refine", "redraw"}


def test_every_stored_run_is_read():
    """The runs of the pages, in older formats."""
    written = {
        folder: json.loads((folder / "manifest.json").read_text())["format"] for folder in run_folders(RECORDS)
    }
    folders = [folder for folder, form in written.items() if form < 4]
    assert len(folders) > 400
    runs = [read_run(folder) for folder in folders[::7]]
    assert {run.manifest.method.train_on for run in runs} == {"real", "virtual"}
    assert all(run.manifest.format == FORMAT and run.manifest.promise is None for run in runs)
    assert all(site.real_work for run in runs for site in run.manifest.data.sites)
    for run in runs:
        made_virtual = any("virtual" in record.flags for record in run.records)
        assert made_virtual == (run.manifest.method.train_on == "virtual"), run.path
    assert group_runs(runs)


def test_a_run_names_the_commit_of_the_checkout_that_it_was_imported_from(tmp_path):
    execute(config(method("fedavg"), rounds=1), tiny.federation(), tmp_path)
    assert read_manifest(tmp_path).commit == resume.COMMIT


def test_a_commit_is_that_of_the_checkout_and_says_if_files_differ(tmp_path, monkeypatch):
    def git(*words: str) -> str:
        own = ("-c", "user.name=a", "-c", "user.email=a@b.c", *words)
        return subprocess.run(["git", "-C", str(tmp_path), *own], capture_output=True, text=True, check=True).stdout

    file = tmp_path / "a.py"
    file.write_text("a = 1")
    assert resume.commit_of(tmp_path) == ""
    git("init", "--quiet")
    git("add", ".")
    git("commit", "--quiet", "--message", "first")
    head = git("rev-parse", "HEAD")[:12]
    assert resume.commit_of(tmp_path) == head
    file.write_text("a = 2")
    assert resume.commit_of(tmp_path) == f"{head}-dirty"
    monkeypatch.setenv("GIT_DIR", str(ROOT / ".git"))  # as git sets it for its hooks
    assert resume.commit_of(tmp_path) == f"{head}-dirty"
    monkeypatch.setenv("PATH", "")
    assert resume.commit_of(tmp_path) == ""
