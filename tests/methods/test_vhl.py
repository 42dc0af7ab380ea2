"""VHL: one shared set of virtual images, what it adds to the loss, and where no gradient goes."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from fedlgd.core.losses import supervised_contrastive
from fedlgd.core.train import batches, score
from fedlgd.core.types import Broadcast, LabelledSet, Scale, ServerState, SiteState, Stream, Update, VirtualSet
from fedlgd.engines.settings import RoundSettings
from fedlgd.methods.common import Batch
from fedlgd.methods.vhl import VHL
from tests import tiny
from tests.oracle import slow
from tests.vectors import close

K = 3
FEW = {"per_class": 2, "virtual_batch": 100}


def _vhl(**values) -> VHL:
    return tiny.settings(VHL(), tiny.SETTINGS | FEW | {k.replace("__", "."): v for k, v in values.items()})


OFF = {"alpha": 0.0, "align": 0.0, "spread": 0.0}


class AtSite:
    """Images of a site and virtual ones, in float64, with a model whose weights take gradients."""

    def __init__(self, method: VHL, seed: int = 0) -> None:
        self.net = method.adapt(tiny.net())
        self.params = tiny.double(tiny.params(self.net, seed))
        self.w = {k: v.clone().requires_grad_() for k, v in self.params.items()}
        self.data = tiny.labelled(self.net, 2, 1, torch.float64)
        self.virtual = tiny.labelled(self.net, 2, 2, torch.float64)

    def term(self, method: VHL) -> torch.Tensor:
        batch = Batch(self.data.x, self.data.y, *self.net(self.w, self.data.x))
        return method._homogeneity(self.net, self.w, batch, self.virtual)

    def gradient(self, value: torch.Tensor) -> torch.Tensor:
        grads = torch.autograd.grad(value, list(self.w.values()), retain_graph=True, materialize_grads=True)
        return torch.cat([g.flatten() for g in grads])

    def features(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(self.w, x).features


def _same(at: AtSite, got: torch.Tensor, wanted: torch.Tensor) -> None:
    close(got.detach(), wanted.detach())
    torch.testing.assert_close(at.gradient(got), at.gradient(wanted), rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize(("labels", "offset", "outputs"), [("extra", K, 2 * K), ("patch", 0, K)])
def test_virtual_images_are_classified_under_labels_of_their_own_or_those_they_stand_for(labels, offset, outputs):
    method = _vhl(**OFF | {"alpha": 0.7}, labels=labels)
    at = AtSite(method)
    logits = at.net(at.w, at.virtual.x).logits
    assert logits.shape == (2 * K, outputs)
    _same(at, at.term(method), 0.7 * F.cross_entropy(logits, at.virtual.y + offset))


@pytest.mark.parametrize("labels", ["extra", "patch"])
def test_features_of_a_site_are_drawn_to_virtual_ones_that_stand_still(labels):
    """Virtual label k matches class k, with extra labels too."""
    method = _vhl(**OFF | {"align": 0.6}, labels=labels, temperature=0.2)
    at = AtSite(method)
    labels = torch.cat([at.data.y, at.virtual.y])
    mine, theirs = at.features(at.data.x), at.features(at.virtual.x)
    wanted = 0.6 * slow.contrastive_tensor(torch.cat([mine, theirs.detach()]), labels, 0.2)
    _same(at, at.term(method), wanted)
    moving = 0.6 * slow.contrastive_tensor(torch.cat([mine, theirs]), labels, 0.2)
    assert (at.gradient(moving) - at.gradient(at.term(method))).abs().max() > 1e-3


def test_virtual_features_move_to_spread_by_class():
    method = _vhl(**OFF | {"spread": 0.4}, temperature=0.2)
    at = AtSite(method)
    wanted = 0.4 * slow.contrastive_tensor(at.features(at.virtual.x), at.virtual.y, 0.2)
    _same(at, at.term(method), wanted)
    assert at.gradient(at.term(method)).abs().max() > 1e-3


def test_the_three_parts_add_up():
    weights = {"alpha": 0.7, "align": 0.6, "spread": 0.4}
    at = AtSite(_vhl())
    parts = sum(at.term(_vhl(**OFF | {name: weight})) for name, weight in weights.items())
    _same(at, at.term(_vhl(**weights)), parts)


def test_the_defaults_are_the_originals():
    v = VHL()
    assert (v.alpha, v.align, v.spread, v.temperature, v.virtual_batch) == (1.0, 1.0, 0.1, 0.07, 128)
    assert (v.labels, v.source, v.per_class) == ("extra", "style", 10)


@pytest.mark.parametrize("labels", ["extra", "patch"])
def test_an_epoch_at_a_site_against_a_plain_loop(labels):
    method = _vhl(labels=labels, temperature=0.3, spread=0.5)
    at = AtSite(method)
    shared = VirtualSet(images=at.virtual.x, labels=at.virtual.y, origin="server", round=-1)
    message = Broadcast(round=0, params=at.params, anchors=shared)
    update, _ = method.site(message, SiteState(), tiny.site_of(at.data), at.net, Stream(3))
    optimiser = torch.optim.SGD(at.w.values(), lr=method.local.lr)
    for index in batches(6, method.local, Stream(3).generator("shuffle")):
        x, y = at.data.x[index], at.data.y[index]
        out, seen = at.net(at.w, x), at.net(at.w, at.virtual.x)
        together = torch.cat([out.features, seen.features.detach()])
        loss = (
            F.cross_entropy(out.logits, y)
            + F.cross_entropy(seen.logits, at.virtual.y + (K if labels == "extra" else 0))
            + slow.contrastive_tensor(together, torch.cat([y, at.virtual.y]), 0.3)
            + 0.5 * slow.contrastive_tensor(seen.features, at.virtual.y, 0.3)
        )
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    for name, value in at.w.items():
        torch.testing.assert_close(update.params[name], value.detach(), rtol=1e-7, atol=1e-9)


def test_patch_is_fedlgds_pull_but_for_the_detached_anchors():
    """Section 5.7: the same Z = batch + anchors, all of them, under the same loss."""
    method = _vhl(**OFF | {"align": 1.0}, labels="patch")
    at = AtSite(method)
    every = torch.cat([at.features(at.data.x), at.features(at.virtual.x)])
    pull = supervised_contrastive(every, torch.cat([at.data.y, at.virtual.y]), 0.07)
    close(at.term(method).detach(), pull.detach())


# Batches of the virtual set


NONE = Scale((0.0,) * 3, (1.0,) * 3)
OWN = Scale((0.1, 0.2, 0.3), (0.4, 0.3, 0.2))


@pytest.mark.parametrize("source", ["style", "noise"])
@pytest.mark.parametrize("scale", [NONE, OWN, Scale()], ids=["none", "own", "half"])
def test_a_site_normalises_the_set_as_its_own_images(monkeypatch, scale, source):
    """Its range is that of black and white under the scale, and shown again it is the same picture."""
    method = _vhl(source=source)
    net = method.adapt(tiny.net())
    state = method.start(tiny.params(net), [], net, Stream(0))
    drawn = torch.cat([part.x for part in _drawn(monkeypatch, method, scale=scale)])
    black, white = scale.to_input(torch.tensor([0, 255]).view(2, 1, 1, 1).expand(2, 3, 1, 1))
    assert ((drawn >= black - 1e-6) & (drawn <= white + 1e-6)).all()
    pixels = {x.numpy().tobytes() for x in Scale().to_pixels(state.anchors.images)}
    assert {x.numpy().tobytes() for x in scale.to_pixels(drawn)} == pixels
    if scale == Scale():
        assert {x.numpy().tobytes() for x in drawn} == {x.numpy().tobytes() for x in state.anchors.images}


def test_sites_with_different_scales_are_sent_the_same_set():
    data = tiny.federation()
    scaled = [
        replace(s, train=replace(s.train, scale=o)) for s, o in zip(data.sites, (NONE, OWN, Scale()), strict=True)
    ]
    run = tiny.Run(_vhl(), replace(data, sites=tuple(scaled)), RoundSettings(rounds=1))
    assert all(run.memory.site(name).anchors is run.states[0].anchors for name in tiny.NAMES)


def _drawn(monkeypatch, method: VHL, rng: Stream = Stream(3), scale: Scale = Scale()) -> list[LabelledSet]:
    drawn = []

    def noted(self, net, w, batch, virtual, wrapped=VHL._homogeneity):
        drawn.append(virtual)
        return wrapped(self, net, w, batch, virtual)

    with monkeypatch.context() as patch:
        patch.setattr(VHL, "_homogeneity", noted)
        net = method.adapt(tiny.net())
        state = method.start(tiny.params(net), [], net, Stream(0))
        site = tiny.site_of(replace(tiny.labelled(net, 4), scale=scale))
        method.site(method.broadcast(state, "ape"), SiteState(), site, net, rng)
    return drawn


def test_every_step_draws_its_own_virtual_batch_without_repeats(monkeypatch):
    drawn = _drawn(monkeypatch, _vhl(virtual_batch=4))
    assert [len(part) for part in drawn] == [4, 4, 4]
    assert all(len({x.numpy().tobytes() for x in part.x}) == 4 for part in drawn)
    assert not torch.equal(drawn[0].x, drawn[1].x)
    again = _drawn(monkeypatch, _vhl(virtual_batch=4))
    assert all(torch.equal(a.x, b.x) for a, b in zip(drawn, again, strict=True))
    other = _drawn(monkeypatch, _vhl(virtual_batch=4), Stream(4))
    assert not all(torch.equal(a.x, b.x) for a, b in zip(drawn, other, strict=True))


def test_a_batch_larger_than_the_set_is_the_whole_set(monkeypatch):
    for part in _drawn(monkeypatch, _vhl()):
        assert sorted(part.y.tolist()) == [0, 0, 1, 1, 2, 2]


# The set


def _start(method: VHL, seed: int = 0) -> ServerState:
    net = method.adapt(tiny.net())
    return method.start(tiny.params(net), [], net, Stream(seed).at("start"))


@pytest.mark.parametrize("source", ["style", "noise"])
def test_all_sites_are_sent_one_set_sorted_by_class(source):
    method = _vhl(source=source)
    state = _start(method)
    sets = [method.broadcast(state, name).anchors for name in tiny.NAMES]
    assert all(s is state.anchors for s in sets)
    assert sets[0].labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert sets[0].images.shape == (6, 3, 8, 8)
    assert torch.equal(_start(method).anchors.images, state.anchors.images)


def test_the_two_sources_and_the_two_labellings():
    style, noise, patch = (
        _start(_vhl(**values)).anchors.images
        for values in ({}, {"source": "noise"}, {"labels": "patch", "source": "style"})
    )
    assert not torch.equal(style, noise)
    assert torch.equal(style, patch)


@pytest.mark.parametrize("ratio", [1.0, 0.34])
def test_a_site_is_sent_the_set_when_it_first_takes_part_and_never_again(ratio):
    method = _vhl()
    sent: dict[str, list[int]] = {name: [] for name in tiny.NAMES}

    class Noted(VHL):
        def broadcast(self, state, site):
            message = super().broadcast(state, site)
            if message.anchors is not None:
                sent[site].append(state.round)
            return message

    noted = tiny.settings(Noted(), tiny.SETTINGS | FEW)
    run = tiny.Run(noted, tiny.federation(), RoundSettings(rounds=6, ratio=ratio, seed=3))
    for name in tiny.NAMES:
        present = [r.round for r in run.records[1:] if name in r.sampled]
        assert sent[name] == present[:1]
        if present:
            assert run.memory.site(name).anchors is run.states[0].anchors
    assert all(state.anchors is run.states[0].anchors for state in run.states)
    assert method.broadcast(run.states[-1], "new").anchors is not None


def test_the_set_is_trained_on_as_kept_and_as_sent():
    method = _vhl()
    at = AtSite(method)
    state = _start(method)
    site = tiny.site_of(LabelledSet(at.data.x.float(), at.data.y))
    sent = method.broadcast(state, "ape")
    a, kept = method.site(sent, SiteState(), site, at.net, Stream(3))
    b, _ = method.site(replace(sent, anchors=None), kept, site, at.net, Stream(3))
    assert tiny.equal(a.params, b.params)


def test_the_server_averages_and_never_moves_the_set():
    method = _vhl()
    state = _start(method)
    net = method.adapt(tiny.net())
    models = [tiny.params(net, seed) for seed in (1, 2)]
    updates = [Update(site=str(i), params=p, weight=w) for i, (p, w) in enumerate(zip(models, (1, 3), strict=True))]
    after = method.server(state, iter(updates), net, Stream(0))
    assert after.anchors is state.anchors
    for name, value in after.params.items():
        torch.testing.assert_close(value, (models[0][name] + 3 * models[1][name]) / 4, rtol=1e-5, atol=1e-6)


# The wider head


def test_extra_labels_add_as_many_outputs_as_classes():
    net = tiny.net()
    wide = _vhl().adapt(net)
    assert wide.size - net.size == 16 * K + K
    assert wide.classes == net.classes == K
    assert _vhl(labels="patch").adapt(net) is net


def test_only_the_first_classes_compete_when_a_model_is_scored():
    net = _vhl().adapt(tiny.net())
    site = tiny.federation().by_name["ape"]
    params = tiny.params(net)
    plain = score(net, params, site.test, K)
    params["head.bias"][K:] = 1e3
    assert score(net, params, site.test, K) == plain
    logits = net.frozen(params, site.test.take(slice(None)).x).logits
    assert (logits.argmax(1) >= K).all()


def test_a_whole_run_is_scored_by_the_first_classes_alone():
    class Loud(VHL):
        """Its server shouts the labels of virtual images."""

        def server(self, state, updates, net, rng):
            after = super().server(state, updates, net, rng)
            bias = after.params["head.bias"].clone()
            bias[K:] += 50
            return replace(after, params={**after.params, "head.bias": bias})

    data, plan = tiny.federation(), RoundSettings(rounds=1)
    loud, calm = (tiny.Run(tiny.settings(cls(), tiny.SETTINGS | FEW), data, plan) for cls in (Loud, VHL))
    assert loud.records[-1].scores == calm.records[-1].scores


def test_virtual_sets_of_sites_do_not_depend_on_the_wider_head():
    net, site = tiny.net(), tiny.federation().by_name["ape"]
    method = _vhl(train_on="virtual")
    a, _ = method.enrol(site, method.adapt(net), Stream(0))
    b, _ = tiny.fedavg().enrol(site, net, Stream(0))
    assert torch.equal(a.virtual.images, b.virtual.images)


@pytest.mark.parametrize("side", [6, 12, 20])
def test_the_set_has_the_size_of_the_tasks_images(side):
    data = tiny.federation(names=("ape",), side=side, test=1, train=2)
    run = tiny.Run(_vhl(), data, RoundSettings(rounds=1), using=tiny.net((3, side, side)))
    assert run.states[0].anchors.images.shape == (6, 3, side, side)
