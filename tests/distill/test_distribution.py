"""Distribution matching: the gradient of Eq. 1, the draws of a step, first distillation and refinement."""

import math
from collections import Counter
from dataclasses import replace
from itertools import islice

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedlgd.core.errors import DataError, DivergedError, SettingError
from fedlgd.core.losses import class_means, mean_gap
from fedlgd.core.meter import metered
from fedlgd.core.net import Net
from fedlgd.core.types import Cache, Cached, LabelledSet, Params, Site, Stream, VirtualSet
from fedlgd.distill import distribution
from fedlgd.distill.distribution import (
    Pair,
    draws,
    first_set,
    image_gradient,
    match,
    perturbed,
    real_means,
    refine_set,
    smooth_gradient,
)
from fedlgd.distill.settings import Distil
from fedlgd.methods.fedavg import FedAvg
from fedlgd.nets.registry import build_net
from fedlgd.runs.config import configure
from tests import tiny
from tests.errors import refuses
from tests.vectors import close, floats, vector

V = vector("mmd_class_mean")
PLAIN = Distil(per_class=2, steps=3, plan="exact", augment=(), lr=0.1, smooth=0)


def identity(x: Tensor) -> Tensor:
    return x


def _pixels(part: str) -> LabelledSet:
    """The vector's features as images of a net whose features are its pixels."""
    x = torch.cat([floats(V[part][k]) for k in ("0", "1")])
    return LabelledSet(x.view(-1, 1, 1, 3), torch.tensor([int(k) for k in ("0", "1") for _ in V[part][k]]))


def _linear() -> tuple[Net, Params]:
    net = build_net("tests.nets.own:Linear", (1, 1, 3), 2)
    return net, tiny.double(tiny.params(net))


def test_gradient_of_the_class_mean_gap():
    net, params = _linear()
    real, made = _pixels("real"), _pixels("syn")
    target = real_means(net, params, real, [real.of_class(0), real.of_class(1)], [identity] * 2)
    got = image_gradient(net, Pair(params, [identity] * 2, target), made.x, made.y)
    close(got.view(-1, 3), V["grad_syn"]["0"] + V["grad_syn"]["1"])


def test_gradient_of_a_class_sums_to_minus_twice_the_difference_of_means():
    net, params = _linear()
    real, made = _pixels("real"), _pixels("syn")
    target = real_means(net, params, real, [real.of_class(0), real.of_class(1)], [identity] * 2)
    got = image_gradient(net, Pair(params, [identity] * 2, target), made.x, made.y).view(-1, 3)
    for k in (0, 1):
        difference = real.x[real.y == k].mean(0) - made.x[made.y == k].mean(0)
        close(got[made.y == k].sum(0), -2 * difference.view(3))


def test_classes_do_not_touch_each_other():
    net = tiny.net()
    params, real, made = tiny.params(net), tiny.labelled(net, 4, 1), tiny.labelled(net, 2, 2)
    target = class_means(net.frozen(params, real.x).features, real.y, torch.arange(3))
    other = target.clone()
    other[1] += 1
    a, b = (image_gradient(net, Pair(params, [identity] * 3, t), made.x, made.y) for t in (target, other))
    changed = (a - b).abs().amax((1, 2, 3)) > 0
    assert changed.tolist() == [False, False, True, True, False, False]


@pytest.mark.parametrize("count", [1, 63, 64, 65, 150])
def test_real_means_do_not_depend_on_how_the_pass_is_cut(count):
    net = tiny.net()
    params = tiny.double(tiny.params(net))
    real = tiny.labelled(net, count, dtype=torch.float64)
    got = real_means(net, params, real, [real.of_class(k) for k in range(3)], [identity] * 3)
    whole = net.frozen(params, real.x).features
    close(got, torch.stack([whole[real.y == k].mean(0) for k in range(3)]))
    assert not got.requires_grad


