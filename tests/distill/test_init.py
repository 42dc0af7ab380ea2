"""Where virtual images start."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from fedlgd.core.errors import DataError
from fedlgd.core.types import LabelledSet, Scale, Stream
from fedlgd.distill.init import (
    IMAGES_IN_MEAN,
    class_statistics,
    from_clusters,
    from_neighbours,
    from_noise,
    from_real,
    from_statistics,
    labels_for,
    virtual_numbers,
)
from fedlgd.distill.settings import Distil
from tests.errors import refuses
from tests.vectors import close, floats, vector

V = vector("class_statistics")
DATA = LabelledSet(floats(V["images"]), torch.tensor(V["labels"]))


@pytest.mark.parametrize("k", [0, 1])
def test_statistics_divide_by_the_pixels_of_the_class(k):
    got = class_statistics(DATA, [k])
    close(got[0], [V["per_class"][str(k)]["mean"], V["per_class"][str(k)]["std"]])


@pytest.mark.parametrize("k", [0, 1])
def test_statistics_over_the_site_divide_by_the_size_of_the_whole_set_as_released(k):
    got = class_statistics(DATA, [k], over="site")
    close(got[0], [V["per_class"][str(k)]["buggy_mean"], V["per_class"][str(k)]["buggy_std"]])


def test_statistics_come_in_the_order_of_the_classes():
    close(class_statistics(DATA, [1, 0]), class_statistics(DATA, [0, 1]).flip(0))


def test_statistics_are_in_network_input_space():
    pixels = torch.randint(256, (4, 3, 2, 2), dtype=torch.uint8, generator=Stream(0).generator())
    scale = Scale((0.1, 0.2, 0.3), (0.5, 0.4, 0.3))
    mean, std = class_statistics(LabelledSet(pixels, torch.zeros(4, dtype=torch.int64), scale), [0])[0]
    x = (pixels.double() / 255 - floats(scale.mean).view(3, 1, 1)) / floats(scale.std).view(3, 1, 1)
    torch.testing.assert_close(mean, x.mean((0, 2, 3)), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(std, x.std((0, 2, 3), correction=0), rtol=1e-6, atol=1e-6)


def test_constant_images_have_no_spread():
    data = LabelledSet(torch.full((3, 3, 4, 4), 0.1), torch.zeros(3, dtype=torch.int64))
    assert torch.isfinite(class_statistics(data, [0])).all()
    assert class_statistics(data, [0])[0, 1].max() < 1e-6


def test_a_statistics_start_draws_each_class_and_channel_from_its_own_normal():
    wanted = floats([[[1.0, 2.0, 3.0], [0.1, 0.2, 0.3]], [[-1.0, 0.0, 5.0], [1.0, 2.0, 0.0]]])
    images = from_statistics(wanted, 20, (16, 16), 1.0, Stream(0).generator())
    assert images.shape == (40, 3, 16, 16)
    assert images.dtype == torch.float32
    for k in (0, 1):
        part = images[20 * k : 20 * k + 20].double()
        torch.testing.assert_close(part.mean((0, 2, 3)), wanted[k, 0], rtol=0, atol=0.12)
        torch.testing.assert_close(part.std((0, 2, 3)), wanted[k, 1], rtol=0.05, atol=1e-6)


def test_pixels_are_independent_not_maps():
    images = from_statistics(floats([[[0.0], [1.0]]]), 500, (2, 2), 1.0, Stream(0).generator())
    correlation = torch.corrcoef(images.flatten(1).T)
    assert (correlation - torch.eye(4)).abs().max() < 0.15


def test_the_scale_of_a_start_shrinks_the_spread_and_not_the_mean():
    statistics = class_statistics(DATA, [0, 1])
    one, tenth, none = (from_statistics(statistics, 3, (4, 4), s, Stream(0).generator()) for s in (1.0, 0.1, 0.0))
    torch.testing.assert_close(tenth - none, (one - none) * 0.1, rtol=1e-4, atol=1e-6)
    means = statistics[:, 0].float().repeat_interleave(3, 0)[:, :, None, None].expand(6, 3, 4, 4)
    assert torch.equal(none, means)


def test_a_noise_start_is_standard_normal():
    images = from_noise(50, (3, 12, 12), Stream(0).generator())
    assert images.shape == (50, 3, 12, 12)
    assert images.mean().abs() < 0.02
    assert (images.std() - 1).abs() < 0.02


def test_a_real_start_takes_different_images_of_the_right_class():
    pixels = torch.arange(20, dtype=torch.uint8).view(20, 1, 1, 1).expand(20, 3, 2, 2)
    data = LabelledSet(pixels, torch.arange(20) % 4)
    images = from_real(data, [3, 1], 4, Stream(0).generator())
    assert images.dtype == torch.float32
    numbers = (data.scale.to_pixels(images)[:, 0, 0, 0]).tolist()
    assert all(n % 4 == 3 for n in numbers[:4])
    assert all(n % 4 == 1 for n in numbers[4:])
    assert len(set(numbers)) == 8


def test_kmeans_picks_one_real_image_near_the_centre_of_each_cluster():
    middles = torch.tensor([0, 100, 200])
    pixels = (middles[:, None] + torch.tensor([0, 3, 4, 5, 8])).flatten().to(torch.uint8)
    data = LabelledSet(pixels.view(15, 1, 1, 1).expand(15, 3, 2, 2), torch.zeros(15, dtype=torch.int64))
    images = from_clusters(data, [0], 3, Stream(0).generator())
    assert sorted(data.scale.to_pixels(images)[:, 0, 0, 0].tolist()) == [4, 104, 204]


@given(st.integers(0, 2**31), st.integers(1, 6))
def test_kmeans_picks_are_different_images_of_the_right_class(seed, count):
    x = torch.rand(24, 1, 3, 3, generator=Stream(seed).generator())
    x[::5] = x[0]  # several images are equal
    data = LabelledSet(x, torch.arange(24) % 2)
    images = from_clusters(data, [1, 0], count, Stream(seed).generator())
    own = [
        [i for i in range(24) if torch.equal(x[i], image) and i % 2 == k]
        for image, k in zip(images, [1] * count + [0] * count, strict=True)
    ]
    assert all(own)
    numbers = sorted(map(tuple, own))
    assert all(numbers.count(each) <= len(each) for each in numbers)


def test_a_real_start_shares_no_memory_with_the_real_images():
    data = LabelledSet(torch.rand(4, 3, 2, 2), torch.zeros(4, dtype=torch.int64))
    before = data.x.clone()
    from_real(data, [0], 4, Stream(0).generator()).zero_()
    assert torch.equal(data.x, before)


def test_labels_are_sorted_by_class():
    assert labels_for([0, 2, 5], 2).tolist() == [0, 0, 2, 2, 5, 5]
    assert labels_for(range(2), 1).dtype == torch.int64


def test_classes_a_site_lacks_are_left_out():
    data = LabelledSet(torch.zeros(5, 3, 1, 1), torch.tensor([0, 0, 3, 3, 3]))
    assert virtual_numbers(data, 5, Distil(per_class=2), "ape") == {0: 2, 3: 2}


def test_fewer_images_than_are_to_be_distilled_is_an_error_with_a_way_out():
    data = LabelledSet(torch.zeros(5, 3, 1, 1), torch.tensor([0, 0, 3, 3, 3]))
    with refuses("class-smaller-than-virtual", DataError, site="ape", count=2, label=0, per_class=3):
        virtual_numbers(data, 5, Distil(per_class=3, short="refuse"), "ape")
    with refuses("class-smaller-than-virtual", DataError, count=2, per_class=2, way_out="distil.tiles=1"):
        virtual_numbers(data, 5, Distil(per_class=2, short="refuse", start="real", tiles=2), "ape")


def test_a_mean_of_neighbours_is_the_mean_of_the_eight_most_similar_images():
    x = torch.randn(30, 3, 5, 5, generator=Stream(0).generator())
    data = LabelledSet(x, torch.arange(30) % 2)
    got = from_neighbours(data, [1], 4, Stream(1).generator())
    mine = x[1::2]
    coarse = F.avg_pool2d(mine, 2, ceil_mode=True).flatten(1)
    groups = [torch.corrcoef(coarse)[i].topk(IMAGES_IN_MEAN).indices for i in range(len(mine))]
    means = torch.stack([mine[group].mean(0) for group in groups])
    assert got.shape == (4, 3, 5, 5)
    assert (torch.cdist(got.flatten(1), means.flatten(1)).min(1).values < 1e-5).all()


def test_no_mean_of_neighbours_is_a_single_image_and_a_small_class_is_its_mean():
    x = torch.randn(12, 3, 4, 4, generator=Stream(0).generator())
    data = LabelledSet(x, torch.tensor([0] * 9 + [1] * 3))
    got = from_neighbours(data, [0, 1], 2, Stream(1).generator())
    torch.testing.assert_close(got[2:], x[9:].mean(0).expand(2, -1, -1, -1))
    assert torch.cdist(got.flatten(1), x.flatten(1)).min() > 1
