"""FedLGD: what a site and the server do in selected and other rounds, and the facts of the specification (2.5)."""

from collections.abc import Callable
from dataclasses import asdict, replace

import pytest
import torch

from fedlgd.core.errors import SettingError
from fedlgd.core.net import Net
from fedlgd.core.train import Local, batches
from fedlgd.core.types import Broadcast, Hello, ServerState, Site, SiteState, Stream, Update, VirtualSet
from fedlgd.engines.settings import RoundSettings
from fedlgd.engines.wire import nbytes, pack
from fedlgd.methods import common
from fedlgd.methods import refine as refine_module
from fedlgd.methods.fedavg import FedAvg
from fedlgd.methods.fedlgd import FedLGD, Refine
from fedlgd.methods.redraw import Redrawn
from tests import tiny
from tests.errors import refuses
from tests.oracle import slow

OFFICIAL = tiny.settings(FedLGD(), FedLGD.presets["official"])


def test_the_paper_preset_is_the_papers_table():
    method = tiny.settings(FedLGD(), FedLGD.presets["paper"])
    assert (method.local.epochs, method.local.batch, method.local.lr) == (1, 32, 0.01)
    assert (method.local.momentum, method.local.weight_decay) == (0.0, 0.0)
    assert (method.distil.per_class, method.anchors.per_class) == (10, 10)
    assert (method.distil.steps, method.refine.steps, method.anchors.steps) == (10_000, 100, 500)
    assert (method.distil.plan, method.anchors.plan, method.distil.width) == ("exact", "exact", 0)
    assert (method.distil.real_per_class, method.refine.real_per_class) == (256, 256)
    assert (method.distil.lr, method.distil.momentum) == (1.0, 0.5)
    assert (method.anchors.lr, method.anchors.momentum) == (1.0, 0.5)
    assert (method.anchors.start, method.anchors.in_loss) == ("noise", "unselected")
    assert (method.pull.weight, method.pull.temperature, method.pull.repeat) == (10.0, 0.07, False)
    assert (method.distil.start, method.distil.statistics) == ("statistics", "class")
    assert "flip" not in method.distil.augment


def test_the_official_preset_is_the_released_code():
    assert OFFICIAL.distil.statistics == "site"
    assert OFFICIAL.distil.start_scale == 1.0
    assert set(OFFICIAL.distil.augment) == {"color", "crop", "cutout", "flip", "scale", "rotate"}
    assert OFFICIAL.distil.net == "convnet"
    assert (OFFICIAL.anchors.start, OFFICIAL.anchors.in_loss) == ("statistics", "always")
    assert OFFICIAL.pull.repeat
    assert OFFICIAL.distil.steps == 10_000


def test_senseless_refinement_is_refused_by_name():
    with refuses("setting-out-of-bounds", SettingError, setting="refine.steps"):
        Refine(steps=-1)


# One round at a site


def _virtual(net: Net, seed: int, origin: str = "ape", version: int = -1) -> VirtualSet:
    data = tiny.labelled(net, 2, seed)
    return VirtualSet(images=data.x, labels=data.y, origin=origin, round=version)


class AtSite:
    """One site with its virtual set, anchors and a model, ready for a round."""

    def __init__(self) -> None:
        self.net = tiny.net()
        self.site: Site = tiny.federation().by_name["ape"]
        self.params = tiny.params(self.net)
        self.virtual, self.anchors = _virtual(self.net, 1), _virtual(self.net, 2, "server")

    def play(
        self, method, t: int, sent: bool = True, kept: bool = False, rng: Stream = Stream(3)
    ) -> tuple[Update, SiteState]:
        message = Broadcast(round=t, params=self.params, anchors=self.anchors if sent else None)
        state = SiteState(virtual=self.virtual, anchors=self.anchors if kept else None)
        return method.site(message, state, self.site, self.net, rng)


@pytest.fixture
def steps(monkeypatch) -> list[int]:
    """How many images an epoch of each local training has."""
    seen: list[int] = []

    def sgd(net, start, n, *rest, wrapped=common.sgd):
        seen.append(n)
        return wrapped(net, start, n, *rest)

    monkeypatch.setattr(common, "sgd", sgd)
    return seen


@pytest.mark.parametrize(
    ("preset", "t", "images"), [("paper", 0, 6), ("paper", 1, 12), ("official", 0, 12), ("official", 1, 12)]
)
def test_images_of_an_epoch(steps, preset, t, images):
    AtSite().play(tiny.fedlgd(preset), t)
    assert steps == [images]