def test_no_gradient_goes_through_the_real_branch_and_it_is_in_eval_mode():
    net = build_net("tests.nets.own:Dropping", (3, 4, 4), 3)
    leaves, real = {k: v.requires_grad_() for k, v in tiny.params(net).items()}, tiny.labelled(net)
    batches = [real.of_class(k) for k in range(3)]
    with net.training():
        got = real_means(net, leaves, real, batches, [identity] * 3)
    assert not got.requires_grad
    assert torch.equal(got, real_means(net, leaves, real, batches, [identity] * 3))


@pytest.mark.parametrize(
    ("name", "settings"), [("convnet", {"norm": "batch"}), ("resnet18", {"version": "printed"})]
)
def test_images_move_under_random_networks_with_batch_norm(name, settings):
    """Under running statistics, 0 and 1, they moved by less than a hundredth of this."""
    site, net = tiny.federation(side=16).by_name["ape"], build_net(name, (3, 16, 16), 3, settings)
    how = replace(PLAIN, steps=4, lr=1.0, width=16)
    start, moved = (first_set(site, net, replace(how, steps=steps), Stream(0)).images for steps in (0, 4))
    assert (moved - start).norm() > 0.3 * start.norm()


def test_batch_norm_sees_all_real_classes_in_one_batch():
    net = tiny.net(norm="batch")
    params, real = tiny.params(net), tiny.labelled(net, 4)
    real = LabelledSet(real.x + real.y.view(-1, 1, 1, 1), real.y)
    got = real_means(net, params, real, [real.of_class(k) for k in range(3)], [identity] * 3)
    whole = net.by_batch(params, real.x).features
    torch.testing.assert_close(got, class_means(whole, real.y, torch.arange(3)))


@pytest.mark.parametrize("augment", [(), ("color",)])
def test_refinement_under_batch_norm_moves_images_and_learns_no_statistics(augment):
    net, site = tiny.net(norm="batch"), _site()
    params = tiny.params(net)
    before = {k: v.clone() for k, v in params.items()}
    virtual = first_set(site, net, replace(PLAIN, steps=0), Stream(0))
    how = Distil(per_class=2, steps=20, lr=1.0, smooth=0, augment=augment)
    refined = refine_set(virtual, site.train, net, params, how, 0, Stream(1))
    assert (refined.images - virtual.images).norm() > 0.3 * virtual.images.norm()
    assert tiny.equal(params, before)


def test_real_means_see_the_transform_of_their_class():
    net, params = _linear()
    real = _pixels("real")
    got = real_means(net, params, real, [real.of_class(0), real.of_class(1)], [lambda x: 2 * x, lambda x: x + 1])
    close(got[0], 2 * real.x[real.y == 0].mean(0).view(3))
    close(got[1], 1 + real.x[real.y == 1].mean(0).view(3))


class Watch:
    """Listens to what each step of `match` uses."""

    def __init__(self, monkeypatch) -> None:
        self.batches, self.transforms, self.params = [], [], []
        monkeypatch.setattr(distribution, "real_features", self._real(distribution.real_features))
        monkeypatch.setattr(distribution, "image_gradient", self._images(distribution.image_gradient))

    def _real(self, wrapped):
        def real_features(net, params, real, batches, transforms):
            self.batches.append(batches)
            self.transforms.append(transforms)
            self.params.append(params)
            return wrapped(net, params, real, batches, transforms)

        return real_features

    def _images(self, wrapped):
        def image_gradient(net, pair, images, labels, *how):
            assert all(a is b for a, b in zip(pair.transforms, self.transforms[-1], strict=True))
            assert pair.params is self.params[-1]
            return wrapped(net, pair, images, labels, *how)

        return image_gradient


def _site(per_class: int = 6, name: str = "ape") -> Site:
    return tiny.federation(names=(name,), train=per_class).by_name[name]


