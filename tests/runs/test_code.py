"""A run is of one code: edited methods, helpers and networks of a user's own are noticed when it goes on."""

import importlib
import json
import sys
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import fedlgd
from fedlgd.core.errors import RunError
from fedlgd.core.files import write_json
from fedlgd.data.federation import Federation
from fedlgd.engines.registry import engine
from fedlgd.report.groups import group_runs
from fedlgd.report.summary import caveats
from fedlgd.rundir.manifest import read_manifest
from fedlgd.rundir.read import read_run, run_folders
from fedlgd.rundir.records import committed_records
from fedlgd.runs.compare import equal_run, run_job
from fedlgd.runs.entries import parse_entry, plan_jobs
from fedlgd.runs.result import StoredRun
from fedlgd.runs.run import execute
from fedlgd.runs.tune import tune
from tests import tiny
from tests.errors import refuses
from tests.runs.folder import FAST_NET, config

METHOD = """
from dataclasses import dataclass, replace
from typing import ClassVar
from fedlgd.methods import common
from own_helper import scaled

@dataclass(frozen=True, kw_only=True)
class Mine(common.Training):
    name: ClassVar[str] = "mine"
    enrol, start, broadcast = common.enrol, common.start, common.broadcast

    def site(self, msg, state, site, net, rng, fit=common.fit):
        trained = fit(self, msg.params, state, site, net, rng)
        return common.update(site, state, trained), state

    def server(self, state, updates, net, rng):
        return scaled(common.average(self, state, updates, net, rng), 1.0)
"""
HELPER = """
from dataclasses import replace

def scaled(state, by):
    return replace(state, params={name: by * value for name, value in state.params.items()})
"""
NET = """
from torch import nn

def net():
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 3))
"""
OWN = {"own_method": METHOD, "own_helper": HELPER, "own_net": NET}