def test_a_selected_round_refines_and_then_trains_on_the_refined_set_alone():
    at = AtSite()
    update, state = at.play(tiny.fedlgd(), 0, sent=False)
    assert state.virtual.round == 0
    assert not torch.equal(state.virtual.images, at.virtual.images)
    alone = tiny.fedavg().site(
        Broadcast(round=0, params=at.params), SiteState(virtual=state.virtual), at.site, at.net, Stream(3)
    )[0]
    assert tiny.equal(update.params, alone.params)
    assert update.metrics == alone.metrics


def test_a_selected_round_refines_under_the_received_features():
    at = AtSite()
    one = at.play(tiny.fedlgd(), 0)[1].virtual.images
    at.params = tiny.params(at.net, 1)
    assert not torch.equal(one, at.play(tiny.fedlgd(), 0)[1].virtual.images)


def test_refinement_has_its_own_number_of_steps_and_the_rest_from_the_first_distillation(monkeypatch):
    seen = []

    def refine(virtual, real, net, params, how, round, rng, wrapped=refine_module.refine_set):
        seen.append((real, params, how, round))
        return wrapped(virtual, real, net, params, how, round, rng)

    monkeypatch.setattr(refine_module, "refine_set", refine)
    at, method = AtSite(), tiny.fedlgd()
    at.play(method, 2)
    at.play(method, 1)
    ((real, params, how, t),) = seen
    assert real is at.site.train
    assert params is at.params
    same = asdict(replace(method.distil, steps=3, pairs=10, reuse=10, real_per_class=4))
    assert asdict(how) == same | {"optimiser": "sgd"}
    assert t == 2


def test_a_selected_round_of_the_released_code_trains_on_both_sets_without_a_pull():
    at = AtSite()
    heavy, none = (at.play(tiny.fedlgd("official", pull__weight=w), 0)[0] for w in (100.0, 0.0))
    assert tiny.equal(heavy.params, none.params)
    both = replace(
        at.virtual,
        images=torch.cat([at.virtual.images, at.anchors.images]),
        labels=torch.cat([at.virtual.labels, at.anchors.labels]),
    )
    alone = tiny.fedavg().site(
        Broadcast(round=0, params=at.params), SiteState(virtual=both), at.site, at.net, Stream(3)
    )
    assert tiny.equal(heavy.params, alone[0].params)


def test_the_released_code_refines_from_its_second_selected_round_on():
    at, official = AtSite(), tiny.fedlgd("official", refine__selected__every=5)
    assert at.play(official, 0)[1].virtual is at.virtual
    assert at.play(official, 5)[1].virtual.round == 5


def test_other_rounds_leave_the_virtual_set_alone_and_pull():
    at = AtSite()
    pulled, state = at.play(tiny.fedlgd(pull__weight=1.0), 1)
    assert state.virtual is at.virtual
    free, _ = at.play(tiny.fedlgd(pull__weight=0.0), 1)
    assert not tiny.equal(pulled.params, free.params)


def test_a_pull_of_weight_zero_trains_on_both_sets():
    at = AtSite()
    update, _ = at.play(tiny.fedlgd(pull__weight=0.0), 1)
    both = replace(
        at.virtual,
        images=torch.cat([at.virtual.images, at.anchors.images]),
        labels=torch.cat([at.virtual.labels, at.anchors.labels]),
    )
    alone, _ = tiny.fedavg().site(
        Broadcast(round=1, params=at.params), SiteState(virtual=both), at.site, at.net, Stream(3)
    )
    assert tiny.equal(update.params, alone.params)


def test_the_pull_is_continuous_in_its_weight():
    at = AtSite()
    free, tiny_pull = (at.play(tiny.fedlgd(pull__weight=w), 1)[0].params for w in (0.0, 1e-9))
    for name, value in free.items():
        torch.testing.assert_close(tiny_pull[name], value, rtol=1e-4, atol=1e-5)


def test_anchors_out_of_the_cross_entropy_still_pull(steps):
    at = AtSite()
    method = tiny.fedlgd(anchors__in_loss="never", pull__weight=1.0)
    pulled, _ = at.play(method, 1)
    assert steps == [6]
    plain = tiny.fedavg().site(
        Broadcast(round=1, params=at.params), SiteState(virtual=at.virtual), at.site, at.net, Stream(3)
    )
    assert not tiny.equal(pulled.params, plain[0].params)