def test_a_step_draws_real_images_of_each_class_without_replacement(monkeypatch):
    watch = Watch(monkeypatch)
    site = _site(6)
    first_set(site, tiny.net(), replace(PLAIN, real_per_class=4), Stream(0))
    assert len(watch.batches) == 3
    for step in watch.batches:
        for k, index in enumerate(step):
            assert len(index) == len(set(index.tolist())) == 4
            assert set(index.tolist()) <= set(site.train.of_class(k).tolist())
    drawn = [tuple(index.tolist()) for step in watch.batches for index in step]
    assert len({frozenset(d) for d in drawn}) > 3


def test_a_class_smaller_than_the_draw_is_taken_whole(monkeypatch):
    watch = Watch(monkeypatch)
    site = _site(6)
    first_set(site, tiny.net(), replace(PLAIN, real_per_class=256), Stream(0))
    for step in watch.batches:
        assert [sorted(index.tolist()) for index in step] == [site.train.of_class(k).tolist() for k in range(3)]


def test_every_step_and_class_draws_its_own_augmentation_shared_by_real_and_virtual(monkeypatch):
    watch = Watch(monkeypatch)
    first_set(_site(), tiny.net(), replace(PLAIN, augment=("color",)), Stream(0))
    x = torch.rand(1, 3, 8, 8)
    results = [transform(x) for step in watch.transforms for transform in step]
    assert len(results) == 9
    assert len({tuple(y.flatten().tolist()) for y in results}) == 9


def test_first_distillation_takes_a_fresh_random_net_each_step(monkeypatch):
    watch = Watch(monkeypatch)
    first_set(_site(), tiny.net(), PLAIN, Stream(0))
    weights = [p["head.weight"] for p in watch.params]
    assert len(weights) == 3
    assert not any(torch.equal(a, b) for a, b in zip(weights, weights[1:] + weights[:1], strict=True))


def test_refinement_stays_with_the_received_features(monkeypatch):
    watch = Watch(monkeypatch)
    net, site = tiny.net(), _site()
    params = tiny.params(net)
    virtual = first_set(site, net, replace(PLAIN, steps=0), Stream(0))
    refine_set(virtual, site.train, net, params, PLAIN, 7, Stream(1))
    assert len(watch.params) == 3
    assert all(p is params for p in watch.params)


def _gap(net: Net, params: Params, site: Site, virtual: VirtualSet) -> float:
    real = site.train.take(slice(None))
    classes = virtual.labels.unique()
    of_real = class_means(net.frozen(params, real.x).features, real.y, classes)
    return mean_gap(
        of_real, class_means(net.frozen(params, virtual.images).features, virtual.labels, classes)
    ).item()


def test_refinement_closes_the_gap_between_class_means():
    net, site = tiny.net(), _site()
    params = tiny.params(net)
    virtual = first_set(site, net, replace(PLAIN, steps=0), Stream(0))
    refined = refine_set(virtual, site.train, net, params, replace(PLAIN, steps=60, lr=0.3), 7, Stream(1))
    assert _gap(net, params, site, refined) < 0.3 * _gap(net, params, site, virtual)


def test_refinement_gives_a_new_set_and_changes_nothing_it_was_given():
    net, site = tiny.net(), _site()
    params = tiny.params(net)
    virtual = first_set(site, net, replace(PLAIN, steps=0), Stream(0))
    before = virtual.images.clone(), {k: v.clone() for k, v in params.items()}, site.train.x.clone()
    refined = refine_set(virtual, site.train, net, params, PLAIN, 7, Stream(1))
    assert torch.equal(virtual.images, before[0])
    assert tiny.equal(params, before[1])
    assert torch.equal(site.train.x, before[2])
    assert not any(p.requires_grad or p.grad is not None for p in params.values())
    assert (virtual.round, refined.round) == (-1, 7)
    assert refined.origin == virtual.origin == "ape"
    assert torch.equal(refined.labels, virtual.labels)
    assert not torch.equal(refined.images, virtual.images)
    assert not refined.images.requires_grad
    assert refined.images.untyped_storage().data_ptr() != virtual.images.untyped_storage().data_ptr()