class User:
    """Edits modules of a user's own and starts runs with what they have become, as a new process would."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data: Federation = tiny.federation(train=2, test=1)
        for name, text in OWN.items():
            (folder / f"{name}.py").write_text(text)

    def edit(self, name: str, old: str, new: str) -> None:
        file = self.folder / f"{name}.py"
        assert old in file.read_text()
        file.write_text(file.read_text().replace(old, new))
        self.forget()

    def forget(self) -> None:
        for module in OWN:
            sys.modules.pop(module, None)
        importlib.invalidate_caches()

    def run(self, rounds: int = 1, accept: bool = False, how: str = "loop", net: Any = FAST_NET) -> Any:
        method = tiny.settings(importlib.import_module("own_method").Mine(), {"local.batch": 4})
        chosen = engine(how, 2 if how == "pool" else 0)
        plan = config(method, rounds, net)
        out = self.folder / "run"
        return execute(plan, self.data, out, None, "", "", chosen, None, accept_changed_code=accept)

    @property
    def manifest(self) -> dict[str, Any]:
        return json.loads((self.folder / "run/manifest.json").read_text())


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[User]:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    made = User(tmp_path)
    yield made
    made.forget()


EDITS = {"own_method": ("1.0)", "0.5)"), "own_helper": ("by * value", "0.5 * by * value")}


def test_the_manifest_has_the_files_of_a_users_own_by_name_only(user):
    user.run()
    sources = user.manifest["method"]["sources"]
    assert set(sources) == {"own_method.py", "own_helper.py", "tests/nets/own.py"}
    assert str(user.folder) not in json.dumps(user.manifest["method"])


def test_unchanged_code_resumes(user):
    user.run(1)
    user.forget()
    assert user.run(2).rounds == 2
    assert user.manifest["code_changed"] == []


@pytest.mark.parametrize("how", ["loop", "pool"])
@pytest.mark.parametrize("rounds", [1, 2])
@pytest.mark.parametrize("name", EDITS)
def test_changed_code_is_refused_by_a_complete_run_and_by_one_that_goes_on(user, name, rounds, how):
    user.run(1, how=how)
    before = user.manifest
    user.edit(name, *EDITS[name])
    with refuses("code-changed", RunError, path=str(user.folder / "run"), files=[f"{name}.py"]) as caught:
        user.run(rounds, how=how)
    assert {"--out", "--accept-changed-code"} <= set(str(caught.value).replace(",", " ").split())
    assert user.manifest == before
    assert len(committed_records(user.folder / "run")) == 2


def test_accepted_code_is_recorded_with_its_round_and_the_report_says_so(user):
    user.run(1)
    old = user.manifest["method"]["sources"]
    user.edit("own_helper", *EDITS["own_helper"])
    assert user.run(2, accept=True).rounds == 2
    new = user.manifest["method"]["sources"]
    digests = {"before": old["own_helper.py"], "after": new["own_helper.py"]}
    assert user.manifest["code_changed"] == [{"file": "own_helper.py", "after_round": 1, **digests}]
    assert old["own_helper.py"] != new["own_helper.py"]
    assert user.run(3).rounds == 3, "what was accepted is not asked again"
    (said,) = (
        str(each) for each in caveats(group_runs([read_run(user.folder / "run")])) if each.kind == "code-changed"
    )
    assert "own_helper.py after round 1" in said


def test_a_complete_run_stays_one_of_its_own_code_whatever_is_accepted(user):
    user.run(2)
    before = user.manifest
    user.edit("own_helper", *EDITS["own_helper"])
    with pytest.warns(UserWarning, match=r"own_helper\.py"):
        user.run(2, accept=True)
    assert user.manifest == before
    with refuses("code-changed", files=["own_helper.py"]):
        user.run(2)


def test_accepting_changes_nothing_in_a_run_of_the_same_code(user):
    user.run(1)
    user.run(2, accept=True)
    assert user.manifest["code_changed"] == []


def test_a_network_of_ones_own_counts(user):
    user.run(1, net={"name": "own_net:net"})
    user.edit("own_net", "nn.Flatten()", "nn.Flatten(), nn.Tanh()")
    with refuses("code-changed", files=["own_net.py"]):
        user.run(2, net={"name": "own_net:net"})


def test_a_folder_without_stored_code_goes_on_with_one_note(user):
    user.run(1)
    stored = read_manifest(user.folder / "run")
    replace(stored, method=replace(stored.method, sources={})).write(user.folder / "run")
    user.edit("own_method", *EDITS["own_method"])
    with pytest.warns(UserWarning, match=r"own_method\.py"):
        user.run(2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        user.run(3)
    assert user.manifest["code_changed"] == []
    user.edit("own_method", "0.5)", "0.4)")
    with refuses("code-changed", files=["own_method.py"]):
        user.run(4)


def test_seeds_of_different_code_are_told_apart_in_the_report(user):
    user.run(1)
    (user.folder / "run").rename(user.folder / "first")
    user.edit("own_method", *EDITS["own_method"])
    user.run(1)
    runs = [replace(read_run(user.folder / name), seed=i) for i, name in enumerate(("first", "run"))]
    assert "unequal-code" in {each.kind for each in caveats(group_runs(runs))}


def test_a_method_of_a_notebook_resumes_until_it_is_edited(user, tmp_path):
    def run(text: str, rounds: int) -> Any:
        space: dict[str, Any] = {"__name__": "__main__"}
        exec(text, space)
        method = tiny.settings(space["Mine"](), {"local.batch": 4})
        return execute(config(method, rounds, FAST_NET), user.data, tmp_path / "notebook")

    run(METHOD, 1)
    assert run(METHOD, 2).rounds == 2
    with refuses("code-changed", files=["__main__:Mine"]):
        run(METHOD.replace("1.0)", "0.5)"), 2)


def test_in_python_a_changed_run_is_accepted_by_an_argument(user):
    def run(rounds: int, **more: Any) -> Any:
        method = importlib.import_module("own_method").Mine()
        return fedlgd.run(user.data, method, rounds=rounds, net=FAST_NET, out=user.folder / "run", **more)

    run(1)
    user.edit("own_method", *EDITS["own_method"])
    with refuses("code-changed"):
        run(2)
    assert run(2, accept_changed_code=True).rounds == 2


# Comparisons


def compared(user: User, **more: Any) -> Any:
    methods, net = ["own_method:Mine", "fedavg"], {"name": "convnet", "depth": 1, "width": 2}
    return fedlgd.compare(user.data, methods, seeds=1, rounds=1, net=net, out=user.folder / "all", **more)


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_comparison_runs_what_changed_anew_and_keeps_the_rest(user, jobs):
    before = compared(user)
    records = {run: (run / "records.jsonl").read_bytes() for run in run_folders(user.folder / "all")}
    user.edit("own_helper", *EDITS["own_helper"])
    with pytest.warns(UserWarning, match=r"own_helper\.py changed; .*\.seed0\.1") as said:
        after = compared(user, jobs=jobs)
    assert len(said) == 1
    assert set(records) == set(run_folders(user.folder / "all")), "what is set aside is in no report"
    changed = [
        run.parent.name for run, content in records.items() if (run / "records.jsonl").read_bytes() != content
    ]
    assert [name for name in changed if "fedavg" in name] == []
    assert len(changed) == 1
    (aside,) = user.folder.glob("all/*/.seed0.1/records.jsonl")
    assert aside.read_bytes() in records.values()
    fedavg = [*after][1]
    assert after[fedavg][0].accuracy == before[fedavg][0].accuracy


def test_a_comparison_that_accepts_changed_code_keeps_complete_runs_and_says_of_what_code_they_are(user):
    compared(user)
    user.edit("own_helper", *EDITS["own_helper"])
    with pytest.warns(UserWarning, match=r"own_helper\.py"):
        compared(user, accept_changed_code=True)
    (manifest,) = (
        read_manifest(run) for run in run_folders(user.folder / "all") if "fedavg" not in run.parent.name
    )
    assert not manifest.code_changed
    assert not [*user.folder.glob("all/*/.*.1")]
    with pytest.warns(UserWarning, match=r"own_helper\.py changed"):
        compared(user)
    assert [*user.folder.glob("all/*/.*.1")], "without the option it runs anew: nothing was accepted for good"


def test_an_equal_run_of_other_code_is_not_copied(user):
    def job(folder: str) -> Any:
        settings = {"rounds": 1, "net.name": "convnet", "net.width": 2, "net.depth": 1}
        (made,) = plan_jobs([parse_entry("own_method:Mine")], 1, user.folder / "library" / folder, settings)
        return replace(made, library=user.folder / "library")

    first = job("one")
    run_job(first, user.data)
    assert equal_run(job("two"), user.data) == first.folder
    user.edit("own_method", *EDITS["own_method"])
    assert equal_run(job("two"), user.data) is None


def test_a_search_is_not_continued_with_other_code(user):
    def search() -> Any:
        net = {"net.name": "convnet", "net.width": 2, "net.depth": 1}
        space, out = {"local.lr": [0.01, 0.02]}, user.folder / "tune"
        how = {"candidates": 2, "rounds": 1, "space": space, "settings": net, "validation": 0.5}
        return tune(user.data, ["own_method:Mine"], out=out, **how)

    search()
    user.forget()
    search()
    user.edit("own_helper", *EDITS["own_helper"])
    with refuses("search-code-changed", files=["own_helper.py"]):
        search()
    file = user.folder / "tune/tune.json"
    stored = json.loads(file.read_text())
    stored.pop("digest")
    del stored["about"]["code"]
    write_json(file, stored)
    search()


def test_an_attack_does_not_compute_a_run_again_with_other_code(user):
    user.run(1)
    user.edit("own_method", *EDITS["own_method"])
    stored = config(importlib.import_module("own_method").Mine(), 1, FAST_NET)
    run = StoredRun(user.folder / "run", read_manifest(user.folder / "run"), stored)
    vars(run)["federation"] = user.data
    with refuses("attack-code-changed", files=["own_method.py"]):
        _ = run.net
