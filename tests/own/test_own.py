"""Methods of a user run, resume, are reported, audited and made private like those of the package."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from image_upload import ImageUpload
from own_head import OwnHead
from server_momentum import ServerMomentum
from sparse import Sparse

import fedlgd
from fedlgd.attacks.audit import AuditPlan, AuditRequest
from fedlgd.attacks.target import chosen_site, open_target
from fedlgd.core import tree
from fedlgd.core.errors import PrivacyError, SettingError
from fedlgd.core.types import ServerState, Stream, Update
from fedlgd.data.federation import Federation
from fedlgd.data.suites import DataChoice
from fedlgd.engines.registry import Engine, Loop, Pool
from fedlgd.methods.registry import find_method
from fedlgd.report.page import write_report
from fedlgd.rundir.disclosure import Mismatch, differences
from fedlgd.rundir.read import read_run, read_runs
from fedlgd.runs.config import Config, RunSettings
from fedlgd.runs.run import execute
from tests import tiny
from tests.errors import refuses
from tests.own import EXAMPLES
from tests.own.methods import FalseClaims, FeatureMeans
from tests.runs.folder import NET, Stopped, everything, stop_after

DATA = DataChoice(name="tests.own.suite:Small")
PLAN = RunSettings(rounds=3, ratio=0.7, evaluate_every=2, analysis=False, real_samples=0)
ENGINES = {"loop": Loop(), "pool": Pool(workers=2)}
LOCAL = fedlgd.Local(steps=2, batch=8)
DISTIL = fedlgd.Distil(per_class=2, steps=2, real_per_class=4)
VIRTUAL = {"train_on": "virtual", "local": LOCAL, "distil": DISTIL}

METHODS: dict[str, Any] = {
    "regulariser": fedlgd.Regularised(method=fedlgd.FedAvg(local=LOCAL, distil=DISTIL), term=Sparse(weight=0.1)),
    "momentum": ServerMomentum(local=LOCAL, distil=DISTIL),
    "momentum, virtual": ServerMomentum(**VIRTUAL),
    "upload": ImageUpload(local=LOCAL, distil=DISTIL, moves=2),
    "personal": OwnHead(local=LOCAL, distil=DISTIL),
    "means": FeatureMeans(local=LOCAL, distil=DISTIL),
    "false": FalseClaims(local=LOCAL, distil=DISTIL),
}
GLOBAL = [name for name in METHODS if not METHODS[name].personal]
SENT = {"upload": ["uploads"], "false": ["updates", "uploads"], "means": ["updates", "features"]}  # and attacked
FALSE = [Mismatch("sent-undeclared", "trees/extra"), Mismatch("read-undeclared", "1")]


def config(method: Any) -> Config:
    return Config(method=method, plan=PLAN, data=DATA, net=NET)


@pytest.fixture(scope="module")
def data() -> Federation:
    return DATA.open()


@pytest.fixture(scope="module")
def straight(data, tmp_path_factory) -> Iterator[dict[str, Path]]:
    """The folder of a run of each method that was never interrupted."""
    base = tmp_path_factory.mktemp("own")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDLGD_CACHE", str(base / "home"))
        for name, method in METHODS.items():
            execute(config(method), data, base / name, engine=Loop())
        yield {name: base / name for name in METHODS}


# Runs


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", METHODS)
def test_a_run_that_was_interrupted_ends_with_the_bits_of_one_that_was_not(name, engine, data, straight, tmp_path):
    how = config(METHODS[name])
    for last in (-1, 0):
        with pytest.raises(Stopped):
            execute(how, data, tmp_path / "run", stop_after(last), engine=ENGINES[engine])
    execute(how, data, tmp_path / "run", engine=ENGINES[engine])
    assert everything(tmp_path / "run") == everything(straight[name])


@pytest.mark.parametrize("name", METHODS)
def test_a_method_is_found_again_by_its_name_in_the_folder(name, straight):
    stored = read_run(straight[name]).manifest.method
    assert find_method(stored.name) is type(getattr(METHODS[name], "method", METHODS[name]))
    assert fedlgd.open_run(straight[name]).rounds == PLAN.rounds


@pytest.mark.parametrize("name", METHODS)
def test_only_false_claims_differ_from_what_happened(name, straight):
    run = read_run(straight[name])
    assert list(differences(run.manifest.method, run.records)) == (FALSE if name == "false" else [])


# The examples


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.py")), ids=lambda file: file.stem)
def test_the_page_shows_the_examples_as_they_are(file):
    page = (EXAMPLES.parents[1] / "docs" / "write-a-method.md").read_text()
    assert f"```python\n{file.read_text()}```\n" in page


def test_momentum_adds_a_part_of_the_step_before(data):
    """theta_2 - theta_1 = (mean_c theta_c - theta_1) + beta (theta_1 - theta_0)"""
    net, method = tiny.net(), ServerMomentum(beta=0.5)
    models = [tiny.params(net, seed) for seed in range(3)]
    state = ServerState(params=models[0])
    for mean in models[1:]:
        update = Update(site="ape", params=mean, weight=1.0)
        before, state = state, method.server(state, [update], net, Stream(0))
    expected = tree.add(models[2], tree.scale(tree.sub(before.params, models[0]), 0.5))
    for name, value in expected.items():
        torch.testing.assert_close(state.params[name], value)


def test_the_sparse_term_makes_weights_smaller(data):
    def size(weight: float) -> float:
        method = fedlgd.Regularised(method=fedlgd.FedAvg(local=LOCAL), term=Sparse(weight=weight))
        params = tiny.Run(method, data, PLAN).states[-1].params
        return sum(float(value.abs().sum()) for value in params.values())

    assert size(0.1) < size(0.0) - 1


def test_heads_stay_at_their_sites_and_differ(straight):
    result = fedlgd.open_run(straight["personal"])
    heads = [own["head.bias"] for own in result.personal.values()]
    assert not any(name.startswith("head.") for name in result.params)
    assert not torch.equal(heads[0], heads[1])


# Reports and audits


@pytest.mark.parametrize("name", METHODS)
def test_a_run_is_reported(name, straight, undrawn, tmp_path):
    page = write_report(straight[name], tmp_path / "report.html").read_text()
    assert METHODS[name].label in page


def test_a_comparison_of_all_is_reported(straight, undrawn, tmp_path):
    folders = [*straight.values()]
    assert read_runs(folders)[1] == ()  # none is unreadable
    page = write_report(folders, tmp_path / "report.html").read_text()
    assert all(method.label in page for method in METHODS.values())


@pytest.mark.parametrize("name", GLOBAL)
def test_a_global_model_is_audited(name, straight, undrawn, tmp_path):
    target = open_target(straight[name])
    audit = AuditPlan(target, AuditRequest(), chosen_site(target.federation, "")).run(jobs=1)
    found = [finding for finding in audit.findings if finding.kind == "run"]
    assert {finding.label for finding in found} == {METHODS[name].label}
    assert {finding.target for finding in found} >= {"model", *SENT.get(name, ["updates"])}
    assert METHODS[name].label in write_report(straight[name], tmp_path / "report.html").read_text()


def test_personal_models_are_not_audited_and_the_reason_is_named(straight):
    with refuses("no-shared-model", SettingError, label=METHODS["personal"].label):
        open_target(straight["personal"])


# Differential privacy

PRIVATE = {"epsilon": 60.0, "counts": 0.2, "releases": 3, "blocks": 1, "test_key": "k"}
NOISY = {**VIRTUAL, "distil": tiny.settings(DISTIL, {f"private.{k}": v for k, v in PRIVATE.items()})}

KEEP: dict[str, Any] = {
    "regulariser": fedlgd.Regularised(method=fedlgd.FedAvg(**NOISY), term=Sparse(weight=0.1)),
    "momentum": ServerMomentum(**NOISY),
    "upload of the first images": ImageUpload(local=LOCAL, distil=NOISY["distil"], moves=0),
    "personal": OwnHead(**NOISY),
    "means of virtual images": FeatureMeans(**NOISY),
}
BREAK: dict[str, Any] = {
    "upload of images that move": ImageUpload(local=LOCAL, distil=NOISY["distil"], moves=2),
    "means of private images": FeatureMeans(means_of="real", **NOISY),
    "false": FalseClaims(**{k: v for k, v in NOISY.items() if k != "train_on"}),
}


@pytest.mark.parametrize("engine", ENGINES.values(), ids=[*ENGINES])
@pytest.mark.parametrize("name", BREAK)
def test_a_method_that_reads_private_images_without_a_release_is_stopped(name, engine: Engine, data):
    with refuses("images-sealed", PrivacyError, method=BREAK[name].name) as refused:
        execute(config(BREAK[name]), data, engine=engine)
    assert "state.virtual" in str(refused.value)  # the way out


@pytest.mark.parametrize("name", KEEP)
def test_after_its_releases_a_private_run_depends_on_no_private_image(name, data):
    """Enrolled with their images, sites continue with others, and nothing changes."""
    method, plan = KEEP[name], replace(PLAN, ratio=1.0)
    straight = tiny.Run(method, data, plan)
    begun = tiny.Run(method, data, plan, rounds=0)
    other = tiny.Run(method, replace(data, sites=tuple(map(_with_noise, data.sites))), plan, begun.memory)
    assert tiny.equal(straight.states[-1].params, other.states[-1].params)
    assert [record.readers for record in straight.records] == [0] * (plan.rounds + 1)


def _with_noise(site: Any) -> Any:
    generator = Stream(0).generator(site.name)
    return replace(site, train=replace(site.train, x=site.train.x.clone().random_(0, 256, generator=generator)))


def test_the_promise_is_in_the_folder_of_a_private_run(data, tmp_path):
    execute(config(KEEP["momentum"]), data, tmp_path / "run")
    run = read_run(tmp_path / "run")
    assert run.manifest.promise.epsilon == PRIVATE["epsilon"]
    assert run.manifest.promise.protects == "image"
    assert list(differences(run.manifest.method, run.records)) == []
