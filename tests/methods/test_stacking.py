"""Anchors on top of other methods, the control with noise images, and budgets of equal steps."""

from typing import Any

import pytest
import torch

from fedlgd.core.errors import SettingError
from fedlgd.core.train import Local, batches
from fedlgd.core.types import Broadcast, SiteState, Stream, VirtualSet
from fedlgd.methods import common, registry
from fedlgd.methods.common import pulled as objective
from fedlgd.runs.compare import matched_steps
from fedlgd.runs.config import Config, RunSettings, resolve
from tests import tiny
from tests.contract.battery import Watched, uneven
from tests.errors import refuses
from tests.vectors import vector

ANCHORS = {
    "anchors.per_class": 2,
    "anchors.plan": "exact",
    "anchors.steps": 2,
    "anchors.selected.every": 2,
    "anchors.selected.count": 2,
    "pull.weight": 1.0,
}
NOISE = ANCHORS | {"anchors.steps": 0, "pull.weight": 0.0, "anchors.in_loss": "always"}
PLAN = RunSettings(rounds=4, ratio=0.67, seed=5, evaluate_every=4)
"""Selected rounds are 0 and 2; sites train on anchors in 1 and 3."""

STRONG = {
    "fednova": {"mu": 1.0},
    "fedprox": {"mu": 1.0},
    "fedproto-avg": {"weight": 1.0},
    "moon": {"mu": 5.0},
    "scaffold": {},
}
AVERAGING = [
    name for name in registry.names() if "anchors" in registry.find_method(name).stackable and name != "fedavg"
]
every_averaging = pytest.mark.parametrize("name", AVERAGING)


def _tiny(name: str, *more: dict, **values):
    own = tiny.SETTINGS | {"distil.steps": 1, "train_on": "virtual"}
    for part in more:
        own |= part
    stacked = f"{name}+anchors" if "anchors.per_class" in own else name
    return tiny.settings(tiny.stacked(stacked), own | {k.replace("__", "."): v for k, v in values.items()})


def _run(method, plan: RunSettings = PLAN, data=None) -> tiny.Run:
    return tiny.Run(method, data or tiny.federation(test=1), plan)


@pytest.fixture(scope="module")
def anchored() -> tiny.Run:
    """FedAvg + anchors."""
    return _run(_tiny("fedavg", ANCHORS))


def test_every_method_that_averages_is_tested_here():
    assert set(AVERAGING) == set(STRONG)


# Anchors on top of a method


@every_averaging
def test_anchors_move_in_selected_rounds_only(name):
    run = _run(_tiny(name, ANCHORS, STRONG[name]))
    moved = [
        not torch.equal(a.anchors.images, b.anchors.images)
        for a, b in zip(run.states[:-1], run.states[1:], strict=True)
    ]
    assert moved == [True, False, True, False]
    assert [s.anchors.round for s in run.states] == [-1, 0, 0, 2, 2]
    assert [record.flags for record in run.records[1:]] == [("anchors",), (), ("anchors",), ()]
    assert torch.isfinite(run.states[-1].anchors.images).all()


@every_averaging
def test_anchors_are_sent_to_a_site_whose_copy_is_old_and_to_no_other(name):
    watched = Watched(_tiny(name, ANCHORS, STRONG[name]), times=1)
    run = _run(watched, RunSettings(rounds=6, ratio=0.67, seed=5, evaluate_every=6))
    sent = [(message.round, site) for site, message in watched.sent if message.anchors is not None]
    wanted, held = [], {}
    for record, before in zip(run.records[1:], run.states, strict=False):
        if record.round in (0, 2):
            continue
        for site in record.sampled:
            if held.get(site) != before.anchors.round:
                wanted.append((record.round, site))
            held[site] = before.anchors.round
    assert sent == wanted
    assert len(wanted) > len({site for _, site in wanted})
    assert dict(run.states[-1].held) == held


@pytest.mark.parametrize("name", [name for name in AVERAGING if name != "fednova"])
def test_a_methods_own_term_still_acts_beside_anchors(name, anchored):
    run = _run(_tiny(name, ANCHORS, STRONG[name]))
    assert not tiny.equal(run.states[-1].params, anchored.states[-1].params)
    assert not torch.equal(run.states[-1].anchors.images, anchored.states[-1].anchors.images)


