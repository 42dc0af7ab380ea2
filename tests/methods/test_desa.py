"""DeSA: anchors from the sites' images, logits on them, and what is left without its terms."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedlgd.core.types import ServerState, Stream, VirtualSet
from fedlgd.engines.settings import RoundSettings
from fedlgd.engines.wire import nbytes
from fedlgd.methods.baselines import LocalOnly
from fedlgd.methods.common import Batch, outputs_on
from fedlgd.methods.desa import DeSA, distillation, mean_anchors, mean_of_others
from fedlgd.methods.union import upload_of
from fedlgd.nets.registry import build_net
from tests import tiny
from tests.oracle import slow
from tests.vectors import close

K, PER_CLASS = 3, 2
OFF = {"in_loss": False, "align": 0.0, "agree": 0.0}
PLAN = RoundSettings(rounds=3, ratio=0.67, seed=4)


def _desa(**values) -> DeSA:
    return tiny.settings(DeSA(), tiny.SETTINGS | {k.replace("__", "."): v for k, v in values.items()})


def _models(run: tiny.Run) -> list:
    return [run.memory.site(name).trees["model"] for name in run.names]


def _started(method: DeSA, data=None) -> tuple[ServerState, dict]:
    data, net = data or tiny.federation(missing={"bee": 1}), tiny.net()
    enrolled = {s.name: method.enrol(s, net, Stream(0).at("enrol", s.name)) for s in data.sites}
    hellos = [hello for _, hello in enrolled.values()]
    return method.start(tiny.params(net), hellos, net, Stream(0)), {k: state for k, (state, _) in enrolled.items()}


# Without its terms


@pytest.mark.parametrize("train_on", ["real", "virtual"])
def test_without_its_terms_it_is_local_only_bit_for_bit_and_sends_no_image(train_on):
    data = tiny.federation()
    mine = tiny.Run(_desa(train_on=train_on, **OFF), data, PLAN)
    other = tiny.Run(tiny.settings(LocalOnly(train_on=train_on), tiny.SETTINGS), data, PLAN)
    assert [r.scores for r in mine.records] == [r.scores for r in other.records]
    assert [(r.bytes_up, r.bytes_down) for r in mine.records] == [(r.bytes_up, r.bytes_down) for r in other.records]
    assert all(map(tiny.equal, _models(mine), _models(other)))
    assert _desa(**OFF).sends == LocalOnly.sends


@pytest.mark.parametrize("one", [{"in_loss": True}, {"align": 0.5}, {"agree": 0.5}])
def test_each_of_its_terms_alone_changes_the_models(one):
    data = tiny.federation()
    mine, plain = (tiny.Run(_desa(**each), data, RoundSettings(rounds=2)) for each in (OFF | one, OFF))
    assert not any(map(tiny.equal, _models(mine), _models(plain)))


def test_a_single_site_has_no_teacher():
    data = tiny.federation(names=("ape",))
    runs = [tiny.Run(_desa(agree=agree), data, RoundSettings(rounds=2)) for agree in (7.0, 0.0)]
    assert tiny.equal(*(_models(run)[0] for run in runs))


# Anchors


def _uploads(present: list[list[int]], seed: int = 0) -> list:
    """A set for each site, with so many images of each class."""
    found = []
    for i, numbers in enumerate(present):
        labels = torch.arange(K).repeat_interleave(torch.tensor(numbers))
        images = torch.randn(len(labels), 1, 2, 2, generator=Stream(seed + i).generator())
        found.append(upload_of(VirtualSet(images=images, labels=labels, origin=str(i), round=-1), K, PER_CLASS))
    return found


numbers = st.lists(st.integers(0, PER_CLASS), min_size=K, max_size=K)


@given(st.lists(numbers, min_size=1, max_size=4), st.integers(0, 99))
def test_an_anchor_is_the_mean_of_the_sites_that_have_this_image(present, seed):
    uploads = _uploads(present, seed)
    got, wanted, labels = mean_anchors(uploads, PER_CLASS), [], []
    for k in range(K):
        for j in range(PER_CLASS):
            there = [
                u["images"][k * PER_CLASS + j].double() for u, n in zip(uploads, present, strict=True) if j < n[k]
            ]
            if there:
                wanted.append(sum(there) / len(there))
                labels.append(k)
    assert got.y.tolist() == labels
    if wanted:
        torch.testing.assert_close(got.x, torch.stack(wanted).float())


@given(numbers, st.integers(1, 4))
def test_the_mean_of_equal_sets_is_the_set(present, sites):
    (upload,) = _uploads([present])
    got = mean_anchors([upload] * sites, PER_CLASS)
    there = torch.tensor([j < n for n in present for j in range(PER_CLASS)])
    torch.testing.assert_close(got.x, upload["images"][there])


def test_of_one_site_mean_and_union_are_the_same_anchors():
    data = tiny.federation(names=("bee",), missing={"bee": 1})
    mean, union = (_started(_desa(combine=each), data)[0].anchors for each in ("mean", "union"))
    assert torch.equal(mean.images, union.images)
    assert mean.labels.tolist() == union.labels.tolist() == [0, 0, 2, 2]


def test_a_union_has_the_images_of_all_sites():
    anchors = _started(_desa(combine="union"))[0].anchors
    assert anchors.labels.tolist() == [0] * 6 + [1] * 4 + [2] * 6
    run = tiny.Run(_desa(combine="union"), tiny.federation(missing={"bee": 1}), PLAN)
    assert run.states[-1].trees["logits"]["ape"].shape == (16, K)


def test_images_of_several_tiles_are_anchors_of_several_pictures():
    state, _ = _started(_desa(distil__tiles=2))
    assert (len(state.anchors), len(state.anchors.data)) == (6, 24)
    assert state.anchors.labels.tolist() == [0, 0, 1, 1, 2, 2]


def test_a_site_that_enrols_late_receives_the_anchors_and_the_logits_of_others():
    method, net = _desa(), tiny.net()
    data = tiny.federation()
    state, kept = _started(method, replace(data, sites=data.sites[:2]))
    late = data.by_name["cat"]
    kept["cat"], hello = method.enrol(late, net, Stream(0))
    state = replace(state, held={"ape": -1, "bee": -1}, trees={"logits": {"ape": torch.ones(6, K)}})
    message = method.broadcast(state, "cat")
    assert torch.equal(message.anchors.images, state.anchors.images)
    assert torch.equal(message.trees["logits"]["mean"], torch.ones(6, K))
    assert method.broadcast(state, "bee").anchors is None
    update, after = method.site(message, kept["cat"], late, net, Stream(1))
    form = method.expects(message, net, hello).trees["logits"]["own"]
    assert update.trees["logits"]["own"].shape == form.shape
    assert torch.equal(after.anchors.images, state.anchors.images)


# Logits


def test_a_site_sends_the_logits_of_its_new_model_and_receives_the_mean_of_the_others():
    net, run = tiny.net(), tiny.Run(_desa(), tiny.federation(missing={"bee": 1}), PLAN)
    anchors, sent = run.states[0].anchors.data, run.states[-1].trees["logits"]
    wanted = {name: net.frozen(run.memory.site(name).trees["model"], anchors.x).logits for name in run.names}
    for name in run.names:
        torch.testing.assert_close(sent[name], wanted[name], rtol=1e-5, atol=1e-5)
    teacher = _desa().broadcast(run.states[-1], "bee").trees["logits"]["mean"]
    torch.testing.assert_close(teacher, (wanted["ape"] + wanted["cat"]) / 2, rtol=1e-5, atol=1e-5)


def test_an_absent_site_counts_with_its_last_logits():
    run = tiny.Run(_desa(), tiny.federation(), PLAN)
    for record, before, after in zip(run.records[2:], run.states[1:], run.states[2:], strict=False):
        old, new = before.trees["logits"], after.trees["logits"]
        for name in set(old) - set(record.sampled):
            assert torch.equal(old[name], new[name])
        assert all(not torch.equal(old[name], new[name]) for name in set(old) & set(record.sampled))


def test_there_is_no_mean_over_no_other_site():
    logits = {"ape": torch.ones(2, K)}
    assert mean_of_others(logits, "ape") is None
    assert torch.equal(mean_of_others({**logits, "bee": 3 * torch.ones(2, K)}, "cat"), 2 * torch.ones(2, K))


def test_logits_are_those_of_eval_mode():
    net = build_net("tests.nets.own:Dropping", (3, 4, 4), 3)
    data, params = tiny.labelled(net, 2), tiny.params(net)
    with net.training():
        got = outputs_on(net, params, data, chunk=4).logits
    torch.testing.assert_close(got, net.frozen(params, data.x).logits)


# The loss of a step


class AtSite:
    """A batch, anchors and a teacher in float64, and a model whose weights take gradients."""

    def __init__(self) -> None:
        self.net = tiny.net()
        self.w = {k: v.requires_grad_() for k, v in tiny.double(tiny.params(self.net)).items()}
        self.data, self.anchors = (tiny.labelled(self.net, 2, seed, torch.float64) for seed in (1, 2))
        self.teacher = torch.randn(len(self.anchors), K, dtype=torch.float64, generator=Stream(3).generator())
        self.features = self.net(self.w, self.data.x).features
        self.out = self.net(self.w, self.anchors.x)

    def term(self, **values) -> torch.Tensor:
        method = _desa(anchor_batch=100, **values)
        (term,) = method._terms(self.anchors, self.teacher, self.net, Stream(0))
        return term(self.w, Batch(self.data.x, self.data.y, *self.net(self.w, self.data.x)))

    def same(self, got: torch.Tensor, wanted: torch.Tensor) -> None:
        leaves = [*self.w.values()]
        a, b = (torch.autograd.grad(v, leaves, retain_graph=True, materialize_grads=True) for v in (got, wanted))
        close(got.detach(), wanted.detach())
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-9)


def test_the_contrastive_term_has_the_batch_and_anchors_without_gradient():
    at = AtSite()
    features = torch.cat([at.features, at.out.features.detach()])
    wanted = 0.7 * slow.contrastive_tensor(features, torch.cat([at.data.y, at.anchors.y]), 0.2)
    at.same(at.term(align=0.7, temperature=0.2, agree=0.0), wanted)


def _divergence(teacher: torch.Tensor, logits: torch.Tensor, temperature: float) -> torch.Tensor:
    """KL(p || q), image by image and class by class, averaged over the images."""
    total = torch.zeros((), dtype=torch.float64)
    for above, z in zip(teacher / temperature, logits / temperature, strict=True):
        p, q = above.exp() / above.exp().sum(), z.exp() / z.exp().sum()
        total = total + sum(p[k] * (p[k] / q[k]).log() for k in range(K))
    return total / len(logits)


@pytest.mark.parametrize(("reduction", "share"), [("classes", 1.0), ("elements", 1 / K)])
def test_the_other_term_has_labels_and_the_softened_teacher(reduction, share):
    at = AtSite()
    ce = -sum(torch.log_softmax(z, 0)[y] for z, y in zip(at.out.logits, at.anchors.y, strict=True)) / len(
        at.anchors
    )
    soft = 20.0**2 * _divergence(at.teacher, at.out.logits, 20.0)
    wanted = 0.5 * (0.1 * ce + 0.9 * share * soft)
    at.same(at.term(align=0.0, agree=0.5, reduction=reduction), wanted)


@given(st.integers(0, 999), st.floats(0.5, 50))
def test_a_teacher_that_says_the_same_has_no_pull(seed, temperature):
    logits = torch.randn(4, K, dtype=torch.float64, generator=Stream(seed).generator()).requires_grad_()
    value = distillation(logits, logits.detach() + 1.5, temperature)
    (gradient,) = torch.autograd.grad(value, logits)
    assert abs(value.item()) < 1e-9
    assert gradient.abs().max() < 1e-9


def test_anchors_are_in_the_cross_entropy_of_an_epoch():
    data = tiny.federation(names=("ape",))
    one = {"local__batch": 1, "align": 0.0}
    steps = [
        tiny.Run(_desa(in_loss=on, **one), data, RoundSettings(rounds=1)).records[1].flops["train"] for on in (1, 0)
    ]
    assert steps[0] - steps[1] == 3 * PER_CLASS * K * tiny.forward_flops()


# What it costs


def test_messages_at_the_papers_size():
    """28x28 pixels, K = 10: V^c has 0.941 MB with 10 images a class, 4.704 with 50, logits 4 kB and 20 kB."""
    net = build_net("convnet", (3, 28, 28), 10)
    for per_class, upload, logits in ((10, 940_800, 4_000), (50, 4_704_000, 20_000)):
        method = tiny.settings(DeSA(), {"distil.per_class": per_class})
        hello = method.expects_hello(net)
        assert nbytes(hello) == upload + 4 * 10 + 8 * 10  # and which images are there, and how many real ones
        n = 10 * per_class
        anchors = VirtualSet(images=torch.zeros(n, 3, 28, 28), labels=torch.zeros(n).long(), origin="", round=-1)
        state = ServerState(
            params={}, anchors=anchors, held={"ape": -1}, trees={"logits": {"bee": torch.ones(n, 10)}}
        )
        message = method.broadcast(state, "ape")
        assert nbytes(message) == logits
        assert nbytes(method.expects(message, net, hello)) == logits
        assert nbytes(method.broadcast(state, "cat")) == logits + upload + 8 * n


def test_a_run_costs_what_its_messages_have():
    run = tiny.Run(_desa(), tiny.federation(), RoundSettings(rounds=3))
    n, sites, image = PER_CLASS * K, 3, 3 * tiny.SIDE**2
    assert run.records[0].bytes_up == sites * (4 * n * image + 4 * K + 8 * K)
    assert [r.bytes_up for r in run.records[1:]] == [sites * 4 * n * K] * 3
    first = sites * (4 * n * image + 8 * n)
    assert [r.bytes_down for r in run.records[1:]] == [first, sites * 4 * n * K, sites * 4 * n * K]


def test_an_estimate_counts_the_anchors():
    site = tiny.federation().sites[0]
    assert _desa().cost(0, site, K).images == len(site.train) + PER_CLASS * K
    assert _desa(**OFF).cost(0, site, K).images == len(site.train)
    assert _desa(combine="union").cost(0, site, K) is None
    assert math.isclose(_desa().cost(-1, site, K).distil, 2.0)
