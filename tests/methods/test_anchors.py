"""Anchors: when rounds are selected, who is sent them, what they add to the loss and how they move."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedlgd.core.errors import SettingError
from fedlgd.core.net import Net
from fedlgd.core.train import Local
from fedlgd.core.types import Hello, LabelledSet, Params, ServerState, Stream, Update, VirtualSet
from fedlgd.methods.anchors import Anchored, Anchors, Selected, stale_anchors
from fedlgd.methods.common import Embedded, Joined, pulled, sampled
from fedlgd.methods.fedavg import FedAvg
from fedlgd.methods.fedlgd import FedLGD
from fedlgd.methods.regularisers import Pull
from fedlgd.nets.registry import build_net
from fedlgd.runs.config import RunSettings, configure
from tests import tiny
from tests.errors import refuses
from tests.oracle import slow
from tests.vectors import close, floats, vector

SCHEDULE = vector("schedule")


def _pull(pull: Pull, features: Tensor, labels: Tensor, batch: Tensor, local: int) -> Tensor:
    return replace(pull, weight=1.0)(Embedded(features, labels, local, batch))


def _rounds(selected: Selected) -> list[int]:
    return [t for t in range(SCHEDULE["rounds"]) if t in selected]


def test_selected_rounds_of_the_paper():
    assert _rounds(Selected()) == SCHEDULE["paper_tau"]
    assert _rounds(FedLGD().refine.selected) == _rounds(FedLGD().anchors.selected) == SCHEDULE["paper_tau"]


def test_selected_rounds_of_the_released_code():
    official = tiny.settings(FedLGD(), FedLGD.presets["official"])
    assert _rounds(official.anchors.selected) == SCHEDULE["code_gm_rounds"]
    assert _rounds(official.refine.selected) == SCHEDULE["code_idm_rounds"]


@settings(max_examples=100, deadline=None)
@given(first=st.integers(0, 20), every=st.integers(1, 9), count=st.integers(0, 12), t=st.integers(-5, 150))
def test_selected_is_the_arithmetic_progression(first, every, count, t):
    naive = {first + i * every for i in range(count)}
    assert (t in Selected(first=first, every=every, count=count)) == (t in naive)


@pytest.mark.parametrize("values", [{"first": -1}, {"every": 0}, {"count": -1}])
def test_senseless_selections_are_refused(values):
    with refuses("setting-out-of-bounds", SettingError):
        Selected(**values)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: Anchors(per_class=-1), r"anchors\.per_class"),
        (lambda: Anchors(steps=-1), r"anchors\.steps"),
        (lambda: Pull(weight=-1.0), r"pull\.weight"),
        (lambda: Pull(temperature=0.0), r"pull\.temperature"),
    ],
)
def test_senseless_settings_are_refused_by_name(make, name):
    with pytest.raises(SettingError, match=name):
        make()


def test_rounds_in_which_anchors_join_the_cross_entropy():
    how = Anchors(selected=Selected(first=1, every=2, count=2))
    rounds = {
        name: [t for t in range(6) if replace(how, in_loss=name).train_in(t)]
        for name in ("unselected", "always", "never")
    }
    assert rounds == {"unselected": [0, 2, 4, 5], "always": [0, 1, 2, 3, 4, 5], "never": []}


MIXED = vector("supcon_fedlgd_batch")
WANTED = {
    True: MIXED["code_cat_batch_and_all_global_mean"],
    False: MIXED["local_part_of_batch_and_all_global_mean"],
}


def _mixed() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Three local members, and all four anchors, of which number 1 is in the batch."""
    batch, anchors = floats(MIXED["batch_features"]), floats(MIXED["global_features"])
    assert torch.equal(batch[3], anchors[1])
    return batch[:3], torch.tensor(MIXED["batch_labels"][:3]), anchors, torch.tensor(MIXED["global_labels"])


@pytest.mark.parametrize("repeat", [True, False])
def test_contrastive_pull_of_a_batch_with_and_without_repeated_anchors(repeat):
    local, local_y, anchors, anchors_y = _mixed()
    features, labels = torch.cat([local, anchors]), torch.cat([local_y, anchors_y])
    pull = Pull(temperature=MIXED["temperature"], repeat=repeat)
    close(_pull(pull, features, labels, torch.tensor([0, 1, 2, 4]), 3), WANTED[repeat])


