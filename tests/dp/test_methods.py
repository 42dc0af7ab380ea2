"""Every method on private virtual sets, DP-SGD, DP-FedAvg, and what they refuse."""

import json
import math
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from fedlgd.core.errors import FedlgdError, NetError, PrivacyError, SettingError
from fedlgd.core.train import Local
from fedlgd.core.types import Hello, Scale, ServerState, Site, Stream, Update
from fedlgd.dp.budget import Level, spent_epsilon
from fedlgd.dp.ledger import PrivacyLedger, generator_for
from fedlgd.dp.training import Dp, clipped_gradients, dp_sgd, per_sample, training_level
from fedlgd.engines.site import Sites, Task
from fedlgd.methods import registry
from fedlgd.methods.fedavg import FedAvg
from fedlgd.methods.fedlgd import FedLGD
from fedlgd.methods.parts import for_rounds
from fedlgd.methods.private import LOCAL
from fedlgd.runs.config import Config, RunSettings, resolve
from fedlgd.runs.run import run
from tests import tiny
from tests.contract.battery import quick
from tests.errors import refuses

PRIVATE = {
    "distil.plan": "bank",
    "distil.private.epsilon": 60.0,
    "distil.private.counts": 0.2,
    "distil.private.releases": 2,
    "distil.private.blocks": 1,
}
PLAN = RunSettings(rounds=2, seed=3, evaluate_every=2)


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDLGD_STATE", str(tmp_path / "home"))


def private(name: str, **values: Any) -> Any:
    """A tiny method on private virtual sets."""
    own = {f.name for f in fields(registry.recipe(name).settings)}
    on = {"train_on": "virtual"} if "train_on" in own else {}
    method = quick(name, **on, distil__plan="bank")
    return tiny.settings(method, PRIVATE | {path.replace("__", "."): value for path, value in values.items()})


class Closed:
    """Training images that cannot be read, scaled as all are."""

    scale = Scale()

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"the method read {name} of the private images")

    def __len__(self) -> int:
        raise AssertionError("the method counted the private images")


NOT_OFFERED = ("fedaf", "feddm", "fedlap", "fedvck")  # they read private images in every round
OFFERED = [name for name in registry.names() if name not in (*NOT_OFFERED, "pooled")]


@pytest.mark.parametrize("name", NOT_OFFERED)
def test_a_method_that_reads_private_images_in_every_round_refuses_private_sets(name):
    assert "every" in quick(name).reads
    with refuses("private-not-offered", PrivacyError, epsilon=60.0, method=name):
        private(name)


@pytest.mark.parametrize("name", [*OFFERED, "scaffold+anchors+refine"])
def test_after_the_releases_no_method_reads_private_images(name):
    """What a site sends is post-processing: rounds without refinement work although nobody can read the images."""
    stacked = "refine" in name or name == "fedlgd"
    method = private(name, **({"refine__selected__first": 7} if stacked else {}))
    data, net = tiny.federation(train=12), method.adapt(tiny.net())
    memory = tiny.Kept()
    rounds = tiny.play(method, data, tiny.net(), PLAN, memory)
    next(rounds)
    closed = replace(data, sites=tuple(Site(s.name, Closed(), s.test, s.classes) for s in data.sites))
    sites = Sites(method, closed, net, PLAN, memory.states)
    state = memory.server()
    for site in data.by_name:
        message = method.broadcast(state, site)
        answer = sites(Task(what="train", site=site, round=0, after=-1, message=message))
        assert answer.update is not None
        assert answer.update.weight == 1.0


def test_the_hello_of_a_private_site_has_no_exact_counts():
    data = tiny.federation(train=12, missing={"ape": 1})
    state, hello = private("fedavg").enrol(data.sites[0], tiny.net(), Stream(0))
    assert hello.counts.tolist() == [2, 0, 2]
    assert state.trees["released"]["counts"].dtype == torch.float64


