"""Audits of methods that nobody here has seen: what they send is attacked by its form, or named as not attacked."""

from typing import Any

import pytest
import torch

from fedlgd.attacks import audit, membership
from fedlgd.attacks.audit import AuditPlan, AuditRequest
from fedlgd.attacks.pool import draw_pool, members_in
from fedlgd.attacks.sent import agreement, images_in
from fedlgd.attacks.shadow import run_watched
from fedlgd.attacks.target import AuditTarget
from fedlgd.attacks.watch import Study
from fedlgd.core.errors import PrivacyError
from fedlgd.core.types import Scale, Stream
from fedlgd.report.attacks import audit_caveats, leaking
from fedlgd.rundir.results import Audit
from fedlgd.runs.config import Config, RunSettings
from tests import tiny
from tests.attacks.own import Averaging, Denying, Promising, Uploading
from tests.errors import refuses

CHANCE = 0.12  # about four standard deviations of an area without a leak; one interval of 95 % in ten excludes 1/2
PLAN = RunSettings(rounds=1, evaluate_every=1, analysis=False, real_samples=0)


class FakeResult:
    """What an audit reads of the stored result of a run."""

    records: tuple = ()


@pytest.fixture
def audited(tmp_path, monkeypatch):
    """An audit of a method on tiny images, without baselines and with few draws of the bootstrap."""
    monkeypatch.setattr(membership.bootstrap, "__defaults__", ((), 50))
    only_run = lambda target, *_: [audit.Arm(target.config.method.label, "run", target.config)]  # noqa: E731
    monkeypatch.setattr(audit, "arms_of", only_run)

    def work(method: Any, train: int = 40) -> Audit:
        data, config = tiny.federation(train=train, test=12), Config(method=method, plan=PLAN)
        sends = {"hello/counts": "counts", **method.sends}
        target = AuditTarget(tmp_path, config, data, tiny.net(), FakeResult(), sends)  # type: ignore[arg-type]
        return AuditPlan(target, AuditRequest(), "ape").run(1)

    return work


def areas(found: Audit, kind: str) -> dict[tuple[str, str], tuple[float, float, float]]:
    return {(each.target, each.statistic): each.auc for each in found.findings if each.kind == kind}


def test_uploaded_copies_of_images_are_found(audited):
    found = audited(Uploading())
    run = areas(found, "run")
    assert run.keys() == {("model", "RMIA"), ("uploads", "trace"), ("uploads", "nearest image")}
    assert run["uploads", "nearest image"][0] > 0.55
    assert areas(found, "positive")["uploads", "nearest image"][0] > 0.55
    assert areas(found, "blind").keys() > {
        ("uploads", f"{name}, against test images") for name in ("trace", "nearest")
    }
    for name, area in areas(found, "blind").items():
        assert area[1] == pytest.approx(0.5, abs=CHANCE), name
    assert found.unattacked == {"hello/counts": "counts"}
    assert ("uploads", "nearest image") in {(each.target, each.statistic) for each in leaking(found)}


def test_an_upload_of_noise_is_at_chance_and_its_control_leaks(audited):
    found = audited(Uploading(copies=False))
    run = areas(found, "run")
    for name in ("trace", "nearest image"):
        assert run["uploads", name][1] == pytest.approx(0.5, abs=CHANCE), name
    assert areas(found, "positive")["uploads", "nearest image"][0] > 0.55


def test_feature_means_are_attacked_where_their_network_is_known_and_named_where_not(audited, tmp_path):
    known = audited(Averaging(), 20)
    assert areas(known, "run")["features", "trace"][1] > 0.6
    assert ("features", "trace, first means of another site") in areas(known, "blind")
    assert known.unattacked == {"hello/counts": "counts"}
    hidden = audited(Averaging(secret=True), 20)
    assert areas(hidden, "run").keys() == {("model", "RMIA")}
    assert hidden.unattacked == {"hello/counts": "counts", "trees/averages": "feature means"}
    said = next(each for each in audit_caveats(hidden) if each.kind == "not-attacked")
    assert "feature means (trees/averages)" in str(said)