def test_the_optimiser_of_the_images_starts_at_rest():
    net, site = tiny.net(), _site()
    params = tiny.params(net)
    start = first_set(site, net, replace(PLAIN, steps=0), Stream(0))

    def moved(virtual: VirtualSet, steps: int, momentum: float) -> VirtualSet:
        how = replace(PLAIN, steps=steps, momentum=momentum)
        return refine_set(virtual, site.train, net, params, how, 0, Stream(1))

    for momentum, alike in ((0.0, True), (0.5, False)):
        twice = moved(moved(start, 1, momentum), 1, momentum)
        assert torch.equal(twice.images, moved(start, 2, momentum).images) == alike


def test_pixels_are_not_clipped():
    net, site = tiny.net(), _site()
    got = first_set(site, net, replace(PLAIN, start="noise", steps=0), Stream(0))
    assert got.images.abs().max() > 2
    moved = first_set(site, net, replace(PLAIN, lr=50.0), Stream(0))
    assert moved.images.abs().max() > 5


def test_a_first_set_is_sorted_by_class_and_knows_its_origin():
    got = first_set(_site(name="bee"), tiny.net(), PLAIN, Stream(0))
    assert got.labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert got.images.shape == (6, 3, 8, 8)
    assert got.images.dtype == torch.float32
    assert (got.origin, got.round) == ("bee", -1)


@pytest.mark.parametrize("start", ["statistics", "noise", "real"])
def test_no_steps_keep_the_start(start):
    site, net = _site(6), tiny.net()
    got = first_set(site, net, replace(PLAIN, steps=0, start=start, start_scale=0.0, per_class=6), Stream(0))
    real = site.train.take(slice(None)).x
    if start == "real":
        assert torch.equal(got.images.flatten(1).sum(1).sort().values, real.flatten(1).sum(1).sort().values)
    elif start == "noise":
        assert abs(got.images.mean()) < 0.1
        assert abs(got.images.std() - 1) < 0.1
    else:
        for k in range(3):
            wanted = real[site.train.y == k].mean((0, 2, 3))
            torch.testing.assert_close(got.images[got.labels == k][0, :, 0, 0], wanted, rtol=1e-5, atol=1e-5)


def test_distillation_is_addressed():
    site, net = _site(), tiny.net()
    how = Distil(per_class=2, steps=2, real_per_class=3)
    a, b, c = (first_set(site, net, how, Stream(s)).images for s in (0, 0, 1))
    assert torch.equal(a, b)
    assert not torch.equal(a, c)


def test_distillation_leaves_the_global_generator_alone():
    before = torch.random.get_rng_state()
    first_set(_site(), tiny.net(), Distil(per_class=2, steps=2, real_per_class=3), Stream(0))
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_class_the_site_lacks_gets_no_virtual_images():
    site = tiny.federation(missing={"bee": 1}).by_name["bee"]
    got = first_set(site, tiny.net(), PLAIN, Stream(0))
    assert got.labels.tolist() == [0, 0, 2, 2]
    assert torch.isfinite(got.images).all()


def test_too_few_images_to_distil_from_is_an_error():
    with refuses("class-smaller-than-virtual", DataError):
        first_set(_site(6), tiny.net(), replace(PLAIN, per_class=7, short="refuse"), Stream(0))


def test_random_networks_can_be_of_another_family():
    site, task = _site(), build_net("tests.nets.own:Linear", (3, 8, 8), 3)
    how = replace(PLAIN, steps=1)
    by_name = first_set(site, task, replace(how, net="convnet"), Stream(0))
    convnet = first_set(site, build_net("convnet", (3, 8, 8), 3), how, Stream(0))
    assert torch.equal(by_name.images, convnet.images)
    assert not torch.equal(by_name.images, first_set(site, task, how, Stream(0)).images)