def test_fednova_still_normalises_beside_anchors_where_work_is_unequal():
    plan = RunSettings(rounds=2, evaluate_every=2)
    a, b = (_run(_tiny(name, ANCHORS, train_on="real"), plan, uneven()) for name in ("fednova", "fedavg"))
    assert not tiny.equal(a.states[1].params, b.states[1].params)
    assert not torch.equal(a.states[1].anchors.images, b.states[1].anchors.images)


@every_averaging
def test_anchors_make_a_difference_beside_a_methods_own_term(name):
    with_anchors, without = (_run(_tiny(name, STRONG[name], part)) for part in (ANCHORS, {}))
    assert tiny.equal(with_anchors.states[1].params, without.states[1].params)
    assert not tiny.equal(with_anchors.states[2].params, without.states[2].params)


@every_averaging
def test_states_of_the_method_and_anchors_are_kept_side_by_side(name):
    run = _run(_tiny(name, ANCHORS, STRONG[name]), RunSettings(rounds=2, evaluate_every=2))
    bare = _run(_tiny(name, STRONG[name]), RunSettings(rounds=2, evaluate_every=2))
    for site in tiny.NAMES:
        assert run.memory.site(site).anchors is run.states[1].anchors
        assert run.memory.site(site).trees.keys() == bare.memory.site(site).trees.keys()
    assert run.states[-1].trees.keys() == bare.states[-1].trees.keys()


