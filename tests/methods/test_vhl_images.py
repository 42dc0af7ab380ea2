"""Virtual images that no data went into: one set for one address, classes that differ, any size."""

import pytest
import torch

from fedlgd.core.types import Stream
from fedlgd.methods.vhl import from_class_noise, from_style

SOURCES = {"style": from_style, "noise": from_class_noise}
every_source = pytest.mark.parametrize("make", SOURCES.values(), ids=SOURCES.keys())


@every_source
def test_one_address_gives_one_set_whatever_the_global_generator(make):
    torch.default_generator.manual_seed(1)
    a = make(3, 2, (3, 8, 8), Stream(0).at("here"))
    torch.default_generator.manual_seed(2)
    before = torch.get_rng_state()
    b = make(3, 2, (3, 8, 8), Stream(0).at("here"))
    assert torch.equal(a, b)
    assert torch.equal(before, torch.get_rng_state())
    assert not torch.equal(a, make(3, 2, (3, 8, 8), Stream(0).at("there")))
    assert not torch.equal(a, make(3, 2, (3, 8, 8), Stream(1).at("here")))


SHAPES = [(3, 8, 8), (1, 28, 28), (3, 32, 32), (3, 33, 33), (3, 5, 7), (3, 20, 12), (3, 3, 3), (1, 4, 4)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@every_source
def test_any_image_size_will_do(make, shape):
    _check(make(2, 2, shape, Stream(0)), shape)


@pytest.mark.parametrize("shape", [(3, 2, 2), (1, 1, 1), (1, 2, 1)], ids=str)
@pytest.mark.parametrize("make", [from_style, from_class_noise], ids=SOURCES.keys())
def test_even_a_few_pixels_will_do(make, shape):
    _check(make(2, 2, shape, Stream(0)), shape)


@every_source
def test_images_of_the_retina_suite(make):
    """96 is no power of two times 4: made at 128 and resized."""
    _check(make(2, 1, (3, 96, 96), Stream(0)), (3, 96, 96))


def _check(images: torch.Tensor, shape: tuple[int, int, int]) -> None:
    assert images.shape[1:] == shape
    assert images.dtype == torch.float32
    assert torch.isfinite(images).all()
    assert images.min() >= -1
    assert images.max() <= 1
    assert images.std() > 0.1


@every_source
def test_pixels_have_the_mean_and_spread_of_ordinary_images(make):
    images = make(10, 5, (3, 16, 16), Stream(0))
    assert abs(images.mean()) < 0.1
    assert 0.4 < images.std() < 0.55
    assert ((images == 1) | (images == -1)).float().mean() < 0.1


@pytest.mark.parametrize("shape", [(3, 8, 8), (3, 28, 28), (1, 20, 13)], ids=str)
@every_source
def test_classes_can_be_told_apart(make, shape):
    """Two images of one class are nearer than two of different ones, for every pair of classes on average."""
    classes, per_class = 6, 6
    x = make(classes, per_class, shape, Stream(0)).flatten(1)
    y = torch.arange(classes).repeat_interleave(per_class)
    gap = torch.cdist(x, x)
    for k in range(classes):
        inside = gap[y == k][:, y == k].sum() / (per_class * (per_class - 1))
        assert inside > 0.1
        for other in range(classes):
            if other != k:
                assert inside < gap[y == k][:, y == other].mean()
    centres = torch.stack([x[y == k].mean(0) for k in range(classes)])
    assert (torch.cdist(x, centres).argmin(1) == y).float().mean() > 0.9


@every_source
def test_images_come_sorted_by_class(make):
    x = make(4, 3, (3, 8, 8), Stream(0)).view(4, 3, -1)
    inside = (x - x.mean(1, keepdim=True)).square().sum(2).mean()
    mixed = x.transpose(0, 1).reshape(4, 3, -1)
    assert inside < (mixed - mixed.mean(1, keepdim=True)).square().sum(2).mean()


@every_source
def test_images_are_smooth_like_images_and_unlike_white_noise(make):
    x = make(3, 4, (3, 32, 32), Stream(0))
    neighbours = (x[..., 1:] - x[..., :-1]).square().mean()
    assert neighbours < 0.5 * 2 * x.var()


@every_source
def test_classes_differ_by_more_than_a_shift(make):
    """What an image has beside its class mean is its own, not repeated in other classes."""
    x = make(4, 3, (3, 8, 8), Stream(0)).view(4, 3, -1)
    rest = (x - x.mean(1, keepdim=True)).flatten(1)
    likeness = torch.corrcoef(rest)
    assert (likeness - torch.eye(4)).abs().max() < 0.5