def test_images_that_nobody_declared_are_attacked_and_other_things_named(audited):
    found = audited(tiny.settings(Denying(), {"local.batch": 8}))
    assert {target for target, _ in areas(found, "run")} == {"model", "updates", "uploads"}
    assert areas(found, "run")["uploads", "nearest image"][0] > 0.55
    assert found.unattacked == {"hello/counts": "counts", "metrics/loss": "loss", "trees/noise": "not declared"}


def test_a_shadow_federation_is_sealed_as_the_run_is(tmp_path):
    """A method that promises epsilon and reads images is refused in every part of an audit."""
    data, rng, config = tiny.federation(train=24), Stream(0), Config(method=Promising(), plan=PLAN)
    pool = draw_pool(data, "ape", 1000, 0.0, rng)
    study = Study.of(data, pool, tiny.net(), rng)
    with refuses("images-sealed", PrivacyError, site="ape"):
        run_watched(config, data, tiny.net(), study, members_in(pool, 0, rng), lambda *_: None)
    with refuses("half-refused", PrivacyError, site="ape"):
        audit.check_halves(config, pool, data, tiny.net(), 1, rng)


def test_controls_have_only_settings_that_the_method_has(tmp_path):
    def arms(method: Any) -> list[audit.Arm]:
        config = Config(method=method, plan=PLAN)
        target = AuditTarget(tmp_path, config, tiny.federation(), tiny.net(), FakeResult())  # type: ignore[arg-type]
        return list(audit.arms_of(target, "ape", AuditRequest()))

    run, real = arms(Uploading())
    assert (run.kind, real.kind, real.label) == ("run", "baseline", "FedAvg on real data, default settings")
    assert real.config.method.local == type(real.config.method)().local
    own = tiny.settings(Denying(), {"train_on": "virtual", "local.batch": 7})
    assert [arm.kind for arm in arms(own)] == ["run", "baseline", "baseline", "positive"]
    assert all(arm.config.method.local.batch == 7 for arm in arms(own))


@pytest.mark.parametrize(
    ("tensors", "labels"),
    [
        ({"a": torch.rand(6, 3, 8, 8), "y": torch.tensor([0, 2, 1, 0, 0, 2])}, [0, 2, 1, 0, 0, 2]),
        ({"a": torch.rand(6, 3, 8, 8), "soft": torch.eye(3).repeat(2, 1)}, [0, 1, 2, 0, 1, 2]),
        ({"a": torch.rand(6, 3, 8, 8), "present": torch.ones(3)}, [0, 0, 1, 1, 2, 2]),
        ({"a": torch.rand(3, 2, 3, 8, 8)}, [0, 0, 1, 1, 2, 2]),
        ({"a": torch.randint(256, (6, 3, 8, 8), dtype=torch.uint8)}, None),
        ({"a": torch.rand(3, 3, 8, 8), "present": torch.tensor([1, 1, 1])}, [0, 1, 2]),
    ],
    ids=["integers", "probabilities", "by class", "by class in two dimensions", "pixels without labels", "mask"],
)
def test_images_and_their_labels_are_found_in_a_message(tensors, labels):
    found = images_in(tensors, tiny.net(), Scale())
    assert found.x.shape[1:] == (3, 8, 8)
    assert found.x.is_floating_point()
    assert found.labels == labels if labels is None else found.labels.tolist() == labels


def test_tensors_of_another_shape_and_rows_without_content_are_no_images():
    net = tiny.net()
    assert images_in({"a": torch.rand(6, 3, 8, 7)}, net, Scale()) is None
    assert images_in({"a": torch.zeros(6, 3, 8, 8)}, net, Scale()) is None
    some = torch.rand(6, 3, 8, 8)
    some[2:4] = 0
    found = images_in({"a": some, "present": torch.tensor([1.0, 0.0, 1.0])}, net, Scale())
    assert found.labels.tolist() == [0, 0, 2, 2]


def test_class_means_agree_with_features_of_their_own_network_only():
    data, net = tiny.federation(train=30).by_name["ape"].train.take(slice(None)), tiny.net()
    own, other = (net.frozen(net.init(Stream(i)), data.x).features.double() for i in range(2))
    means = torch.stack([own[data.y == k].mean(0) for k in range(3)])
    assert agreement(means, own[::2], data.y[::2]) > 0.9
    assert agreement(means, other[::2], data.y[::2]) < 0.5
    assert agreement(torch.zeros_like(means), own, data.y) == 0