def test_anchors_a_site_keeps_serve_as_well_as_anchors_just_sent():
    at = AtSite()
    sent, state = at.play(tiny.fedlgd(), 1, sent=True)
    kept, _ = at.play(tiny.fedlgd(), 1, sent=False, kept=True)
    assert state.anchors is at.anchors
    assert tiny.equal(sent.params, kept.params)


def test_new_anchors_replace_the_ones_a_site_keeps():
    at = AtSite()
    new = _virtual(at.net, 5, "server", 0)
    message = Broadcast(round=1, params=at.params, anchors=new)
    state = SiteState(virtual=at.virtual, anchors=at.anchors)
    update, after = tiny.fedlgd().site(message, state, at.site, at.net, Stream(3))
    assert after.anchors is new
    assert not tiny.equal(update.params, at.play(tiny.fedlgd(), 1)[0].params)


def test_sites_weigh_alike():
    at = AtSite()
    assert at.play(tiny.fedlgd(), 0)[0].weight == at.play(tiny.fedlgd(), 1)[0].weight == 1.0


@pytest.mark.parametrize("preset", ["paper", "official"])
@pytest.mark.parametrize("t", [0, 1, 2, 5])
def test_a_round_at_a_site_changes_none_of_its_inputs(preset, t):
    at = AtSite()
    given = (at.virtual.images, at.anchors.images, at.site.train.x, *at.params.values())
    before = [v.clone() for v in given]
    update, state = at.play(tiny.fedlgd(preset, refine__selected__first=0), t)
    assert all(torch.equal(a, b) for a, b in zip(given, before, strict=True))
    assert not any(v.requires_grad for v in given)
    assert not state.virtual.images.requires_grad
    private = {v.untyped_storage().data_ptr() for v in given}
    assert all(v.untyped_storage().data_ptr() not in private for v in update.params.values())


def test_an_update_holds_the_model_and_nothing_else():
    at = AtSite()
    update, _ = at.play(tiny.fedlgd(), 0)
    assert set(pack(update)[0]) == {f"params/{name}" for name in at.params}
    assert set(update.metrics) == {"loss"}


# Enrolment


def test_the_paper_uploads_no_statistics_and_the_released_code_24_bytes_per_class():
    net, site = tiny.net(), tiny.federation().by_name["ape"]
    _, paper = tiny.fedlgd("paper").enrol(site, net, Stream(0))
    _, official = tiny.fedlgd("official").enrol(site, net, Stream(0))
    assert paper.statistics is None
    assert nbytes(official) - nbytes(paper) == 24 * 3
    assert paper.counts.tolist() == [2, 2, 2]


def test_uploaded_statistics_are_those_of_the_released_code():
    net, site = tiny.net(), tiny.federation().by_name["ape"]
    _, hello = tiny.fedlgd("official").enrol(site, net, Stream(0))
    x = site.train.take(slice(None)).x.double()
    for k in range(3):
        part = x[site.train.y == k]
        pixels = len(x) * 64
        mean = part.sum((0, 2, 3)) / pixels
        std = ((part**2).sum((0, 2, 3)) / pixels - mean**2).sqrt()
        torch.testing.assert_close(hello.statistics[k].double(), torch.stack([mean, std]), rtol=1e-5, atol=1e-6)


def test_fedavg_starts_from_the_very_same_virtual_sets():
    net, site = tiny.net(), tiny.federation().by_name["ape"]
    a, _ = tiny.fedlgd().enrol(site, net, Stream(0).at("enrol", "ape"))
    b, _ = tiny.fedavg().enrol(site, net, Stream(0).at("enrol", "ape"))
    assert torch.equal(a.virtual.images, b.virtual.images)


# The server, with made-up updates


