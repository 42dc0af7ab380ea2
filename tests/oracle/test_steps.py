"""Whole steps of distillation, training and aggregation against loops, in float64."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedlgd.core.losses import class_means
from fedlgd.core.net import Net
from fedlgd.core.train import Local, batches, sgd
from fedlgd.core.types import LabelledSet, Params, ServerState, Stream, Update, VirtualSet
from fedlgd.distill import augment
from fedlgd.distill.distribution import Pair, image_gradient, match, perturbed, real_features, real_means, target_of
from fedlgd.distill.gradient import anchor_gradient as gm_gradient
from fedlgd.distill.gradient import match_gradient, matched_names
from fedlgd.distill.settings import Distil
from fedlgd.methods.anchors import Anchors
from fedlgd.methods.collabdm import joined_means
from fedlgd.methods.common import pulled
from fedlgd.methods.dynafed import trajectory_gap, unrolled
from fedlgd.methods.feddm import WithLogits
from fedlgd.methods.regularisers import Pull
from tests import tiny
from tests.oracle import slow


def _setting(per_class: int = 2, seed: int = 0) -> tuple[Net, Params, LabelledSet]:
    net = tiny.net()
    return net, tiny.double(tiny.params(net, seed)), tiny.labelled(net, per_class, seed + 1, torch.float64)


def _near(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)


TRANSFORMS = {
    0: partial(augment.color, brightness=0.3, saturation=0.8, contrast=0.6),
    1: partial(augment.crop, down=1, right=-1),
    2: partial(augment.rotate, degrees=10.0),
}


@pytest.mark.parametrize("per_class", [3, 70])
def test_dm_gradient_with_a_transform_per_class(per_class):
    """70 real images per class need two passes of the real branch."""
    net, params, real = _setting(per_class)
    made = tiny.labelled(net, 2, 9, torch.float64)
    transforms = [TRANSFORMS[k] for k in range(3)]
    target = real_means(net, params, real, [real.of_class(k) for k in range(3)], transforms)
    got = image_gradient(net, Pair(params, transforms, target), made.x, made.y)
    _near(got, slow.dm_gradient(net, params, real, made.x, made.y, TRANSFORMS))


@pytest.mark.parametrize(("how", "apart"), [("moments", slow.moments_apart), ("kernel", slow.kernels_apart)])
@pytest.mark.parametrize("per_class", [3, 5])
def test_gradient_of_other_losses_than_eq_1(how, apart, per_class):
    net, params, real = _setting(per_class)
    keep = torch.arange(len(real)) > 0  # classes of different sizes
    real = LabelledSet(real.x[keep], real.y[keep])
    made, transforms = tiny.labelled(net, 2, 9, torch.float64), [TRANSFORMS[k] for k in range(3)]
    features = real_features(net, params, real, [real.of_class(k) for k in range(3)], transforms)
    pair = Pair(params, transforms, *target_of(features, torch.arange(3), how))
    got = image_gradient(net, pair, made.x, made.y)
    _near(got, slow.dm_gradient(net, params, real, made.x, made.y, TRANSFORMS, apart))


@given(st.lists(st.integers(0, 4), min_size=3, max_size=3).filter(any), st.integers(1, 4), st.integers(0, 99))
@settings(max_examples=15)
def test_dm_gradient_with_unequal_numbers_of_virtual_images(real_images, per_class, seed):
    """min(per_class, n_k) virtual images of a class with n_k real ones; a class counts once in Eq. 1."""
    net, params, _ = _setting(1, seed)
    real = _classes(net, real_images, seed)
    made = _classes(net, [min(per_class, n) for n in real_images], seed + 1)
    classes = made.y.unique()
    transforms = [TRANSFORMS[k] for k in classes.tolist()]
    target = real_means(net, params, real, [real.of_class(k) for k in classes.tolist()], transforms)
    got = image_gradient(net, Pair(params, transforms, target), made.x, made.y)
    _near(got, slow.dm_gradient(net, params, real, made.x, made.y, TRANSFORMS))
    features = net(params, made.x).features
    means = [[sum(f) / len(f) for f in zip(*features[made.y == k].tolist(), strict=True)] for k in classes]
    _near(class_means(features, made.y, classes), torch.tensor(means, dtype=torch.float64))


def _classes(net: Net, images: list[int], seed: int) -> LabelledSet:
    """So many images of each class, sorted."""
    whole = tiny.labelled(net, max(images), seed, torch.float64)
    index = torch.cat([whole.of_class(k)[:n] for k, n in enumerate(images)])
    return LabelledSet(whole.x[index], whole.y[index])


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_dm_steps(momentum):
    net, params, real = _setting(4)
    made = tiny.labelled(net, 2, 9, torch.float64)
    how = Distil(steps=3, augment=(), lr=0.7, smooth=0, momentum=momentum)
    got = match(made.x, made.y, real, net, lambda _: params, how, Stream(0))
    _near(got, slow.dm_steps(net, params, real, made.x, made.y, 3, 0.7, momentum))


def test_dm_steps_when_a_class_is_missing():
    net, params, real = _setting(4)
    made = tiny.labelled(net, 2, 9, torch.float64)
    keep = made.y != 1
    how = Distil(steps=2, augment=(), lr=0.7, smooth=0)
    got = match(made.x[keep], made.y[keep], real, net, lambda _: params, how, Stream(0))
    _near(got, slow.dm_steps(net, params, real, made.x[keep], made.y[keep], 2, 0.7, 0.5))


def _target(params: Params) -> Params:
    g = Stream(3).generator("target")
    return {k: torch.randn(v.shape, generator=g, dtype=torch.float64) for k, v in params.items()}


def test_gm_gradient():
    net, params, made = _setting(2)
    names, target = matched_names(params, net), _target(params)
    got, value = gm_gradient(net, params, made.x, made.y, [target[n] for n in names], names)
    wanted, wanted_value = slow.gm_gradient(net, params, made.x, made.y, target)
    assert value == pytest.approx(wanted_value, rel=1e-10)
    _near(got, wanted)


def test_gm_steps():
    net, params, made = _setting(2)
    target = _target(params)
    anchors = VirtualSet(images=made.x, labels=made.y, origin="server", round=-1)
    got, values = match_gradient(
        anchors, net, params, target, Anchors(plan="exact", steps=3, lr=0.5, momentum=0.5), 0
    )
    wanted, wanted_values = slow.gm_steps(net, params, made.x, made.y, target, 3, 0.5, 0.5)
    assert values == pytest.approx(wanted_values, rel=1e-9)
    _near(got.images, wanted)


def _batch_normed(per_class: int) -> tuple[Net, Params, LabelledSet]:
    """Norms away from scale 1 and shift 0, and running statistics that would show if they were used."""
    net = tiny.net(norm="batch")
    g = Stream(5).generator("norms")
    params = {
        k: v + torch.rand(v.shape, generator=g, dtype=torch.float64) if v.is_floating_point() else v
        for k, v in tiny.double(tiny.params(net)).items()
    }
    return net, params, tiny.labelled(net, per_class, 1, torch.float64)


@pytest.mark.parametrize("per_class", [3, 70])
def test_dm_gradient_under_batch_norm(per_class):
    net, params, real = _batch_normed(per_class)
    made = tiny.labelled(net, 2, 9, torch.float64)
    keep = torch.arange(len(real)) > 0  # classes of different sizes
    real = LabelledSet(3 * real.x[keep] + 1, real.y[keep])
    transforms = [TRANSFORMS[k] for k in range(3)]
    target = real_means(net, params, real, [real.of_class(k) for k in range(3)], transforms)
    got = image_gradient(net, Pair(params, transforms, target), made.x, made.y)
    _near(got, slow.dm_gradient_batch_norm(params, real, made.x, made.y, TRANSFORMS))


def test_gm_gradient_under_batch_norm():
    net, params, made = _batch_normed(2)
    names, target = matched_names(params, net), _target(params)
    got, value = gm_gradient(net, params, made.x, made.y, [target[n] for n in names], names)
    wanted, wanted_value = slow.gm_gradient_batch_norm(params, made.x, made.y, target)
    assert value == pytest.approx(wanted_value, rel=1e-10)
    torch.testing.assert_close(got, wanted, rtol=1e-7, atol=1e-9)


INDEXES = {
    "mixed": [0, 7, 3, 9, 5],
    "local only": [0, 3, 5, 1],
    "anchors only": [6, 9, 8],
    "one image": [2],
    "one anchor": [11],
    "all": list(range(12)),
}


@pytest.mark.parametrize("repeat", [False, True])
@pytest.mark.parametrize("index", INDEXES.values(), ids=INDEXES.keys())
def test_regularised_loss_and_gradient(index, repeat):
    net, params, local = _setting(2)
    anchors = tiny.labelled(net, 2, 8, torch.float64)
    chosen = torch.tensor(index)
    leaves = {k: v.clone().requires_grad_() for k, v in params.items()}
    pull = Pull(weight=2.5, temperature=0.2, repeat=repeat)
    got = pulled(net, local, anchors, pull)(leaves, chosen)
    wanted = slow.regularised(net, leaves, local, anchors, chosen, 2.5, 0.2, repeat)
    assert got.item() == pytest.approx(wanted.item(), rel=1e-10)
    every = list(leaves.values())
    gradients = [torch.autograd.grad(value, every, materialize_grads=True) for value in (got, wanted)]
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("repeat", [False, True])
def test_the_loss_with_a_sample_is_that_with_these_anchors_alone(repeat):
    net, params, local = _setting(2)
    anchors, chosen = tiny.labelled(net, 2, 8, torch.float64), torch.tensor([1, 3, 4])
    pull = Pull(weight=2.5, temperature=0.2, repeat=repeat)
    got = pulled(net, local, anchors, pull, draw=lambda _: chosen)(params, torch.tensor([0, 9, 7, 3]))
    few = replace(anchors, x=anchors.x[chosen], y=anchors.y[chosen])
    wanted = slow.regularised(net, params, local, few, torch.tensor([0, 7, 6, 3]), 2.5, 0.2, repeat)
    assert got.item() == pytest.approx(wanted.item(), rel=1e-10)


@pytest.mark.parametrize("repeat", [False, True])
def test_a_regularised_epoch(repeat):
    net, params, local = _setting(2)
    anchors = tiny.labelled(net, 2, 8, torch.float64)
    how, rng = Local(batch=5, lr=0.05), Stream(4)
    pull = Pull(weight=0.5, temperature=0.2, repeat=repeat)
    got = sgd(net, params, 12, pulled(net, local, anchors, pull), how, rng).params
    leaves = {k: v.clone().requires_grad_() for k, v in params.items()}
    optimiser = torch.optim.SGD(leaves.values(), lr=0.05)
    for index in batches(12, how, rng.generator("shuffle")):
        optimiser.zero_grad()
        slow.regularised(net, leaves, local, anchors, index, 0.5, 0.2, repeat).backward()
        optimiser.step()
    for name, value in leaves.items():
        torch.testing.assert_close(got[name], value.detach(), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize(("momentum", "decay"), [(0.0, 0.0), (0.9, 0.0), (0.0, 0.1), (0.5, 0.01)])
def test_local_sgd_is_torchs(momentum, decay):
    net, params, data = _setting(3)
    how, rng = Local(epochs=3, batch=4, lr=0.1, momentum=momentum, weight_decay=decay), Stream(4)
    got = sgd(net, params, 9, lambda w, index: tiny.cross_entropy(net, w, data.take(index)), how, rng).params
    leaves = {k: v.clone().requires_grad_() for k, v in params.items()}
    for leaf in leaves.values():
        leaf.grad = torch.zeros_like(leaf)
    optimiser = torch.optim.SGD(leaves.values(), lr=0.1, momentum=momentum, weight_decay=decay)
    for index in batches(9, how, rng.generator("shuffle")):
        optimiser.zero_grad(set_to_none=False)
        torch.nn.functional.cross_entropy(net(leaves, data.x[index]).logits, data.y[index]).backward()
        optimiser.step()
    for name, value in leaves.items():
        _near(got[name], value.detach())
    assert not torch.equal(got["head.bias"], params["head.bias"])


@pytest.mark.parametrize("make", [tiny.fedavg, tiny.fedlgd])
def test_aggregation(make):
    net = tiny.net()
    trees, weights = [tiny.double(tiny.params(net, s)) for s in range(4)], [3.0, 1.0, 10.0, 0.5]
    updates = [
        Update(site=f"s{i}", params=p, weight=w) for i, (p, w) in enumerate(zip(trees, weights, strict=True))
    ]
    state = ServerState(params=trees[0], round=1)
    got = make().server(state, iter(updates), net, Stream(0))
    for name, values in slow.average(trees, weights).items():
        _near(got.params[name].flatten(), torch.tensor(values, dtype=torch.float64))
    assert got.round == 2


def test_real_images_weigh_by_their_number_and_virtual_sets_alike():
    data = tiny.federation(names=("ape", "bee"))
    bee = data.by_name["bee"]
    small = replace(bee, train=replace(bee.train, x=bee.train.x[::2], y=bee.train.y[::2]))
    net = tiny.net()
    for train_on, weights in (("real", [18.0, 9.0]), ("virtual", [1.0, 1.0])):
        method = tiny.fedavg(train_on=train_on, distil__steps=0)
        server = ServerState(params=tiny.params(net))
        got = []
        for site in (data.by_name["ape"], small):
            state, _ = method.enrol(site, net, Stream(0))
            update, _ = method.site(method.broadcast(server, site.name), state, site, net, Stream(1))
            got.append(update.weight)
        assert got[0] / got[1] == weights[0] / weights[1]


def test_the_loss_of_feddm_under_a_network_near_the_model():
    """Features and logits, class by class and image by image; the network by the formula of the sphere."""
    net, theta, real = _setting(4)
    made = tiny.labelled(net, 2, 9, torch.float64)
    drawn = perturbed(net, theta, 3.0, Stream(5))
    weights = slow.on_sphere(theta, sorted(net.trainable), 3.0, Stream(5).generator())
    for name, value in weights.items():
        _near(drawn[name], value)
    both = net.wrapped(lambda body, _: WithLogits(body), "logits")
    seen, transforms = WithLogits.weights(drawn), [TRANSFORMS[k] for k in range(3)]
    target = real_means(both, seen, real, [real.of_class(k) for k in range(3)], transforms)
    got = image_gradient(both, Pair(seen, transforms, target), made.x, made.y)
    _near(got, slow.feddm_gradient(net, weights, real, made.x, made.y, TRANSFORMS))


def test_means_that_sites_send_to_collabdm_give_the_gradient_of_all_their_images():
    """Three sites of 2, 4 and 3 images a class, one of them without class 1."""
    net, params, _ = _setting()
    own = [_classes(net, numbers, seed) for seed, numbers in enumerate([[2, 2, 2], [4, 0, 4], [3, 3, 3]])]
    made, transforms = tiny.labelled(net, 2, 9, torch.float64), [TRANSFORMS[k] for k in range(3)]
    sent = []
    for data in own:
        present = data.y.unique().tolist()
        members = [data.of_class(k) for k in present]
        means = torch.zeros(3, net.features, dtype=torch.float64)
        means[present] = real_means(net, params, data, members, [transforms[k] for k in present])
        sent.append(means)
    target = joined_means(sent, torch.stack([data.counts(3) for data in own]))
    got = image_gradient(net, Pair(params, transforms, target), made.x, made.y)
    whole = LabelledSet(torch.cat([data.x for data in own]), torch.cat([data.y for data in own]))
    _near(got, slow.dm_gradient(net, params, whole, made.x, made.y, TRANSFORMS))


def test_the_gap_of_dynafed_and_its_gradients_against_plain_loops_and_differences():
    net, start, made = _setting(1)
    target = tiny.double(tiny.params(net, 7))
    labels = torch.linspace(-1, 1, 9, dtype=torch.float64).view(3, 3)
    rate = torch.tensor(0.05, dtype=torch.float64)
    transforms = [TRANSFORMS[k] for k in range(3)]
    leaves = [each.clone().requires_grad_() for each in (made.x, labels, rate)]
    end = unrolled(net, start, *leaves, transforms)
    gap = trajectory_gap(net, start, end, target)

    def slowly(x: Tensor, soft: Tensor, eta: Tensor) -> float:
        return slow.trajectory_gap(net, start, target, x, soft, float(eta), transforms)

    assert float(gap.detach()) == pytest.approx(slowly(made.x, labels, rate), rel=1e-10)
    gradients = torch.autograd.grad(gap, leaves)
    for i, place in ((0, (1, 2, 3, 4)), (0, (0, 0, 5, 5)), (1, (2, 1)), (2, ())):
        values = []
        for sign in (1, -1):
            moved = [each.detach().clone() for each in leaves]
            moved[i][place] += sign * 1e-5
            values.append(slowly(*moved))
        assert float(gradients[i][place]) == pytest.approx((values[0] - values[1]) / 2e-5, rel=1e-4, abs=1e-9)