def test_flops_are_one_pass_per_real_and_two_per_virtual_image():
    net, data = tiny.net(), tiny.federation(names=("ape",), train=6)
    site = data.by_name["ape"]
    keep = torch.cat([site.train.of_class(0)[:2], site.train.of_class(1), site.train.of_class(2)])
    uneven = replace(site, train=replace(site.train, x=site.train.x[keep], y=site.train.y[keep]))
    with metered() as meter:
        first_set(uneven, net, replace(PLAIN, steps=5, real_per_class=4, augment=("color", "crop")), Stream(0))
    assert dict(meter.flops) == {"distil": 5 * (2 + 4 + 4 + 2 * 6) * tiny.forward_flops()}


class Box(dict):
    """A cache in memory."""

    def put(self, key: str, item: Cached) -> None:
        self[key] = item


def test_a_cache_gives_the_same_images_and_charges_the_same_work():
    site, net, box = _site(), tiny.net(), Box()
    prices, images = [], []
    for cache in (Cache(), box, box):
        with metered() as meter:
            got = first_set(replace(site, cache=cache), net, PLAIN, Stream(0))
        prices.append(dict(meter.flops))
        images.append(got.images)
    assert prices[0] == prices[1] == prices[2]
    assert prices[0]["distil"] > 0
    assert torch.equal(images[0], images[1])
    assert torch.equal(images[1], images[2])
    assert len(box) == 1


def test_a_cache_keeps_apart_what_was_made_from_something_else():
    box = Box()
    net, site = tiny.net(), _site()
    other = replace(site, train=replace(site.train, x=255 - site.train.x))
    for s, n, how, rng in (
        (site, net, PLAIN, Stream(0)),
        (other, net, PLAIN, Stream(0)),
        (site, tiny.net(width=5), PLAIN, Stream(0)),
        (site, net, replace(PLAIN, lr=0.2), Stream(0)),
        (site, net, replace(PLAIN, augment=("crop",)), Stream(0)),
        (site, net, PLAIN, Stream(1)),
        (site, net, PLAIN, Stream(0).at("x")),
    ):
        first_set(replace(s, cache=box), n, how, rng)
    assert len(box) == 7


def test_a_cache_is_not_asked_to_compute_again():
    box = Box()
    site, net = replace(_site(), cache=box), tiny.net()
    first_set(site, net, PLAIN, Stream(0))
    (key,) = box
    box[key] = Cached(tensor=torch.full((6, 3, 8, 8), 7.0), seconds={}, cpu={}, flops={})
    assert torch.equal(first_set(site, net, PLAIN, Stream(0)).images, torch.full((6, 3, 8, 8), 7.0))


def test_images_that_are_not_square_are_cut_everywhere():
    net = build_net("tests.nets.own:Linear", (3, 8, 24), 3)
    real = tiny.labelled(net)
    how = Distil(per_class=2, steps=1, smooth=0, augment=("cutout",))
    params = tiny.params(net)
    start = torch.zeros_like(real.x)
    cut = torch.zeros(24)
    for seed in range(60):
        moved = match(start, real.y, real, net, lambda _: params, how, Stream(seed))
        cut += (moved == 0).any(0).any(0).any(0)
    assert cut[:8].min() > 0
    assert cut[-4:].min() > 0


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({"per_class": 0}, "per_class"),
        ({"real_per_class": 0}, "real_per_class"),
        ({"steps": -1}, "steps"),
        ({"augment": ("color", "blur")}, "blur"),
    ],
)
def test_senseless_settings_are_refused_by_name(values, name):
    with pytest.raises(SettingError, match=name):
        Distil(**values)


def test_the_preset_of_the_paper_is_the_specifications():
    how = configure(FedAvg, "paper").distil
    assert (how.plan, how.width) == ("exact", 0)
    assert (how.per_class, how.steps, how.real_per_class) == (10, 10_000, 256)
    assert (how.lr, how.momentum, how.start, how.statistics) == (1.0, 0.5, "statistics", "class")
    assert set(how.augment) == {"color", "crop", "cutout", "scale", "rotate"}
    assert how.net == "same"


# The bank