def _serve(
    method: FedLGD, rounds: int, present: Callable[[int], list[str]] = lambda _: list(tiny.NAMES)
) -> tuple[dict[str, list[int]], list[ServerState]]:
    """(rounds in which each site was sent anchors, states); sites answer with the model and a little noise."""
    net = tiny.net()
    hellos = [
        Hello(site=name, counts=torch.ones(3, dtype=torch.int64), statistics=torch.ones(3, 2, 3))
        for name in tiny.NAMES
    ]
    state = method.start(tiny.params(net), hellos, net, Stream(0))
    sent: dict[str, list[int]] = {name: [] for name in tiny.NAMES}
    states = [state]
    for t in range(rounds):
        updates, held = [], dict(state.held)
        for name in present(t):
            message = method.broadcast(state, name)
            assert message.round == t
            assert message.params is state.params
            if message.anchors is not None:
                assert message.anchors is state.anchors
                sent[name].append(t)
                held[name] = message.anchors.round
            g = Stream(0).generator(name, t)
            noisy = {k: v + 0.01 * torch.randn(v.shape, generator=g) for k, v in message.params.items()}
            updates.append(Update(site=name, params=noisy, weight=1.0))
        state = replace(method.server(state, iter(updates), net, Stream(0).at(t)), held=held)
        states.append(state)
    return sent, states


SHORT = {"anchors.per_class": 1, "anchors.steps": 1}


def test_the_paper_downloads_anchors_once_after_each_selected_round():
    sent, states = _serve(tiny.settings(FedLGD(), SHORT), 100)
    assert sent["ape"] == [1, 6, 11, 16, 21, 26, 31, 36, 41, 46]
    assert sent["ape"] == sent["bee"] == sent["cat"]
    moved = [t for t in range(100) if not torch.equal(states[t].anchors.images, states[t + 1].anchors.images)]
    assert moved == list(range(0, 50, 5))
    assert [s.round for s in states] == list(range(101))


def test_the_released_code_downloads_anchors_twelve_times():
    sent, states = _serve(tiny.settings(OFFICIAL, SHORT), 100)
    assert sent["ape"] == [0, *range(1, 52, 5)]
    assert len(sent["ape"]) == 12
    moved = [t for t in range(100) if not torch.equal(states[t].anchors.images, states[t + 1].anchors.images)]
    assert moved == list(range(0, 51, 5))


def test_without_selected_rounds_anchors_are_sent_once_and_never_move():
    method = tiny.settings(FedLGD(), SHORT | {"anchors.selected.count": 0, "refine.selected.count": 0})
    sent, states = _serve(method, 12)
    assert sent["bee"] == [0]
    assert all(s.anchors is states[0].anchors for s in states)


def test_anchors_that_nothing_needs_are_never_sent():
    sent, _ = _serve(tiny.settings(FedLGD(), SHORT | {"anchors.in_loss": "never", "pull.weight": 0.0}), 12)
    assert sent["ape"] == []


def test_a_site_that_was_absent_gets_the_newest_anchors_when_it_is_back():
    def present(t: int) -> list[str]:
        return ["ape"] if 1 <= t <= 7 else list(tiny.NAMES)

    sent, states = _serve(tiny.settings(FedLGD(), SHORT), 12, present)
    assert sent["ape"] == [1, 6, 11]
    assert sent["bee"] == sent["cat"] == [8, 11]
    assert states[8].held == {"ape": 5}


def test_a_site_absent_after_a_change_is_sent_nothing_in_selected_rounds():
    def present(t: int) -> list[str]:
        return list(tiny.NAMES) if t in (0, 5, 10) else ["ape"]

    sent, _ = _serve(tiny.settings(FedLGD(), SHORT), 11, present)
    assert sent["bee"] == []


def test_a_broadcast_costs_the_model_and_the_anchors_if_sent():
    method, net = tiny.fedlgd(), tiny.net()
    data = _virtual(net, 1, "server", 0)
    state = ServerState(params=tiny.params(net), anchors=data, round=1)
    model, anchors = 4 * tiny.param_count(), 4 * 6 * 3 * 64 + 8 * 6
    assert nbytes(method.broadcast(state, "ape")) == model + anchors
    assert nbytes(method.broadcast(replace(state, held={"ape": 0}), "ape")) == model


def test_the_target_of_matching_is_the_step_of_the_average_over_the_learning_rate():
    """The step is so small that Dist would see nothing but its epsilon without the division."""
    net, lr = tiny.net(), 1e-5
    old = tiny.double(tiny.params(net))
    new = [
        {k: v - 1e-6 * w for (k, v), w in zip(old.items(), tiny.params(net, s).values(), strict=True)}
        for s in (1, 2)
    ]
    anchors = _virtual(net, 1, "server")
    anchors = replace(anchors, images=anchors.images.double())
    updates = [Update(site=name, params=p, weight=1.0) for name, p in zip(("ape", "bee"), new, strict=True)]
    method = tiny.fedlgd(local__lr=lr)
    got = method.server(ServerState(params=old, anchors=anchors), iter(updates), net, Stream(0))
    target = {k: (v - (new[0][k] + new[1][k]) / 2) / lr for k, v in old.items()}
    wanted, _ = slow.gm_steps(net, old, anchors.images, anchors.labels, target, 2, 1.0, 0.5)
    torch.testing.assert_close(got.anchors.images, wanted, rtol=1e-6, atol=1e-8)