@pytest.mark.parametrize("name", ["fedlgd", "fedavg+refine"])
def test_a_private_run_ends_as_it_would_after_an_interruption(name):
    method, data = private(name), tiny.federation(train=12)
    ledger = tiny.settings(method, {"distil.private.total": 99.0})
    whole = tiny.Run(ledger, data, PLAN, using=tiny.net())
    again = tiny.Run(ledger, data, PLAN, using=tiny.net())
    assert all(torch.equal(a, b) for a, b in zip(_last(whole), _last(again), strict=True))
    budget = tiny.settings(method, {}).distil.private
    assert PrivacyLedger("ape", budget).spent() <= budget.epsilon * (1 + 1e-6)


def test_the_releases_of_the_private_preset_spend_its_budget_and_no_more(tmp_path):
    """mu^2 by hand, over every release in the ledger: counts, start, 300 sums, and 3 in each of 10 rounds."""
    smaller = {
        "distil.per_class": 1,
        "distil.width": 0,
        "refine.steps": 3,
        "anchors.per_class": 0,
        "pull.weight": 0,
    }
    shorter = {"local.steps": 1, "distil.private.counts": 0.4, "distil.private.start": 0.05, "distil.steps": 300}
    method = tiny.settings(FedLGD(), FedLGD.presets["private"] | smaller | shorter)
    tiny.Run(method, tiny.federation(train=60, names=("ape",)), replace(PLAN, rounds=12), using=tiny.net())
    (ledger,) = (tmp_path / "home" / "privacy").glob("*/ledger.json")
    (account,) = json.loads(ledger.read_text())["accounts"].values()
    noise = [part["level"][0] for part in account.values() for _ in part["made"]]
    assert {name: len(part["made"]) for name, part in account.items()} == {
        "counts": 1,
        "start": 1,
        "distil": 300,
        "refine 30": 30,
    }
    assert all(part["level"][1:] == [1.0, len(part["made"]), 1] for part in account.values())
    mu = math.sqrt(sum(1 / sigma**2 for sigma in noise))
    delta = math.erfc((4 / mu - mu / 2) / 2**0.5) / 2 - math.exp(4) * math.erfc((4 / mu + mu / 2) / 2**0.5) / 2
    assert delta == pytest.approx(1e-5, rel=1e-6)


def _last(run: tiny.Run) -> list[torch.Tensor]:
    return list(run.states[-1].params.values())


def test_a_method_that_refines_is_refused_at_enrolment_if_the_budget_is_spent():
    data, net = tiny.federation(train=12), tiny.net()
    private("fedavg+refine").enrol(data.sites[0], net, Stream(0))
    with refuses("budget-exceeded", PrivacyError):
        private("fedavg+refine").enrol(data.sites[0], net, Stream(1))


# Refusals


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"method": "fedavg", "train_on": "real"}, "train_on=virtual, or fedavg.dp-sgd"),
        ({"distil.start": "real"}, "distil.start=noise"),
        ({"anchors.start": "statistics"}, "anchors.start=noise"),
        (
            {"method": "scaffold+anchors", "train_on": "virtual", "anchors.start": "statistics"},
            "anchors.start=noise",
        ),
        ({"distil.plan": "exact"}, "distil.plan=bank"),
        ({"real_samples": 4}, "real_samples=0"),
    ],
)
def test_what_would_break_the_promise_is_refused_with_a_way_out(settings, words):
    with pytest.raises(FedlgdError, match=words):
        resolve({}, {"distil.private.epsilon": 4, **settings})


def test_reports_of_private_runs_show_and_analyse_no_real_image():
    config = resolve({}, {"distil.private.epsilon": 4})
    assert config.plan.real_samples == 0
    assert not config.plan.analysis
    assert config.method.budget == config.method.distil.private
    plain = resolve({}, {"distil.private.epsilon": math.inf})
    assert plain.plan.real_samples == 4
    assert plain.plan.analysis


def test_a_run_from_python_is_private_too(tmp_path):
    result = run(tiny.federation(train=12), private("fedavg"), rounds=1, net={"depth": 2, "width": 4})
    assert set(result.virtual) == set(tiny.NAMES)