BANK = replace(PLAIN, plan="bank", pairs=2, reuse=3, steps=12, augment=("color",))


def _drawn(how: Distil, steps: int) -> list[int]:
    """Which pair each step takes, by its number in the order of drawing."""
    site, net = _site(), tiny.net()
    found = draws(torch.arange(3), site.train, net, lambda i: {**net.init(Stream(i))}, how, Stream(0))
    numbers: dict[int, int] = {}
    taken = list(islice(found, steps))  # all alive at once, so that no address is used twice
    return [numbers.setdefault(id(pair.params), len(numbers)) for pair in taken]


def test_a_bank_goes_round_its_pairs_and_then_draws_others():
    assert _drawn(BANK, 12) == [0, 1, 0, 1, 0, 1, 2, 3, 2, 3, 2, 3]


def test_no_more_pairs_are_drawn_than_the_steps_need(monkeypatch):
    watch = Watch(monkeypatch)
    how = replace(BANK, pairs=10, steps=7)
    assert _drawn(how, 7) == [0, 1, 2, 0, 1, 2, 0]
    assert len(watch.batches) == 3


@given(steps=st.integers(0, 40), held=st.integers(1, 6), reuse=st.integers(1, 6))
@settings(max_examples=20, deadline=None)
def test_there_is_a_pair_for_every_step_and_none_serves_too_often(steps, held, reuse):
    numbers = _drawn(replace(BANK, pairs=held, reuse=reuse, steps=steps), steps)
    assert len(numbers) == steps
    assert max(Counter(numbers).values(), default=0) <= reuse
    assert len(set(numbers)) == math.ceil(steps / reuse)


def test_a_bank_of_one_pair_used_once_is_the_exact_plan():
    site, net = _site(), tiny.net()
    exact = replace(PLAIN, augment=("color", "crop"), steps=5)
    bank = replace(exact, plan="bank", pairs=1, reuse=1)
    assert torch.equal(first_set(site, net, exact, Stream(0)).images, first_set(site, net, bank, Stream(0)).images)


def test_a_pair_holds_the_real_means_under_its_own_net_and_augmentation():
    site, net = _site(), tiny.net()
    for pair in draws(torch.arange(3), site.train, net, lambda i: net.init(Stream(i)), BANK, Stream(0)):
        images = [pair.transforms[k](site.train.take(site.train.of_class(k)).x) for k in range(3)]
        wanted = torch.stack([net.frozen(pair.params, x).features.mean(0) for x in images])
        torch.testing.assert_close(pair.target, wanted)


def test_without_augmentation_refinement_matches_whole_classes_once(monkeypatch):
    watch = Watch(monkeypatch)
    site, net = _site(9), tiny.net()
    how = replace(BANK, augment=(), real_per_class=2)
    virtual = first_set(site, net, replace(how, steps=0), Stream(0))
    refine_set(virtual, site.train, net, tiny.params(net), how, 7, Stream(1))
    assert [[len(index) for index in batch] for batch in watch.batches] == [[9, 9, 9]]


def test_a_bank_lowers_the_gap_as_the_exact_plan_does():
    site, net = _site(30), tiny.net(width=8)
    params = tiny.params(net)
    classes = torch.arange(3)
    target = real_means(net, params, site.train, [site.train.of_class(k) for k in range(3)], [identity] * 3)

    def gap(images: Tensor, labels: Tensor) -> float:
        return mean_gap(target, class_means(net.frozen(params, images).features, labels, classes)).item()

    start = first_set(site, net, replace(BANK, steps=0), Stream(0))
    ends = [
        refine_set(start, site.train, net, params, replace(BANK, plan=plan, steps=30, lr=0.3), 0, Stream(1))
        for plan in ("bank", "exact")
    ]
    before, bank, exact = (gap(v.images, v.labels) for v in (start, *ends))
    assert max(bank, exact) < 0.5 * before


# Narrow networks