def test_scaffolds_variate_is_the_mean_gradient_of_the_loss_with_anchors_in_it():
    """y - theta = -eta sum (g - c_i + c) whatever g is of: the identity holds with the pull and its images too."""
    net, method = tiny.net(), _tiny("scaffold", ANCHORS, local__steps=3, local__batch=100)
    data, made = (tiny.labelled(net, 2, seed, torch.float64) for seed in (1, 2))
    start, c, mine = (tiny.double(tiny.params(net, seed)) for seed in range(3))
    anchors = VirtualSet(images=made.x, labels=made.y, origin="server", round=0)
    message = Broadcast(round=1, params=start, anchors=anchors, trees={"variate": c})
    _, kept = method.site(message, SiteState(trees={"variate": mine}), tiny.site_of(data), net, Stream(0))
    w, gradients = start, []
    for _ in range(3):
        leaves = {k: v.clone().requires_grad_() for k, v in w.items()}
        loss = objective(net, data, made, method.pull)(leaves, torch.arange(12))
        g = dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True), strict=True))
        gradients.append(g)
        w = {k: v - method.local.lr * (g[k] - mine[k] + c[k]) for k, v in w.items()}
    for name, value in kept.trees["variate"].items():
        mean = torch.stack([g[name] for g in gradients]).mean(0)
        torch.testing.assert_close(value, mean, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize(
    "more", [{}, {"anchors.in_loss": "always"}, {"pull.loss": "mmd-means", "pull.weight": 0.1}], ids=str
)
def test_fedavg_with_anchors_is_fedlgd_without_refinement_bit_for_bit(more):
    a = _run(_tiny("fedavg", ANCHORS, more))
    own = tiny.SETTINGS | {"distil.steps": 1} | ANCHORS | more | {"refine.steps": 0}
    b = _run(tiny.settings(registry.find_method("fedlgd")(), own))
    for mine, theirs in zip(a.states, b.states, strict=True):
        assert tiny.equal(mine.params, theirs.params)
        assert torch.equal(mine.anchors.images, theirs.anchors.images)
        assert mine.held == theirs.held
    assert tiny.without_seconds(a.records) == tiny.without_seconds(b.records)
    assert all(torch.equal(a.virtual[-1][n], b.virtual[-1][n]) for n in tiny.NAMES)
    c = _run(tiny.settings(registry.find_method("fedlgd")(), own | {"refine.steps": 1}))
    assert not tiny.equal(c.states[-1].params, b.states[-1].params)


# Refinement and regularisers on top of a method

REFINE = {"refine.steps": 2, "refine.selected.every": 2, "refine.selected.count": 2}


def _stacked(name: str, values: dict) -> Any:
    own = tiny.SETTINGS | {"distil.steps": 1} | values
    return tiny.settings(tiny.stacked(name), own)


def _same(a: tiny.Run, b: tiny.Run) -> bool:
    states = zip(a.states, b.states, strict=True)
    sets = all(torch.equal(a.virtual[-1][n], b.virtual[-1][n]) for n in a.virtual[-1])
    return sets and all(tiny.equal(x.params, y.params) for x, y in states)


@pytest.mark.parametrize("order", ["anchors+refine", "refine+anchors"])
def test_fedavg_with_anchors_and_refinement_is_fedlgd_bit_for_bit(order):
    a = _run(_stacked(f"fedavg+{order}", ANCHORS | REFINE | {"train_on": "virtual"}))
    b = _run(_stacked("fedlgd", ANCHORS | REFINE))
    assert _same(a, b)
    assert tiny.without_seconds(a.records) == tiny.without_seconds(b.records)


@pytest.mark.parametrize("name", [n for n in registry.names() if "refine" in registry.find_method(n).stackable])
def test_refinement_moves_virtual_sets_of_other_methods_in_selected_rounds(name):
    run = _run(
        _stacked(f"{name}+refine", REFINE | {"train_on": "virtual"}), RunSettings(rounds=3, evaluate_every=3)
    )
    moved = [
        any(not torch.equal(before[n], after[n]) for n in before)
        for before, after in zip(run.virtual[:-1], run.virtual[1:], strict=True)
    ]
    assert moved == [True, False, True]
    assert [record.flags for record in run.records[1:]] == [("virtual",), (), ("virtual",)]


@pytest.mark.parametrize("train_on", ["real", "virtual"])
def test_fedavg_with_a_proximal_term_is_fedprox_bit_for_bit(train_on):
    data = uneven()
    a = _run(_stacked("fedavg+proximal", {"proximal.mu": 0.5, "train_on": train_on}), data=data)
    b = _run(_stacked("fedprox", {"mu": 0.5, "train_on": train_on}), data=data)
    assert _same(a, b)
    off = _run(_stacked("fedavg+proximal", {"proximal.mu": 0.0, "train_on": train_on}), data=data)
    assert _same(off, _run(_stacked("fedavg", {"train_on": train_on}), data=data))


WITHOUT_MODEL = [name for name in registry.names() if registry.find_method(name).train_on == "nothing"]


@pytest.mark.parametrize("name", [name for name in registry.names() if name not in WITHOUT_MODEL])
def test_every_method_can_be_given_a_regulariser(name):
    """One that holds every weight at its place: the model moves less."""
    values = {"train_on": "real"} if name != "fedlgd" else {}
    runs = [
        _run(method, RunSettings(rounds=2, evaluate_every=2), uneven(("bee",)))
        for method in (_stacked(f"{name}+tests.methods.own:Heavy", values), _stacked(name, values))
    ]
    models = [run.memory.site("bee").trees.get("model") or run.states[-1].params for run in runs]
    heavy, light = (sum(float(v.abs().sum()) for v in model.values()) for model in models)
    assert heavy < light


@pytest.mark.parametrize("name", WITHOUT_MODEL)
def test_a_method_whose_sites_train_no_model_accepts_no_part(name):
    """A part acts on the training of the sites: on these methods it would do nothing, and nobody would notice."""
    for part in (*registry.stacks(), "tests.methods.own:Heavy"):
        with refuses("part-not-accepted", SettingError, method=name, possible=["nothing"]):
            tiny.stacked(f"{name}+{part}")


def test_a_regulariser_of_ones_own_has_a_section_named_after_it():
    method = resolve({"method": "fedlgd+tests.methods.own:Heavy"}, {"heavy.weight": 3.0}).method
    assert method.term.weight == 3.0
    assert method.label == "FedLGD + heavy"
    assert resolve(Config(method=method).plain()).method == method
    with refuses("invalid-setting", SettingError, path="heavy"):
        resolve({"method": "fedlgd+tests.methods.own:Heavy"}, {"heavy.weight": -1.0})


def test_a_pull_of_ones_own_takes_the_place_of_the_contrastive_one():
    own = {"pull.loss": "tests.methods.own:half_contrastive", "pull.weight": 2.0}
    a, b = _run(_stacked("fedlgd", ANCHORS | REFINE | own)), _run(_stacked("fedlgd", ANCHORS | REFINE))
    for x, y in zip(a.states, b.states, strict=True):
        for name, value in x.params.items():
            torch.testing.assert_close(value, y.params[name])


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        (
            "fedlgd+anchors",
            "anchors cannot be stacked on fedlgd; it accepts: redraw, fedopt, momentum, median, trimmed, proximal",
        ),
        ("fedbn+refine", "refine cannot be stacked on fedbn"),
        (
            "vhl+anchors",
            "anchors cannot be stacked on vhl; it accepts: refine, redraw, fedopt, momentum, median, trimmed",
        ),
        ("fedavg+anchors+anchors", r"anchors cannot be stacked on fedavg\+anchors"),
        ("fedavg+anchor", "no part for methods is called 'anchor'; did you mean 'anchors'"),
        ("fedavg+tests.methods.own:Quadratic", "is neither a regulariser nor a part; subclass"),
        ("fedavg+nowhere:Term", "cannot import part 'nowhere:Term'"),
    ],
)
def test_what_cannot_be_stacked_says_why(spec, why):
    with pytest.raises(SettingError, match=why):
        resolve({"method": spec})