# DP-SGD


def dp(**values: Any) -> Any:
    method = tiny.settings(tiny.stacked("fedavg+dp-sgd"), {"local.batch": 64, "local.lr": 0.2, "dp.epsilon": 20.0})
    return for_rounds(tiny.settings(method, {k.replace("__", "."): v for k, v in values.items()}), 2)


def test_the_gradient_of_each_image_is_clipped_alone():
    net, data = tiny.net(), tiny.labelled(tiny.net(), 4)
    params = tiny.params(net)
    module = per_sample(net, params)
    leaves = [leaf for leaf in module.parameters() if leaf.requires_grad]
    found = clipped_gradients(module, leaves, data, torch.arange(len(data)), 0.5)
    total = [torch.zeros_like(leaf) for leaf in leaves]
    names = [name.removeprefix("_module.") for name, _ in module.named_parameters()]
    for i in range(len(data)):
        weights = {name: value.clone().requires_grad_(name in net.trainable) for name, value in params.items()}
        loss = F.cross_entropy(net(weights, data.x[i : i + 1]).logits, data.y[i : i + 1])
        grads = torch.autograd.grad(loss, [weights[name] for name in names], materialize_grads=True)
        norm = torch.cat([g.flatten() for g in grads]).norm()
        assert norm > 0.5
        for t, g in zip(total, grads, strict=True):
            t += g * (0.5 / norm)
    for a, b in zip(found, total, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_dp_sgd_has_noise_of_sigma_times_clip_over_the_batch():
    """lr 1, one step, clip near 0: the change of the model is noise alone."""
    net, data = tiny.net(), tiny.labelled(tiny.net(), 4)
    params = tiny.params(net)
    how, level = Local(lr=1.0, batch=4), Level(3.0, 0.5, 1, 1)
    changes = []
    for i in range(20):
        moved = dp_sgd(net, params, data, how, level, 0.01, 8.0, generator_for(b"k", str(i)))
        changes.append(torch.cat([(moved[n] - params[n]).flatten() for n in sorted(net.trainable)]))
    noise = torch.stack(changes).double()
    assert float(noise.var(0).mean().sqrt()) == pytest.approx(3.0 * 0.01 / (0.5 * 8), rel=0.08)


def test_all_rounds_of_dp_sgd_fit_in_one_budget():
    method, data = dp(), tiny.federation(train=12)
    run = tiny.Run(method, data, PLAN, using=tiny.net())
    assert run.records[-1].accuracy > 0
    for site in tiny.NAMES:
        assert 10 < PrivacyLedger(site, method.dp).spent() <= 20 * (1 + 1e-6)
    again = tiny.Run(method, data, PLAN, using=tiny.net())
    assert all(torch.equal(a, b) for a, b in zip(_last(run), _last(again), strict=True))
    with refuses("budget-exceeded", PrivacyError, section="dp"):
        tiny.Run(method, data, replace(PLAN, seed=8), using=tiny.net())


def test_more_rounds_need_more_noise():
    counts = torch.tensor([400.0, 400.0, 400.0])
    made = [for_rounds(tiny.stacked("fedavg+dp-sgd"), rounds) for rounds in (1, 4)]
    few, many = (training_level(method.dp, method.local, counts, "ape") for method in made)
    assert few.rate == many.rate == pytest.approx(512 / 1200)
    assert few.each == 3
    assert many.sigma > few.sigma
    assert spent_epsilon([many], 1e-5) <= 4


def test_what_dp_sgd_sends_is_noisy_or_left_out():
    method, site, net = dp(), tiny.federation(train=12).sites[0], tiny.net()
    state, hello = method.enrol(site, net, Stream(0))
    assert hello.counts.dtype == torch.int64
    message = method.broadcast(method.start(tiny.params(net), [hello], net, Stream(0)), "ape")
    update, after = method.site(message, state, site, net, Stream(0).at("site", "ape", 0))
    assert update.metrics == {}
    assert update.weight == float(after.trees["released"]["counts"].sum()) != 36.0


def test_a_round_beyond_the_budget_is_refused():
    with refuses("rounds-beyond-budget", PrivacyError):
        resolve({}, {"method": "fedavg+dp-sgd", "rounds": 5, "dp.rounds": 4})
    assert resolve({}, {"method": "fedavg+dp-sgd", "rounds": 5}).method.dp.rounds == 5


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("fedavg+dp-sgd", {"train_on": "virtual"}, "use train_on=real"),
        ("fedavg+proximal+dp-sgd", {}, "use fedavg.dp-sgd"),
        ("fedavg+dp-sgd+proximal", {}, "cannot be stacked on"),
        ("fedavg+dp-sgd", {"dp.epsilon": 0}, "dp.epsilon is 0"),
        ("scaffold+dp-sgd", {}, "cannot be stacked on scaffold"),
    ],
)
def test_impossible_stacks_are_refused(name, settings, words):
    with pytest.raises(SettingError, match=words):
        resolve({}, {"method": name, **settings})