def test_random_networks_are_as_narrow_as_asked_and_the_task_keeps_its_own(monkeypatch):
    watch = Watch(monkeypatch)
    first_set(_site(), tiny.net(width=16), replace(PLAIN, width=4), Stream(0))
    assert {p["blocks.0.weight"].shape[0] for p in watch.params} == {4}
    watch.params.clear()
    first_set(_site(), tiny.net(width=16), replace(PLAIN, width=32), Stream(0))
    first_set(_site(), tiny.net(width=16), replace(PLAIN, width=0), Stream(0))
    assert {p["blocks.0.weight"].shape[0] for p in watch.params} == {16}


def test_fewer_features_take_longer_strides(monkeypatch):
    """Eq. 1 sums over features: a quarter of them gives a quarter of the gradient, and more noise."""
    lrs = []
    monkeypatch.setattr(distribution, "match", lambda images, *rest: (lrs.append(rest[4].lr), images)[1])
    for width in (16, 4, 1):
        first_set(_site(), tiny.net(width=16), replace(PLAIN, width=width, lr=0.5), Stream(0))
    assert lrs == [0.5, 1.0, 2.0]


def test_a_family_without_a_width_stays_as_it_is():
    site, net = _site(), build_net("tests.nets.own:Linear", (3, 8, 8), 3)
    a, b = (first_set(site, net, replace(PLAIN, width=width), Stream(0)).images for width in (0, 1))
    assert torch.equal(a, b)


def test_smooth_steps_are_steps_along_the_smoothed_gradient():
    net = tiny.net()
    real = tiny.labelled(net)
    params, start = tiny.params(net), torch.randn_like(real.x)
    how = replace(PLAIN, steps=1)
    plain, smooth = (
        match(start, real.y, real, net, lambda _: params, replace(how, smooth=strength), Stream(0)) - start
        for strength in (0.0, 1.5)
    )
    torch.testing.assert_close(smooth, smooth_gradient(plain, 1.5))
    assert not torch.allclose(smooth, plain)


def test_a_virtual_set_that_is_not_finite_names_the_learning_rate_of_the_pixels():
    how = replace(PLAIN, lr=1e38, steps=4)
    with refuses("distillation-diverged", DivergedError, lr=1e38):
        first_set(_site(), tiny.net(), how, Stream(0))
    start = first_set(_site(), tiny.net(), replace(how, steps=0), Stream(0))
    params = tiny.net().init(Stream(0))
    with refuses("distillation-diverged", DivergedError):
        refine_set(start, _site().train, tiny.net(), params, how, 0, Stream(0))


# Networks around a model


def test_a_perturbed_network_is_on_the_sphere_around_the_model_and_keeps_its_buffers():
    net = tiny.net(norm="batch")
    theta = tiny.params(net)
    for radius in (0.1, 5.0):
        w = perturbed(net, theta, radius, Stream(3).at("net", 0))
        moved = {name: (w[name] - theta[name]).double() for name in net.trainable}
        assert math.sqrt(sum(float(each.square().sum()) for each in moved.values())) == pytest.approx(
            radius, rel=1e-4
        )
        assert all(bool(each.any()) for each in moved.values())
        assert w.keys() == theta.keys()
        assert all(torch.equal(w[name], theta[name]) for name in theta.keys() - net.trainable)
    again, other = (perturbed(net, theta, 5.0, Stream(3).at("net", i)) for i in (0, 1))
    assert tiny.equal(w, again)
    assert not tiny.equal(w, other)


def test_a_radius_above_that_of_the_draw_leaves_the_draw_and_a_radius_of_zero_the_model():
    net = tiny.net()
    theta = tiny.params(net)
    assert perturbed(net, theta, 0.0, Stream(3)) is theta
    inside, far = (perturbed(net, theta, radius, Stream(3)) for radius in (1e3, 1e6))
    assert tiny.equal(inside, far)
    assert 0.9 < torch.cat([(inside[n] - theta[n]).flatten() for n in net.trainable]).std() < 1.1