def test_the_server_changes_none_of_its_inputs():
    method, net = tiny.fedlgd(), tiny.net()
    params = tiny.params(net)
    state = ServerState(params=params, anchors=_virtual(net, 1, "server"), round=0, held={"cat": -1})
    updates = [Update(site=n, params=tiny.params(net, i), weight=1.0) for i, n in enumerate(tiny.NAMES)]
    given = [state.anchors.images, *params.values(), *(v for u in updates for v in u.params.values())]
    before = [v.clone() for v in given]
    after = method.server(state, iter(updates), net, Stream(0))
    assert all(torch.equal(a, b) for a, b in zip(given, before, strict=True))
    assert state.held == {"cat": -1}
    assert state.round == 0
    assert after.anchors.round == 0
    given_storage = {v.untyped_storage().data_ptr() for v in given}
    assert after.anchors.images.untyped_storage().data_ptr() not in given_storage
    assert all(v.untyped_storage().data_ptr() not in given_storage for v in after.params.values())


# Facts of section 2.5, on whole runs


def _plan(rounds: int = 4, **values) -> RoundSettings:
    return RoundSettings(rounds=rounds, seed=5, **values)


@pytest.mark.parametrize("ratio", [1.0, 0.67])
def test_without_pull_anchors_and_refinement_fedlgd_is_fedavg_bit_for_bit(ratio):
    data, plan = tiny.federation(), _plan(ratio=ratio)
    a = tiny.Run(tiny.fedlgd(pull__weight=0.0, anchors__in_loss="never", refine__steps=0), data, plan)
    b = tiny.Run(tiny.fedavg(), data, plan)
    assert len(a.states) == 5
    for mine, theirs in zip(a.states, b.states, strict=True):
        assert tiny.equal(mine.params, theirs.params)
    for mine, theirs in zip(a.records, b.records, strict=True):
        assert mine.scores == theirs.scores
        assert mine.metrics == theirs.metrics
        assert (mine.bytes_up, mine.bytes_down) == (theirs.bytes_up, theirs.bytes_down)
    assert not tiny.equal(a.states[0].params, a.states[-1].params)


@pytest.mark.parametrize("on", ["pull__weight", "anchors__in_loss", "refine__steps"])
def test_each_part_of_fedlgd_alone_makes_a_difference(on):
    data, plan = tiny.federation(), _plan(2)
    off = {"pull__weight": 0.0, "anchors__in_loss": "never", "refine__steps": 0}
    full = {"pull__weight": 1.0, "anchors__in_loss": "unselected", "refine__steps": 2}
    a = tiny.Run(tiny.fedlgd(**off | {on: full[on]}), data, plan)
    b = tiny.Run(tiny.fedavg(), data, plan)
    assert not tiny.equal(a.states[-1].params, b.states[-1].params)


def test_one_site_outside_selected_rounds_without_pull_is_central_sgd_bit_for_bit():
    data, net, rounds = tiny.federation(names=("ape",)), tiny.net(), 3
    method = tiny.fedlgd(pull__weight=0.0, anchors__selected__count=0, refine__selected__count=0)
    run = tiny.Run(method, data, _plan(rounds))
    virtual, anchors = run.memory.site("ape").virtual, run.states[0].anchors
    x, y = torch.cat([virtual.images, anchors.images]), torch.cat([virtual.labels, anchors.labels])
    weights = {k: v.clone().requires_grad_() for k, v in run.states[0].params.items()}
    optimiser = torch.optim.SGD(weights.values(), lr=method.local.lr)
    for t in range(rounds):
        shuffle = Stream(5).at("site", "ape", t).generator("shuffle")
        for index in batches(12, Local(batch=4), shuffle):
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(net(weights, x[index]).logits, y[index]).backward()
            optimiser.step()
        assert tiny.equal(run.states[t + 1].params, {k: v.detach() for k, v in weights.items()})