def test_batch_norm_is_refused_by_dp_sgd():
    with refuses("batch-norm-with-privacy", PrivacyError):
        dp().enrol(tiny.federation().sites[0], tiny.net(norm="batch"), Stream(0))


def test_group_norm_works_with_dp_sgd():
    net = tiny.net(norm="group")
    moved = dp_sgd(net, tiny.params(net), tiny.labelled(net), Local(), Level(1.0), 1.0, 6.0, generator_for(b"k"))
    assert all(value.isfinite().all() for value in moved.values())


def test_without_opacus_dp_sgd_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "opacus.grad_sample", None)
    with refuses("opacus-missing", SettingError):
        per_sample(tiny.net(), tiny.params(tiny.net()))


def test_a_network_that_opacus_cannot_handle_is_named(monkeypatch):
    monkeypatch.setattr(torch.nn.ReLU, "forward", lambda _, x: x.relu_())
    with refuses("no-gradients-of-images", NetError):
        per_sample(tiny.net(), tiny.params(tiny.net()))


# DP-FedAvg


def test_dp_fedavg_is_refused_for_few_sites_with_the_reason():
    method = for_rounds(tiny.stacked("fedavg+dp-fedavg"), 100)
    with refuses("too-few-sites", PrivacyError, sites=3, wanted=50, rounds=100):
        tiny.Run(method, tiny.federation(), PLAN, using=tiny.net())


def test_dp_fedavg_clips_changes_and_adds_the_noise_of_its_budget():
    net, method = tiny.net(), for_rounds(tiny.stacked("fedavg+dp-fedavg"), 4)
    params = tiny.params(net)
    hellos = [Hello(site=str(i), counts=torch.ones(3, dtype=torch.int64)) for i in range(50)]
    state = method.start(params, hellos, net, Stream(0))
    far = {name: value + 100.0 for name, value in params.items()}
    updates = [Update(site=str(i), params=far, weight=1.0 + i) for i in range(50)]
    after: ServerState = method.server(state, updates, net, Stream(0))
    moved = torch.cat([(after.params[n] - params[n]).flatten() for n in sorted(net.trainable)]).double()
    size = len(moved)
    noise = math.sqrt(4) / 2.00045 / 50
    assert after.round == 1
    assert float(moved.mean()) == pytest.approx(1 / math.sqrt(size), abs=4 * noise / math.sqrt(size))
    assert float(moved.std()) == pytest.approx(noise, rel=0.12)


def test_settings_of_dp_have_their_own_defaults_of_local_training():
    config: Config = resolve({}, {"method": "fedavg+dp-sgd"})
    assert config.method.local == LOCAL
    assert config.method.dp == Dp(rounds=100)
    assert isinstance(config.method.method, FedAvg)
    assert resolve({"method": "fedavg+dp-sgd", "local": {"lr": 0.1}}).method.local.lr == 0.1