# The control: as many images in the loss, but noise that never learns and never pulls


@pytest.fixture
def fits(monkeypatch) -> list[tuple[int, int]]:
    """(images of an epoch, steps) of each local training."""
    made: list[tuple[int, int]] = []

    def sgd(net, start, n, *rest, wrapped=common.sgd):
        trained = wrapped(net, start, n, *rest)
        made.append((n, trained.steps))
        return trained

    monkeypatch.setattr(common, "sgd", sgd)
    return made


@pytest.mark.parametrize("name", ["fedavg", *AVERAGING])
def test_noise_images_are_in_every_epoch_and_never_move(name, fits):
    run = _run(_tiny(name, NOISE), RunSettings(rounds=3, evaluate_every=3))
    assert fits == [(6 + 6, 3)] * 9
    assert all(state.anchors is run.states[0].anchors for state in run.states)
    assert abs(run.states[0].anchors.images.std() - 1) < 0.1
    assert all(not record.flags for record in run.records[1:])
    down = [record.bytes_down for record in run.records[1:]]
    assert down[0] > down[1] or name == "fedproto-avg"
    assert _tiny(name, NOISE).label != _tiny(name).label != _tiny(name, ANCHORS).label


@pytest.mark.parametrize("name", [name for name in AVERAGING if name != "fednova"])
def test_a_methods_own_term_still_acts_beside_noise_images(name):
    plan = RunSettings(rounds=2, evaluate_every=2)
    a, b = (_run(method, plan) for method in (_tiny(name, NOISE, STRONG[name]), _tiny("fedavg", NOISE)))
    assert tiny.equal(a.states[0].params, b.states[0].params)
    assert not tiny.equal(a.states[2].params, b.states[2].params)


def test_noise_images_are_plain_members_of_the_batches():
    """FedAvg on the union of both sets, bit for bit."""
    net, method = tiny.net(), _tiny("fedavg", NOISE)
    data, made = (tiny.labelled(net, 2, seed) for seed in (1, 2))
    noise = VirtualSet(images=made.x, labels=made.y, origin="server", round=-1)
    start = tiny.params(net)
    got, _ = method.site(
        Broadcast(round=0, params=start, anchors=noise), SiteState(), tiny.site_of(data), net, Stream(3)
    )
    union = type(data)(torch.cat([data.x, made.x]), torch.cat([data.y, made.y]))
    wanted, _ = _tiny("fedavg").site(
        Broadcast(round=0, params=start), SiteState(), tiny.site_of(union), net, Stream(3)
    )
    assert tiny.equal(got.params, wanted.params)


# Equal steps (discrepancy 41)


STEPS = vector("schedule")["batches_per_epoch"]


@pytest.mark.parametrize(
    ("per_class", "classes", "alone", "together"),
    [
        (50, 10, STEPS["ipc50_local_only"], STEPS["ipc50_plus_global"]),
        (10, 10, STEPS["ipc10_local_only"], STEPS["ipc10_plus_global"]),
        (10, 2, STEPS["retina_local_only"], STEPS["retina_plus_global"]),
    ],
)
def test_anchors_make_more_steps_of_an_epoch_and_a_budget_makes_them_equal(per_class, classes, alone, together):
    local, anchors = per_class * classes, 10 * classes
    taken = [len(list(batches(n, Local(), Stream(0).generator()))) for n in (local, local + anchors)]
    assert taken == [alone, together]
    budget = Local(steps=together)
    equal = [len(list(batches(n, budget, Stream(0).generator()))) for n in (local, local + anchors)]
    assert equal == [together, together]
    assert matched_steps(per_class, 10, classes, 32, 1) == together


def test_fedavg_takes_as_many_steps_as_fedlgd_if_that_is_its_budget(fits):
    data, plan = tiny.federation(names=("ape",), test=1), RunSettings(rounds=2)
    _run(tiny.fedlgd(refine__steps=0), plan, data)
    _run(_tiny("fedavg", local__steps=3), plan, data)
    assert [steps for _, steps in fits] == [2, 3, 3, 3]