@pytest.mark.parametrize("repeat", [True, False])
@pytest.mark.parametrize("order", [[0, 1, 2, 4], [4, 2, 0, 1]])
def test_objective_is_cross_entropy_plus_lambda_times_the_pull(repeat, order):
    """Through the objective of a site, with a net whose features are its pixels; order in a batch is no matter."""
    local, local_y, anchors, anchors_y = _mixed()
    net = build_net("tests.nets.own:Linear", (1, 1, 3), 2)
    params = tiny.double(tiny.params(net))
    pull = Pull(weight=10.0, temperature=MIXED["temperature"], repeat=repeat)
    sets = [LabelledSet(x.view(-1, 1, 1, 3), y) for x, y in ((local, local_y), (anchors, anchors_y))]
    index = torch.tensor(order)
    got = pulled(net, *sets, pull)(params, index)
    x, y = torch.cat([local, anchors])[index], torch.cat([local_y, anchors_y])[index]
    logits = x @ params["head.weight"].T + params["head.bias"]
    ce = -logits.log_softmax(1)[torch.arange(4), y].mean()
    close(got, ce + 10 * WANTED[repeat])


def test_rbf_pull_is_class_blind_between_the_mixed_batch_and_all_anchors():
    v = vector("mmd_rbf")
    source, target = floats(v["source"]), floats(v["target"])
    features, labels = torch.cat([source, target]), torch.tensor([0, 1, 2, 2, 1, 0, 0])
    pull = Pull(loss="mmd-rbf")
    close(_pull(pull, features, labels, torch.arange(3), 3), v["value"])
    close(_pull(pull, features, labels.flip(0), torch.arange(3), 3), v["value"])
    with_drawn = _pull(pull, features, labels, torch.tensor([0, 1, 2, 5]), 3)
    close(with_drawn, slow.mmd_rbf(features[[0, 1, 2, 5]].tolist(), target.tolist()))


def test_means_pull_compares_classes_of_the_local_part_with_the_anchors():
    features = floats([[1, 0], [3, 0], [0, 1], [9, 9], [0, 0], [4, 4]])
    labels = torch.tensor([0, 0, 1, 0, 0, 1])
    pull = Pull(loss="mmd-means")
    wanted = (2 - 4.5) ** 2 + 4.5**2 + 4**2 + 3**2
    close(_pull(pull, features, labels, torch.tensor([0, 1, 2]), 3), wanted)
    close(_pull(pull, features, labels, torch.tensor([0, 1, 2, 3]), 3), wanted)


@pytest.mark.parametrize("loss", ["contrastive", "mmd-rbf", "mmd-means"])
def test_a_batch_of_anchors_alone_is_finite(loss):
    net = tiny.net()
    local, anchors = tiny.labelled(net, 2, 1), tiny.labelled(net, 2, 2)
    leaves = {k: v.requires_grad_() for k, v in tiny.params(net).items()}
    value = pulled(net, local, anchors, Pull(loss=loss))(leaves, torch.tensor([7, 9]))
    assert torch.isfinite(value)
    for gradient in torch.autograd.grad(value, list(leaves.values()), materialize_grads=True):
        assert torch.isfinite(gradient).all()


@given(st.lists(st.integers(0, 3), min_size=1, max_size=30), st.integers(1, 6), st.data())
@settings(max_examples=60, deadline=None)
def test_a_sample_has_what_was_drawn_and_as_many_of_each_class(labels, count, data):
    drawn = data.draw(st.lists(st.integers(0, len(labels) - 1), unique=True))
    rng, labels = Stream(data.draw(st.integers(0, 9))), torch.tensor(labels)
    chosen = sampled(labels, count, rng.generator(), torch.tensor(drawn, dtype=torch.int64)).tolist()
    assert chosen == sorted({*chosen} | {*drawn})
    for k in labels.unique().tolist():
        of_class = [i for i in chosen if labels[i] == k]
        size, given = int((labels == k).sum()), len([i for i in drawn if labels[i] == k])
        assert len(of_class) == max(given, min(count, size))


def test_each_anchor_is_as_likely_as_the_others_of_its_class():
    labels, generator = torch.tensor([0] * 4 + [1] * 8), Stream(0).generator()
    none = torch.tensor([], dtype=torch.int64)
    counts = torch.stack([sampled(labels, 2, generator, none).bincount(minlength=12) for _ in range(2000)]).sum(0)
    torch.testing.assert_close(counts / 2000, torch.tensor([0.5] * 4 + [0.25] * 8), atol=0.05, rtol=0)