def test_anchors_and_virtual_sets_change_in_selected_rounds_only():
    run = tiny.Run(tiny.fedlgd(), tiny.federation(), _plan(5))
    for t in range(5):
        before, after = run.states[t].anchors, run.states[t + 1].anchors
        assert torch.equal(before.images, after.images) == (t not in (0, 2))
        for name in tiny.NAMES:
            assert torch.equal(run.virtual[t][name], run.virtual[t + 1][name]) == (t not in (0, 2))
        assert run.records[t + 1].flags == (("anchors", "virtual") if t in (0, 2) else ())
        assert after.round == {0: 0, 1: 0, 2: 2, 3: 2, 4: 2}[t]


def test_virtual_sets_of_sites_that_are_not_sampled_never_change():
    run = tiny.Run(
        tiny.fedlgd(refine__selected__every=1, refine__selected__count=9), tiny.federation(), _plan(6, ratio=0.34)
    )
    seen = set()
    for t in range(6):
        sampled = run.records[t + 1].sampled
        assert len(sampled) == 1
        seen |= set(sampled)
        for name in tiny.NAMES:
            assert torch.equal(run.virtual[t][name], run.virtual[t + 1][name]) == (name not in sampled)
    assert len(seen) > 1


def test_virtual_sets_and_anchors_of_a_run_share_no_memory_and_are_leaves():
    run = tiny.Run(tiny.fedlgd(), tiny.federation(), _plan(3))
    state = run.memory.server()
    tensors = [state.anchors.images, *state.params.values()]
    tensors += [run.memory.site(name).virtual.images for name in tiny.NAMES]
    assert all(t.is_leaf and not t.requires_grad for t in tensors)
    assert len({t.untyped_storage().data_ptr() for t in tensors}) == len(tensors)


@pytest.mark.parametrize("preset", ["paper", "official"])
def test_a_class_missing_at_a_site_is_no_obstacle(preset):
    data = tiny.federation(missing={"bee": 1})
    run = tiny.Run(tiny.fedlgd(preset), data, _plan(3))
    assert run.memory.site("bee").virtual.labels.tolist() == [0, 0, 2, 2]
    assert all(torch.isfinite(v).all() for v in run.states[-1].params.values())
    assert run.states[-1].anchors.labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert torch.isfinite(run.states[-1].anchors.images).all()


@pytest.mark.parametrize("preset", ["paper", "official"])
def test_fedlgd_learns(preset):
    values = {"local.lr": 0.1, "local.epochs": 3, "distil.per_class": 4, "distil.steps": 20, "distil.lr": 0.3}
    method = tiny.settings(tiny.fedlgd(preset, anchors__lr=0.1), values | {"pull.weight": 0.1})
    run = tiny.Run(method, tiny.federation(), _plan(5))
    assert run.records[-1].accuracy > 0.9


PARTS = {
    "distil.steps": "matching",
    "refine.steps": "refinement",
    "refine.selected.count": "refinement",
    "anchors.per_class": "anchors",
}


@pytest.mark.parametrize("preset", FedLGD.presets)
def test_every_preset_is_fedlgd_itself(preset):
    """Eq. 1 at enrolment, refinement by it under the global features, and anchors that move and are trained on."""
    method = tiny.settings(FedLGD(), FedLGD.presets[preset])
    assert (method.distil.steps > 0, method.distil.match) == (True, "means")
    assert any(method.refine.move_in(t) for t in range(10))
    assert method.anchors.per_class > 0
    assert any(method.anchors.move_in(t) for t in range(10))
    assert any(method.anchors.pull_in(t, method.pull) for t in range(10))
    assert method.label == "FedLGD"


@pytest.mark.parametrize("path", PARTS)
def test_the_label_says_what_settings_switch_off(path):
    assert tiny.settings(FedLGD(), {path: 0}).label == f"FedLGD without {PARTS[path]}"


def test_the_label_lists_all_that_is_switched_off_and_keeps_the_place_of_parts():
    nothing = tiny.settings(FedLGD(), dict.fromkeys(PARTS, 0))
    assert nothing.label == "FedLGD without matching, refinement and anchors"
    assert Redrawn(method=nothing).label == "FedLGD + redraw without matching, refinement and anchors"
    assert Redrawn(method=tiny.fedavg()).label == "FedAvg + redraw on virtual data"


def test_strong_trains_as_other_methods_do_and_begins_with_their_sets():
    shared = {path: v for path, v in FedAvg.presets["strong"].items() if path.startswith(("local.", "distil."))}
    assert shared.items() <= FedLGD.presets["strong"].items()