@pytest.mark.parametrize("preset", ["paper", "official"])
def test_a_sample_of_all_anchors_has_the_bits_of_no_sample(preset):
    data, plan = tiny.federation(), RunSettings(rounds=3)
    every = tiny.fedlgd(preset).anchors.per_class
    runs = [tiny.Run(tiny.fedlgd(preset, anchors__sample=n), data, plan).states[-1] for n in (0, every, 1)]
    whole, all_of_them, some = (state.params for state in runs)
    assert tiny.equal(whole, all_of_them)
    assert not tiny.equal(whole, some)


def _hello(site: str, statistics: Tensor | None = None) -> Hello:
    return Hello(site=site, counts=torch.tensor([2, 2, 2]), statistics=statistics)


def test_noise_anchors_are_standard_normal_sorted_by_class_and_from_the_server():
    net = tiny.net()
    got = Anchors(per_class=20).first([_hello("a")], net, Stream(0))
    assert got.labels.tolist() == [0] * 20 + [1] * 20 + [2] * 20
    assert got.images.shape == (60, 3, 8, 8)
    assert abs(got.images.mean()) < 0.05
    assert abs(got.images.std() - 1) < 0.05
    assert (got.origin, got.round) == ("server", -1)


def test_noise_anchors_are_addressed_and_ask_nothing_of_the_sites():
    net = tiny.net()
    a = Anchors().first([_hello("a")], net, Stream(0)).images
    b = Anchors().first([_hello("b", torch.ones(3, 2, 3))], net, Stream(0)).images
    assert torch.equal(a, b)
    assert not torch.equal(a, Anchors().first([_hello("a")], net, Stream(1)).images)


def _statistics(mean: float, std: float) -> Tensor:
    return torch.stack([torch.full((3, 3), mean), torch.full((3, 3), std)], 1) + torch.arange(3.0)[:, None, None]


def test_statistics_anchors_start_from_the_average_of_means_and_the_average_of_stds():
    net, how = tiny.net(), Anchors(per_class=400, start="statistics")
    hellos = [_hello("a", _statistics(1.0, 0.5)), _hello("b", _statistics(3.0, 1.5))]
    got = how.first(hellos, net, Stream(0))
    for k in range(3):
        images = got.images[got.labels == k]
        assert abs(images.mean() - (2 + k)) < 0.05
        assert abs(images.std() - (1 + k)) < 0.05


def test_a_class_a_site_lacks_drops_out_of_the_average():
    net, how = tiny.net(), Anchors(per_class=1, start="statistics")
    a, b = torch.zeros(3, 2, 3), torch.zeros(3, 2, 3)
    a[:, 0], b[:, 0] = 1, 3
    b[2] = math.nan
    got = how.first([_hello("a", a), _hello("b", b)], net, Stream(0))
    close(got.images.double()[:, 0, 0, 0], [2, 2, 1])


def test_a_class_nobody_has_still_gets_finite_anchors():
    net, how = tiny.net(), Anchors(per_class=1, start="statistics")
    statistics = torch.ones(3, 2, 3)
    statistics[2] = math.nan
    got = how.first([_hello("a", statistics), _hello("b", statistics)], net, Stream(0))
    assert torch.isfinite(got.images).all()


def _anchors(version: int, net=None) -> VirtualSet:
    data = tiny.labelled(net or tiny.net())
    return VirtualSet(images=data.x, labels=data.y, origin="server", round=version)


@pytest.mark.parametrize(
    ("held", "needed", "sent"),
    [
        ({}, True, True),
        ({}, False, False),
        ({"ape": 5}, True, False),
        ({"ape": 4}, True, True),
        ({"ape": -1}, True, True),
        ({"bee": 5}, True, True),
    ],
)
def test_anchors_are_sent_when_needed_and_stale(held, needed, sent):
    state = ServerState(params={}, anchors=_anchors(5), held=held)
    assert (stale_anchors(state, "ape", needed) is state.anchors) == sent


def test_the_first_version_is_stale_for_everybody_once():
    state = ServerState(params={}, anchors=_anchors(-1))
    assert stale_anchors(state, "ape") is state.anchors
    assert stale_anchors(replace(state, held={"ape": -1}), "ape", True) is None
    assert stale_anchors(ServerState(params={}), "ape", True) is None


HOW = Anchors(
    plan="exact", per_class=2, steps=3, lr=0.5, momentum=0.5, selected=Selected(first=0, every=5, count=2)
)


def _moved(how: Anchors, state: ServerState, new: Params, lr: float, net: Net) -> VirtualSet:
    """After a round in which one site sent the model `new`; FedLGD and a stacked method move them alike."""
    sent = [Update(site="ape", params=new, weight=1.0)]
    rng, local = Stream(0), Local(lr=lr)
    own = FedLGD(local=local, anchors=how).server(state, sent, net, rng)
    stacked = Anchored(method=FedAvg(local=local), anchors=how).server(state, sent, net, rng)
    assert torch.equal(own.anchors.images, stacked.anchors.images)
    assert own.anchors.round == stacked.anchors.round
    return stacked.anchors


def test_anchors_move_under_the_old_model_towards_where_the_average_went():
    net = tiny.net()
    old, new = tiny.double(tiny.params(net, 0)), tiny.double(tiny.params(net, 1))
    anchors = replace(_anchors(0, net), images=_anchors(0, net).images.double())
    state = ServerState(params=old, anchors=anchors, round=5)
    moved = _moved(HOW, state, new, 0.01, net)
    target = {k: (v - new[k]) / 0.01 for k, v in old.items()}
    wanted, _ = slow.gm_steps(net, old, anchors.images, anchors.labels, target, 3, 0.5, 0.5)
    torch.testing.assert_close(moved.images, wanted, rtol=1e-7, atol=1e-9)
    assert moved.round == 5
    assert anchors.round == 0


@pytest.mark.parametrize(("t", "steps"), [(1, 3), (4, 3), (10, 3), (0, 0), (5, 0)])
def test_anchors_stay_in_other_rounds_and_without_steps(t, steps):
    net = tiny.net()
    state = ServerState(params=tiny.params(net), anchors=_anchors(-1), round=t)
    assert _moved(replace(HOW, steps=steps), state, tiny.params(net, 1), 0.01, net) is state.anchors


def test_joined_sets_keep_local_images_first():
    net = tiny.net()
    a, b = tiny.labelled(net, 2, 1), tiny.labelled(net, 1, 2)
    x, y = torch.cat([a.x, b.x]), torch.cat([a.y, b.y])
    order = torch.randperm(len(y), generator=Stream(0).generator())
    both = Joined(a, b)
    assert len(both) == len(y)
    assert torch.equal(both.take(order).x, x[order])
    assert torch.equal(both.take(order).y, y[order])


def test_joined_sets_scale_bytes_and_leave_network_input_alone():
    pixels = torch.randint(256, (3, 3, 2, 2), dtype=torch.uint8, generator=Stream(0).generator())
    real = LabelledSet(pixels, torch.tensor([0, 1, 2]))
    made = LabelledSet(torch.randn(2, 3, 2, 2), torch.tensor([1, 0]))
    wanted = torch.cat([(pixels.float() / 255 - 0.5) / 0.5, made.x])
    for order in ([4, 0, 3, 2, 1], [3, 4], [1, 0], [2]):
        assert torch.equal(Joined(real, made).take(torch.tensor(order)).x, wanted[order])


@pytest.mark.parametrize("in_loss", ["unselected", "always", "never"])
def test_no_anchors_are_needed_never(in_loss):
    assert not any(Anchors(per_class=0, in_loss=in_loss).needed_in(t, Pull()) for t in range(60))


def test_rounds_in_which_anchors_are_needed():
    how = replace(HOW, selected=Selected(first=1, every=2, count=2))
    always = [0, 1, 2, 3, 4, 5]
    for in_loss, weight, wanted in (
        ("unselected", 1.0, [0, 2, 4, 5]),
        ("unselected", 0.0, [0, 2, 4, 5]),
        ("never", 1.0, [0, 2, 4, 5]),
        ("never", 0.0, []),
        ("always", 0.0, always),
        ("always", 1.0, always),
    ):
        got = [t for t in always if replace(how, in_loss=in_loss).needed_in(t, Pull(weight=weight))]
        assert got == wanted


def test_the_preset_of_the_paper_is_the_papers():
    how = configure(FedLGD, "paper").anchors
    assert (how.plan, how.per_class, how.start, how.steps, how.lr) == ("exact", 10, "noise", 500, 1.0)
    assert (how.momentum, how.in_loss) == (0.5, "unselected")
    assert Pull() == Pull(weight=10.0, temperature=0.07, loss="contrastive", repeat=False)
